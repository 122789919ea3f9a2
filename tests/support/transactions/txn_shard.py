"""A transaction machine and its log, as ShardRuntime ties them together, with the commit at once."""

from __future__ import annotations

from typing import Any

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.api.transactions import EndTxnRequest
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import TICK, CoordinatorRecord, Ticket
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import PRODUCER_ID_NEEDED, MarkersWritten, SendMarkers, WithProducerId
from semel.txn_coordinator.machine import TransactionMachine

START_MS = 1_700_000_000_000


class TxnShard:
    """Requests in, answers and effects out; `reload` is a crash."""

    def __init__(self, *, epoch: int = 3, config: TransactionConfig | None = None) -> None:
        self.epoch = epoch
        self.config = config or TransactionConfig()
        self.log: list[CoordinatorRecord] = []
        self.batches: list[list[CoordinatorRecord]] = []
        self.effects: list[Any] = []
        self.now_ms = START_MS
        self.next_id = 1000
        self.machine = TransactionMachine(0, epoch, self.config)

    def submit(self, request: object) -> Any:
        """Return the answer, or raise the refusal."""
        answer = self._handle(request)
        if answer is PRODUCER_ID_NEEDED:
            assert isinstance(request, InitProducerIdRequest | EndTxnRequest | OpenSharedRequest)
            self.next_id += 1
            answer = self._handle(WithProducerId(request, self.next_id))
        if isinstance(answer, SemelError):
            raise answer
        return answer

    def _handle(self, request: object) -> Any:
        result = self.machine.handle(request, self.now_ms, Ticket(1))
        self.batches += [list(result.records)]
        for record in result.records:
            self.log.append(record)
            self.machine.replay(record, len(self.log) - 1, None, self.now_ms)
        self.effects += result.effects
        return result.response

    def reload(self, *, epoch: int | None = None) -> None:
        self.epoch = self.epoch if epoch is None else epoch
        self.machine = TransactionMachine(0, self.epoch, self.config)
        for offset, record in enumerate(self.log):
            self.machine.replay(CoordinatorRecord(record.key, record.value), offset, None, self.now_ms)
        self.effects = list(self.machine.loaded(self.now_ms).effects)

    def tick(self) -> None:
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= self.now_ms:
            self.submit(TICK)

    def markers(self) -> SendMarkers:
        """Return the markers last asked for."""
        return [effect for effect in self.effects if isinstance(effect, SendMarkers)][-1]

    def write_markers(self) -> None:
        """Report that the markers last asked for are written."""
        assert self.report(self.markers()) is True

    def report(self, effect: SendMarkers, *partitions: TopicPartition) -> bool:
        written = frozenset(partitions or effect.marker.partitions)
        return self.submit(MarkersWritten(effect.transactional_id, effect.decided_ms, effect.marker.producer, written))
