"""The Kafka listener over real sockets: framing, order, back-pressure, what closes a connection and what does not."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from kafka_node import FakeNode, KafkaClient, batch, buffers, run_with_listener, until

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.listeners.kafka import connection as connection_module
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.listeners.kafka.registry import Api, ApiRegistry, RequestContext
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka import api
from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest, ApiVersionsResponse
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest


def produce(*values: bytes, topic: str = "t", acks: int = 1) -> ProduceRequest:
    return ProduceRequest([ProducePartition(topic, 0, batch(*values))], None, acks, 1000)


def fetch_one(offset: int = 0, *, max_wait_ms: int = 0, max_bytes: int = 50 << 20) -> FetchRequest:
    return FetchRequest([FetchPartition("t", ZERO_TOPIC_ID, 0, offset, max_bytes)], max_wait_ms, max_bytes=max_bytes)


async def api_versions(client: KafkaClient, version: int, read_as: int | None = None) -> ApiVersionsResponse:
    client.send(ApiVersionsRequest("semel-test", "1.0"), version)
    frame = await client.receive()
    return ApiVersionsResponse.parse(frame, version if read_as is None else read_as, 4)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_says_what_is_served(tmp_path: Path, version: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        client = await KafkaClient.connect(listener.port)
        answer = await api_versions(client, version)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.apis}
        assert answer.error is ErrorCode.NONE
        # From 0 on, or librdkafka would not compress.
        assert ranges[ApiKey.PRODUCE] == (0, 13)
        assert ranges[ApiKey.FETCH] == (4, 18)
        assert ranges[ApiKey.API_VERSIONS] == (0, 4)
        assert ranges == {api.key: ranges[api.key] for api in listener.registry}
        await client.close()

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("size", [40_000, -1])
def test_large_fetches_do_not_leave_the_cache(tmp_path: Path, size: int) -> None:
    """The system's own send buffers grow to megabytes, through which a fetch went at half the rate."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        client = await KafkaClient.connect(listener.port)
        await api_versions(client, 3)
        (connection,) = listener._connections
        found = connection.output._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert (found in (size, 2 * size)) == (size > 0), "Linux tells the double, for its own bookkeeping"
        await client.close()

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(socket_send_buffer_bytes=size))


@pytest.mark.parametrize("version", [3, 4])
def test_features_follow_what_is_served_and_their_epoch_the_metadata(tmp_path: Path, version: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        async def handle(*_: object) -> bytes:
            raise AssertionError("nobody asks")

        client = await KafkaClient.connect(listener.port)
        listener.registry._apis.pop(ApiKey.CONSUMER_GROUP_HEARTBEAT, None)
        for expected in ({"transaction.version": 2}, {"transaction.version": 2, "group.version": 1}):
            node.metadata.sequence += 1
            answer = await api_versions(client, version)
            assert {each.name: each.max_version_level for each in answer.finalized_features} == expected
            assert answer.finalized_features_epoch == node.metadata.sequence
            # Java clients before version 4 fail on a feature whose lowest level is 0.
            supported = [(each.name, 0, expected[each.name]) for each in answer.supported_features]
            assert answer.supported_features == (supported if version >= 4 else [])
            assert len(supported) == (len(expected) if version >= 4 else 0)
            if listener.registry.get(ApiKey.CONSUMER_GROUP_HEARTBEAT) is None:
                listener.registry.register(Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, handle))
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_a_version_of_api_versions_that_is_too_new_is_answered_in_version_0(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        client = await KafkaClient.connect(listener.port)
        answer = await api_versions(client, 99, read_as=0)
        assert answer.error is ErrorCode.UNSUPPORTED_VERSION
        assert list(answer.apis) == [(ApiKey.API_VERSIONS, 0, 4)]
        assert (await api_versions(client, 4)).error is ErrorCode.NONE
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_a_client_with_an_odd_name_is_refused(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        client = await KafkaClient.connect(listener.port)
        client.send(ApiVersionsRequest("bad name\n", "1"), 3)
        assert ApiVersionsResponse.parse(await client.receive(), 3, 4).error is ErrorCode.INVALID_REQUEST
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        sent = [client.send(produce(b"v%d" % n, acks=-1 if n % 3 else 1), 9) for n in range(200)]
        offsets = []
        for expected in sent:
            answer = client.produced(await client.receive(), 9, expected)
            assert answer.partitions[0].error is ErrorCode.NONE
            offsets.append(answer.partitions[0].base_offset)
        assert offsets == list(range(200))
        await client.close()

    run_with_listener(test, str(tmp_path), journaled=True)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_frames_arrive_in_pieces(tmp_path: Path, chunk: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        data = b"".join(buffers(produce(b"a").frame(9, 1, "c")) + buffers(produce(b"b").frame(9, 2, "c")))
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), chunk):
            client.writer.write(data[start : start + chunk])
            await client.writer.drain()
            await asyncio.sleep(0)
        for number in (1, 2):
            answer = client.produced(await client.receive(), 9, number)
            assert answer.partitions[0].base_offset == number - 1
        await client.close()

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize(
    "size", [1, 1000, 4090, 40_000, connection_module.BLOCK_BYTES - 100, connection_module.BLOCK_BYTES, 1_000_000]
)
def test_large_and_small_frames_follow_each_other(tmp_path: Path, size: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        sent = [client.send(produce(b"x" * size if n % 2 else b"small"), 9) for n in range(9)]
        for number, expected in enumerate(sent):
            answer = client.produced(await client.receive(), 9, expected)
            assert answer.partitions[0].error is ErrorCode.NONE
            assert answer.partitions[0].base_offset == number
        fetched = await client.fetch(fetch_one(8))
        assert (
            bytes(fetched.partitions[0].records or b"")[8:]
            == batch(b"small")[8:12] + bytes(fetched.partitions[0].records or b"")[12:]
        )
        assert listener.statistics().reserved_bytes == 0
        await client.close()

    run_with_listener(test, str(tmp_path))


HOSTILE = {
    "negative size": struct.pack(">i", -1),
    "huge size": struct.pack(">i", 2**31 - 1),
    "empty": struct.pack(">i", 0),
    "short header": struct.pack(">ih", 2, 0),
    "unknown api": struct.pack(">ihhih", 10, 1234, 0, 1, -1),
    "negative api": struct.pack(">ihhih", 10, -7, 0, 1, -1),
    "unserved api": struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 1, -1),
    "old produce": struct.pack(">ihhih", 10, ApiKey.PRODUCE, 2, 1, -1),
    "future fetch": struct.pack(">ihhihb", 11, ApiKey.FETCH, 99, 1, -1, 0),
    "body of nonsense": struct.pack(">ihhih", 20, ApiKey.PRODUCE, 9, 1, -1) + b"\xff" * 10,
    "an http request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls hello": bytes.fromhex("16030100f8010000f40303"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_request_closes_its_connection_and_harms_nobody_else(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        good, bad = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        assert (await good.produce(produce(b"before"))).partitions[0].base_offset == 0
        with caplog.at_level(logging.WARNING, "semel.kafka"):
            bad.writer.write(HOSTILE[name])
            assert await bad.closed()
        lines = [record for record in caplog.records if record.name == "semel.kafka"]
        assert len(lines) == 1
        assert "closing connection: peer=127.0.0.1:" in lines[0].getMessage()
        assert "\n" not in lines[0].getMessage()
        assert (await good.produce(produce(b"after"))).partitions[0].base_offset == 1
        assert listener.statistics().aborted_connections == 1
        await good.close()
        await bad.close()

    run_with_listener(test, str(tmp_path))


def test_answers_to_good_requests_before_a_malformed_one_may_be_lost_but_appends_stay(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        client.writer.writelines([*buffers(produce(b"a").frame(9, 1, "c")), HOSTILE["unknown api"]])
        await client.closed()
        await until(lambda: partition.log_end_offset == 1)
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_no_more_than_the_allowed_number_of_requests_is_in_flight(tmp_path: Path) -> None:
    started: list[int] = []

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        release = asyncio.Event()

        async def slow(context: RequestContext, body: memoryview) -> bytes:
            started.append(context.correlation_id)
            await release.wait()
            return bytes(body)

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 3, slow, pipelined=True))
        client = await KafkaClient.connect(listener.port)
        for number in range(20):
            client.writer.write(struct.pack(">ihhihi", 14, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, number, -1, number))
        await until(lambda: len(started) == 4)
        for _ in range(50):
            await asyncio.sleep(0)
        assert sorted(started) == [0, 1, 2, 3], "the fifth waits, unread or unbegun"
        release.set()
        for number in range(20):
            frame = await client.receive()
            assert struct.unpack(">ii", frame) == (number, number)
        await client.close()

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_max_in_flight_requests=4))


def test_an_api_of_a_module_joins_and_is_handled_alone(tmp_path: Path) -> None:
    """An API that is not pipelined begins after all before it are answered, and lets nothing pass it."""
    events: list[str] = []

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        entered, release = asyncio.Event(), asyncio.Event()

        async def handle(context: RequestContext, body: memoryview) -> bytes:
            events.append(f"begun at {partition.log_end_offset}")
            assert context.client_id is None
            assert context.node is node  # type: ignore[comparison-overlap]
            entered.set()
            await release.wait()
            events.append(f"done at {partition.log_end_offset}")
            return b"answer"

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, handle))
        client = await KafkaClient.connect(listener.port)
        answer = await api_versions(client, 4)
        assert (ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5) in list(answer.apis)
        first = client.send(produce(b"a", acks=-1), 9)
        client.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 77, -1))
        last = client.send(produce(b"b", acks=-1), 9)
        await entered.wait()
        client.produced(await client.receive(), 9, first)
        for _ in range(20):
            await asyncio.sleep(0)
        release.set()
        assert await client.receive() == struct.pack(">i", 77) + b"answer"
        client.produced(await client.receive(), 9, last)
        assert events == ["begun at 1", "done at 1"]
        await client.close()

    run_with_listener(test, str(tmp_path), journaled=True)


def test_an_api_that_fails_closes_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        async def fail(context: RequestContext, body: memoryview) -> bytes:
            if context.api_version:
                raise ZeroDivisionError
            raise RetriableError("not now", ErrorCode.COORDINATOR_NOT_AVAILABLE)

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 1, fail))
        for version in (0, 1):
            client = await KafkaClient.connect(listener.port)
            client.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, version, 77, -1))
            assert await client.closed()
            await client.close()
        await until(lambda: listener.statistics().connections == 0)

    run_with_listener(test, str(tmp_path))
    assert "not now" in caplog.text


def test_a_registry_refuses_a_key_twice() -> None:
    async def handle(context: RequestContext, body: memoryview) -> bytes:
        return b""

    registry = ApiRegistry()
    registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, handle))
    with pytest.raises(ValueError, match="registered already"):
        registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, handle))
    with pytest.raises(ValueError, match="either"):
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 1)
    with pytest.raises(ValueError, match="no range"):
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, 1, handle)


def test_a_peer_that_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    """Answers wait in memory up to the bound and no further; everything comes once the peer reads again."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        begun = 0
        payload = bytes(100_000)

        async def bulky(context: RequestContext, body: memoryview) -> bytes:
            nonlocal begun
            begun += 1
            return payload

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, bulky))
        client = await KafkaClient.connect(listener.port)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        total = 300
        for number in range(total):
            client.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, number, -1))
        await client.writer.drain()
        before = -1
        while begun != before:
            before = begun
            for _ in range(200):
                await asyncio.sleep(0)
        assert begun < total, "the node must stop before it has answered everything"
        (connection,) = listener._connections
        assert connection.output is not None
        assert connection.output.queued_bytes <= 1_000_000 + 2 * len(payload)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(total):
            frame = await client.receive()
            assert (frame[:4], len(frame)) == (struct.pack(">i", number), 4 + len(payload))
        await client.close()

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_output_max_bytes=1_000_000))


def test_too_many_connections_are_refused(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        clients = [await KafkaClient.connect(listener.port) for _ in range(2)]
        for client in clients:
            assert (await client.produce(produce(b"a"))).partitions[0].error is ErrorCode.NONE
        third = await KafkaClient.connect(listener.port)
        assert await third.closed()
        assert listener.statistics().refused_connections == 1
        await clients[0].close()
        await until(lambda: listener.statistics().connections == 1)
        fourth = await KafkaClient.connect(listener.port)
        assert (await fourth.produce(produce(b"a"))).partitions[0].error is ErrorCode.NONE
        for client in (third, fourth, clients[1]):
            await client.close()

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(max_connections=2))


def test_large_requests_share_a_bound_of_memory(tmp_path: Path) -> None:
    """A large request for which there is no room waits, unread, until another one is through."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        first, second = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        data = b"".join(buffers(produce(b"x" * 700_000).frame(9, 1, "c")))
        first.writer.write(data[:-1])
        await until(lambda: listener.statistics().reserved_bytes > 700_000)
        second.writer.write(data)
        await until(lambda: listener.statistics().waiting_connections == 1)
        assert listener.statistics().requests["PRODUCE"] == 0
        first.writer.write(data[-1:])
        for client in (first, second):
            assert client.produced(await client.receive(), 9, 1).partitions[0].error is ErrorCode.NONE
        assert listener.statistics().reserved_bytes == 0

        # One that goes away while it waits, or while it holds room, leaves nothing behind.
        third, fourth = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        third.writer.write(data[:-1])
        await until(lambda: listener.statistics().reserved_bytes > 700_000)
        fourth.writer.write(data[:-1])
        await until(lambda: listener.statistics().waiting_connections == 1)
        await fourth.close()
        await third.close()
        await until(lambda: listener.statistics().reserved_bytes == 0)
        for client in (first, second):
            await client.close()

    run_with_listener(
        test,
        str(tmp_path),
        limits=KafkaLimits(socket_request_max_bytes=1 << 20, queued_max_request_bytes=1 << 20),
    )


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        idle = await KafkaClient.connect(listener.port)
        half = await KafkaClient.connect(listener.port)
        half.writer.write(b"\x00\x00")
        assert await idle.closed()
        assert await half.closed()
        assert listener.statistics().idle_connections_closed == 2
        await idle.close()
        await half.close()

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(connections_max_idle_ms=20))


def test_a_client_that_goes_away_takes_its_waiting_fetch_with_it(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        client.send(fetch_one(max_wait_ms=2**31 - 1), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        await client.close()
        await until(lambda: listener.statistics().connections == 0)
        assert listener.statistics().waiting_fetches == 0
        assert partition._listeners is None

    run_with_listener(test, str(tmp_path))


def test_stopping_answers_what_was_received(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        waiting, quiet = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        sent = waiting.send(fetch_one(max_wait_ms=600_000), 12)
        await until(lambda: listener.statistics().waiting_fetches == 1)
        await listener.stop(5.0)
        assert waiting.fetched(await waiting.receive(), 12, sent).partitions[0].error is ErrorCode.NONE
        assert await waiting.closed()
        assert await quiet.closed()
        with pytest.raises(ConnectionRefusedError):
            await KafkaClient.connect(listener.port)
        await waiting.close()
        await quiet.close()

    run_with_listener(test, str(tmp_path))


def test_stopping_cuts_off_what_takes_longer_than_the_grace(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        entered = asyncio.Event()

        async def never(context: RequestContext, body: memoryview) -> bytes:
            entered.set()
            await asyncio.Event().wait()
            return b""

        listener.registry.register(Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 5, never))
        client = await KafkaClient.connect(listener.port)
        client.writer.write(struct.pack(">ihhih", 10, ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 77, -1))
        await entered.wait()
        await listener.stop(0.01)
        assert await client.closed()
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_statistics_count_requests_and_bytes(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        await client.produce(produce(b"a"))
        await client.fetch(fetch_one())
        statistics = listener.statistics()
        assert {name: count for name, count in statistics.requests.items() if count} == {"PRODUCE": 1, "FETCH": 1}
        assert statistics.appended_batches == 1
        assert statistics.fetched_bytes == statistics.appended_bytes == len(batch(b"a"))
        assert statistics.received_bytes > 0
        assert statistics.sent_bytes > 0
        await client.close()

    run_with_listener(test, str(tmp_path))


# --- Sending ranges of files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sendfile", "read and write"])
@pytest.mark.parametrize("size", [100, 31 << 10, 33 << 10, 900_000])
def test_fetched_records_are_those_that_were_appended(tmp_path: Path, size: int, how: str) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for n in range(8):
            partition.append(bytearray(batch(bytes([n]) * size)))
        expected = partition.read(0, max_bytes=1 << 30).read()
        client = await KafkaClient.connect(listener.port)
        await client.produce(produce(b"x"))
        if how != "sendfile":
            for connection in listener._connections:
                assert connection.output is not None
                connection.output.use_sendfile = False
        # Several at once, with a reader that lags, so that the socket is full in the middle of ranges.
        sent = [client.send(fetch_one(), 12) for _ in range(5)]
        await client.writer.drain()
        for _ in range(20):
            await asyncio.sleep(0)
        for each in sent:
            records = client.fetched(await client.receive(), 12, each).partitions[0].records
            assert records is not None
            assert bytes(records)[: len(expected)] == expected
        used = listener.statistics().sendfile_bytes
        assert (used > 0) == (how == "sendfile" and len(expected) >= 256 << 10)
        await client.close()

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("how", ["sendfile", "read and write"])
def test_a_slow_reader_gets_every_byte_in_order(tmp_path: Path, how: str) -> None:
    """Answers in memory and ranges of files, mixed, through a socket that is full again and again."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for n in range(40):
            partition.append(bytearray(batch(bytes([n]) * (7_000 * (n % 7) + 100))))
        expected = partition.read(0, max_bytes=1 << 30).read()
        client = await KafkaClient.connect(listener.port)
        await client.fetch(fetch_one(max_bytes=100))
        for connection in listener._connections:
            assert connection.output is not None
            connection.output.use_sendfile = how == "sendfile"
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sizes = [500, 90_000, 1 << 20, 30_000, 2_000, 400_000] * 8
        sent = [client.send(fetch_one(max_bytes=size), 12) for size in sizes]
        await client.writer.drain()
        for _ in range(200):
            await asyncio.sleep(0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for each, size in zip(sent, sizes, strict=True):
            records = client.fetched(await client.receive(), 12, each).partitions[0].records
            assert records is not None
            assert 0 < len(records) <= size
            assert bytes(records) == expected[: len(records)]
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_a_file_that_has_become_too_short_closes_the_connection(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        partition.append(bytearray(batch(b"x" * 500_000)))
        found = partition.read(0, max_bytes=1 << 30)
        assert found.records is not None
        found.records.file.truncate(100_000)
        client = await KafkaClient.connect(listener.port)
        client.send(fetch_one(), 12)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.receive()
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_limits_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"max\.connections = 0 is out of range"):
        KafkaLimits(max_connections=0)
    with pytest.raises(ValueError, match=r"socket\.request\.max\.bytes = .* is more than queued\.max\.request\.bytes"):
        KafkaLimits(queued_max_request_bytes=1000)


def test_the_request_header_of_a_real_client_is_read() -> None:
    """Sent by librdkafka 2.x: ApiVersions version 3, client id `rdkafka`."""
    data = bytes.fromhex("0012000300000001000772646b61666b6100") + b"\x0blibrdkafka\x062.3.0\x00"
    header = api.parse_request_header(data)
    request: Any = ApiVersionsRequest.parse(data, header.api_version, header.body)
    assert (header.client_id, request.client_software_version) == ("rdkafka", "2.3.0")
