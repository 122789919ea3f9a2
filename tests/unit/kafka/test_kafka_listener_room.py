"""What connections may hold (S2), and how long one of them may hold the loop (S3), over real sockets."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_node import FakeNode, KafkaClient, batch, buffers, run_with_listener, turns, until

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.listeners.kafka import connection as connection_module
from semel.broker.listeners.kafka.connection import SMALL_BLOCK_BYTES, KafkaConnection
from semel.broker.listeners.kafka.large_frame import BLOCK_BYTES, LargeFrame
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.listeners.kafka.output import PIECE_BYTES, Output
from semel.broker.listeners.kafka.registry import LATER, Answer, Api, RequestContext
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

LIMITS = KafkaLimits(socket_request_max_bytes=1 << 20, queued_max_request_bytes=3 << 20)


def produce_bytes(size: int, correlation_id: int = 1) -> bytes:
    request = ProduceRequest([ProducePartition("t", 0, batch(b"x" * size))], None, 1, 1000)
    return b"".join(buffers(request.frame(9, correlation_id, "c")))


def promise(size: int) -> bytes:
    return struct.pack(">ihhih", size, ApiKey.PRODUCE, 9, 1, -1)


async def produced(client: KafkaClient, size: int) -> None:
    client.writer.write(produce_bytes(size))
    answer = client.produced(await client.receive(), 9, 1)
    assert answer.partitions[0].error is ErrorCode.NONE


def connections(listener: KafkaListener) -> list[KafkaConnection]:
    return list(listener._connections)


def waiting_fetch() -> FetchRequest:
    return FetchRequest([FetchPartition("t", ZERO_TOPIC_ID, 0, 0, 1 << 20)], 2**31 - 1, max_bytes=1 << 20)


# --- Room (S2) --------------------------------------------------------------------------------------------------------


def test_S2_a_promise_of_bytes_takes_no_room(tmp_path: Path) -> None:
    """Six connections that announced 100 MB each and sent nothing held all room for everybody's larger requests."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        for _ in range(20):
            liar = await KafkaClient.connect(listener.port)
            liar.writer.write(promise(1 << 20))
        await until(lambda: len(listener._connections) == 20 and all(each._large for each in connections(listener)))
        assert listener.statistics().reserved_bytes == 0
        honest = await KafkaClient.connect(listener.port)
        for size in (70_000, 200_000, 900_000):
            await produced(honest, size)

    run_with_listener(test, str(tmp_path), limits=LIMITS)


def test_S2_room_is_taken_as_bytes_come(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        data = produce_bytes(900_000)
        sent = 0
        for size in (4, 50_000, 15_000, 100_000, 400_000):
            client.writer.write(data[sent : sent + size])
            sent += size
            await until(lambda: listener.statistics().received_bytes == sent)  # noqa: B023  # awaited here
            assert listener.statistics().reserved_bytes <= 3 * sent
        assert listener.statistics().reserved_bytes >= sent - BLOCK_BYTES
        client.writer.write(data[sent:])
        assert client.produced(await client.receive(), 9, 1).partitions[0].error is ErrorCode.NONE
        assert listener.statistics().reserved_bytes == 0

    run_with_listener(test, str(tmp_path), limits=LIMITS)


def test_S2_half_received_requests_that_hold_all_room_do_not_block_each_other(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        data = produce_bytes(1_000_000)
        clients = [await KafkaClient.connect(listener.port) for _ in range(12)]
        for client in clients:
            client.writer.write(data[:-1000])
        await until(lambda: listener.statistics().waiting_connections >= 8)
        for client in clients:
            client.writer.write(data[-1000:])
        for client in clients:
            assert client.produced(await client.receive(), 9, 1).partitions[0].error is ErrorCode.NONE
        assert listener.statistics().reserved_bytes == 0
        assert listener.statistics().aborted_connections == 0

    run_with_listener(test, str(tmp_path), limits=LIMITS)


def test_S2_who_holds_the_room_is_said_when_it_runs_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        for _ in range(9):
            client = await KafkaClient.connect(listener.port)
            client.writer.write(produce_bytes(1_000_000)[:-1000])
        await until(lambda: listener.statistics().waiting_connections >= 5)

    run_with_listener(test, str(tmp_path), limits=LIMITS)
    (line,) = (text for text in caplog.messages if text.startswith("no room"))
    assert "queued.max.request.bytes=3145728" in line
    assert "those that hold most: 127.0.0.1:" in line
    assert "received " in line


def test_S2_no_memory_closes_one_connection_and_gives_everything_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was reserved for a request whose buffer could not be had was held until the restart."""
    rest = LargeFrame.rest

    def fails(self: LargeFrame) -> memoryview:
        if self.capacity > 200_000:
            raise MemoryError
        return rest(self)

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        monkeypatch.setattr(LargeFrame, "rest", fails)
        for _ in range(5):
            client = await KafkaClient.connect(listener.port)
            client.writer.write(produce_bytes(900_000))
            assert await client.closed()
        await until(lambda: listener.statistics().connections == 0)
        statistics = listener.statistics()
        assert (statistics.reserved_bytes, statistics.out_of_memory_connections) == (0, 5)
        monkeypatch.setattr(LargeFrame, "rest", rest)
        await produced(await KafkaClient.connect(listener.port), 900_000)

    run_with_listener(test, str(tmp_path), limits=LIMITS)
    assert len([text for text in caplog.messages if "the system has no memory left for a request of 900" in text]) == 5
    assert len(caplog.records) == 5
    assert not any(record.exc_info for record in caplog.records)


def test_S2_no_memory_for_the_beginning_of_a_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: LargeFrame, size: int, begun: memoryview) -> None:
        raise MemoryError

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        monkeypatch.setattr(LargeFrame, "__init__", fails)
        client = await KafkaClient.connect(listener.port)
        client.writer.write(promise(1 << 20))
        assert await client.closed()

    run_with_listener(test, str(tmp_path), limits=LIMITS)
    assert "the system has no memory left" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_S2_small_requests_that_wait_are_counted_too(tmp_path: Path) -> None:
    """512 requests of 60 KB behind a fetch that waits were 30 MB a connection beyond every bound."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        greedy, honest = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        fetched = greedy.send(waiting_fetch(), 12)
        greedy.writer.write(produce_bytes(60_000) * 100)
        await until(lambda: listener.statistics().waiting_connections == 1)
        assert 1 << 20 < listener.statistics().reserved_bytes <= 3 << 20
        await produced(honest, 60_000)
        await produced(honest, 300_000)
        greedy.fetched(await greedy.receive(), 12, fetched)
        for _ in range(100):
            assert greedy.produced(await greedy.receive(), 9, 1).partitions[0].error is ErrorCode.NONE
        await until(lambda: listener.statistics().reserved_bytes == 0)

    run_with_listener(test, str(tmp_path), limits=LIMITS)


@pytest.mark.parametrize("sent", [b"\x00", promise(3_000), promise(64_000), promise(900_000) + bytes(200_000)])
def test_S2_a_request_that_does_not_come_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        client = await KafkaClient.connect(listener.port)
        client.writer.write(sent)
        # A byte now and then keeps it from being idle, and is no progress.
        closed = asyncio.ensure_future(client.closed())
        while not closed.done():
            client.writer.write(b"\x00" if len(sent) > 10 else b"")
            await asyncio.wait([closed], timeout=0.005)
        assert listener.statistics().slow_connections == 1
        await until(lambda: listener.statistics().reserved_bytes == 0)

    limits = KafkaLimits(
        socket_request_max_bytes=1 << 20, queued_max_request_bytes=3 << 20, kafka_request_receive_timeout_ms=100
    )
    run_with_listener(test, str(tmp_path), limits=limits)
    assert "a request came too slowly" in caplog.text
    assert "kafka.request.receive.timeout.ms=100" in caplog.text


def test_S2_a_slow_link_may_take_its_time(tmp_path: Path) -> None:
    """Progress counts, not the time that a request takes in all, nor the time that we let it wait."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        data = produce_bytes(400_000)
        await until(lambda: len(listener._connections) == 1)
        (connection,) = connections(listener)
        sent, now = 0, 1000.0
        assert not connection.receives_too_slowly(now)
        while sent + 17_000 < len(data):
            client.writer.write(data[sent : sent + 17_000])
            sent += 17_000
            await until(lambda: listener.statistics().received_bytes == sent)  # noqa: B023  # awaited here
            now += 29.9
            assert not connection.receives_too_slowly(now)
        assert not connection.receives_too_slowly(now + 29.9)
        assert connection.receives_too_slowly(now + 30.1)
        client.writer.write(data[sent:])
        assert client.produced(await client.receive(), 9, 1).partitions[0].error is ErrorCode.NONE
        assert not connection.receives_too_slowly(now + 60.0)
        # A whole request that waits for the one before it is not slow.
        client.send(waiting_fetch(), 12)
        client.writer.write(data)
        await until(lambda: listener.statistics().reserved_bytes > 0 or not connection._waiting)

    run_with_listener(test, str(tmp_path))


def test_S2_room_that_is_kept_from_others_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Complete requests behind one that waits for ever hold room, too."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        entered = asyncio.Event()

        async def never(context: RequestContext, body: memoryview) -> bytes:
            entered.set()
            await asyncio.Event().wait()
            return b""

        node.create("t")
        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, never))
        for _ in range(4):
            hog = await KafkaClient.connect(listener.port)
            hog.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 77, -1))
            hog.writer.write(produce_bytes(900_000))
        await until(lambda: listener.statistics().waiting_connections > 0)
        honest = await KafkaClient.connect(listener.port)
        await produced(honest, 900_000)
        await until(lambda: listener.statistics().crowding_connections > 0)

    limits = KafkaLimits(
        socket_request_max_bytes=1 << 20, queued_max_request_bytes=3 << 20, kafka_request_receive_timeout_ms=100
    )
    run_with_listener(test, str(tmp_path), limits=limits)
    assert "while others had to wait" in caplog.text


@pytest.fixture
def memory_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[random.Random]:
    """Now and then there is no memory."""
    chance = random.Random()
    rest = LargeFrame.rest

    def sometimes(self: LargeFrame) -> memoryview:
        if chance.random() < 0.02:
            raise MemoryError
        return rest(self)

    monkeypatch.setattr(LargeFrame, "rest", sometimes)
    return chance


@pytest.mark.parametrize("seed", range(12))
def test_S2_all_room_comes_back_whatever_connections_do(
    tmp_path: Path, seed: int, memory_errors: random.Random
) -> None:
    memory_errors.seed(seed)
    chance = random.Random(seed)

    async def peer(listener: KafkaListener) -> None:
        client = await KafkaClient.connect(listener.port)
        try:
            for _ in range(chance.randrange(1, 6)):
                data = produce_bytes(chance.choice([100, 60_000, 70_000, 300_000, 1_000_000]))
                if chance.random() < 0.1:
                    data = promise(chance.randrange(1 << 21)) + data
                cut = len(data) if chance.random() < 0.6 else chance.randrange(len(data))
                client.writer.write(data[:cut])
                await turns(chance.randrange(20))
                if cut < len(data) and chance.random() < 0.5:
                    client.writer.write(data[cut:])
            if chance.random() < 0.5:
                client.send(waiting_fetch(), 12)
                client.writer.write(produce_bytes(200_000) * 3)
            await turns(chance.randrange(50))
        finally:
            await client.close()

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        for _ in range(4):
            await asyncio.gather(*(peer(listener) for _ in range(8)))
        await until(lambda: not listener._connections)
        assert listener.statistics().reserved_bytes == listener.statistics().waiting_connections == 0
        assert not listener.room.claims()

    run_with_listener(test, str(tmp_path), limits=LIMITS)


def test_S2_an_idle_connection_holds_no_block(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        await until(lambda: len(listener._connections) == 1)
        (connection,) = connections(listener)
        assert len(connection._view) == 0
        for _ in range(2):
            await produced(client, 100)
            assert len(connection._view) == SMALL_BLOCK_BYTES
            connection.let_go_of_block()
            assert len(connection._view) == 0
        # Half a request keeps it.
        data = produce_bytes(100)
        client.writer.write(data[:50])
        await until(lambda: connection._end - connection._start == 50)
        connection.let_go_of_block()
        client.writer.write(data[50:])
        assert client.produced(await client.receive(), 9, 1).partitions[0].error is ErrorCode.NONE

    run_with_listener(test, str(tmp_path))


def test_S2_a_block_is_as_large_as_what_comes_at_once(tmp_path: Path) -> None:
    """Small ones for single small requests: thousands of connections that ask for little would keep 64 KiB each."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        await until(lambda: len(listener._connections) == 1)
        (connection,) = connections(listener)
        request = produce_bytes(100)

        async def one_by_one(count: int) -> None:
            for _ in range(count):
                await produced(client, 100)

        await one_by_one(3 * SMALL_BLOCK_BYTES // len(request))
        assert len(connection._view) == SMALL_BLOCK_BYTES
        many = 6 * SMALL_BLOCK_BYTES // len(request)
        client.writer.write(request * many)
        for _ in range(many):
            assert client.produced(await client.receive(), 9, 1).partitions[0].error is ErrorCode.NONE
        assert len(connection._view) == BLOCK_BYTES
        await one_by_one(BLOCK_BYTES // len(request) + 1)
        assert len(connection._view) == SMALL_BLOCK_BYTES
        for size in (SMALL_BLOCK_BYTES - 100, SMALL_BLOCK_BYTES, SMALL_BLOCK_BYTES + 100, BLOCK_BYTES + 100):
            await produced(client, size)
            await one_by_one(3)

    run_with_listener(test, str(tmp_path))


# --- Turns of the loop (S3) -------------------------------------------------------------------------------------------


def test_S3_many_requests_of_one_connection_take_many_turns(tmp_path: Path) -> None:
    """Each request is answered at once and costs a millisecond: a turn has five, whatever has come."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        now, begun, most, total = 0.0, 0, 0, 300

        def costly(context: RequestContext, frame: memoryview, body: int) -> Answer:
            nonlocal now, begun
            now += 0.001
            begun += 1
            return [struct.pack(">ii", 4, context.correlation_id)]

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, begin=costly))
        client, other = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        await until(lambda: len(listener._connections) == 2)
        for connection in connections(listener):
            connection._time = lambda: now  # type: ignore[method-assign]
        client.writer.write(
            b"".join(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, number, -1) for number in range(total))
        )
        await until(lambda: begun > 0)
        other.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 1, -1))
        answered = asyncio.ensure_future(other.receive())
        others_turn = 0
        while begun < total + 1:
            before = begun
            await asyncio.sleep(0)
            most = max(most, begun - before)
            if answered.done() and not others_turn:
                others_turn = begun
        assert most <= 2 * 6, "of both connections"
        assert 0 < others_turn < total
        for number in range(total):
            assert await client.receive() == struct.pack(">i", number)

    run_with_listener(test, str(tmp_path))


def test_S3_requests_that_had_to_wait_begin_in_many_turns_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        begun, total, first = 0, 100, asyncio.get_running_loop().create_future()

        def waits(context: RequestContext, frame: memoryview, body: int) -> Answer:
            nonlocal begun
            begun += 1
            if context.correlation_id == 0:
                first.add_done_callback(lambda _: context.answer([struct.pack(">ii", 4, 0)]))
                return LATER
            return [struct.pack(">ii", 4, context.correlation_id)]

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, begin=waits))
        client = await KafkaClient.connect(listener.port)
        client.writer.write(
            b"".join(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, number, -1) for number in range(total))
        )
        await until(lambda: listener.in_flight() == total)
        assert begun == 1
        monkeypatch.setattr(connection_module, "TURN_S", -1.0)  # each turn is over after one request
        first.set_result(None)
        most = 0
        while begun < total:
            before = begun
            await asyncio.sleep(0)
            most = max(most, begun - before)
        assert most == 1
        for number in range(total):
            assert await client.receive() == struct.pack(">i", number)

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("total", [300, 5_000])
def test_what_had_to_wait_for_places_in_flight_goes_on_without_new_bytes(tmp_path: Path, total: int) -> None:
    """More requests than may be in flight, all of them received: nothing comes any more that could wake them."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first = asyncio.get_running_loop().create_future()

        def waits(context: RequestContext, frame: memoryview, body: int) -> Answer:
            if context.correlation_id == 0:
                first.add_done_callback(lambda _: context.answer([struct.pack(">ii", 4, 0)]))
                return LATER
            return [struct.pack(">ii", 4, context.correlation_id)]

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, begin=waits))
        client = await KafkaClient.connect(listener.port)
        client.writer.write(
            b"".join(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, number, -1) for number in range(total))
        )
        await until(lambda: listener.in_flight() == 4)
        first.set_result(None)
        for number in range(total):
            assert await client.receive() == struct.pack(">i", number)

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_max_in_flight_requests=4))


class Taker(asyncio.Transport):
    """A peer that takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.taken += len(data)


def test_S3_a_reader_that_takes_everything_gets_it_in_turns() -> None:
    transport = Taker()
    output = Output(transport)
    output.add([bytes(PIECE_BYTES)] * 5)
    times = iter([0.001, 0.006])
    assert output.pump(lambda: next(times), 0.005), "there is more, and the turn is over"
    assert transport.taken == 2 * PIECE_BYTES
    assert not output.pump(lambda: 0.0, 0.005)
    assert transport.taken == 5 * PIECE_BYTES


def test_nothing_is_sent_to_a_peer_that_is_being_closed() -> None:
    """It would get the range of a file without what comes before: that goes through the transport, which drops it."""
    transport = Taker()
    output = Output(transport)
    output.add([bytes(10), bytes(PIECE_BYTES), bytes(10)])
    transport.closing = True
    assert not output.pump(lambda: 0.0, 1.0)
    assert transport.taken == 0
    assert (output.idle, output.queued_bytes) == (True, 0)


def test_a_client_that_sends_no_more_gets_whole_answers_or_less(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for n in range(4):
            partition.append(bytearray(batch(bytes([n]) * 100_000)))
        large = FetchRequest([FetchPartition("t", ZERO_TOPIC_ID, 0, 0, 1 << 20)], 0, max_bytes=1 << 20)
        for attempt in range(60):
            client = await KafkaClient.connect(listener.port)
            for _ in range(3):
                client.send(large, 12)
                client.writer.write(produce_bytes(10))
            await client.writer.drain()
            await turns(attempt % 12)
            client.writer.write_eof()
            received = await client.reader.read(-1)
            while len(received) >= 4:
                (size,) = struct.unpack_from(">i", received)
                assert 4 < size < 1_000_000, received[:40]
                if size == len(received) - 4 or size < len(received) - 4:
                    assert struct.unpack_from(">i", received, 4)[0] >= 0
                received = received[4 + size :]
            client.writer.close()

    run_with_listener(test, str(tmp_path))


def test_S3_answers_leave_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader as fast as the node could keep it sending for as long as there are ranges of files to send."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for n in range(10):
            partition.append(bytearray(batch(bytes([n]) * 100_000)))
        monkeypatch.setattr(connection_module, "TURN_S", -1.0)
        client = await KafkaClient.connect(listener.port)
        request = FetchRequest([FetchPartition("t", ZERO_TOPIC_ID, 0, 0, 1 << 20)], 0, max_bytes=1 << 20)
        sent = [client.send(request, 12) for _ in range(20)]
        expected = partition.read(0, max_bytes=1 << 20).read()
        for each in sent:
            records = client.fetched(await client.receive(), 12, each).partitions[0].records
            assert records is not None
            assert bytes(records) == expected

    run_with_listener(test, str(tmp_path))


def test_an_unexpected_error_closes_the_connection_and_is_told_once_in_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        def fails(context: RequestContext, frame: memoryview, body: int) -> Answer:
            raise RuntimeError("a mistake")

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, begin=fails))
        for _ in range(60):
            client = await KafkaClient.connect(listener.port)
            client.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 1, -1))
            assert await client.closed()

    run_with_listener(test, str(tmp_path))
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(records) == 50
    assert [record.exc_info is not None for record in records] == [True] + [False] * 49
    assert "left out: lines=10" in caplog.text
