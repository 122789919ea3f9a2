"""What strangers may do on the gRPC port: malformed messages, and connections that say nothing (S2)."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import grpc
import pytest
from kafka_node import until
from running_node import running_node

from semel.broker.node import Node

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
