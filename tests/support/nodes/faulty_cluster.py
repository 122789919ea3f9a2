"""What runs of faults on a cluster with remote storage share: producers, deletions, readers, and healing at the end."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from cluster import Cluster
from memory_objects import MemoryObjects
from tiered_topic import partition_of, read_all

from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.node import Node
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest

WITHIN_S: Final = 60.0


class Written:
    """What a producer knows of a partition of the topic `t`."""

    def __init__(self, number: int) -> None:
        self.tp = TopicPartition("t", number)
        self.sequence = 0
        self.acknowledged: dict[int, tuple[bytes | None, bytes | None]] = {}
        """(key, value) by offset."""
        self.start = 0
        """Up to here records were deleted, by the word of a leader."""
        self.maybe_start = 0
        """Up to here they may be: somebody asked for it and did not hear."""

    def acknowledged_from(self, offset: int) -> list[tuple[int, bytes | None]]:
        return sorted((each, value) for each, (_, value) in self.acknowledged.items() if each >= offset)


class FaultyCluster:
    """Three nodes of which some are down, and a store and databases that fail for a time."""

    def __init__(self, made: Cluster, objects: MemoryObjects, seed: int) -> None:
        self.made = made
        self.objects = objects
        self.chance = random.Random(seed)
        self.down: list[int] = []

    def serving(self, tp: TopicPartition) -> Node | None:
        node = self.made.leader(tp)
        here = None if node is None else node.partition(tp)
        return node if here is not None and here.refused is None else None

    async def leader_of(self, tp: TopicPartition) -> Node:
        async with asyncio.timeout(WITHIN_S):
            while (node := self.serving(tp)) is None:  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.02)
        return node

    async def append(self, to: Written, key: bytes | None, value: bytes | None) -> None:
        """Append one record as an idempotent producer does: until it is acknowledged, in order."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                node = await self.leader_of(to.tp)
                data = encode_batch(
                    [(1_000, key, value, ())], producer_id=1, producer_epoch=0, base_sequence=to.sequence
                )
                request = ProduceRequest([ProducePartition("t", to.tp.partition, bytes(data))], None, ACKS_ALL, 1_000)
                (answer,) = (await node.produce.produce(request, version=12)).partitions
                if answer.error is ErrorCode.NONE:
                    assert answer.base_offset == to.sequence, "each record has one offset"
                    to.acknowledged[answer.base_offset] = key, value
                    to.sequence += 1
                    return
                assert answer.error is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                await asyncio.sleep(0.02)

    async def delete_some(self, one: Written) -> None:
        """Delete records up to an offset by chance."""
        before = self.chance.randrange(one.start, max(one.sequence // 2, one.start + 1))
        node = await self.leader_of(one.tp)
        one.maybe_start = max(one.maybe_start, before)
        try:
            found = await confirm_deletion(node, await begin_deletion(node, {one.tp: before}), timeout_ms=2_000)
        except SemelError:
            return
        if found[one.tp].error is ErrorCode.NONE:
            one.start = max(one.start, before)

    def cut_a_database(self) -> None:
        """Cut a node off from the database for a moment."""
        store = self.made.stores[self.chance.choice(list(self.made.nodes))]
        store.is_cut = True
        asyncio.get_running_loop().call_later(self.chance.random(), setattr, store, "is_cut", False)

    async def heal(self) -> None:
        self.objects.fault = lambda kind, key: ""
        for store in self.made.stores.values():
            store.is_cut = False
        while self.down:
            await self.made.start(self.down.pop())

    async def start_of(self, one: Written) -> int:
        """Return where a log begins, which has to be where it may."""
        start = partition_of(await self.leader_of(one.tp), one.tp).log_start_offset
        assert one.start <= start <= one.maybe_start, (one.tp, one.start, start, one.maybe_start)
        return start

    async def read(self, tp: TopicPartition, start: int, *, committed: bool) -> list[tuple[int, bytes | None]]:
        """Read all, trying again as a client does where a node says so."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    return await read_all(await self.leader_of(tp), start, tp, committed=committed)
                except RetriableError:
                    await asyncio.sleep(0.2)
