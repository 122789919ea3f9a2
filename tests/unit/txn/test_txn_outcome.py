"""What the coordinators' records say of a transaction that is still open on a partition: committed, aborted, or not."""

from __future__ import annotations

from typing import Any

import pytest

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.txn_coordinator.outcome import HolderOutcome, Outcome, outcome_of
from semel.txn_coordinator.prepare import (
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_epoch_bump,
    prepare_epoch_fence,
    prepare_new,
    prepare_take_over,
)
from semel.txn_coordinator.state import (
    MAX_PRODUCER_EPOCH,
    TWO_PHASE_TIMEOUT_MS,
    DecisionCause,
    Ending,
    TransactionMetadata,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
V1, V2 = TransactionVersion.V1, TransactionVersion.V2
HOLDER = ProducerIdAndEpoch(7, 0)


class Log:
    """The records of one transactional id."""

    def __init__(self, *, epoch: int = 0, timeout_ms: int = 60_000) -> None:
        self.records = [prepare_new("id", 7, timeout_ms, 0)._replace(producer_epoch=epoch)]

    @property
    def last(self) -> TransactionMetadata:
        return self.records[-1]

    def begin(self, *partitions: TopicPartition, version: TransactionVersion = V2) -> Log:
        self.records.append(prepare_add_partitions(self.last, partitions or (T0, T1), version, 1))
        return self

    def end(self, committed: bool, version: TransactionVersion = V2, **options: Any) -> Log:
        decided = prepare_end(self.last, committed=committed, version=version, now_ms=2, **options)
        self.records += [decided, prepare_complete(decided, 3)]
        return self

    def fence(self) -> Log:
        fenced = prepare_epoch_fence(self.last)
        ending = Ending(DecisionCause.TIMEOUT)
        decided = prepare_end(fenced, committed=False, version=fenced.version, now_ms=2, ending=ending)
        self.records += [decided, prepare_complete(decided, 3)]
        return self

    def bump(self) -> Log:
        self.records.append(prepare_epoch_bump(self.last, 60_000, 4))
        return self

    def of(self, holder: ProducerIdAndEpoch = HOLDER, *, compacted: int = 0) -> HolderOutcome:
        return outcome_of(self.records[compacted:], holder, T1)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("compacted", [0, 3])
def test_T3_the_decision_is_known_with_its_markers_identity(committed: bool, compacted: int) -> None:
    log = Log().begin().end(committed)
    expected = Outcome.COMMIT if committed else Outcome.ABORT
    assert log.of(compacted=compacted) == HolderOutcome(expected, "id", ProducerIdAndEpoch(7, 1), V2)


def test_T3_a_decision_that_the_id_has_left_behind_is_known_until_it_is_compacted() -> None:
    for log in (Log().begin().end(True).begin(T0).end(False), Log().begin().end(True).bump()):
        assert log.of().outcome is Outcome.COMMIT
        assert log.of(compacted=len(log.records) - 1).outcome is Outcome.NOT_TOLD
        assert log.of(compacted=len(log.records) - 1).transactional_id == "id"


def test_T10_the_decision_of_an_id_that_was_rotated_away_is_known() -> None:
    holder = ProducerIdAndEpoch(7, MAX_PRODUCER_EPOCH)
    log = Log(epoch=MAX_PRODUCER_EPOCH).begin().end(True, next_producer_id=8)
    assert log.last.producer_id == 8
    expected = HolderOutcome(Outcome.COMMIT, "id", ProducerIdAndEpoch(7, MAX_PRODUCER_EPOCH + 1), V2)
    assert log.of(holder) == log.of(holder, compacted=3) == expected
    log.begin(T0).end(False)
    assert log.of(holder) == expected
    assert log.of(holder, compacted=len(log.records) - 1).outcome is Outcome.NOT_TOLD


def test_T7_data_that_is_newer_than_the_last_decision_is_not_decided_by_it() -> None:
    log = Log().begin().end(True)
    assert log.of(ProducerIdAndEpoch(7, 1)).outcome is Outcome.NOT_KNOWN
    assert log.of(ProducerIdAndEpoch(7, 1), compacted=3).outcome is Outcome.NOT_KNOWN
    assert log.of(ProducerIdAndEpoch(9, 0)) == HolderOutcome(Outcome.NOT_KNOWN)
    assert Log().of().outcome is Outcome.NOT_KNOWN


def test_T7_transactions_that_share_an_epoch_are_told_apart_by_their_partitions_or_not_at_all() -> None:
    log = Log().begin(version=V1).end(True, V1).begin(T0, version=V1).end(False, V1)
    assert log.of() == HolderOutcome(Outcome.COMMIT, "id", HOLDER, V1)
    assert log.of(compacted=3).outcome is Outcome.NOT_TOLD, "an earlier one with this epoch may be compacted away"
    assert log.of(compacted=6).outcome is Outcome.NOT_TOLD
    log.begin(T0, version=V1).fence()
    assert log.of().outcome is Outcome.COMMIT
    assert log.of(compacted=len(log.records) - 1).outcome is Outcome.NOT_TOLD
    both = Log().begin(version=V1).end(True, V1).begin(version=V1).end(False, V1)
    assert both.of().outcome is Outcome.NOT_TOLD


def test_T9_a_fence_decides_what_it_ended() -> None:
    assert Log().begin().fence().of().outcome is Outcome.ABORT


def test_a_prepared_transaction_that_was_taken_over_is_decided_for_the_epoch_of_its_data() -> None:
    log = Log(timeout_ms=TWO_PHASE_TIMEOUT_MS).begin()
    log.records.append(prepare_take_over(log.last, 2))
    log.records.append(prepare_take_over(log.last, 2))
    assert log.end(True).of() == HolderOutcome(Outcome.COMMIT, "id", ProducerIdAndEpoch(7, 3), V2)
    assert log.of(compacted=len(log.records) - 1).outcome is Outcome.NOT_TOLD
