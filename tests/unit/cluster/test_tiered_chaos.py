"""Three nodes with remote storage under faults of every kind, by seed: killed nodes, power cuts, a store that fails, is
slow and loses answers, a database that is away, deletions. What was acknowledged is there, once, and in order.

`SEMEL_TIERED_SEEDS=100` runs more of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from faulty_cluster import FaultyCluster, Written
from memory_objects import MemoryObjects
from tiered_topic import QUICK, all_copied, serving, tier_of

from semel.broker.handlers.topics.changes import create_topics
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)
SEEDS = int(os.environ.get("SEMEL_TIERED_SEEDS", "4"))
FIRST = int(os.environ.get("SEMEL_TIERED_FIRST", "0"))
ROUNDS = 8
RECORDS = 12


class World(FaultyCluster):
    """One run."""

    def __init__(self, made: Cluster, objects: MemoryObjects, seed: int) -> None:
        super().__init__(made, objects, seed)
        self.written = Written(T0.partition)

    async def produce(self) -> None:
        value = b"%05d" % self.written.sequence + b"." * self.chance.randrange(60, 200)
        await self.append(self.written, None, value)

    async def harm(self) -> None:
        """Do one thing to the cluster."""
        made, chance = self.made, self.chance
        kind = chance.choice(("kill", "kill", "power", "stop", "store", "database", "delete", "nothing"))
        if kind in ("kill", "power", "stop") and not self.down:
            await asyncio.sleep(0.01)  # what has just started has begun its duties
            node_id = made.state(T0).leader if chance.random() < 0.7 else chance.choice(list(made.nodes))
            if node_id in made.nodes:
                await (made.stop(node_id) if kind == "stop" else made.kill(node_id, power=kind == "power"))
                self.down.append(node_id)
        elif kind == "store":
            share = chance.choice((0.2, 0.6))
            faults = chance.choice((("fail",), ("lose",), ("fail", "lose")))
            self.objects.fault = lambda kind, key: chance.choice(faults) if chance.random() < share else ""
        elif kind == "database":
            self.cut_a_database()
        elif kind == "delete" and self.written.sequence > 10:
            await self.delete_some(self.written)

    async def check(self) -> None:
        """Read everything from who leads, as both kinds of readers do."""
        start = await self.start_of(self.written)
        expected = self.written.acknowledged_from(start)
        for committed in (False, True):
            assert await self.read(T0, start, committed=committed) == expected


@pytest.mark.drawn(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_E1_D1_D6_R1_what_was_acknowledged_is_there_once_whatever_fails(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(500), cluster(tmp_path, 3, objects=objects, **QUICK) as made:
            configs = {
                "remote.storage.enable": "true",
                "local.retention.bytes": random.Random(seed).choice(("0", "1500")),
                "segment.bytes": "700",
                "min.insync.replicas": "2",
            }
            (result,) = await create_topics(made.any(), [NewTopic("t", 1, 3, configs=configs)])
            assert result.error is ErrorCode.NONE, result.message
            await made.until(lambda: all(node.metadata.topic("t") is not None for node in made.nodes.values()))
            world = World(made, objects, seed)
            for _ in range(ROUNDS):
                await world.harm()
                for _ in range(RECORDS):
                    await world.produce()
                if world.chance.random() < 0.6:
                    await world.heal()
                    await world.check()
            await world.heal()
            await made.in_sync(T0, 1, 2, 3)
            await world.produce()
            await serving(await world.leader_of(T0), T0)
            await all_copied(await world.leader_of(T0), T0)
            await world.check()
            node = await world.leader_of(T0)
            keys = {one.key for one in tier_of(node, T0).remote.segments}
            await made.until(lambda: set(objects.objects) == keys)

    asyncio.run(main())
