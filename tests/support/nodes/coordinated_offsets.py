"""Committing offsets to a cluster of nodes as a client does, which looks for the coordinator, and asking for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cluster import Cluster

from semel.broker.node import Node
from semel.protocol.api.groups import OffsetAndMetadata, OffsetCommitRequest, OffsetFetchRequest
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition

T = TypeVar("T")
T0 = TopicPartition("t", 0)


async def somewhere(made: Cluster, call: Callable[[Node], Awaitable[T]]) -> T:
    """Ask one node after the other, as a client does that looks for a coordinator, until one answers."""
    async with asyncio.timeout(60):
        while True:
            for node in list(made.nodes.values()):
                try:
                    return await call(node)
                except SemelError as error:
                    last = error
            assert isinstance(last, RetriableError), last
            await asyncio.sleep(0.05)


async def commit_offset_at(node: Node, group: str, offset: int) -> None:
    """Commit at one node. Raises `RetriableError` where it refuses."""
    asked = OffsetCommitRequest(group, -1, "", None, {T0: OffsetAndMetadata(offset)})
    error = (await node.groups.commit_offsets(asked)).errors[T0]
    if error is not ErrorCode.NONE:
        raise RetriableError(f"{error.name}", error)


async def commit_offset(made: Cluster, group: str, offset: int) -> None:
    await somewhere(made, lambda node: commit_offset_at(node, group, offset))


async def offset_of(made: Cluster, group: str) -> int:
    async def fetch(node: Node) -> int:
        return (await node.groups.fetch_offsets(OffsetFetchRequest(group, (T0,)))).offsets[T0].offset

    return await somewhere(made, fetch)
