"""A whole node inside the test's event loop, on free loopback ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from everything_diskless import everything_diskless

from semel.broker.config.node_config import NodeConfig
from semel.broker.node import Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode

SMALL: dict[str, Any] = {
    "kafka_listen": "127.0.0.1:0",
    "grpc_listen": "127.0.0.1:0",
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
    "disk_min_free_bytes": 0,
    **everything_diskless(),
}
"""Settings of a node that starts fast: few partitions of the internal topics."""


@asynccontextmanager
async def running_node(folder: Path, **settings: Any) -> AsyncIterator[Node]:
    """Start a node with its data in `folder`, and stop it at the end."""
    node = await Node.start(NodeConfig(data_dir=str(folder / "data"), **{**SMALL, **settings}))
    try:
        yield node
    finally:
        await node.stop(grace_ms=500)


def run_with_node(
    folder: Path, test: Callable[[Node], Awaitable[None]], *, topics: Mapping[str, int] | None = None, **settings: Any
) -> None:
    """Run a test against a node that has `topics`: their names and how many partitions each has."""

    async def main() -> None:
        async with running_node(folder, **settings) as node:
            for name, partitions in (topics or {}).items():
                await create_topic(node, name, partitions)
            await test(node)

    asyncio.run(main())


@asynccontextmanager
async def channel_to(node: Node) -> AsyncIterator[grpc.aio.Channel]:
    """A gRPC channel to a node."""
    channel = grpc.aio.insecure_channel(str(node.grpc_address))
    try:
        yield channel
    finally:
        await channel.close(None)


async def create_topic(node: Node, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic, or fail the test. Settings with underscores for dots."""
    from semel.broker.handlers.topics.changes import create_topics

    settings = {key.replace("_", "."): value for key, value in configs.items()}
    (result,) = await create_topics(node, [NewTopic(name, partitions, configs=settings)])
    assert result.error is ErrorCode.NONE, result


def batch(*values: bytes, **options: Any) -> bytes:
    """A record batch of `values` without keys."""
    return bytes(encode_batch([(1_000, None, value, ()) for value in values], **options))
