"""Diskless topics on three nodes under faults of every kind, by seed: killed nodes whose disks are lost, moves, a store
that fails and loses answers, a database that is away, deletions. What was acknowledged is there, once, and in order.

`SEMEL_DISKLESS_SEEDS=100` runs more of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cluster import Cluster, cluster
from diskless_topic import DISKLESS, FAST, entries_of, objects_of, rows_of
from faulty_cluster import WITHIN_S, FaultyCluster, Written
from memory_objects import MemoryObjects
from tiered_topic import tier_of

from semel.broker.diskless import diskless as diskless_module
from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.metadata.database import Database, MetadataUnavailableError
from semel.broker.node import Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError

SEEDS = int(os.environ.get("SEMEL_DISKLESS_SEEDS", "4"))
FIRST = int(os.environ.get("SEMEL_DISKLESS_FIRST", "0"))
ROUNDS = 8
RECORDS = 12
KEYS = 5


class World(FaultyCluster):
    """One run."""

    def __init__(self, made: Cluster, objects: MemoryObjects, seed: int, *, is_compacted: bool) -> None:
        super().__init__(made, objects, seed)
        self.is_compacted = is_compacted
        self.partitions = [Written(number) for number in range(2)]

    async def produce(self, to: Written) -> None:
        key = b"k%d" % self.chance.randrange(KEYS)
        await self.append(to, key, b"%05d" % to.sequence + b"." * self.chance.choice((60, 200, 400)))

    async def harm(self) -> None:
        """Do one thing to the cluster."""
        made, chance = self.made, self.chance
        kind = chance.choice(("kill", "kill", "stop", "store", "database", "rows", "delete", "move", "compact"))
        one = chance.choice(self.partitions)
        if kind in ("kill", "stop") and len(self.down) < 2:
            await asyncio.sleep(0.01)  # what has just started has begun its duties
            node_id = made.state(one.tp).leader if chance.random() < 0.7 else chance.choice(list(made.nodes))
            if node_id in made.nodes:
                await (made.stop(node_id) if kind == "stop" else made.kill(node_id, power=chance.random() < 0.5))
                self.down.append(node_id)
                if chance.random() < 0.6:
                    del made.disks[node_id]
        elif kind == "store":
            share = chance.choice((0.2, 0.6))
            faults = chance.choice((("fail",), ("lose",), ("fail", "lose")))
            loop = asyncio.get_running_loop()
            # Not for long: who takes over reads all of a log's tail, and begins again with each failure.
            ends_s = loop.time() + 3 * chance.random()

            def fault(kind: str, key: str) -> str:
                return chance.choice(faults) if loop.time() < ends_s and chance.random() < share else ""

            self.objects.fault = fault
        elif kind == "database":
            self.cut_a_database()
        elif kind == "rows":
            self.spoil_rows(made.nodes[chance.choice(list(made.nodes))])
        elif kind == "delete" and not self.is_compacted and one.sequence > 10:
            await self.delete_some(one)
        elif kind == "move":
            target = chance.choice(list(made.nodes))
            try:
                await reassign(made.nodes[target], {one.tp: (target,)})
            except SemelError:
                return
        elif kind == "compact":
            node = chance.choice(list(made.nodes.values()))
            await node.logs.maintenance.flush()
            await node.logs.maintenance.compact_logs()

    def spoil_rows(self, node: Node) -> None:
        """For a second some calls of a node fail, or do their work and lose the answer."""
        chance, share = self.chance, self.chance.choice((0.3, 1.0))
        assert node.tier is not None
        ends_s = asyncio.get_running_loop().time() + chance.random()
        for rows in (rows_of(node), node.tier.storage.rows):
            spoil(rows, chance, share, ends_s)

    async def check(self) -> None:
        """Read everything from who leads, as both kinds of readers do."""
        for one in self.partitions:
            start = await self.start_of(one)
            expected = one.acknowledged_from(start)
            for committed in (False, True):
                found = await self.read(one.tp, start, committed=committed)
                if not self.is_compacted:
                    assert found == expected
                    continue
                assert set(found) <= set(expected)
                assert len(found) == len(set(found))
                last = {key: offset for offset, (key, _) in sorted(one.acknowledged.items())}
                assert set(last.values()) <= {offset for offset, _ in found}, "the last value of each key is there"

    async def only_what_is_needed_is_left(self) -> None:
        """Wait until the store has no object that nobody needs."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                await asyncio.sleep(0.1)
                needed: set[str] = set()
                try:
                    for one in self.partitions:
                        node = await self.leader_of(one.tp)
                        needed |= {each.object_key for each in await entries_of(node, one.tp)} - {""}
                        needed |= {each.key for each in tier_of(node, one.tp).remote.segments}
                except AssertionError:
                    continue  # it is led elsewhere since
                if set(self.objects.objects) == needed and await objects_of(self.made.any()) <= needed:
                    return


def spoil(rows: Database, chance: random.Random, share: float, ends_s: float) -> None:
    """Let calls fail, or lose their answers, until a time."""
    loop, real = asyncio.get_running_loop(), type(rows)._transaction

    @contextmanager
    def transaction() -> Iterator[sa.Connection]:
        is_over = loop.time() > ends_s
        planned = "" if is_over or chance.random() >= share else chance.choice(("fail", "lose"))
        if planned == "fail":
            raise MetadataUnavailableError("the database is away, as planned")
        with real(rows) as connection:
            yield connection
        if planned == "lose":
            raise MetadataUnavailableError("the answer is lost, as planned")

    rows._transaction = transaction  # type: ignore[method-assign]


@pytest.mark.drawn(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_E1_D1_D6_R3_what_was_acknowledged_is_there_once_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_compacted: bool
) -> None:
    chance = random.Random(f"settings {seed}")
    monkeypatch.setattr(diskless_module, "ENTRIES_MAX", chance.choice((4, 500)))
    settings: dict[str, Any] = {
        **FAST,
        "diskless_inline_max_bytes": chance.choice((0, 300, 16 << 10)),
        "diskless_inline_bytes_per_second": chance.choice((500, 1 << 20)),
        "log_segment_delete_delay_ms": chance.choice((0, 1_000)),
        "leader_imbalance_check_interval_seconds": chance.choice((1, 300)),
    }
    topic = {"segment.bytes": chance.choice(("700", "3000")), "local.retention.bytes": "1500"}
    if is_compacted:
        topic = {**topic, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}

    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(500), cluster(tmp_path, 3, objects=objects, **settings) as made:
            configs = {**{name.replace("_", "."): value for name, value in DISKLESS.items()}, **topic}
            (result,) = await create_topics(made.any(), [NewTopic("t", 2, configs=configs)])
            assert result.error is ErrorCode.NONE, result.message
            await made.until(lambda: all(node.metadata.topic("t") is not None for node in made.nodes.values()))
            world = World(made, objects, seed, is_compacted=is_compacted)
            for _ in range(ROUNDS):
                await world.harm()
                for _ in range(RECORDS):
                    await asyncio.gather(*map(world.produce, world.partitions))
                if world.chance.random() < 0.6:
                    await world.heal()
                    await world.check()
            await world.heal()
            await asyncio.gather(*map(world.produce, world.partitions))
            await world.check()
            await world.only_what_is_needed_is_left()

    asyncio.run(main())
