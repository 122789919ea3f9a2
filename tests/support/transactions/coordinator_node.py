"""A transaction coordinator with all that it needs, in memory: its log, the partitions, producer ids."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

import pytest
from memory_log import MemoryLog
from ready_topic import topic_is_ready

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import ManualClock
from semel.runtime.read_barrier import ONE_NODE, ReadBarrier
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.coordinator import TransactionCoordinator
from semel.txn_coordinator.schemas import decode_value

ID = "enrich-0"
P0, P1 = TopicPartition("enriched", 0), TopicPartition("enriched", 1)
TIMEOUT_MS = 60_000


class Log(MemoryLog):
    """A log of __transaction_state."""

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion,
        *,
        forged_epoch: int,
    ) -> int | None:
        raise AssertionError("no transaction includes __transaction_state")

    def states(self) -> list[str]:
        """Return the states of all records, in order; a tombstone is '-'."""
        records = [record for _, batch in self.batches for record in decode_records(batch)]
        return [decode_value(ID, record.value).state.label if record.value is not None else "-" for record in records]


class Partitions:
    """A `MarkerWriter` that does what the test says."""

    def __init__(self) -> None:
        self.calls: list[TxnMarker] = []
        self.answers: defaultdict[TopicPartition, list[ErrorCode]] = defaultdict(list)
        self.gone: set[TopicPartition] = set()
        self.asked: list[tuple[frozenset[TopicPartition], dict[str, TopicId]]] = []
        self.unreadable: SemelError | None = None
        """Why the metadata can't be read."""
        self.raises: list[BaseException] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def write_markers(self, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        self.calls.append(marker)
        await self.gate.wait()
        if self.raises:
            raise self.raises.pop(0)
        return {tp: self.answers[tp].pop(0) if self.answers[tp] else ErrorCode.NONE for tp in marker.partitions}

    async def deleted(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, TopicId]
    ) -> frozenset[TopicPartition]:
        self.asked.append((frozenset(partitions), dict(topic_ids)))
        if self.unreadable is not None:
            raise self.unreadable
        return frozenset(self.gone.intersection(partitions))


class ProducerIds:
    def __init__(self) -> None:
        self.given = 1000
        self.fails: SemelError | None = None

    async def next_producer_id(self) -> int:
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        self.given += 1
        return self.given


class Node:
    """A service with all that it needs."""

    def __init__(
        self,
        *,
        partition_count: int = 1,
        config: TransactionConfig | None = None,
        topics: Mapping[str, TopicId] | None = None,
        barrier: ReadBarrier = ONE_NODE,
    ) -> None:
        self.clock = ManualClock()
        self.logs = [Log() for _ in range(partition_count)]
        self.partitions = Partitions()
        self.ids = ProducerIds()
        self.pauses: list[float] = []
        self.service = TransactionCoordinator(
            partition_count=lambda: partition_count,
            open_log=self.logs.__getitem__,
            topic_ready=topic_is_ready,
            markers=self.partitions,
            producer_ids=self.ids,
            clock=self.clock,
            config=config,
            topic_id=(topics or {}).get,
            barrier=barrier,
            sleep=self._pause,
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    @property
    def log(self) -> Log:
        return self.logs[0]

    async def load(self, epoch: int = 3) -> Node:
        for partition in range(len(self.logs)):
            await self.service.load(partition, epoch)
        return self

    async def init(self, producer: ProducerIdAndEpoch = NO_PRODUCER, *, name: str = ID) -> ProducerIdAndEpoch:
        return (await self.service.init_producer_id(InitProducerIdRequest(name, TIMEOUT_MS, producer))).producer

    async def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> None:
        response = await self.service.add_partitions(AddPartitionsToTxnRequest(ID, producer, partitions))
        assert set(response.errors.values()) == {ErrorCode.NONE}

    async def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True) -> ProducerIdAndEpoch:
        return (await self.service.end_txn(EndTxnRequest(ID, producer, commit))).producer

    async def state(self) -> str:
        return (await self.service.describe(DescribeTransactionRequest(ID))).state

    async def settled(self) -> None:
        """Let everything run that can, until no marker is under way."""
        for _ in range(1000):
            await asyncio.sleep(0)
            if self.service.pending_markers() == 0:
                return
        raise AssertionError("markers never come to an end")


async def spin() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def code_of(call: Coroutine[Any, Any, object]) -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        await call
    return caught.value.code
