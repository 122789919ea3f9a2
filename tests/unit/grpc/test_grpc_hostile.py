"""What strangers may do on the gRPC port: malformed messages, and connections that say nothing (S2)."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from kafka_node import until
from running_node import batch, create_topic, run_with_node, running_node

from semel.broker.acls.rights import ALL_RIGHTS, set_rights
from semel.broker.handlers.fetch.large import PART
from semel.broker.listeners.grpc import edge
from semel.broker.listeners.grpc.data_service import RESPONSE_BYTES_MAX, DataService, _produce_response
from semel.broker.listeners.grpc.edge import REQUEST_BYTES_MAX, Context
from semel.broker.listeners.grpc.fetch_budget import FetchBudget
from semel.broker.listeners.grpc.group_service import GroupService
from semel.broker.listeners.grpc.malformed import Malformed
from semel.broker.listeners.grpc.metadata_service import MetadataService
from semel.broker.listeners.grpc.topic_service import TopicService
from semel.broker.listeners.grpc.transaction_service import TransactionService
from semel.broker.listeners.grpc.wire import WireCount
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.kafka.produce import ProducePartitionResponse, ProduceResponse
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.protocol.v1 import common_pb2, data_pb2, groups_pb2, metadata_pb2, topics_pb2, transactions_pb2
from semel.runtime.turns import TURN_SECONDS

GARBAGE = b"\xff\xff\xff\xff\xff"
METHODS = (
    "/semel.v1.MetadataService/GetMetadata",
    "/semel.v1.GroupService/JoinGroup",
    "/grpc.health.v1.Health/Check",
)
STREAMS = ("/semel.v1.DataService/Produce", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")


@pytest.fixture(autouse=True)
def _called_by_who_may_do_everything() -> None:
    """Tests call the services' methods without the edge, which says who calls."""
    set_rights(ALL_RIGHTS)


async def garbage(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    try:
        if method in STREAMS:
            call = channel.stream_stream(method)()
            await call.write(GARBAGE)
            async for _ in call:
                pass
        else:
            await channel.unary_unary(method)(GARBAGE)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it was taken")


@pytest.mark.parametrize("method", [*METHODS, *STREAMS])
def test_S2_malformed_messages_are_invalid_and_write_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """Each call of five bytes wrote 770 bytes of traceback, and was answered UNKNOWN."""

    async def test() -> None:
        async with running_node(tmp_path) as node:
            async with grpc.aio.insecure_channel(str(node.grpc_address)) as channel:
                errors = [await garbage(channel, method) for _ in range(70)]
            assert {error.code() for error in errors} == {grpc.StatusCode.INVALID_ARGUMENT}
            assert method in (errors[0].details() or "")
            assert node.grpc_listener is not None
            assert node.grpc_listener.malformed.messages == 70

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not any(record.exc_info for record in lines)
    told = [record for record in lines if "malformed gRPC message" in record.getMessage()]
    assert len(told) == 50
    assert "left out: lines=20" in caplog.text


def open_sockets(node: Node, count: int) -> list[socket.socket]:
    return [socket.create_connection(node.grpc_address) for _ in range(count)]


def closed(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        while peer.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


async def is_served(node: Node) -> bool:
    async with grpc.aio.insecure_channel(str(node.grpc_address)) as channel:
        return bool(
            await channel.unary_unary("/semel.v1.MetadataService/GetMetadata")(b"", timeout=60, wait_for_ready=True)
        )


def test_S2_connections_to_grpc_are_bounded(tmp_path: Path) -> None:
    """2,000 of them were open, and took the descriptors of everybody else."""

    async def test() -> None:
        async with running_node(tmp_path, grpc_max_connections=10, grpc_handshake_timeout_ms=600_000) as node:
            peers = open_sockets(node, 30)
            await until(lambda: sum(map(closed, peers)) == 20)
            for peer in peers:
                peer.close()
            assert await is_served(node)

    asyncio.run(test())


def test_S2_silent_connections_to_grpc_are_closed(tmp_path: Path) -> None:
    """They were open for as long as they liked."""

    async def test() -> None:
        async with running_node(tmp_path, grpc_handshake_timeout_ms=500) as node:
            peers = open_sockets(node, 5)
            await until(lambda: all(map(closed, peers)))
            for peer in peers:
                peer.close()
            assert await is_served(node)

    asyncio.run(test())


UNUSED = cast(Context, None)
LOOKS_PER_TURN = round(TURN_SECONDS * 1000)
MANY = 40 * LOOKS_PER_TURN

ONE_TOPIC = common_pb2.TopicPartitions(topic="there", partitions=range(MANY))
CALLS: dict[str, Callable[[Node], Awaitable[Any]]] = {
    "GetMetadata": lambda node: MetadataService(node, DEFAULT_LISTENER).get_metadata(
        metadata_pb2.GetMetadataRequest(topics=[f"n{number}" for number in range(MANY)]), UNUSED
    ),
    "ListOffsets": lambda node: TopicService(node, DEFAULT_LISTENER).list_offsets(
        topics_pb2.ListOffsetsRequest(
            items=[topics_pb2.ListOffsetsRequest.Item(topic="there", partition=number) for number in range(MANY)]
        ),
        UNUSED,
    ),
    "DeleteRecords": lambda node: TopicService(node, DEFAULT_LISTENER).delete_records(
        topics_pb2.DeleteRecordsRequest(
            items=[topics_pb2.DeleteRecordsRequest.Item(topic="there", partition=number) for number in range(MANY)]
        ),
        UNUSED,
    ),
    "FetchOffsets": lambda node: GroupService(node).fetch_offsets(
        groups_pb2.FetchOffsetsRequest(group_id="group", topics=[ONE_TOPIC]), UNUSED
    ),
    "DeleteOffsets": lambda node: GroupService(node).delete_offsets(
        groups_pb2.DeleteOffsetsRequest(group_id="group", topics=[ONE_TOPIC]), UNUSED
    ),
    "AddPartitions": lambda node: TransactionService(node).add_partitions(
        transactions_pb2.AddPartitionsRequest(transactional_id="id", topics=[ONE_TOPIC]), UNUSED
    ),
}


PASSES = {
    "GetMetadata": 2,
    "ListOffsets": 3,
    "DeleteRecords": 3,
    "FetchOffsets": 2,
    "DeleteOffsets": 1,
    "AddPartitions": 3,
}
"""How often each goes through its items: to read them, to work on them, to answer. Others have two rounds a turn."""


async def refusal_or_answer(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except SemelError as error:
        return error


@pytest.mark.parametrize("name", CALLS)
def test_S3_a_call_about_many_things_is_worked_on_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """40,000 held the loop for a quarter of a second. What is asked and what is answered are gone through in turns."""

    async def test(node: Node) -> None:
        await create_topic(node, "there")
        await refusal_or_answer(CALLS[name](node))  # what is made or loaded on the way is there from now on
        every_look_takes_a_millisecond(monkeypatch)
        _, rounds = await rounds_of_the_loop(refusal_or_answer(CALLS[name](node)))
        assert rounds >= 0.9 * PASSES[name] * 2 * MANY // LOOKS_PER_TURN

    run_with_node(tmp_path, test, auto_create_topics_enable=False)


def test_S2_lists_within_lists_are_bounded_together(tmp_path: Path) -> None:
    """A hundred thousand partitions came through as one topic."""

    async def test(node: Node) -> None:
        request = groups_pb2.FetchOffsetsRequest(group_id="group", topics=[ONE_TOPIC] * 2)
        async with grpc.aio.insecure_channel(str(node.grpc_address)) as channel:
            call = channel.unary_unary("/semel.v1.GroupService/FetchOffsets")
            with pytest.raises(grpc.aio.AioRpcError, match=rf"topics.partitions has {2 * MANY} items, more than"):
                await call(request.SerializeToString())
            assert await call(groups_pb2.FetchOffsetsRequest(group_id="g", topics=[ONE_TOPIC]).SerializeToString())

    run_with_node(tmp_path, test, grpc_max_array_length=2 * MANY - 1)


LONGEST = 1000
TOO_MANY = {
    "items of a list": ("TopicService/ListOffsets", b"\x0a\0" * (LONGEST + 1), "items has more items"),
    "names": ("MetadataService/GetMetadata", b"\x0a\0" * (LONGEST + 1), "topics has more items"),
    "numbers of a list": (
        "GroupService/FetchOffsets",
        b"\x1a\xb9\x17" + b"\x12\xb6\x17" + b"\x01" * 2998,
        "topics.partitions has more items",
    ),
    "settings of a topic": (
        "TopicService/CreateTopics",
        b"\x0a\xd2\x0f" + b"\x22\0" * (LONGEST + 1),
        "topics.configs has more items",
    ),
    "fields of no list": ("GroupService/Heartbeat", b"\x10\x01" * (4 * LONGEST + 1), "far more fields"),
    "messages of a Fetch stream": ("DataService/Fetch", b"\x0a\0" * (LONGEST + 1), "items has more items"),
    "messages of a Produce stream": ("DataService/Produce", b"\x22\0" * (LONGEST + 1), "items has more items"),
    "bytes": ("TopicService/ListOffsets", b"\x12" * (REQUEST_BYTES_MAX + 1), f"more than {REQUEST_BYTES_MAX}: send"),
    "bytes of a Fetch stream": ("DataService/Fetch", b"\x12" * (REQUEST_BYTES_MAX + 1), "more than"),
}


async def refused(channel: grpc.aio.Channel, method: str, data: bytes) -> str:
    try:
        if "DataService" in method:
            call = channel.stream_stream(f"/semel.v1.{method}")(iter([data]))
            async for _ in call:
                pass
        else:
            await channel.unary_unary(f"/semel.v1.{method}")(data)
    except grpc.aio.AioRpcError as error:
        return (error.details() or "") if error.code() is grpc.StatusCode.INVALID_ARGUMENT else str(error)
    raise AssertionError("it was taken")


@pytest.mark.parametrize("what", TOO_MANY)
def test_S2_a_request_of_too_many_items_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Eight million empty items in 16 MB held the loop for 1.3 s and took half a gigabyte."""
    method, data, message = TOO_MANY[what]

    async def parse(*_: Any) -> Any:
        raise UsageError("it was parsed")

    async def test(node: Node) -> None:
        monkeypatch.setattr(Malformed, "parse", parse)
        async with grpc.aio.insecure_channel(str(node.grpc_address)) as channel:
            assert message in await refused(channel, method, data)

    run_with_node(tmp_path, test, grpc_max_array_length=LONGEST)


def test_S2_the_bytes_of_a_large_request_are_counted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        every_look_takes_a_millisecond(monkeypatch)
        descriptor = topics_pb2.ListOffsetsRequest.DESCRIPTOR
        fields = 512 * 10 * LOOKS_PER_TURN
        count = WireCount(descriptor, fields // 2, lambda name: None)
        _, rounds = await rounds_of_the_loop(count.check(b"\x0a\0" * fields))
        assert rounds >= 9

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\xff\xff", b"\x0b\x0c", b"\x08" + b"\xff" * 11])
def test_S2_bytes_that_are_no_large_request_are_malformed(tmp_path: Path, data: bytes) -> None:
    async def test(node: Node) -> None:
        async with grpc.aio.insecure_channel(str(node.grpc_address)) as channel:
            assert "no message of the API" in await refused(channel, "TopicService/ListOffsets", b"\x10\x01" + data)

    run_with_node(tmp_path, test, grpc_max_array_length=1)


class Held:
    """Stands for a request: it can be seen whether it is still in memory."""


@pytest.mark.parametrize("method", ["GroupService/Heartbeat", "DataService/Produce"])
def test_S2_a_refused_request_is_freed_without_a_full_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """gRPC keeps the error that ends a call, in a cycle. Its frames kept half a gigabyte for each call."""
    requests: list[weakref.ref[Held]] = []

    async def parse(*_: Any) -> Any:
        held = Held()
        requests.append(weakref.ref(held))
        return held

    def refuse(_request: Any) -> None:
        raise UsageError("not this one")

    async def test(node: Node) -> None:
        async with grpc.aio.insecure_channel(str(node.grpc_address)) as channel:
            for _ in range(3):
                assert await refused(channel, method, b"") == "not this one"
            await until(lambda: not any(request() for request in requests))
        assert len(requests) == 3

    monkeypatch.setattr(Malformed, "parse", parse)
    monkeypatch.setattr(edge, "_array_check", lambda *_: refuse)
    gc.disable()
    try:
        run_with_node(tmp_path, test)
    finally:
        gc.enable()


class Peer:
    """The context of a call, as far as streams use it."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


async def asks(*requests: data_pb2.FetchRequest) -> AsyncIterator[data_pb2.FetchRequest]:
    for request in requests:
        yield request
    await asyncio.get_running_loop().create_future()


def to_fetch(*partitions: int, **fields: Any) -> data_pb2.FetchRequest:
    items = [data_pb2.FetchRequest.Item(topic="a", partition=number) for number in partitions]
    return data_pb2.FetchRequest(items=items, credit_bytes=1 << 40, **fields)


async def append(node: Node, *sizes: int) -> None:
    async def requests() -> AsyncIterator[data_pb2.ProduceRequest]:
        for size in sizes:
            item = data_pb2.ProduceRequest.Item(topic="a", partition=0, record_batches=batch(b"v" * size))
            yield data_pb2.ProduceRequest(acks=-1, items=[item])

    answers = [answer async for answer in data_of(node).produce(requests(), PEER)]
    assert [answer.items[0].error.name for answer in answers] == [""] * len(sizes)


def data_of(node: Node) -> DataService:
    assert node.grpc_listener is not None
    return node.grpc_listener.services.data


PEER = cast(Context, Peer())


def test_S2_fetch_streams_that_nobody_reads_hold_no_more_than_their_places(tmp_path: Path) -> None:
    """Each held a megabyte, whatever the number of streams: 900 held 939 MB."""

    async def test(node: Node) -> None:
        await create_topic(node, "a")
        await append(node, 900_000, 900_000)
        data = data_of(node)
        budget = data.budget = FetchBudget(4 * RESPONSE_BYTES_MAX)
        streams: list[Any] = [data.fetch(asks(to_fetch(0)), PEER) for _ in range(8)]
        reads = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await until(lambda: sum(read.done() for read in reads) == 2 and budget.waiting == 6)
        assert budget.used_bytes == 2 * RESPONSE_BYTES_MAX, "one address has half"
        await streams[0].aclose()
        await until(lambda: sum(read.done() for read in reads) == 3)
        for read, stream in zip(reads, streams, strict=True):
            read.cancel()
            await asyncio.wait([read])
            await stream.aclose()
        assert (budget.used_bytes, budget.waiting) == (0, 0)
        waits: Any = data.fetch(asks(to_fetch(0), to_fetch(0)), PEER)
        assert (await anext(waits)).items[0].record_batches
        assert budget.used_bytes == RESPONSE_BYTES_MAX
        await waits.aclose()
        assert budget.used_bytes == 0

    run_with_node(tmp_path, test)


def test_S3_more_credit_does_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message of two bytes began to read all partitions again."""

    async def test(node: Node) -> None:
        await create_topic(node, "a")
        data, begun = data_of(node), 0
        begin = data._fetch.begin

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal begun
            begun += 1
            return begin(*args, **options)

        async def requests() -> AsyncIterator[data_pb2.FetchRequest]:
            yield to_fetch(0, max_wait_ms=600_000)
            for _ in range(50):
                await asyncio.sleep(0)
                yield data_pb2.FetchRequest(credit_bytes=1)
            await append(node, 10)
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(data._fetch, "begin", counted)
        stream: Any = data.fetch(requests(), PEER)
        assert (await anext(stream)).items[0].record_batches
        assert begun <= 2
        await stream.aclose()

    run_with_node(tmp_path, test)


def test_S3_streams_with_many_items_are_worked_on_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Produce request of 90,000 partitions held the loop for a second, a Fetch request for half a second."""
    response = ProduceResponse([ProducePartitionResponse("a", 0, ErrorCode.NONE)] * MANY)

    async def test() -> None:
        every_look_takes_a_millisecond(monkeypatch)
        _, rounds = await rounds_of_the_loop(_produce_response(response))
        assert rounds >= 0.9 * MANY // LOOKS_PER_TURN

    asyncio.run(test())


def test_S2_a_few_addresses_do_not_take_all_places_of_fetch_streams() -> None:
    """Two had half of them each, and a third one waited for ever."""

    async def test() -> None:
        budget = FetchBudget(64)
        held = {}
        for host in "abcd":
            held[host] = 0
            while budget.try_reserve(host, 1):
                held[host] += 1
        assert held == {"a": 32, "b": 16, "c": 8, "d": 4}
        waiting = asyncio.ensure_future(budget.reserve("a", 1))
        await asyncio.sleep(0)
        assert (budget.waiting, budget.try_reserve("e", 2)) == (1, 2), "who waits for its own share is in nobody's way"
        budget.release("a", 32)
        assert await waiting == 1

    asyncio.run(test())


def test_S2_an_address_that_holds_nothing_reads_where_many_others_never_do() -> None:
    """Eight addresses had all places, and everybody else waited for ever."""

    async def test() -> None:
        budget = FetchBudget(64)
        for number in range(40):
            while budget.try_reserve(f"stranger-{number}", 4 if number else 1):
                pass
        assert 64 <= budget.used_bytes <= 128
        waiting = asyncio.ensure_future(budget.reserve("stranger-0", 1))
        large = asyncio.ensure_future(budget.reserve("large", 20))
        await asyncio.sleep(0)
        others = [budget.try_reserve(f"new-{number}", 1) for number in range(128 - budget.used_bytes)]
        assert others.count(1) == len(others)
        late = asyncio.ensure_future(budget.reserve("late", 1))
        await asyncio.sleep(0)
        assert budget.waiting == 3
        budget.release("new-0", 1)
        assert await asyncio.wait_for(late, 60) == 1, "neither the share of a stranger nor a large place is in its way"
        budget.stop()
        assert [await waiting, await large] == [0, 0]

    asyncio.run(test())


def test_S2_a_large_fetch_reads_with_a_place_and_waits_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of more than 200 partitions gave its place back first, and read a megabyte then."""

    async def test(node: Node) -> None:
        await create_topic(node, "a", PART + 1)
        data, reads = data_of(node), list[int]()
        budget, read = data.budget, data._fetch.read

        def watched(*args: Any) -> None:
            reads.append(budget.used_bytes)
            read(*args)

        monkeypatch.setattr(data._fetch, "read", watched)
        stream: Any = data.fetch(asks(to_fetch(*range(PART + 1), max_wait_ms=600_000)), PEER)
        answer = asyncio.ensure_future(anext(stream))
        await until(lambda: len(data._fetch._waiting) == 1)
        assert reads == [RESPONSE_BYTES_MAX] * 2
        await until(lambda: budget.used_bytes == 0)
        others = [f"/other-{number}" for number in range(2 * budget._bytes_max // RESPONSE_BYTES_MAX)]
        assert all(budget.try_reserve(other, RESPONSE_BYTES_MAX) for other in others)
        await append(node, 10)
        await until(lambda: budget.waiting == 1)
        assert len(reads) == 2, "it reads when it has a place"
        budget.release(others[0], RESPONSE_BYTES_MAX)
        assert (await answer).items[0].record_batches
        assert reads[2:] == [budget._bytes_max * 2] * 2
        await stream.aclose()
        assert budget.used_bytes == RESPONSE_BYTES_MAX * (len(others) - 1)

    run_with_node(tmp_path, test)


def test_S2_places_of_fetch_streams_are_given_in_order() -> None:
    async def test() -> None:
        budget, given = FetchBudget(10), list[str]()

        async def take(host: str, size: int) -> int:
            taken = await budget.reserve(host, size)
            given.append(host)
            return taken

        assert budget.try_reserve("a", 5) == 5
        assert not budget.try_reserve("a", 1)
        assert budget.try_reserve("b", 3) == 3
        large, small, gone = (asyncio.ensure_future(take(*each)) for each in (("c", 99), ("d", 1), ("e", 1)))
        await asyncio.sleep(0)
        assert (budget.waiting, budget.try_reserve("f", 1)) == (3, 0), "a large one is not overtaken"
        gone.cancel()
        budget.release("a", 5)
        budget.release("b", 3)
        assert await large == 10
        budget.release("c", 10)
        assert await small == 1
        assert given == ["c", "d"]
        waiting = asyncio.ensure_future(budget.reserve("a", 10))
        await asyncio.sleep(0)
        budget.stop()
        assert await waiting == 0

    asyncio.run(test())


def test_S3_a_setting_is_described_once(tmp_path: Path) -> None:
    """One that was named 99,000 times was described as often."""

    async def test(node: Node) -> None:
        await create_topic(node, "there")
        request = topics_pb2.DescribeConfigsRequest(
            resource_type=topics_pb2.TOPIC, resource_name="there", names=["cleanup.policy"] * 100
        )
        response = await TopicService(node, DEFAULT_LISTENER).describe_configs(request, UNUSED)
        assert [entry.name for entry in response.entries] == ["cleanup.policy"]

    run_with_node(tmp_path, test)


def test_S3_a_request_changes_so_many_settings_at_most(tmp_path: Path) -> None:
    """99,000 unknown names were sorted and joined for the text of the error."""

    async def test(node: Node) -> None:
        await create_topic(node, "there")
        request = topics_pb2.AlterConfigsRequest(
            resource_type=topics_pb2.TOPIC, resource_name="there", remove=[f"n{number}" for number in range(1001)] * 2
        )
        with pytest.raises(UsageError, match="more than 1000 settings are named"):
            await TopicService(node, DEFAULT_LISTENER).alter_configs(request, UNUSED)
        request = topics_pb2.AlterConfigsRequest(
            resource_type=topics_pb2.TOPIC, resource_name="there", remove=["cleanup.policy"] * 2000
        )
        await TopicService(node, DEFAULT_LISTENER).alter_configs(request, UNUSED)

    run_with_node(tmp_path, test)
