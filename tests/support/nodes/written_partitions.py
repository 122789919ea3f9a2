"""The writer of diskless partitions without a node: partitions that count, and a database on SQLite that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from diskless_topic import claim_one
from memory_objects import MemoryObjects

from semel.broker.config.node_config import NodeConfig
from semel.broker.diskless.rows import DisklessRows, Entry, PartitionKey
from semel.broker.diskless.writer import Writer
from semel.broker.logs.partition import Partition
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.store import sqlite_url
from semel.broker.tiers.store_quotas import StoreQuotas
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock, SystemClock

T = TypeVar("T")

TOPIC_ID = TopicId(UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"))


class Written:
    """What the writer knows of a partition. Each append is one record, of so many offsets as it has bytes."""

    def __init__(self, place: WrittenPlace, number: int) -> None:
        self._place = place
        self.tp = TopicPartition("t", number)
        self.topic_id = TOPIC_ID
        self.offline_error: SemelError | None = None
        self.appended = b""
        self.acknowledged = 0
        self.was_lost = False

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.tp.partition

    def append(self, data: bytes) -> None:
        start = len(self.appended)
        self.appended += data
        self._place.writer.add(cast(Partition, self), start, len(self.appended), [data])

    def made_durable(self, offset: int) -> None:
        """Acknowledge what is below an offset. All of it has to be committed by then (D1)."""
        assert offset > self.acknowledged, "nothing is acknowledged twice, or goes back"
        assert self._place.committed_bytes(self)[:offset] == self.appended[:offset], "it is acknowledged too early"
        self.acknowledged = offset

    @property
    def is_done(self) -> bool:
        return self.acknowledged == len(self.appended)


class WrittenPlace:
    """Where a writer writes to (`Place`). `fault` is asked before each call of the database, with the number of those
    before, and answers "", "fail" or "lose" (done, and the answer lost).
    """

    run = "run"
    key_prefix = "cluster/diskless/1/run/"

    def __init__(self, folder: Path, *, clock: Clock | None = None, partitions: int = 1, **settings: Any) -> None:
        self.config = NodeConfig(
            data_dir=str(folder / "unused"), **{"diskless_append_commit_interval_ms": 2, **settings}
        )
        self.clock = clock or SystemClock()
        self.store = MemoryObjects()
        self.quotas = StoreQuotas(lambda: self.config, self.clock)
        self.rows = DisklessRows(sqlite_url(str(folder / "rows.sqlite")))
        self.rows.create()
        self.fault: Callable[[int], str] = lambda number: ""
        self.asked = 0
        self.may_ask = asyncio.Event()
        self.may_ask.set()
        self.writer = Writer(self)
        self.claims: dict[Partition, str] = {}
        self.entries: dict[int, list[Entry]] = {}
        self.partitions = [Written(self, number) for number in range(partitions)]
        for one in self.partitions:
            self.claim(one, "mine", 1)

    def claim(self, partition: Written, claim: str, leader_epoch: int) -> None:
        """Lead a partition, here or (with another claim than "mine") elsewhere."""
        assert claim_one(self.rows, partition.key, claim, leader_epoch, 1)
        if claim == "mine":
            self.claims[cast(Partition, partition)] = claim

    def claim_of(self, partition: Partition) -> str:
        return self.claims.get(partition, "")

    async def ask(self, call: Callable[[], T]) -> T:
        self.asked += 1
        planned = self.fault(self.asked - 1)
        await asyncio.sleep(0)
        await self.may_ask.wait()
        if planned == "fail":
            raise MetadataUnavailableError("the database is away, as planned")
        found = call()
        if planned == "lose":
            raise MetadataUnavailableError("the answer is lost, as planned")
        return found

    def entry_committed(self, partition: Partition, entry: Entry) -> None:
        self.entries.setdefault(partition.tp.partition, []).append(entry)

    def may_be_inline(self, partition: Partition) -> bool:
        return True

    def lost(self, partition: Partition, end_offset: int | None = None) -> None:
        self.claims.pop(partition, None)
        cast(Written, partition).was_lost = True

    def committed_bytes(self, partition: Written) -> bytes:
        """Return all that is committed of a partition, as the next leader reads it: once, and in order."""
        found = b""
        for one in self.rows.load(partition.key).entries:
            data = one.data
            if one.object_key:
                data = self.store.objects[one.object_key][one.position : one.position + one.size_bytes]
            assert (one.base_offset, one.end_offset) == (len(found), len(found) + len(data))
            assert one.checksum == crc32c(data)
            found += data
        return found

    async def done(self) -> None:
        """Wait until all that was appended is acknowledged."""
        async with asyncio.timeout(60):
            while not all(one.is_done for one in self.partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        await asyncio.gather(*self.writer.cancel(), return_exceptions=True)
        self.rows.close()
