"""What three nodes' metrics say of replicas, leaders and each other, while one of them is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cluster import Cluster, cluster

from semel.broker.controller.elections import elect_unclean
from semel.broker.handlers.topics.changes import create_topics, delete_topics
from semel.broker.metrics.readings import NodeReader
from semel.broker.node import Node
from semel.broker.telemetry.recorders import Recorders
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.runtime.telemetry.buckets import Distribution

T0 = TopicPartition("t", 0)


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        # A busy machine must not make nodes look dead: what is counted here are those that are.
        settings.setdefault("broker_session_timeout_ms", 3_000)
        async with asyncio.timeout(180), cluster(folder, **settings) as three:
            await test(three)

    asyncio.run(main())


async def read(node: Node) -> dict[tuple[str, ...], Any]:
    """Return a node's values by name and labels."""
    readings = await NodeReader(node, Recorders(), node.clock).read()
    return {(one.instrument.name, *labels): value for one in readings for labels, value in one.values}


async def total(three: Cluster, *key: str) -> int:
    """Return the sum over all nodes, as a dashboard has it."""
    return sum([(await read(node)).get(key, 0) for node in three.nodes.values()])


async def create(three: Cluster, replicas: int, min_isr: int) -> tuple[int, ...]:
    """Create `t` on fewer nodes than there are, and return these once they are in sync."""
    (result,) = await create_topics(three.any(), [NewTopic("t", 1, replicas, {"min.insync.replicas": str(min_isr)})])
    assert result.error is ErrorCode.NONE, result.message
    nodes = three.state(T0).replicas
    await three.until(lambda: three.leader(T0) is not None)
    await three.in_sync(T0, *nodes)
    return nodes


async def until(three: Cluster, expected: int, *key: str) -> None:
    async with asyncio.timeout(60):
        while await total(three, *key) != expected:  # noqa: ASYNC110 (there is nothing that tells of it)
            await asyncio.sleep(0.02)


def test_what_a_dead_node_takes_along_is_told_and_so_is_its_return(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"1")
        await until(three, 1, "semel.cluster.controller")
        await until(three, 3, "semel.cluster.nodes", "alive")
        assert await total(three, "semel.replication.replicas", "leader") == 1
        assert await total(three, "semel.replication.replicas", "follower") == 2
        assert await total(three, "semel.replication.under_replicated") == 0
        await until(three, 0, "semel.replication.lag.max")
        dead = three.state(T0).leader
        await three.kill(dead)
        await three.until(lambda: three.leader(T0) is not None)
        await until(three, 1, "semel.replication.under_replicated")
        assert await total(three, "semel.replication.under_min_isr") == 0
        assert await total(three, "semel.replication.isr.changes", "shrink") == 1
        await until(three, 1, "semel.cluster.nodes", "fenced")
        assert await total(three, "semel.cluster.nodes", "alive") == 2
        assert await total(three, "semel.cluster.fencings") == 1
        assert await total(three, "semel.cluster.elections", "clean") == 1
        failovers = [(await read(node))["semel.cluster.failover.duration",] for node in three.nodes.values()]
        assert sum(sum(one.counts) for one in failovers) == 1
        assert sum(one.total for one in failovers) >= 0.2, "no sooner than after two heartbeats that did not come"
        leader = three.leader(T0)
        (follower,) = [node for node in three.nodes.values() if node is not leader]
        await three.produce(T0, b"2")
        await three.until(lambda: follower.replication_lag.get(T0) == 0)
        lagging = await read(follower)
        assert lagging["semel.replication.lag", "t", "0"] == 0
        assert lagging["semel.replication.fetch.failures", str(dead)] >= 1
        await three.start(dead)
        await three.in_sync(T0, 1, 2, 3)
        await until(three, 0, "semel.replication.under_replicated")
        await until(three, 0, "semel.cluster.nodes", "fenced")
        assert await total(three, "semel.replication.isr.changes", "expansion") == 1
        three.any().replication_quotas.follower.record(70, 0.0)
        assert await total(three, "semel.replication.throttled", "follower") == 70
        assert await total(three, "semel.replication.throttled", "leader") == 0
        assert await total(three, "semel.replication.throttled.exceeded", "follower") == 0

    run(tmp_path, test)


def test_partitions_without_a_leader_are_the_controllers_to_count(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        replicas = await create(three, replicas=2, min_isr=2)
        for node_id in replicas:
            await three.kill(node_id)
        await until(three, 1, "semel.cluster.partitions.offline")
        (left,) = three.nodes.values()
        assert (await read(left))["semel.cluster.partitions.offline.age.max",] >= 0
        assert (await read(left))["semel.cluster.nodes", "fenced"] == 2
        # The one that was in sync last has all records.
        back = three.state(T0).isr or three.state(T0).elr
        await three.start(back[-1])
        await until(three, 0, "semel.cluster.partitions.offline")
        await until(three, 1, "semel.replication.under_min_isr")
        assert await total(three, "semel.cluster.elections", "unclean") == 0

    run(tmp_path, test)


def test_an_election_by_an_operators_word_is_counted_apart(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        first, second = await create(three, replicas=2, min_isr=1)
        await three.kill(second)
        await three.in_sync(T0, first)
        await three.produce(T0, b"the second one lacks this")
        await three.kill(first)
        await three.start(second)
        await until(three, 1, "semel.cluster.partitions.offline")
        await until(three, 1, "semel.cluster.controller")
        node = three.any()
        await node.metadata.change(lambda image: [elect_unclean(image, T0, default_min_isr=1).change])
        await until(three, 1, "semel.cluster.elections", "unclean")
        await until(three, 0, "semel.cluster.partitions.offline")

    run(tmp_path, test)


def test_a_node_that_does_not_reach_the_database_says_for_how_long(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        three.stores[3].is_cut = True
        await three.until(lambda: three.nodes[3].metadata.failed_heartbeats >= 2)
        away = await read(three.nodes[3])
        assert away["semel.metadata.heartbeats.failed",] >= 2
        before = away["semel.metadata.age",]
        assert before > 0
        assert (await read(three.nodes[3]))["semel.metadata.age",] > before
        assert [three.nodes[number].metadata.away_ms > 0 for number in (1, 2, 3)] == [False, False, True]
        three.stores[3].is_cut = False
        await three.in_sync(T0, 1, 2, 3)
        await three.until(lambda: three.nodes[3].metadata.away_ms == 0)

    run(tmp_path, test)


def test_a_topic_that_is_deleted_lacks_no_leader(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        (only,) = await create(three, replicas=1, min_isr=1)
        await three.kill(only)
        await until(three, 1, "semel.cluster.partitions.offline")
        await delete_topics(three.any(), ["t"])
        await until(three, 0, "semel.cluster.partitions.offline")

    run(tmp_path, test)


def test_a_histogram_of_failovers_begins_empty(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        for node in three.nodes.values():
            value = (await read(node))["semel.cluster.failover.duration",]
            assert isinstance(value, Distribution)
            assert sum(value.counts) == 0

    run(tmp_path, test)
