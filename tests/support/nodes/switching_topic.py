"""Three nodes with a topic on their disks that becomes diskless: who writes to it meanwhile, what has to be there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from cluster import Cluster, cluster
from diskless_topic import FAST
from faulty_cluster import FaultyCluster, Written
from memory_objects import MemoryObjects
from tiered_topic import partition_of, tier_of

from semel.broker.diskless.switching import Switching
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.leadership import elect_leaders
from semel.broker.node import Node
from semel.broker.tiers.partition_tier import PartitionTier
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.ids import TopicPartition

T0: Final = TopicPartition("t", 0)
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "segment.bytes": "1000",
}
"""Settings of a topic of which little is left after each compaction."""
KEYS: Final = 5
LARGE: Final = 20_000
"""More than goes into a row."""


def run(
    folder: Path, test: Callable[[FaultyCluster], Awaitable[None]], *, seed: int = 0, partitions: int = 1,
    topic: dict[str, str] | None = None, **settings: Any,
) -> None:  # fmt: skip
    """Run a test against three nodes that have the topic `t` on their disks."""

    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(400), cluster(folder, 3, objects=objects, **{**FAST, **settings}) as made:
            await made.create("t", partitions, 3, min_insync_replicas="2", **(topic or {}))
            await made.in_sync(T0, 1, 2, 3)
            await test(FaultyCluster(made, objects, seed))

    asyncio.run(main())


def make_diskless(value: str | None = "true", topic: str = "t", **more: str) -> AlterConfigsRequest:
    values = {"diskless.enable": value, **{name.replace("_", "."): text for name, text in more.items()}}
    return AlterConfigsRequest(ResourceType.TOPIC, topic, values)


def is_diskless(made: Cluster, *tps: TopicPartition) -> bool:
    image = max((node.metadata.image for node in made.nodes.values()), key=lambda one: one.sequence)
    for tp in tps or (T0,):
        topic, state = image.topic(tp.topic), image.partition(tp)
        if topic is None or state is None or not topic.has_diskless(state):
            return False
    return True


def error_of(node: Node) -> str:
    """Return why nothing is copied; empty where something is, or nothing is to be."""
    return "" if partition_of(node).tier is None else tier_of(node).error


class HeldSwitch:
    """Leaders copy, and do not make a partition diskless before `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_held, go_on = True, Switching.go_on

        async def not_yet(switching: Switching, part: PartitionTier) -> None:
            if not self._is_held:
                await go_on(switching, part)

        monkeypatch.setattr(Switching, "go_on", not_yet)

    def let_go(self) -> None:
        self._is_held = False


async def leads_alone(world: FaultyCluster) -> Node:
    """Have the leader of `t` go on while the other nodes are away, and return it."""
    made = world.made
    await alter_configs(made.any(), AlterConfigsRequest(ResourceType.TOPIC, "t", {"min.insync.replicas": "1"}))
    leader = made.state(T0).leader
    for node_id in [each for each in made.nodes if each != leader]:
        await made.stop(node_id)
    await made.in_sync(T0, leader)
    return made.nodes[leader]


async def elect_without(world: FaultyCluster, leader: int) -> None:
    """Kill who led alone, start the others, and have one of them lead, which lacks what that one had appended."""
    made = world.made
    await made.kill(leader)
    others = [each for each in (1, 2, 3) if each != leader]
    for node_id in others:
        await made.start(node_id)
    await made.until(lambda: made.state(T0).leader == -1 and len(made.nodes) == 2)
    assert await elect_leaders(made.nodes[others[0]], [T0], unclean=True) == {T0: None}


async def without_disks(world: FaultyCluster) -> None:
    """Start all nodes again, each with an empty disk."""
    made = world.made
    await asyncio.sleep(0.01)  # what has just started has begun its duties
    for node_id in list(made.nodes):
        await made.kill(node_id, power=True)
        del made.disks[node_id]
    for node_id in (1, 2, 3):
        await made.start(node_id)


async def write(world: FaultyCluster, to: Written, count: int) -> None:
    for _ in range(count):
        await world.append(to, None, b"%05d" % to.sequence + b"." * (LARGE if to.sequence % 7 == 0 else 95))


async def check(world: FaultyCluster, *written: Written) -> None:
    for one in written:
        start = await world.start_of(one)
        for committed in (False, True):
            assert await world.read(one.tp, start, committed=committed) == one.acknowledged_from(start)


async def write_keys(world: FaultyCluster, to: Written, count: int) -> None:
    """Write records of a few keys, and deletions of some."""
    chance = world.chance
    for _ in range(count):
        value = None if chance.random() < 0.3 else b"%05d" % to.sequence + b"." * chance.choice((60, 200, 400))
        await world.append(to, b"k%d" % chance.randrange(KEYS), value)


async def check_keys(world: FaultyCluster, *written: Written) -> None:
    """Check that each key has its last value, and that what was deleted is gone (D4)."""
    for one in written:
        expected = set(one.acknowledged_from(0))
        last = {key: offset for offset, (key, _) in sorted(one.acknowledged.items())}
        for committed in (False, True):
            begins = partition_of(await world.leader_of(one.tp), one.tp).log_start_offset
            found = await world.read(one.tp, begins, committed=committed)
            assert set(found) <= expected
            assert len(found) == len(set(found))
            here: dict[bytes | None, int] = {}
            for offset, _ in found:
                here[one.acknowledged[offset][0]] = offset
            for key, offset in last.items():
                is_deletion = one.acknowledged[offset][1] is None
                assert here.get(key, offset if is_deletion else None) == offset, (key, offset, here.get(key))


async def compact(node: Node) -> None:
    """Compact what a node has on its disk: once to remove values, and once more for deletions whose time has come."""
    for _ in range(2):
        await node.logs.maintenance.flush()
        await node.logs.maintenance.compact_logs()
