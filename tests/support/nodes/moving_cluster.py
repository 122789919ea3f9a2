"""Tests with a cluster whose topic has replicas on chosen nodes, and moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cluster import Cluster, cluster

from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import create_topics
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], *, nodes: int = 3, **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(180), cluster(folder, nodes, **settings) as made:
            await test(made)

    asyncio.run(main())


async def create(made: Cluster, *replicas: int, min_isr: int) -> None:
    """Make the topic, with its replicas on these nodes."""
    configs = {"min.insync.replicas": str(min_isr)}
    (result,) = await create_topics(made.any(), [NewTopic("t", configs=configs, assignments={0: replicas})])
    assert result.error is ErrorCode.NONE, result.message
    await made.until(lambda: all(node.metadata.topic("t") is not None for node in made.nodes.values()))
    await made.in_sync(T0, *replicas)
    await made.until(lambda: made.leader(T0) is not None)


async def moved(made: Cluster, tp: TopicPartition, *replicas: int) -> None:
    """Move a partition, and wait until it is done and the others have nothing of it any more."""
    assert await reassign(made.any(), {tp: replicas}) == {tp: None}
    await made.until(lambda: made.state(tp).replicas == replicas and not made.state(tp).is_moving)
    await made.in_sync(tp, *replicas)
    others = [node for node_id, node in made.nodes.items() if node_id not in replicas]
    await made.until(lambda: all(node.partition(tp) is None for node in others))
