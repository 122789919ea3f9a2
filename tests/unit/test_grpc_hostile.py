"""What strangers may do on the gRPC port: malformed messages, and connections that say nothing (S2)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from kafka_node import until
from running_node import create_topic, run_with_node, running_node

from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.group_service import GroupService
from semel.broker.listeners.grpc.metadata_service import MetadataService
from semel.broker.listeners.grpc.topic_service import TopicService
from semel.broker.listeners.grpc.transaction_service import TransactionService
from semel.broker.node import Node
from semel.protocol.errors import SemelError
from semel.protocol.v1 import common_pb2, groups_pb2, metadata_pb2, topics_pb2, transactions_pb2
from semel.runtime.turns import TURN_SECONDS

GARBAGE = b"\xff\xff\xff\xff\xff"
METHODS = (
    "/semel.v1.MetadataService/GetMetadata",
    "/semel.v1.GroupService/JoinGroup",
    "/grpc.health.v1.Health/Check",
)
STREAMS = ("/semel.v1.DataService/Produce", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")


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
            assert node._grpc is not None
            assert node._grpc.malformed.messages == 70

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
    "GetMetadata": lambda node: MetadataService(node).get_metadata(
        metadata_pb2.GetMetadataRequest(topics=[f"n{number}" for number in range(MANY)]), UNUSED
    ),
    "ListOffsets": lambda node: TopicService(node).list_offsets(
        topics_pb2.ListOffsetsRequest(
            items=[topics_pb2.ListOffsetsRequest.Item(topic="there", partition=number) for number in range(MANY)]
        ),
        UNUSED,
    ),
    "DeleteRecords": lambda node: TopicService(node).delete_records(
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
    "AddPartitions": 4,
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
