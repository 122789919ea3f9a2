"""The Kafka listener's data plane: requests per second, MB/s and the node's CPU, by a driver on raw sockets.

    python bench/dataplane.py                       # serves itself: real partitions, no metadata, no coordinator
    python bench/dataplane.py --address HOST:PORT --pid PID --topic bench    # against a node that runs already

The server is a process of its own; its CPU is read from /proc. Produce uses acks=1 without a journal ("os"), and
acks=all with it ("disk"). Fetch reads what is in the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka import fetch as fetch_wire
from semel.protocol.kafka import produce as produce_wire
from semel.protocol.kafka.api import join_parts, parse_request_header
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponse
from semel.protocol.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
PARTITIONS = 32


# --- The server -------------------------------------------------------------------------------------------------------


def serve(folder: str, journaled: bool, sendfile: bool) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "support" / "nodes"))
    from kafka_node import FakeNode  # the double that the listener's tests use

    from semel.broker.handlers.fetch import handler as fetch_handler
    from semel.broker.listeners.kafka import connection, output
    from semel.broker.listeners.kafka.listener import KafkaListener
    from semel.runtime.clock import SystemClock

    if not sendfile:
        fetch_handler.INLINE_READ_BYTES_MAX = 1 << 20  # type: ignore[misc]

        class Reading(output.Output):
            __slots__ = ()

            def __init__(self, transport: asyncio.Transport) -> None:
                super().__init__(transport)
                self.use_sendfile = False

        connection.Output = Reading  # type: ignore[misc]
    else:
        # So that the size from which it pays can be seen, it is used for every range.
        output.SENDFILE_BYTES_MIN = 1  # type: ignore[misc]
        fetch_handler.INLINE_READ_BYTES_MAX = 0  # type: ignore[misc]

    async def main() -> None:
        node = FakeNode(folder, journaled=journaled, clock=SystemClock())
        node.create("bench", PARTITIONS)
        listener = KafkaListener(node, "127.0.0.1", 0)  # type: ignore[arg-type]
        await listener.start()
        print(listener.port, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


@dataclass
class Server:
    address: tuple[str, int]
    pid: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def own_server(*, journaled: bool = False, sendfile: bool = True) -> Iterator[Server]:
    folder = tempfile.mkdtemp(prefix="semel-bench-", dir=os.environ.get("SEMEL_BENCH_DIR"))
    command = [sys.executable, __file__, "--serve", folder]
    if journaled:
        command.append("--journal")
    if not sendfile:
        command.append("--no-sendfile")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Server(("127.0.0.1", port), process.pid)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


# --- The driver -------------------------------------------------------------------------------------------------------


class Addressed(Protocol):
    """Where requests are sent."""

    @property
    def address(self) -> tuple[str, int]: ...


def connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return sock


def read_exactly(sock: socket.socket, view: memoryview) -> None:
    while view:
        got = sock.recv_into(view)
        if got == 0:
            raise ConnectionError("the node closed the connection")
        view = view[got:]


def read_frame(sock: socket.socket, buffer: bytearray) -> int:
    view = memoryview(buffer)
    read_exactly(sock, view[:4])
    size = int.from_bytes(buffer[:4], "big")
    if size > len(buffer):
        raise ValueError(f"a frame of {size} bytes")
    read_exactly(sock, view[:size])
    return size


def produce_frame(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    return join_parts(ProduceRequest([ProducePartition(topic, partition, batch)], None, acks, 30_000).frame(9, 1, "b"))


def batch_of(size: int) -> bytes:
    return encode_batch([(int(time.time() * 1000), None, bytes(size), ())])


def check_produced(server: Addressed, frame: bytes) -> None:
    sock = connect(server.address)
    sock.sendall(frame)
    buffer = bytearray(1 << 16)
    size = read_frame(sock, buffer)
    answer = ProduceResponse.parse(memoryview(buffer)[:size], 9, 5)
    assert answer.partitions[0].error is ErrorCode.NONE, answer
    sock.close()


def unpipelined(
    server: Addressed, frame_of: list[bytes], seconds: float, leaders: Sequence[Addressed] | None = None
) -> int:
    """One request in flight on each connection. Returns how many were answered.

    leaders: where each connection goes; by default all to `server`
    """
    check_produced(server, frame_of[0])
    selector = selectors.DefaultSelector()
    buffer = bytearray(1 << 16)
    for frame, leader in zip(frame_of, leaders or [server] * len(frame_of), strict=True):
        sock = connect(leader.address)
        selector.register(sock, selectors.EVENT_READ, frame)
        sock.sendall(frame)
    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            sock.recv_into(buffer)
            sock.sendall(key.data)
            count += 1
    for key in list(selector.get_map().values()):
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
    return count


def pipelined(server: Addressed, frame: bytes, seconds: float, window: int) -> int:
    """`window` requests in flight on one connection."""
    check_produced(server, frame)
    sock = connect(server.address)
    sock.sendall(frame)
    buffer = bytearray(1 << 20)
    answer_size = 4 + read_frame(sock, buffer)
    sock.sendall(frame * window)
    count = received = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        received += sock.recv_into(buffer)
        answers, received = divmod(received, answer_size)
        if answers:
            count += answers
            sock.sendall(frame * answers)
    sock.close()
    return count


def bulk(server: Addressed, frame: bytes, seconds: float, window: int) -> int:
    return pipelined(server, frame, seconds, window)


def fetches(server: Addressed, topic: str, partition: int, max_bytes: int, seconds: float, connections: int) -> int:
    """Fetch one range again and again. Returns the bytes received."""
    return fetches_of([(server, partition)] * connections, topic, max_bytes, seconds)


def fetches_of(sources: Sequence[tuple[Addressed, int]], topic: str, max_bytes: int, seconds: float) -> int:
    """Fetch the beginning of a partition again and again, on a connection for each of `sources`: who leads it, and its
    number. Returns the bytes received.
    """
    buffer = bytearray(64 << 20)
    selector = selectors.DefaultSelector()
    left: dict[socket.socket, int] = {}
    whole: dict[socket.socket, int] = {}
    sent: dict[socket.socket, bytes] = {}
    for server, partition in sources:
        request = FetchRequest([FetchPartition(topic, ZERO_TOPIC_ID, partition, 0, max_bytes)], 0, 1, max_bytes)
        sock = connect(server.address)
        sent[sock] = join_parts(request.frame(12, 1, "b"))
        sock.sendall(sent[sock])
        size = read_frame(sock, buffer)
        answer = FetchResponse.parse(memoryview(buffer)[:size], 12, 5)
        assert answer.partitions[0].error is ErrorCode.NONE
        left[sock] = whole[sock] = size + 4
    for sock, frame in sent.items():
        sock.sendall(frame)
        selector.register(sock, selectors.EVENT_READ)
    total = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            # MSG_TRUNC drops the bytes in the kernel: the node is measured, not this driver's memory.
            got = sock.recv_into(buffer, min(left[sock], len(buffer)), socket.MSG_TRUNC)
            total += got
            left[sock] -= got
            if left[sock] == 0:
                left[sock] = whole[sock]
                sock.sendall(sent[sock])
    for sock in sent:
        sock.close()
    return total


# --- The report -------------------------------------------------------------------------------------------------------


def report(name: str, server: Server, count_of: object, seconds: float, unit: str, scale: float = 1.0) -> None:
    before, start = server.cpu_s(), time.perf_counter()
    assert callable(count_of)
    count = count_of()
    elapsed, cpu = time.perf_counter() - start, server.cpu_s() - before
    each = cpu / count * 1e6 if unit == "requests/s" else cpu / (count / 1e6) * 1e3
    print(
        f"| {name} | {count / elapsed * scale:,.0f} {unit} | "
        f"{each:,.2f} {'us CPU a request' if unit == 'requests/s' else 'ms CPU a MB'} | {cpu / elapsed:.0%} |",
        flush=True,
    )


def measure_produce(server: Server, topic: str, acks: int, seconds: float, label: str) -> None:
    tiny = batch_of(100)
    for connections in (1, 8, 32):
        frames = [produce_frame(topic, number % PARTITIONS, tiny, acks) for number in range(connections)]
        report(
            f"{label}: 100 B a request, unpipelined, {connections} connections",
            server,
            lambda frames=frames: unpipelined(server, frames, seconds),
            seconds,
            "requests/s",
        )
    report(
        f"{label}: 100 B a request, 100 in flight, 1 connection",
        server,
        lambda: pipelined(server, produce_frame(topic, 0, tiny, acks), seconds, 100),
        seconds,
        "requests/s",
    )
    for size in (16 << 10, 256 << 10, 1_000_000):
        frame = produce_frame(topic, 1, batch_of(size), acks)
        report(
            f"{label}: batches of {size >> 10} KiB, 5 in flight, 1 connection",
            server,
            lambda frame=frame, size=size: bulk(server, frame, seconds, 5) * size,
            seconds,
            "MB/s",
            1e-6,
        )


def fill(server: Addressed, topic: str, partition: int, size: int, total: int) -> None:
    sock = connect(server.address)
    buffer = bytearray(1 << 16)
    frame = produce_frame(topic, partition, batch_of(size), 1)
    for _ in range(max(total // size, 1)):
        sock.sendall(frame)
        read_frame(sock, buffer)
    sock.close()


RANGES = (4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1_000_000)


def measure_range(
    server: Server, topic: str, partition: int, size: int, connections: int, seconds: float, how: str
) -> None:
    report(
        f"fetch, {how}: ranges of {size >> 10} KiB, {connections} connections",
        server,
        lambda: fetches(server, topic, 10 + partition, size, seconds, connections),
        seconds,
        "MB/s",
        1e-6,
    )


def measure_fetch(server: Server, topic: str, seconds: float) -> None:
    for partition, size in enumerate(RANGES):
        fill(server, topic, 10 + partition, size - 200, 4 << 20)
        for connections in (1, 4):
            measure_range(server, topic, partition, size, connections, seconds, "as served")


def measure_codec() -> None:
    """Parse and build, without a socket."""
    frame = bytearray(produce_frame("topic", 0, batch_of(100), 1)[4:])
    many = ProduceRequest([ProducePartition("topic", number, bytes(100)) for number in range(21)], None, 1, 30_000)
    view, wide = memoryview(frame), memoryview(many.build(9))
    body = parse_request_header(view).body
    answer = ProduceResponse([ProducePartitionResponse("topic", 0, ErrorCode.NONE, 5, -1, 0)])
    idle = FetchRequest([FetchPartition("topic", ZERO_TOPIC_ID, number, 0, 1 << 20) for number in range(101)], 500)
    idle_bytes = idle.build(12)

    def timed(call: object, rounds: int = 50_000) -> float:
        assert callable(call)
        best = 1e9
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(rounds):
                call()
            best = min(best, (time.perf_counter() - start) / rounds)
        return best * 1e6

    compiled = "compiled" if not str(produce_wire.__file__).endswith(".py") else "interpreted"
    one = timed(lambda: ProduceRequest.parse(view, 9, body))
    wide_us = timed(lambda: ProduceRequest.parse(wide, 9), 20_000)
    print(f"codec, {compiled} (us):")
    print(f"  request header        {timed(lambda: parse_request_header(view)):.2f}")
    print(f"  Produce, parse        {one:.2f} + {(wide_us - one) / 20:.3f} a partition")
    print(f"  Produce, build answer {timed(lambda: answer.frame(9, 1)):.2f}")
    print(f"  Fetch of 101, parse   {timed(lambda: fetch_wire.FetchRequest.parse(idle_bytes, 12), 2_000):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--journal", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-sendfile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each line is measured")
    parser.add_argument("--address", help="HOST:PORT of a node that runs already")
    parser.add_argument("--pid", type=int, help="its process, for the CPU columns")
    parser.add_argument("--topic", default="bench", help=f"its topic, with at least {PARTITIONS} partitions")
    parser.add_argument("--only", choices=("codec", "produce", "fetch"), help="one part alone")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.journal, not arguments.no_sendfile)
        return
    seconds = arguments.seconds
    parts = (arguments.only,) if arguments.only else ("codec", "produce", "fetch")
    if "codec" in parts:
        measure_codec()
    print("| workload | rate | node's CPU | of a core |\n|---|---|---|---|", flush=True)
    if arguments.address:
        host, _, port = arguments.address.rpartition(":")
        server = Server((host, int(port)), arguments.pid or os.getpid())
        if "produce" in parts:
            measure_produce(server, arguments.topic, 1, seconds, "produce, acks=1")
            measure_produce(server, arguments.topic, -1, seconds, "produce, acks=all")
        if "fetch" in parts:
            measure_fetch(server, arguments.topic, seconds)
        return
    if "produce" in parts:
        with own_server() as server:
            measure_produce(server, arguments.topic, 1, seconds, "produce, acks=1, os")
        with own_server(journaled=True) as server:
            measure_produce(server, arguments.topic, -1, seconds, "produce, acks=all, disk")
    if "fetch" in parts:
        # Side by side and in turns, so that a busy moment of the machine meets both.
        with own_server() as sending, own_server(sendfile=False) as reading:
            for partition, size in enumerate(RANGES):
                for server in (sending, reading):
                    fill(server, arguments.topic, 10 + partition, size - 200, 4 << 20)
                for connections in (1, 4):
                    for server, how in ((sending, "sendfile"), (reading, "read and write")) * 2:
                        measure_range(server, arguments.topic, partition, size, connections, seconds / 2, how)


if __name__ == "__main__":
    main()
