"""How a connection is read: by what its listener has for that, and by asyncio where that can't be."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka_node import FakeNode, KafkaClient, run_with_listener, until

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest

if TYPE_CHECKING:
    from semel.broker.listeners.kafka.socket_reads import Reader

LISTS_NOTHING = ApiKey.ALTER_REPLICA_LOG_DIRS

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="connections are read so on Linux alone")


class Reads:
    """Does what `SocketReads` does, in plain Python, and notes what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.readers: dict[int, Reader] = {}
        self.is_full = False
        self._epoll = select.epoll()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._read)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def add(self, socket: int, reader: Reader) -> None:
        assert socket not in self.readers
        self.asked.append("add")
        if self.is_full:
            raise OSError(errno.ENOSPC, "no room")
        self.readers[socket] = reader
        self._epoll.register(socket, select.EPOLLIN)

    def remove(self, socket: int) -> None:
        if self.readers.pop(socket, None) is not None:
            self.asked.append("remove")
            self._epoll.unregister(socket)

    def _read(self) -> None:
        for number, _ in self._epoll.poll(0):
            if number in self.readers:
                self._read_one(number, self.readers[number])

    def _read_one(self, number: int, reader: Reader) -> None:
        with socket.socket(fileno=number) as own:
            try:
                size = own.recv_into(reader.get_buffer(-1))
            finally:
                own.detach()
        if size:
            reader.buffer_updated(size)
        else:
            self.remove(number)
            reader.reading_ended(None)


Answering = Callable[[RequestContext, memoryview], Awaitable[bytes]]


async def echo(_: RequestContext, body: memoryview) -> bytes:
    return bytes(body)


def run(
    test: Callable[[KafkaListener, Reads], Awaitable[None]],
    folder: Path,
    answer: Answering = echo,
    in_flight: int = 100,
) -> None:
    async def whole(_: FakeNode, listener: KafkaListener) -> None:
        reads = Reads()
        own, listener.reads = listener.reads, reads  # type: ignore[assignment]
        listener.registry.register(Api(LISTS_NOTHING, 0, 3, answer, pipelined=True))
        try:
            await test(listener, reads)
        finally:
            listener.reads = own
            listener.disconnect()
            await until(lambda: not listener._connections)
            reads.close()

    run_with_listener(whole, str(folder), limits=KafkaLimits(kafka_max_in_flight_requests=in_flight))


def ask(client: KafkaClient, *numbers: int) -> None:
    for number in numbers:
        client.writer.write(struct.pack(">ihhihi", 14, LISTS_NOTHING, 0, number, -1, number))


async def answered(client: KafkaClient, *numbers: int) -> None:
    for number in numbers:
        assert struct.unpack(">ii", await client.receive()) == (number, number)


def test_a_connection_is_read_by_it_alone_until_its_peer_is_gone(tmp_path: Path) -> None:
    async def test(listener: KafkaListener, reads: Reads) -> None:
        client = await KafkaClient.connect(listener.port)
        ask(client, 1, 2, 3)
        await answered(client, 1, 2, 3)
        assert reads.asked == ["add"]
        await client.close()
        await until(lambda: not listener._connections)
        assert reads.asked == ["add", "remove"]
        assert listener.statistics().aborted_connections == 0

    run(test, tmp_path)


@pytest.mark.parametrize("ends", ["cut_off", "finish", "expire"])
def test_one_that_the_node_closes_is_not_read_any_more(tmp_path: Path, ends: str) -> None:
    """Its socket's number may be another connection's by then."""

    async def test(listener: KafkaListener, reads: Reads) -> None:
        client = await KafkaClient.connect(listener.port)
        ask(client, 1)
        await answered(client, 1)
        (connection,) = listener._connections
        getattr(connection, ends)()
        assert not reads.readers
        assert await client.closed()
        assert reads.asked == ["add", "remove"]

    run(test, tmp_path)


def test_S2_one_with_too_much_in_flight_is_not_read_until_there_are_answers(tmp_path: Path) -> None:
    async def test(listener: KafkaListener, reads: Reads) -> None:
        client = await KafkaClient.connect(listener.port)
        ask(client, *range(20))
        await until(lambda: reads.asked == ["add", "remove"])
        assert not reads.readers
        release.set()
        await answered(client, *range(20))
        await until(lambda: len(reads.readers) == 1)

    async def slow(_: RequestContext, body: memoryview) -> bytes:
        await release.wait()
        return bytes(body)

    release = asyncio.Event()
    run(test, tmp_path, slow, in_flight=4)


def test_without_room_for_it_asyncio_reads(tmp_path: Path) -> None:
    async def test(listener: KafkaListener, reads: Reads) -> None:
        reads.is_full = True
        client = await KafkaClient.connect(listener.port)
        ask(client, *range(20))
        await answered(client, *range(20))
        assert reads.asked == ["add"]

    run(test, tmp_path, in_flight=4)


def test_without_room_to_go_on_it_is_closed_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(listener: KafkaListener, reads: Reads) -> None:
        client = await KafkaClient.connect(listener.port)
        ask(client, *range(20))
        await until(lambda: reads.asked == ["add", "remove"])
        reads.is_full = True
        release.set()
        await until(lambda: not listener._connections)
        assert "the system has no room to wait for its requests" in caplog.text
        assert listener.statistics().aborted_connections == 1

    async def slow(_: RequestContext, body: memoryview) -> bytes:
        await release.wait()
        return bytes(body)

    release = asyncio.Event()
    run(test, tmp_path, slow, in_flight=4)


@pytest.mark.parametrize(
    ("error", "aborted"), [(ConnectionResetError(), 0), (TimeoutError(), 0), (ValueError("a fault of the node"), 1)]
)
def test_one_that_can_not_be_read_is_closed(tmp_path: Path, error: Exception, aborted: int) -> None:
    """A peer that is gone is nothing to tell of."""

    async def test(listener: KafkaListener, reads: Reads) -> None:
        client = await KafkaClient.connect(listener.port)
        ask(client, 1)
        await answered(client, 1)
        ((number, reader),) = reads.readers.items()
        reads.remove(number)
        reader.reading_ended(error)
        assert await client.closed()
        await until(lambda: not listener._connections)
        assert listener.statistics().aborted_connections == aborted

    run(test, tmp_path)


def test_a_listener_has_it_where_it_is_compiled_and_lets_go_of_it(tmp_path: Path) -> None:
    socket_reads = pytest.importorskip("semel.broker.listeners.kafka.socket_reads", reason="nothing is compiled")

    async def test(_: FakeNode, listener: KafkaListener) -> None:
        first = listener.reads
        assert isinstance(first, socket_reads.SocketReads)
        await listener.cut_off()
        assert listener.reads is None
        assert first.fileno() == -1
        await listener.listen()
        client = await KafkaClient.connect(listener.port)
        client.send(ApiVersionsRequest(), 0)
        assert await client.receive()
        assert listener.reads is not None
        held.append(listener.reads)

    held: list[socket_reads.SocketReads] = []
    run_with_listener(test, str(tmp_path))
    assert held[0].fileno() == -1
