"""The core that all clients share: data connections, gRPC calls, what is known about the cluster, the IO thread."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from fake_node import Action, FakeNode

from semel.protocol.api.metadata import NodeDescription
from semel.protocol.errors import ErrorCode, FatalError, FencedError, RetriableError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import (
    ApiKey,
    ApiVersionRange,
    ApiVersionsResponse,
    frame_response,
    parse_request_header,
)
from semel.protocol.v1 import transactions_pb2
from semel.runtime.clock import SystemClock
from semel.runtime.kafka_client import connection as kafka_connection
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect, dial_tcp
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.connection import Connections
from semel.sdk.transport.io_thread import IoThread
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import END_TRANSACTION, INIT_PRODUCER_ID

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def answer_versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    header = parse_request_header(await read_frame(reader))
    assert header.api_key == ApiKey.API_VERSIONS
    response = ApiVersionsResponse([ApiVersionRange(0, 3, 12), ApiVersionRange(1, 4, 17)])
    writer.writelines(response.frame(header.api_version, header.correlation_id))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its own body."""
    await answer_versions(reader, writer)
    while True:
        frame = await read_frame(reader)
        header = parse_request_header(frame)
        body = frame[header.body :]
        writer.writelines(frame_response(header.api_key, header.api_version, header.correlation_id, body))
        await writer.drain()


def with_server(serve: Server, use: Callable[[Connection], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        tasks = []

        async def serve_quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.current_task())
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(serve_quietly, "127.0.0.1", 0, limit=1 << 26)
        port = server.sockets[0].getsockname()[1]
        try:
            connection = await connect(f"127.0.0.1:{port}", dial_tcp("127.0.0.1", port), client_id="test", **options)
            try:
                await use(connection)
            finally:
                connection.close()
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


# --- Connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, 32_000, 33_000, 65_530, 70_000, 3_000_000])
def test_answers_of_any_size_come_whole_and_in_order(size: int) -> None:
    async def use(connection: Connection) -> None:
        bodies = [[b"%d" % n, bytes([n]) * size, b"end"] for n in range(8)]
        futures = [connection.request(0, 12, body, timeout_ms=30_000) for body in bodies]
        for body, future in zip(bodies, futures, strict=True):
            assert bytes(await future) == b"".join(body)
        assert connection.in_flight == 0

    with_server(echo, use)


def test_versions_are_those_that_both_speak() -> None:
    async def use(connection: Connection) -> None:
        assert connection.highest_version(0, 3, 12) == 12
        assert connection.highest_version(1, 4, 99) == 17
        with pytest.raises(FatalError, match="does not speak versions 13 to 14 of API 0"):
            connection.highest_version(0, 13, 14)
        with pytest.raises(FatalError, match="upgrade the older one"):
            connection.highest_version(2, 0, 1)

    with_server(echo, use)


def test_requests_in_flight_are_bounded() -> None:
    async def use(connection: Connection) -> None:
        futures = [connection.request(0, 12, [b"x"], timeout_ms=30_000) for _ in range(2)]
        assert not connection.has_room
        with pytest.raises(RetriableError, match="2 requests wait for their answer"):
            connection.request(0, 12, [b"x"], timeout_ms=30_000)
        await connection.wait_room()
        assert connection.has_room
        for future in futures:
            await future

    with_server(echo, use, in_flight_max=2)


def test_a_request_without_an_answer_in_time_ends_the_connection_and_all_on_it() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_versions(reader, writer)
        await reader.read()

    async def use(connection: Connection) -> None:
        slow = connection.request(0, 12, [b"x"], timeout_ms=60_000)
        quick = connection.request(0, 12, [b"y"], timeout_ms=20)
        for future in (slow, quick):
            with pytest.raises(ConnectionLostError, match="did not answer in time") as caught:
                await future
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            connection.request(0, 12, [b"z"], timeout_ms=20)

    with_server(silent, use)


def test_a_late_answer_is_told_again_and_again_and_a_wait_that_was_asked_for_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_connection, "SILENT_S", 0.05)
    monkeypatch.setattr(kafka_connection, "SILENT_AGAIN_S", 0.01)
    answer = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_versions(reader, writer)
        header = parse_request_header(await read_frame(reader))
        await answer.wait()
        writer.writelines(frame_response(header.api_key, header.api_version, header.correlation_id, b"late"))
        await reader.read()

    async def use(connection: Connection) -> None:
        told = 0

        def on_silence() -> None:
            nonlocal told
            told += 1
            if told == 3:
                answer.set()

        connection.on_silence = on_silence
        asked_for = connection.request(0, 12, [b"x"], timeout_ms=3_600_000, wait_ms=3_600_000)
        await asyncio.sleep(0.2)
        assert told == 0
        connection.request(0, 12, [b"x"], timeout_ms=3_600_000)
        assert bytes(await asked_for) == b"late"
        assert told == 3

    with_server(late, use)


def test_a_long_answer_that_is_coming_is_no_silence() -> None:
    body = bytes(1 << 20)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_versions(reader, writer)
        header = parse_request_header(await read_frame(reader))
        frame = b"".join(frame_response(header.api_key, header.api_version, header.correlation_id, body))
        writer.write(frame[: 1 << 19])
        await reader.readexactly(1)
        writer.write(frame[1 << 19 :])
        await reader.read()

    async def use(connection: Connection) -> None:
        half, told = asyncio.Event(), 0
        received = connection.buffer_updated

        def buffer_updated(nbytes: int) -> None:
            received(nbytes)
            if connection._frame_filled >= (1 << 19) - 4:
                half.set()

        def on_silence() -> None:
            nonlocal told
            told += 1

        connection.buffer_updated = buffer_updated  # type: ignore[method-assign]
        connection.on_silence = on_silence
        answer = connection.request(0, 12, [b"x"], timeout_ms=3_600_000)
        await half.wait()
        connection._waiting[0].silent_at = 0.0
        connection._on_timer()
        assert told == 0
        connection._on_timer()
        assert told == 1, "nothing has come since"
        connection.send_unanswered(0, 12, [b"y"])
        assert len(await answer) == len(body)

    with_server(slow, use)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "lost: closed by the node"),
        (struct.pack(">i", -1), "announced an answer of -1 bytes; is this a Kafka listener"),
        (struct.pack(">i", 2**31 - 1), "announced an answer of 2147483647 bytes"),
        (struct.pack(">ii", 4, 999), r"an answer nobody waits for \(correlation id 999\)"),
        (struct.pack(">iib", 5, 2, 3), "unreadable answer"),
    ],
)
def test_a_broken_stream_ends_the_connection(answer: bytes, message: str) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_versions(reader, writer)
        await read_frame(reader)
        writer.write(answer)
        await writer.drain()

    async def use(connection: Connection) -> None:
        with pytest.raises(ConnectionLostError, match=message):
            await connection.request(0, 12, [b"x"], timeout_ms=30_000)

    with_server(broken, use)


def test_what_is_no_kafka_listener_is_told_so() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(struct.pack(">iihi", 10, 1, 35, 0))
        await writer.drain()
        await reader.read()

    async def use(connection: Connection) -> None:
        raise AssertionError("connected")

    with pytest.raises(ConnectionLostError, match="is not a Kafka listener: ApiVersions answered UNSUPPORTED_VERSION"):
        with_server(http, use)


def test_connections_are_opened_once_and_again_after_a_loss() -> None:
    async def use(first: Connection) -> None:
        host, _, port = first.address.partition(":")
        options = ClientOptions.checked("127.0.0.1:1", retry_backoff_ms=1)
        pool = Connections(options, SystemClock(), lambda node_id: (host, int(port)))
        one, other = await asyncio.gather(pool.get(1), pool.get(1))
        assert one is other is pool.opened(1)
        one.close()
        assert pool.opened(1) is None
        again = await pool.get(1)
        assert again is not one
        pool.close()
        assert not again.is_open

    with_server(echo, use)


def test_a_node_that_is_away_is_asked_with_growing_pauses() -> None:
    async def run() -> None:
        options = ClientOptions.checked("127.0.0.1:1", retry_backoff_ms=4, retry_backoff_max_ms=8)
        pool = Connections(options, SystemClock(), lambda node_id: ("127.0.0.1", 1))
        for _ in range(3):
            with pytest.raises(ConnectionLostError, match=r"can't connect to 127\.0\.0\.1:1: "):
                await pool.get(1)
        pool.close()

    asyncio.run(run())


# --- gRPC calls and metadata ------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 2}) as node:
        yield node


@pytest.fixture
def core(node: FakeNode) -> Iterator[ClientCore]:
    core = ClientCore("Test", ClientOptions.checked(node.bootstrap, retry_backoff_ms=1, api_timeout_ms=10_000))
    yield core
    core.close()


def init(core: ClientCore, **options: Any) -> transactions_pb2.InitProducerIdResponse:
    return core.run(core.control.call(INIT_PRODUCER_ID, transactions_pb2.InitProducerIdRequest(), **options))


def test_calls_are_retried_while_that_may_help(node: FakeNode, core: ClientCore) -> None:
    node.call_script["InitProducerId"].extend(
        [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Action.LOSE_REQUEST, ErrorCode.CONCURRENT_TRANSACTIONS]
    )
    assert init(core).producer.producer_id == 1001
    assert node.names() == ["InitProducerId"] * 4


def test_a_call_that_a_stopping_node_cancelled_was_fatal(node: FakeNode, core: ClientCore) -> None:
    node.call_script["InitProducerId"].append(Action.END_CALL)
    with pytest.raises(RetriableError, match="ended before it answered InitProducerId"):
        init(core, retry=False)
    node.call_script["InitProducerId"].append(Action.END_CALL)
    assert init(core).producer.producer_id > 0


def test_errors_come_as_the_kind_that_says_what_to_do(node: FakeNode, core: ClientCore) -> None:
    for code, kind in (
        (ErrorCode.PRODUCER_FENCED, FencedError),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, FatalError),
    ):
        node.call_script["InitProducerId"].append(code)
        with pytest.raises(kind, match=f"scripted {code.name}") as caught:
            init(core)
        assert caught.value.code is code
    assert node.names() == ["InitProducerId"] * 2


def test_a_call_has_a_deadline(node: FakeNode, core: ClientCore) -> None:
    node.call_script["InitProducerId"].extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 10_000)
    # On a busy machine the last attempt has its deadline before it is answered.
    with pytest.raises(
        RetriableError, match=r"scripted COORDINATOR_LOAD_IN_PROGRESS|did not answer InitProducerId within"
    ):
        init(core, timeout_ms=100)
    node.call_script["InitProducerId"].clear()
    node.call_script["InitProducerId"].append(Action.HOLD)
    with pytest.raises(RetriableError, match="did not answer InitProducerId within 50 ms") as caught:
        init(core, timeout_ms=50)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    node.release()


def test_without_retry_there_is_one_attempt(node: FakeNode, core: ClientCore) -> None:
    node.call_script["InitProducerId"].append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(RetriableError):
        init(core, retry=False)
    assert node.names() == ["InitProducerId"]


def test_an_old_node_is_told_from_a_failing_one(node: FakeNode, core: ClientCore) -> None:
    from semel.sdk.transport.rpcs import LIST_GROUPS

    with pytest.raises(FatalError, match="has no ListGroups: it is older than this client") as caught:
        core.run(core.control.call(LIST_GROUPS, LIST_GROUPS.request()))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(FatalError, match=r"EndTransaction at .* failed"):  # the fake fails on an unknown id
        core.run(core.control.call(END_TRANSACTION, transactions_pb2.EndTransactionRequest(transactional_id="no")))


def test_another_bootstrap_address_is_asked_when_one_is_away(node: FakeNode) -> None:
    with FakeNode({}) as other:
        away = other.bootstrap
    core = ClientCore("Test", ClientOptions.checked(f"{away},{node.bootstrap}", retry_backoff_ms=1))
    try:
        assert init(core).producer.producer_id == 1001
    finally:
        core.close()


def test_topics_are_asked_for_and_remembered(node: FakeNode, core: ClientCore) -> None:
    topic = core.run(core.cluster.topic("orders"))
    assert [place.leader_id for place in topic.partitions] == [1, 1]
    asked = len(node.calls)
    assert core.run(core.cluster.topic("orders")) is topic
    assert len(node.calls) == asked
    with pytest.raises(FatalError, match="there is no topic 'nope'; create it"):
        core.run(core.cluster.topic("nope"))
    node.broker.topics["nope"] = 1  # made meanwhile: what did not exist is not remembered
    assert len(core.run(core.cluster.topic("nope")).partitions) == 1
    node.broker.topics["orders"] = 5
    assert len(core.run(core.cluster.refresh()).topics["orders"].partitions) == 5
    del node.broker.topics["orders"]
    assert "orders" not in core.run(core.cluster.refresh()).topics
    assert [topic.name for topic in core.run(core.cluster.all_topics())] == ["nope"]


def test_a_newer_leader_is_taken_from_a_hint_and_an_older_one_is_not(core: ClientCore) -> None:
    core.run(core.cluster.topic("orders"))
    tp = TopicPartition("orders", 1)
    other = NodeDescription(2, "127.0.0.1", 9, "", 0)
    core.cluster.apply_leader(tp, 2, 7, other)
    leader = core.cluster.snapshot.leader(tp)
    assert leader is not None
    assert (leader.leader_id, leader.leader_epoch) == (2, 7)
    assert core.cluster.data_address(2) == ("127.0.0.1", 9)
    core.cluster.apply_leader(tp, 1, 6)
    assert core.cluster.snapshot.leader(tp) == leader
    with pytest.raises(RetriableError, match="node 9 is not in the metadata"):
        core.cluster.data_address(9)


# --- The IO thread ----------------------------------------------------------------------------------------------------


def test_the_io_thread_runs_coroutines_for_others_and_refuses_to_wait_for_itself() -> None:
    io = IoThread("Test")

    async def nested() -> str:
        with pytest.raises(UsageError, match="inside one of its callbacks"):
            io.run(asyncio.sleep(0))
        return "done"

    assert io.run(nested()) == "done"
    with pytest.raises(RetriableError, match="no result within 10 ms"):
        io.run(asyncio.sleep(60), timeout_ms=10)
    assert asyncio.run(_wrapped(io)) == "done"
    io.close()
    io.close()
    with pytest.raises(UsageError, match="this Test is closed; make a new one"):
        io.run(asyncio.sleep(0))


def test_a_ctrl_c_while_a_call_is_handed_to_the_io_thread_is_a_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may run it by then: closing it from here failed with "coroutine already executing"."""
    io = IoThread("Test")
    running, go_on = threading.Event(), threading.Event()
    schedule = asyncio.run_coroutine_threadsafe

    async def work() -> None:
        running.set()
        go_on.wait(60)

    def interrupted(*arguments: Any) -> Any:
        schedule(*arguments)
        assert running.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        io.submit(work())
    go_on.set()
    io.close()


async def _wrapped(io: IoThread) -> str:
    return await asyncio.wrap_future(io.submit(asyncio.sleep(0, "done")))
