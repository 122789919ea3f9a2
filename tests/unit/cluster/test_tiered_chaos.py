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
from memory_objects import MemoryObjects
from running_node import batch
from tiered_topic import QUICK, all_copied, partition_of, read_all, serving, tier_of

from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.node import Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest

T0 = TopicPartition("t", 0)
SEEDS = int(os.environ.get("SEMEL_TIERED_SEEDS", "4"))
FIRST = int(os.environ.get("SEMEL_TIERED_FIRST", "0"))
ROUNDS = 8
RECORDS = 12
WITHIN_S = 60.0


class World:
    """One run."""

    def __init__(self, made: Cluster, objects: MemoryObjects, seed: int) -> None:
        self.made = made
        self.objects = objects
        self.chance = random.Random(seed)
        self.sequence = 0
        self.acknowledged: dict[int, bytes] = {}
        self.start = 0
        """Up to here records were deleted, by the word of a leader."""
        self.maybe_start = 0
        """Up to here they may be: somebody asked for it and did not hear."""
        self.down: list[int] = []

    def leader(self) -> Node | None:
        node = self.made.leader(T0)
        here = None if node is None else node.partition(T0)
        return node if here is not None and here.refused is None else None

    async def a_leader(self) -> Node:
        async with asyncio.timeout(WITHIN_S):
            while (node := self.leader()) is None:  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.02)
        return node

    async def produce(self) -> None:
        """Append one record as an idempotent producer does: until it is acknowledged, in order."""
        value = b"%05d" % self.sequence + b"." * self.chance.randrange(60, 200)
        async with asyncio.timeout(WITHIN_S):
            while True:
                node = await self.a_leader()
                data = batch(value, producer_id=1, producer_epoch=0, base_sequence=self.sequence)
                request = ProduceRequest([ProducePartition("t", 0, data)], None, ACKS_ALL, 1_000)
                (answer,) = (await node.produce.produce(request, version=12)).partitions
                if answer.error is ErrorCode.NONE:
                    assert answer.base_offset == self.sequence, "each record has one offset"
                    self.acknowledged[answer.base_offset] = value
                    self.sequence += 1
                    return
                assert answer.error is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                await asyncio.sleep(0.02)

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
            store = made.stores[chance.choice(list(made.nodes))]
            store.is_cut = True
            asyncio.get_running_loop().call_later(chance.random(), setattr, store, "is_cut", False)
        elif kind == "delete" and self.sequence > 10:
            await self.delete(chance.randrange(self.start, max(self.sequence // 2, self.start + 1)))

    async def delete(self, before: int) -> None:
        node = await self.a_leader()
        self.maybe_start = max(self.maybe_start, before)
        try:
            found = await confirm_deletion(node, await begin_deletion(node, {T0: before}), timeout_ms=2_000)
        except SemelError:
            return
        if found[T0].error is ErrorCode.NONE:
            self.start = max(self.start, before)

    async def heal(self) -> None:
        self.objects.fault = lambda kind, key: ""
        for store in self.made.stores.values():
            store.is_cut = False
        while self.down:
            await self.made.start(self.down.pop())

    async def check(self) -> None:
        """Read everything from who leads, as both kinds of readers do."""
        node = await self.a_leader()
        start = partition_of(node, T0).log_start_offset
        assert self.start <= start <= self.maybe_start
        expected = sorted((offset, value) for offset, value in self.acknowledged.items() if offset >= start)
        for committed in (False, True):
            assert await self.read(start, committed=committed) == expected

    async def read(self, start: int, *, committed: bool) -> list[tuple[int, bytes | None]]:
        """Read all, trying again as a client does where a node says so."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    return await read_all(await self.a_leader(), start, T0, committed=committed)
                except RetriableError:
                    await asyncio.sleep(0.2)


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
            await serving(await world.a_leader(), T0)
            await all_copied(await world.a_leader(), T0)
            await world.check()
            node = await world.a_leader()
            keys = {one.key for one in tier_of(node, T0).remote.segments}
            await made.until(lambda: set(objects.objects) == keys)

    asyncio.run(main())
