"""Threads that send large answers beside the event loop, over real sockets and files: compiled, as they are."""

from __future__ import annotations

import asyncio
import math
import os
import random
import selectors
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener, until

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.listeners.kafka import send_threads as send_threads_module
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.listeners.kafka.send_threads import THREADS
from semel.broker.log.open_files import SharedFile
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.wire import Part
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import FileRange, StorageFile

send_thread = pytest.importorskip("semel.broker.listeners.kafka.send_thread", reason="nothing is compiled")

WAIT_S = 30
JOBS = 1024
CONTENT = random.Random(1).randbytes(4 << 20)


@pytest.fixture
def file(tmp_path: Path) -> StorageFile:
    opened = DiskStorage().open(str(tmp_path / "content"), create=True)
    opened.append([CONTENT])
    return opened


@pytest.fixture
def thread() -> Iterator[send_thread.SendThread]:
    made = send_thread.SendThread()
    yield made
    made.close()


class Pair:
    """Two ends of a connection: what comes to the other one is read when it is asked for."""

    def __init__(self) -> None:
        self.own, self.other = socket.socketpair()
        self.own.setblocking(False)
        self.other.settimeout(WAIT_S)

    def read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size and (more := self.other.recv(min(1 << 18, size - len(received)))):
            received += more
        return bytes(received)

    def rest(self) -> bytes:
        """Read to the end, which the own end makes here."""
        self.own.close()
        received = bytearray()
        while more := self.other.recv(1 << 18):
            received += more
        return bytes(received)

    def close(self) -> None:
        self.own.close()
        self.other.close()


@contextmanager
def pairs(count: int) -> Iterator[list[Pair]]:
    made = [Pair() for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def readable(descriptor: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        assert selector.select(WAIT_S), "nothing was told"


def outcome_of(thread: send_thread.SendThread, job: int) -> tuple[int, int]:
    """Wait until a job is done, as the loop does: by being told."""
    while (outcome := thread.finish(job)) is None:
        readable(thread.fileno())
        thread.finished()
    return outcome


def whole(parts: Sequence[Part]) -> bytes:
    return b"".join(part.read() if isinstance(part, FileRange) else bytes(part) for part in parts)


def some_parts(file: StorageFile, chance: random.Random) -> list[Part]:
    """An answer of a few partitions, of all kinds of memory."""
    parts: list[Part] = [chance.randbytes(chance.randrange(1, 100))]
    for _ in range(chance.randrange(1, 5)):
        position = chance.randrange(0, 2 << 20)
        parts.append(FileRange(file, position, chance.choice((0, 1, 1000, 300_000, 2 << 20))))
        parts.append(chance.choice((bytes, bytearray, memoryview))(chance.randbytes(chance.randrange(0, 50))))
    return parts


def nobody() -> None:
    raise AssertionError("this one was told of")


# --- A thread ---------------------------------------------------------------------------------------------------------


def test_each_reader_gets_what_was_meant_for_it(thread: send_thread.SendThread, file: StorageFile) -> None:
    """Many at once, fast and slow ones, several answers one after the other on each connection."""
    failures: list[object] = []

    def read(pair: Pair, expected: list[bytes], chance: random.Random) -> None:
        for answer in expected:
            left = answer
            while left:
                size = min(len(left), chance.choice((10, 10_000, 1 << 20)))
                if pair.read(size) != left[:size]:
                    failures.append(pair)
                    return
                left = left[size:]

    with pairs(12) as connections:
        answers = [[some_parts(file, random.Random(f"{n} {k}")) for k in range(8)] for n in range(len(connections))]
        readers = [
            threading.Thread(target=read, args=(pair, [whole(each) for each in mine], random.Random(n)))
            for n, (pair, mine) in enumerate(zip(connections, answers, strict=True))
        ]
        for reader in readers:
            reader.start()
        for round_ in zip(*answers, strict=True):
            jobs = [
                thread.submit(pair.own.fileno(), parts, lambda: None)
                for pair, parts in zip(connections, round_, strict=True)
            ]
            for job, parts in zip(jobs, round_, strict=True):
                sent, of_files = outcome_of(thread, job)
                assert sent == len(whole(parts))
                assert of_files == sum(part.size for part in parts if isinstance(part, FileRange))
        for reader in readers:
            reader.join(WAIT_S)
    assert not failures
    assert thread.unfinished == 0


def test_S3_a_reader_that_takes_nothing_holds_up_nobody(thread: send_thread.SendThread, file: StorageFile) -> None:
    with pairs(40) as connections:
        *stuck, lively = connections
        for pair in stuck:
            assert thread.submit(pair.own.fileno(), [FileRange(file, 0, 4 << 20)], nobody) >= 0
        for _ in range(5):
            job = thread.submit(lively.own.fileno(), [FileRange(file, 0, 1 << 20)], lambda: None)
            assert lively.read(1 << 20) == CONTENT[: 1 << 20]
            assert outcome_of(thread, job) == (1 << 20, 1 << 20)
        assert thread.unfinished == len(stuck)
        assert stuck[7].read(4 << 20) == CONTENT, "it continues once it takes something again"


def test_after_cancel_nothing_more_is_sent(thread: send_thread.SendThread, file: StorageFile) -> None:
    """The socket may be closed then, and its number be another connection's: at any moment of a job."""
    chance = random.Random(3)
    for _ in range(300):
        with pairs(1) as (pair,):
            job = thread.submit(pair.own.fileno(), [b"head", FileRange(file, 0, 1 << 20)], lambda: None)
            received = pair.read(chance.choice((0, 1, 100_000, 900_000)))
            if chance.random() < 0.3:
                thread.finish(job)
            sent, _ = thread.cancel(job) if thread.sent(job) < 4 + (1 << 20) else (4 + (1 << 20), 0)
            received += pair.rest()
            assert len(received) == sent
            assert (b"head" + CONTENT).startswith(received)


def test_a_job_that_is_done_is_told_of_once_and_only_where_somebody_waits(
    thread: send_thread.SendThread, file: StorageFile
) -> None:
    told: list[str] = []
    with pairs(2) as (first, second):
        quiet = thread.submit(first.own.fileno(), [b"abc"], nobody)
        assert first.read(3) == b"abc"
        job = thread.submit(second.own.fileno(), [FileRange(file, 0, 4 << 20)], lambda: told.append("second"))
        assert thread.finish(job) is None, "nobody reads yet"
        second.read(4 << 20)
        readable(thread.fileno())
        for when_told in thread.finished():
            when_told()
        assert told == ["second"]
        assert thread.finished() == []
        assert thread.finish(job) == (4 << 20, 4 << 20)
        assert outcome_of(thread, quiet) == (3, 0)


@pytest.mark.parametrize("fault", ["the peer is gone", "the file is shorter"])
def test_a_job_that_fails_is_told_of_at_once(thread: send_thread.SendThread, file: StorageFile, fault: str) -> None:
    told: list[str] = []
    with pairs(1) as (pair,):
        if fault == "the peer is gone":
            pair.other.close()
        else:
            file.truncate(1000)
        job = thread.submit(pair.own.fileno(), [FileRange(file, 0, 1 << 20)], lambda: told.append(fault))
        readable(thread.fileno())
        for when_told in thread.finished():
            when_told()
        assert told == [fault]
        with pytest.raises(BrokenPipeError if fault == "the peer is gone" else OSError, match=r"pipe|file ends before"):
            thread.finish(job)
        assert thread.unfinished == 0


def test_S2_what_a_thread_does_not_take(thread: send_thread.SendThread, file: StorageFile) -> None:
    in_memory = SimulatedStorage().open("f", create=True)
    in_memory.append([bytes(10)])
    with pairs(1) as (pair,):
        own = pair.own.fileno()
        assert thread.submit(own, [b"x"] * 25, nobody) == -1, "too many parts"
        assert thread.submit(own, [b"x", FileRange(in_memory, 0, 10)], nobody) == -1, "a file of a simulated disk"
        assert thread.submit(own, [b"", FileRange(file, 0, 0)], nobody) == -1, "nothing"
        taken = [thread.submit(own, [FileRange(file, 0, 4 << 20)], nobody) for _ in range(JOBS + 1)]
        assert sorted(taken) == list(range(-1, JOBS)), "so many at once, each in a place of its own"
        for job in taken[:-1]:
            thread.cancel(job)
        assert thread.submit(own, [b"x"], nobody) >= 0


def test_a_thread_that_is_closed_sends_no_more(file: StorageFile) -> None:
    thread = send_thread.SendThread()
    with pairs(1) as (pair,):
        job = thread.submit(pair.own.fileno(), [FileRange(file, 0, 4 << 20)], nobody)
        thread.close()
        thread.close()
        assert CONTENT.startswith(pair.rest())
        assert (thread.cancel(job), thread.unfinished, thread.finished(), thread.fileno()) == ((0, 0), 0, [], -1)
        assert thread.submit(0, [b"x"], nobody) == -1
        with pytest.raises(OSError, match="has ended"):
            thread.finish(job)


def test_a_file_stays_open_while_it_is_sent(thread: send_thread.SendThread, tmp_path: Path) -> None:
    """Retention may delete a segment meanwhile, which closes it when nobody holds it any more."""
    path = tmp_path / "deleted"
    path.write_bytes(CONTENT)
    with pairs(1) as (pair,):
        segment = SharedFile(DiskStorage().open(str(path)))
        job = thread.submit(pair.own.fileno(), [FileRange(segment, 0, 4 << 20)], lambda: None)
        del segment
        path.unlink()
        assert pair.read(4 << 20) == CONTENT
        outcome_of(thread, job)
    assert f"{path} (deleted)" not in open_files(), "it is let go of then"


def open_files() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(descriptor))
    return found


# --- A listener -------------------------------------------------------------------------------------------------------


@pytest.fixture
def always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_threads_module, "_several_cores", lambda: True)
    monkeypatch.setattr(send_threads_module, "BUSY_S", math.inf)


def whole_partition() -> FetchRequest:
    return FetchRequest([FetchPartition("t", ZERO_TOPIC_ID, 0, 0, 8 << 20)], 0, max_bytes=8 << 20)


def partition_of(node: FakeNode, batches: int) -> bytes:
    (partition,) = node.create("t")
    chance = random.Random(5)
    for _ in range(batches):
        partition.append(bytearray(batch(chance.randbytes(200_000))))
    return partition.read(0, max_bytes=8 << 20).read()


@pytest.mark.usefixtures("always_busy")
def test_S3_many_large_readers_are_served_by_threads(tmp_path: Path) -> None:
    async def read(listener: KafkaListener, expected: bytes, fetches: int) -> None:
        client = await KafkaClient.connect(listener.port)
        for _ in range(fetches):
            sent = client.send(whole_partition(), 12)
            records = client.fetched(await client.receive(), 12, sent).partitions[0].records
            assert records is not None
            assert bytes(records) == expected

    async def leave(listener: KafkaListener) -> None:
        """Take a part of an answer, and be gone."""
        client = await KafkaClient.connect(listener.port)
        client.send(whole_partition(), 12)
        await client.reader.readexactly(300_000)
        client.writer.transport.abort()

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        expected = partition_of(node, 12)
        await asyncio.gather(*(read(listener, expected, 10) for _ in range(6)), *(leave(listener) for _ in range(6)))
        threads = listener.send_threads._threads
        assert len(threads) == THREADS
        await until(lambda: not any(thread.unfinished for thread in threads))
        for connection in tuple(listener._connections):
            connection.cut_off()
        await until(lambda: not listener._connections)
        statistics = listener.statistics()
        assert statistics.aborted_connections == 0
        assert statistics.sendfile_bytes >= 60 * len(expected), "of connections that are gone, too"

    run_with_listener(test, str(tmp_path))


@pytest.mark.usefixtures("always_busy")
def test_a_connection_is_read_again_after_a_thread_has_sent_much_of_memory(tmp_path: Path) -> None:
    """While more than kafka.output.max.bytes waits to be sent, nothing more is read of it."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (small,) = node.create("small")
        large = partition_of(node, 12)
        small.append(bytearray(batch(bytes(200_000))))
        few = FetchPartition("small", ZERO_TOPIC_ID, 0, 0, 200_000)
        request = FetchRequest([few, *whole_partition().partitions], 0, max_bytes=8 << 20)
        clients = [await KafkaClient.connect(listener.port) for _ in range(3)]
        async with asyncio.timeout(WAIT_S):
            for _ in range(20):
                sent = [client.send(request, 12) for client in clients]
                for client, number in zip(clients, sent, strict=True):
                    answers = client.fetched(await client.receive(), 12, number).partitions
                    assert [len(one.records or b"") for one in answers][-1] == len(large)

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_output_max_bytes=65_536))


@pytest.mark.usefixtures("always_busy")
def test_S2_a_reader_that_stops_reading_is_closed_as_idle(tmp_path: Path) -> None:
    """What a thread sends counts as use only while some of it goes out."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partition_of(node, 30)
        stuck = [await KafkaClient.connect(listener.port) for _ in range(2)]
        for client in stuck:
            client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            cast("asyncio.ReadTransport", client.writer.transport).pause_reading()
            client.send(whole_partition(), 12)
        await until(lambda: any(thread.unfinished for thread in listener.send_threads._threads))
        for connection in tuple(listener._connections):
            connection.let_go_of_block()  # notes how far it is
        await asyncio.sleep(0.1)
        for connection in tuple(listener._connections):
            connection.let_go_of_block()
            connection.last_used = -math.inf
        listener._watch()
        await until(lambda: not listener._connections)
        assert not any(thread.unfinished for thread in listener.send_threads._threads)

    run_with_listener(test, str(tmp_path))


@pytest.mark.usefixtures("always_busy")
def test_a_stop_waits_for_what_threads_send_and_ends_them(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        expected = partition_of(node, 12)
        clients = [await KafkaClient.connect(listener.port) for _ in range(3)]
        for client in clients:
            cast("asyncio.ReadTransport", client.writer.transport).pause_reading()
            client.send(whole_partition(), 12)
        await until(lambda: any(thread.unfinished for thread in listener.send_threads._threads))
        stopping = asyncio.create_task(listener.stop(WAIT_S))
        await asyncio.sleep(0)
        for client in clients:
            cast("asyncio.ReadTransport", client.writer.transport).resume_reading()
            (size,) = struct.unpack(">i", await client.reader.readexactly(4))
            assert expected in await client.reader.readexactly(size)
        await stopping
        assert not listener.send_threads._threads

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("missing", ["cores", "compiled modules", "descriptors"])
def test_without_threads_the_loop_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(send_threads_module, "BUSY_S", math.inf)
    monkeypatch.setattr(send_threads_module, "_several_cores", lambda: missing != "cores")
    if missing == "compiled modules":
        monkeypatch.setitem(__import__("sys").modules, "semel.broker.listeners.kafka.send_thread", None)
    elif missing == "descriptors":
        monkeypatch.setattr(send_thread, "SendThread", _no_descriptor)

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        expected = partition_of(node, 5)
        clients = [await KafkaClient.connect(listener.port) for _ in range(2)]
        for _ in range(2):
            sent = [client.send(whole_partition(), 12) for client in clients]
            for client, number in zip(clients, sent, strict=True):
                records = client.fetched(await client.receive(), 12, number).partitions[0].records
                assert records is not None
                assert bytes(records) == expected
        assert not listener.send_threads._threads

    run_with_listener(test, str(tmp_path))


def _no_descriptor() -> None:
    raise OSError(24, "Too many open files")


def test_threads_that_could_not_start_are_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_threads_module, "_several_cores", lambda: True)

    async def test() -> None:
        threads = send_threads_module.SendThreads(asyncio.get_running_loop())
        with pairs(2) as (first, second):

            def both(now: float) -> list[object]:
                return [threads.submit(pair.own.fileno(), [b"x"], now, nobody) for pair in (first, second)]

            with monkeypatch.context() as patch:
                patch.setattr(send_thread, "SendThread", _no_descriptor)
                assert both(0.0) == [None, None]
            assert both(59.0) == [None, None], "each attempt costs descriptors, which are few"
            assert both(61.0)[1] is not None
            threads.close()
            assert both(1_000.0) == [None, None], "a listener that has stopped starts none"

    asyncio.run(test())


def test_a_connection_that_is_busy_alone_is_served_by_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_threads_module, "_several_cores", lambda: True)

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partition_of(node, 12)
        client = await KafkaClient.connect(listener.port)
        for _ in range(5):
            client.send(whole_partition(), 12)
            await client.receive()
        assert not listener.send_threads._threads

    run_with_listener(test, str(tmp_path))
