"""The transaction coordinator's machine, rule by rule, with the refusals of each."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from txn_shard import START_MS, TxnShard

from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, FencedError, RetriableError, SemelError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import TICK, CoordinatorRecord, Result, Ticket
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import (
    MarkersWritten,
    SendMarkers,
    TransactionCompleted,
)
from semel.txn_coordinator.prepare import (
    prepare_add_partitions,
    prepare_complete,
    prepare_dead,
    prepare_end,
    prepare_epoch_bump,
    prepare_epoch_fence,
    prepare_new,
)
from semel.txn_coordinator.schemas import decode_value, encode_key, encode_value
from semel.txn_coordinator.state import (
    COMPLETED,
    LEGAL_PREDECESSORS,
    OPEN,
    IllegalTransitionError,
    TransactionMetadata,
    TransactionState,
    is_legal,
    transition_diagram,
)
from semel.txn_coordinator.timers import Timers

V0, V1, V2 = TransactionVersion.V0, TransactionVersion.V1, TransactionVersion.V2
S = TransactionState
ID = "enrich-0"
P0, P1 = TopicPartition("enriched", 0), TopicPartition("enriched", 1)
OFFSETS = TopicPartition("__consumer_offsets", 7)
TIMEOUT_MS = 60_000


class Shard(TxnShard):
    """With shorthands for one producer of one transactional id."""

    def refused(self, request: object) -> ErrorCode:
        """Return the error code, having made sure that a refusal appends nothing."""
        size = len(self.log)
        with pytest.raises(SemelError) as caught:
            self.submit(request)
        assert len(self.log) == size, "a refusal appends nothing"
        assert ID in caught.value.message or caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        return caught.value.code

    # shorthands

    def init(self, producer: ProducerIdAndEpoch = NO_PRODUCER, *, timeout_ms: int = TIMEOUT_MS) -> ProducerIdAndEpoch:
        return self.submit(InitProducerIdRequest(ID, timeout_ms, producer)).producer

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, version: TransactionVersion = V2) -> None:
        response = self.submit(AddPartitionsToTxnRequest(ID, producer, partitions, version=version))
        assert set(response.errors.values()) <= {ErrorCode.NONE}

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool, version: TransactionVersion = V2
    ) -> ProducerIdAndEpoch:
        return self.submit(EndTxnRequest(ID, producer, commit, version)).producer

    def run(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: TransactionVersion = V2
    ) -> ProducerIdAndEpoch:
        """Run a whole transaction and return the producer to continue with."""
        self.add(producer, P0, version=version)
        after = self.end(producer, commit=commit, version=version)
        self.write_markers()
        return after

    def state(self) -> str:
        return self.submit(DescribeTransactionRequest(ID)).state

    def stored(self) -> TransactionMetadata:
        value = self.log[-1].value
        assert value is not None
        return decode_value(ID, value)

    def put(self, **changes: Any) -> TransactionMetadata:
        """Set the stage: append a record with whatever the test needs."""
        txn = TransactionMetadata(ID, 5, 0, TIMEOUT_MS, S.EMPTY, self.now_ms, version=V2)
        txn = replace(txn, **changes)
        record = CoordinatorRecord(encode_key(ID), encode_value(txn))
        self.log.append(record)
        self.machine.replay(record, len(self.log) - 1, None, self.now_ms)
        return txn


def add_request(producer: ProducerIdAndEpoch, version: TransactionVersion = V2) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(ID, producer, (P0,), version=version)


def verify_request(producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(ID, producer, partitions or (P0,), verify_only=True, version=V1)


# -- T1: the table


LEGAL_MOVES = {
    (S.EMPTY, S.EMPTY), (S.COMPLETE_COMMIT, S.EMPTY), (S.COMPLETE_ABORT, S.EMPTY),
    (S.ONGOING, S.ONGOING), (S.EMPTY, S.ONGOING), (S.COMPLETE_COMMIT, S.ONGOING), (S.COMPLETE_ABORT, S.ONGOING),
    (S.ONGOING, S.PREPARE_COMMIT),
    (S.ONGOING, S.PREPARE_ABORT), (S.PREPARE_EPOCH_FENCE, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (S.PREPARE_ABORT, S.COMPLETE_ABORT),
    (S.ONGOING, S.PREPARE_EPOCH_FENCE),
    (S.EMPTY, S.DEAD), (S.COMPLETE_COMMIT, S.DEAD), (S.COMPLETE_ABORT, S.DEAD),
}  # fmt: skip
LEGAL_WITH_EPOCH_BUMP = {
    (S.EMPTY, S.PREPARE_ABORT),
    (S.COMPLETE_COMMIT, S.PREPARE_ABORT),
    (S.COMPLETE_ABORT, S.PREPARE_ABORT),
}


@pytest.mark.parametrize(("before", "after"), list(product(S, S)))
def test_T1_only_the_listed_moves_are_legal(before: S, after: S) -> None:
    assert is_legal(before, after, V0) == is_legal(before, after, V1) == ((before, after) in LEGAL_MOVES)
    assert is_legal(before, after, V2) == ((before, after) in LEGAL_MOVES | LEGAL_WITH_EPOCH_BUMP)


def test_T1_every_prepare_function_refuses_every_other_move() -> None:
    txn = TransactionMetadata(ID, 5, 0, TIMEOUT_MS, S.EMPTY, START_MS)
    moves = {
        S.EMPTY: lambda txn: prepare_epoch_bump(txn, TIMEOUT_MS, START_MS),
        S.ONGOING: lambda txn: prepare_add_partitions(txn, [P0], V1, START_MS),
        S.PREPARE_COMMIT: lambda txn: prepare_end(txn, committed=True, version=V1, now_ms=START_MS),
        S.PREPARE_ABORT: lambda txn: prepare_end(txn, committed=False, version=V1, now_ms=START_MS),
        S.PREPARE_EPOCH_FENCE: prepare_epoch_fence,
        S.DEAD: prepare_dead,
    }
    for (after, move), before in product(moves.items(), S):
        if before in LEGAL_PREDECESSORS[after]:
            assert move(replace(txn, state=before)).state is after
        else:
            with pytest.raises(IllegalTransitionError, match=f"from {before.label} to {after.label}"):
                move(replace(txn, state=before))
    for before in set(S) - {S.PREPARE_COMMIT, S.PREPARE_ABORT}:
        with pytest.raises(IllegalTransitionError):
            prepare_complete(replace(txn, state=before), START_MS)


def test_T1_the_fence_is_never_stored() -> None:
    for state in (S.PREPARE_EPOCH_FENCE, S.DEAD):
        with pytest.raises(AssertionError, match="never stored"):
            encode_value(TransactionMetadata(ID, 5, 0, TIMEOUT_MS, state, START_MS))


def test_T1_the_documentation_shows_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "transactions.md").read_text(encoding="utf-8")
    drawn = re.search(r"```mermaid\n(.*?)```", page, re.DOTALL)
    assert drawn is not None
    assert drawn.group(1) == transition_diagram()


def test_prepare_functions_change_nothing() -> None:
    ongoing = prepare_add_partitions(prepare_new(ID, 5, TIMEOUT_MS, START_MS), [P0], V2, START_MS)
    before = replace(ongoing)
    prepare_end(ongoing, committed=True, version=V2, now_ms=START_MS)
    prepare_epoch_fence(ongoing)
    assert ongoing == before


# -- T2, T3: decision, then markers, then completion


def told(result: Result[Any]) -> Result[Any]:
    """The result with what a refusal says in its place: two errors are never equal."""
    response = result.response
    if not isinstance(response, SemelError):
        return result
    return replace(result, response=(type(response), response.code, response.message))


@pytest.mark.parametrize("commit", [True, False])
def test_T2_handle_changes_nothing_before_its_record_is_replayed(commit: bool) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    for request in (
        EndTxnRequest(ID, producer, commit),
        AddPartitionsToTxnRequest(ID, producer, (P1,)),
        AbortTransactionRequest(ID),
        InitProducerIdRequest(ID, TIMEOUT_MS),
    ):
        first, second = (told(shard.machine.handle(request, shard.now_ms, Ticket(number))) for number in (1, 2))
        assert first == second
        assert first.records, "there is something to decide"
        assert shard.state() == "Ongoing"


@pytest.mark.parametrize(("commit", "version"), list(product([True, False], [V1, V2])))
def test_T3_markers_are_asked_for_with_the_decision_and_complete_is_recorded_after_all_of_them(
    commit: bool, version: TransactionVersion
) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, OFFSETS, version=version)
    assert shard.effects == []
    shard.end(producer, commit=commit, version=version)
    assert shard.stored().state is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
    effect = shard.markers()
    assert effect.marker.committed is commit
    assert effect.marker.partitions == (OFFSETS, P0)
    assert effect.marker.coordinator_epoch == shard.epoch
    assert effect.marker.version == version
    assert effect.marker.producer == (producer.producer_id, producer.producer_epoch + (version is V2))
    assert shard.report(effect, P0) is False, "one partition is not all"
    assert shard.state() == ("PrepareCommit" if commit else "PrepareAbort")
    assert shard.report(effect, P0, OFFSETS, P1) is True
    assert shard.stored().state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert shard.stored().partitions == frozenset()
    assert shard.effects[-1] == TransactionCompleted(ID)


def test_T3_a_result_with_markers_always_has_the_decisions_record() -> None:
    """The runtime lets effects out once the result's records are committed: the decision comes before any marker."""
    shard = Shard()
    producer = shard.init()
    for request in (
        EndTxnRequest(ID, producer, True),
        EndTxnRequest(ID, producer, False),
        EndTxnRequest(ID, producer, True, V1),
        AbortTransactionRequest(ID),
        InitProducerIdRequest(ID, TIMEOUT_MS),
        TICK,
    ):
        shard.put(state=S.ONGOING, producer_id=producer.producer_id, partitions=frozenset({P0}), start_ms=START_MS)
        result = shard.machine.handle(request, START_MS + TIMEOUT_MS, Ticket(1))
        [effect] = [effect for effect in result.effects if isinstance(effect, SendMarkers)]
        [record] = result.records
        assert record.value is not None
        decided = decode_value(ID, record.value)
        assert decided.state is (S.PREPARE_COMMIT if effect.marker.committed else S.PREPARE_ABORT)
        assert (decided.producer, decided.last_update_ms) == (effect.marker.producer, effect.decided_ms)


def test_T3_a_late_report_about_an_earlier_decision_completes_nothing() -> None:
    """With the older protocol all transactions have one epoch: the moment of the decision tells them apart."""
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, version=V1)
    shard.end(producer, commit=True, version=V1)
    first = shard.markers()
    shard.write_markers()
    shard.add(producer, P0, version=V1)
    shard.end(producer, commit=True, version=V1)
    assert shard.markers().marker == first.marker
    assert shard.report(first) is False, "the clock has not even moved"
    assert shard.state() == "PrepareCommit"
    shard.write_markers()
    assert shard.report(first) is False
    assert shard.submit(MarkersWritten("unknown", 0, producer, frozenset())) is False


def test_T4_who_takes_over_sends_the_markers_of_every_decision_again() -> None:
    shard = Shard(epoch=3)
    for name, state in [("a", S.PREPARE_COMMIT), ("b", S.PREPARE_ABORT), ("c", S.ONGOING), ("d", S.COMPLETE_COMMIT)]:
        txn = TransactionMetadata(name, 5, 1, TIMEOUT_MS, state, START_MS, frozenset({P0}), START_MS, V2)
        shard.log.append(CoordinatorRecord(encode_key(name), encode_value(txn)))
    shard.reload(epoch=4)
    sent = {effect.transactional_id: effect for effect in shard.effects}
    assert sent.keys() == {"a", "b"}
    assert {effect.marker.coordinator_epoch for effect in sent.values()} == {4}
    assert (sent["a"].marker.committed, sent["b"].marker.committed) == (True, False)
    assert all(shard.report(effect) for effect in sent.values())
    shard.reload()
    assert shard.effects == []


def test_T4_markers_sent_again_are_the_same_markers() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, OFFSETS)
    shard.end(producer, commit=True)
    before = shard.markers()
    shard.reload()
    assert shard.effects == [before]
    assert shard.report(before) is True, "a report may outlive the machine that asked for it"


# -- T5: InitProducerId


def test_T5_a_new_id_gets_a_new_producer_id_with_epoch_0() -> None:
    shard = Shard()
    assert shard.init() == (1001, 0)
    assert shard.stored().state is S.EMPTY


def test_T5_an_id_that_expired_gets_a_new_producer_id_whatever_its_caller_held() -> None:
    assert Shard().init(ProducerIdAndEpoch(77, 4)) == (1001, 0)


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_T5_without_a_transaction_the_epoch_is_bumped(state: S) -> None:
    shard = Shard()
    shard.put(state=state, producer_epoch=4, start_ms=START_MS)
    assert shard.init(timeout_ms=5) == (5, 5)
    assert (shard.stored().state, shard.stored().timeout_ms, shard.stored().start_ms) == (S.EMPTY, 5, -1)


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("producer", [NO_PRODUCER, (5, 0), (5, 9), (6, 0)])
def test_T5_while_markers_are_under_way_the_caller_comes_again(state: S, producer: ProducerIdAndEpoch) -> None:
    shard = Shard()
    shard.put(state=state, partitions=frozenset({P0}))
    request = InitProducerIdRequest(ID, TIMEOUT_MS, ProducerIdAndEpoch(*producer))
    assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_T5_an_open_transaction_is_fenced_and_aborted_then_the_caller_gets_its_epoch() -> None:
    shard = Shard()
    old = shard.init()
    shard.add(old, P0)
    with pytest.raises(RetriableError) as caught:
        shard.init()
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (shard.stored().state, shard.stored().producer_epoch) == (S.PREPARE_ABORT, 1)
    assert shard.markers().marker.producer == (old.producer_id, 1)
    assert shard.markers().marker.committed is False
    shard.write_markers()
    assert shard.init() == (old.producer_id, 2)
    for request in (EndTxnRequest(ID, old, True), EndTxnRequest(ID, old, False), add_request(old)):
        assert shard.refused(request) is ErrorCode.PRODUCER_FENCED


def test_T5_an_open_transaction_without_partitions_is_aborted_at_once() -> None:
    shard = Shard()
    shard.put(state=S.ONGOING, start_ms=START_MS)
    assert shard_codes(shard, InitProducerIdRequest(ID, TIMEOUT_MS)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.state() == "CompleteAbort"
    assert shard.init() == (5, 2)


def shard_codes(shard: Shard, request: object) -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        shard.submit(request)
    return caught.value.code


def test_T5_a_producer_bumps_its_own_epoch_and_repeating_that_bumps_no_further() -> None:
    """KIP-360."""
    shard = Shard()
    first = shard.init()
    second = shard.init(first)
    assert second == (first.producer_id, 1)
    for _ in range(3):
        assert shard.init(first) == second
        shard.reload()
    assert shard.init(second) == (first.producer_id, 2)
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, first)) is ErrorCode.PRODUCER_FENCED


def test_T5_a_repetition_is_over_once_another_instance_came() -> None:
    shard = Shard()
    first = shard.init()
    shard.init(first)
    shard.init()
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, first)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
@pytest.mark.parametrize("producer", [(5, 3), (5, 5), (5, 2), (6, 4), (4, 32766), (5, -1), (5, 32766)])
def test_T5_any_other_identity_is_fenced_and_disturbs_nothing(state: S, producer: tuple[int, int]) -> None:
    shard = Shard()
    shard.put(state=state, producer_epoch=4, start_ms=START_MS, partitions=frozenset({P0} if state in OPEN else ()))
    request = InitProducerIdRequest(ID, TIMEOUT_MS, ProducerIdAndEpoch(*producer))
    assert shard.refused(request) is ErrorCode.PRODUCER_FENCED


def test_T5_a_producer_that_fences_its_own_transaction_goes_on_with_the_next_epoch() -> None:
    shard = Shard()
    mine = shard.init()
    shard.add(mine, P0)
    assert shard_codes(shard, InitProducerIdRequest(ID, TIMEOUT_MS, mine)) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    assert shard.init(mine) == (mine.producer_id, 1)
    assert shard.init(mine) == (mine.producer_id, 1)


def test_T5_a_repetition_that_comes_after_its_epoch_began_to_work_disturbs_nothing() -> None:
    shard = Shard()
    first = shard.init()
    second = shard.init(first)
    shard.add(second, P0, version=V1)
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, first)) is ErrorCode.PRODUCER_FENCED
    shard.end(second, commit=True, version=V1)
    shard.write_markers()
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, first)) is ErrorCode.PRODUCER_FENCED
    assert shard.state() == "CompleteCommit"


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_T9_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    request = InitProducerIdRequest(ID, timeout_ms)
    assert Shard().refused(request) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


# -- T6: an epoch of its own for every transaction


@pytest.mark.parametrize("commit", [True, False])
def test_T6_the_epoch_moves_on_with_each_end_and_the_answer_names_it(commit: bool) -> None:
    shard = Shard()
    producer = shard.init()
    for epoch in range(1, 4):
        producer = shard.run(producer, commit=commit)
        assert producer == (1001, epoch)
        assert shard.stored().producer == producer


def test_T6_what_is_late_from_an_earlier_transaction_joins_no_later_one() -> None:
    """KAFKA-17754."""
    shard = Shard()
    first = shard.init()
    second = shard.run(first)
    for begin in (False, True):
        if begin:
            shard.add(second, P1)
        for request in (add_request(first), verify_request(first)):
            assert shard.refused(request) is ErrorCode.PRODUCER_FENCED
    assert shard.refused(EndTxnRequest(ID, first, True)) is ErrorCode.PRODUCER_FENCED
    assert shard.submit(DescribeTransactionRequest(ID)).partitions == (P1,)


def test_T6_aborting_nothing_bumps_the_epoch_too() -> None:
    """A batch on its way at the time may have failed to begin the transaction it was for."""
    shard = Shard()
    producer = shard.init()
    for epoch in (1, 2, 3):
        producer = shard.end(producer, commit=False)
        assert producer == (1001, epoch)
        assert shard.state() == "CompleteAbort"
    producer = shard.run(producer)
    assert shard.end(producer, commit=False) == (1001, 5)


def test_T6_with_the_older_protocol_the_epoch_stays() -> None:
    shard = Shard()
    producer = shard.init()
    for _ in range(3):
        assert shard.run(producer, version=V1) == producer


# -- T7: the end, repeated


@pytest.mark.parametrize(("commit", "version", "reload"), list(product([True, False], [V0, V1, V2], [True, False])))
def test_T7_a_repeated_end_gets_the_same_answer(commit: bool, version: TransactionVersion, reload: bool) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, version=version)
    answer = shard.end(producer, commit=commit, version=version)
    request = EndTxnRequest(ID, producer, commit, version)
    opposite = EndTxnRequest(ID, producer, not commit, version)
    assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS
    # Without an epoch of its own the opposite may be about the producer's next transaction (T11).
    code = ErrorCode.INVALID_TXN_STATE if version is V2 else ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.refused(opposite) is code
    shard.write_markers()
    if reload:
        shard.reload()
    size = len(shard.log)
    for _ in range(3):
        assert shard.submit(request).producer == answer
    assert shard.refused(opposite) is ErrorCode.INVALID_TXN_STATE
    assert len(shard.log) == size


@pytest.mark.parametrize("commit", [True, False])
def test_T7_a_repeated_end_is_known_across_the_rotation_of_the_producer_id(commit: bool) -> None:
    shard = Shard()
    shard.put(state=S.ONGOING, producer_epoch=32766, partitions=frozenset({P0}), start_ms=START_MS)
    last = ProducerIdAndEpoch(5, 32766)
    assert shard.end(last, commit=commit) == (1001, 0)
    shard.write_markers()
    shard.reload()
    assert shard.end(last, commit=commit) == (1001, 0)
    assert shard.refused(EndTxnRequest(ID, last, not commit)) is ErrorCode.INVALID_TXN_STATE
    assert shard.next_id == 1001, "one id was drawn"
    shard.add(ProducerIdAndEpoch(1001, 0), P0)
    assert shard.refused(EndTxnRequest(ID, last, commit)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_T7_pending_work_is_looked_at_before_ids_and_epochs(state: S) -> None:
    """KAFKA-18464: the producer may already go by the id that takes effect with the completion."""
    shard = Shard()
    shard.put(state=state, producer_epoch=32767, next_producer_id=6, partitions=frozenset({P0}))
    producer = ProducerIdAndEpoch(6, 0)
    for request in (
        add_request(producer),
        verify_request(producer),
        EndTxnRequest(ID, producer, True),
        EndTxnRequest(ID, producer, False, V1),
        *(EndTxnRequest(ID, producer, commit, token="a token") for commit in (True, False)),
    ):
        assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("reload", [True, False])
def test_T7_across_a_rotation_the_end_that_is_repeated_comes_again_and_no_other(state: S, reload: bool) -> None:
    shard = Shard()
    shard.put(
        state=state,
        producer_epoch=32767,
        last_producer_epoch=32766,
        next_producer_id=6,
        partitions=frozenset({P0}),
        start_ms=START_MS,
        last_update_ms=START_MS,
        version=V2,
    )
    if reload:
        shard.reload()
    commit, last = state is S.PREPARE_COMMIT, ProducerIdAndEpoch(5, 32766)
    assert shard.refused(EndTxnRequest(ID, last, commit)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.refused(EndTxnRequest(ID, last, not commit)) is ErrorCode.INVALID_TXN_STATE
    for gone in (last, ProducerIdAndEpoch(5, 32767), ProducerIdAndEpoch(9, 9)):
        assert shard.refused(add_request(gone)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert shard.refused(verify_request(gone)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if gone != last:
            assert shard.refused(EndTxnRequest(ID, gone, commit)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("fenced_by", ["another instance", "an operator", "its own end"])
@pytest.mark.parametrize("reload", [True, False])
def test_T5_T7_who_was_fenced_hears_so_while_markers_are_being_written(fenced_by: str, reload: bool) -> None:
    """It heard CONCURRENT_TRANSACTIONS for as long as that took, and tried in vain all the while."""
    shard = Shard()
    shard.run(shard.init())
    fenced = ProducerIdAndEpoch(1001, 0)
    shard.add(producer := ProducerIdAndEpoch(1001, 1), P0)
    if fenced_by == "another instance":
        assert shard_codes(shard, InitProducerIdRequest(ID, TIMEOUT_MS)) is ErrorCode.CONCURRENT_TRANSACTIONS
    elif fenced_by == "an operator":
        shard.submit(AbortTransactionRequest(ID))
    else:
        shard.end(producer, commit=False)
    if reload:
        shard.reload()
    assert shard.state() == "PrepareAbort"
    size = len(shard.log)
    for each in (fenced, producer):
        for request in (add_request(each), verify_request(each), replace(add_request(each), version=V1)):
            assert shard.refused(request) is ErrorCode.PRODUCER_FENCED
        for commit, version in product((True, False), (V0, V1, V2)):
            expected = ErrorCode.PRODUCER_FENCED
            if (each, version, fenced_by) == (producer, V2, "its own end"):
                expected = ErrorCode.INVALID_TXN_STATE if commit else ErrorCode.CONCURRENT_TRANSACTIONS
            assert shard.refused(EndTxnRequest(ID, each, commit, version)) is expected
        assert shard.refused(add_request(ProducerIdAndEpoch(9, 9))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    current = ProducerIdAndEpoch(1001, 2)
    for request in (add_request(current), verify_request(current), EndTxnRequest(ID, current, True)):
        assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS, "who holds the id comes again"
    for held in (NO_PRODUCER, producer, fenced):
        assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, held)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(shard.log) == size


@pytest.mark.parametrize(("ms", "code"), [(0, "INVALID_TXN_STATE"), (TIMEOUT_MS, "TRANSACTION_ABORTABLE")])
def test_T7_an_end_that_contradicts_a_pending_decision_is_answered_as_it_is_later(ms: int, code: str) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    shard.now_ms += ms
    if ms:
        shard.tick()
    else:
        shard.end(producer, commit=False)
    wanted = EndTxnRequest(ID, producer, True)
    assert shard.refused(wanted) is ErrorCode[code]
    assert shard.refused(replace(wanted, committed=False)) is ErrorCode.CONCURRENT_TRANSACTIONS
    # A commit with a token may be recorded already, which is looked up once this one is complete (T13).
    assert shard.refused(replace(wanted, token="a")) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    assert shard.refused(wanted) is ErrorCode[code]


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("commit", [True, False])
def test_T7_an_end_by_another_identity_is_refused(commit: bool, version: TransactionVersion) -> None:
    shard = Shard()
    for state in (S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        shard.put(state=state, producer_epoch=4, start_ms=START_MS)
        for producer, expected in [
            (ProducerIdAndEpoch(5, 3), ErrorCode.PRODUCER_FENCED),
            (ProducerIdAndEpoch(5, 5), ErrorCode.PRODUCER_FENCED),
            (ProducerIdAndEpoch(5, -1), ErrorCode.PRODUCER_FENCED),
            (ProducerIdAndEpoch(6, 4), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (NO_PRODUCER, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ]:
            assert shard.refused(EndTxnRequest(ID, producer, commit, version)) is expected
    unknown = EndTxnRequest(ID, ProducerIdAndEpoch(5, 4), commit, version)
    assert Shard().refused(unknown) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_T7_a_commit_answered_under_the_older_protocol_may_be_repeated_by_the_newer() -> None:
    shard = Shard()
    producer = shard.init()
    shard.run(producer, version=V1)
    assert shard.end(producer, commit=True, version=V2) == producer
    assert shard.end(producer, commit=False, version=V2) == (1001, 1), "an abort costs an epoch, to be safe"


def test_T7_an_end_under_the_newer_protocol_is_not_repeated_by_the_older() -> None:
    shard = Shard()
    producer = shard.init()
    after = shard.run(producer)
    assert shard.refused(EndTxnRequest(ID, producer, True, V1)) is ErrorCode.PRODUCER_FENCED
    assert shard.refused(EndTxnRequest(ID, after, True, V1)) is ErrorCode.INVALID_TXN_STATE


# -- T8: the coordinator's word on a partition


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_T8_verification_knows_the_open_transactions_partitions_and_changes_nothing(state: S) -> None:
    shard = Shard()
    shard.put(state=state, partitions=frozenset({P0} if state is S.ONGOING else ()), start_ms=START_MS)
    size = len(shard.log)
    errors = shard.submit(verify_request(ProducerIdAndEpoch(5, 0), P0, P1)).errors
    within = ErrorCode.NONE if state is S.ONGOING else ErrorCode.TRANSACTION_ABORTABLE
    assert errors == {P0: within, P1: ErrorCode.TRANSACTION_ABORTABLE}
    assert len(shard.log) == size


@pytest.mark.parametrize("verify_only", [True, False])
def test_T8_refusals(verify_only: bool) -> None:
    shard = Shard()
    request = AddPartitionsToTxnRequest(ID, ProducerIdAndEpoch(5, 4), (P0,), verify_only)
    assert shard.refused(request) is ErrorCode.INVALID_PRODUCER_ID_MAPPING, "an unknown id"
    shard.put(producer_epoch=4)
    for producer, expected in [
        (ProducerIdAndEpoch(6, 4), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdAndEpoch(5, 3), ErrorCode.PRODUCER_FENCED),
        (ProducerIdAndEpoch(5, 5), ErrorCode.PRODUCER_FENCED),
    ]:
        assert shard.refused(replace(request, producer=producer)) is expected
    for state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
        shard.put(producer_epoch=4, state=state, partitions=frozenset({P0}))
        assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_T8_adding_again_what_is_in_appends_nothing() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    began_ms = shard.stored().start_ms
    shard.now_ms += 10
    shard.add(producer, P0, P1)
    assert shard.stored().partitions == {P0, P1}
    assert shard.stored().start_ms == began_ms
    size = len(shard.log)
    shard.add(producer, P1)
    assert len(shard.log) == size


def test_T8_more_partitions_than_one_record_holds_are_refused_and_the_transaction_can_still_end() -> None:
    shard = Shard(config=TransactionConfig(record_bytes_max=400))
    producer = shard.init()
    shard.add(producer, *(TopicPartition("t", n) for n in range(50)))
    many = AddPartitionsToTxnRequest(ID, producer, tuple(TopicPartition("t", n) for n in range(100)))
    assert shard.refused(many) is ErrorCode.MESSAGE_TOO_LARGE
    shard.end(producer, commit=True)


# -- T9: time


@pytest.mark.parametrize("version", [V1, V2])
def test_T9_a_transaction_past_its_timeout_is_fenced_then_aborted(version: TransactionVersion) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, version=version)
    shard.now_ms += TIMEOUT_MS - 1
    shard.tick()
    assert shard.state() == "Ongoing"
    assert shard.machine.next_deadline_ms() == START_MS + TIMEOUT_MS
    shard.now_ms += 1
    shard.tick()
    assert shard.state() == "PrepareAbort"
    assert shard.markers().marker.producer == (producer.producer_id, 1)
    shard.write_markers()
    assert shard.refused(add_request(producer, version)) is ErrorCode.PRODUCER_FENCED
    assert shard.refused(verify_request(producer)) is ErrorCode.PRODUCER_FENCED
    refusal = ErrorCode.TRANSACTION_ABORTABLE if version is V2 else ErrorCode.PRODUCER_FENCED
    assert shard.refused(EndTxnRequest(ID, producer, True, version)) is refusal
    assert shard.init() == (producer.producer_id, 2)


def test_T9_a_timer_that_comes_early_is_asked_for_again() -> None:
    """It was for a transaction that has ended; the one that is open now has its own deadline."""
    shard = Shard()
    producer = shard.run(shard.init())
    begun_ms = shard.now_ms = START_MS + TIMEOUT_MS // 2
    shard.add(producer, P0)
    shard.now_ms = START_MS + TIMEOUT_MS
    shard.tick()
    assert shard.state() == "Ongoing"
    assert shard.machine.next_deadline_ms() == begun_ms + TIMEOUT_MS
    shard.now_ms = begun_ms + TIMEOUT_MS
    shard.tick()
    assert shard.state() == "PrepareAbort"


@pytest.mark.parametrize("version", [V1, V2])
def test_T9_a_timeout_was_the_end_of_the_producer_whose_transaction_it_was(version: TransactionVersion) -> None:
    """KIP-588: nobody has taken its place, so it continues with the epoch that fenced the transaction."""
    shard, producer = timed_out(version)
    for _ in range(2):
        shard.reload()
        assert shard.init(producer) == (producer.producer_id, 1), "without another bump, however often it asks"
    after = shard.init(producer)
    shard.run(after, version=version)
    for late in (InitProducerIdRequest(ID, TIMEOUT_MS, producer), add_request(producer, version)):
        assert shard.refused(late) is ErrorCode.PRODUCER_FENCED


def test_T9_aborting_what_timed_out_is_answered_with_the_epoch_to_go_on_with() -> None:
    shard, producer = timed_out(V2)
    for _ in range(2):
        assert shard.refused(EndTxnRequest(ID, producer, True, V2)) is ErrorCode.TRANSACTION_ABORTABLE
        assert shard.end(producer, commit=False) == (producer.producer_id, 1)
        shard.reload()
    shard.run(ProducerIdAndEpoch(producer.producer_id, 1))
    assert shard.refused(EndTxnRequest(ID, producer, False, V2)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("when", ["before", "amid the markers", "after", "after it went on", "an operator"])
def test_T5_a_zombie_whose_transaction_timed_out_is_fenced_all_the_same(when: str) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    newer = InitProducerIdRequest(ID, TIMEOUT_MS)
    shard.now_ms += TIMEOUT_MS
    if when == "before":
        assert shard_codes(shard, newer) is ErrorCode.CONCURRENT_TRANSACTIONS
    elif when == "an operator":
        shard.submit(AbortTransactionRequest(ID))
    shard.tick()
    if when == "amid the markers":
        assert shard_codes(shard, newer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert shard_codes(shard, replace(newer, producer=producer)) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    held = [producer]
    if when == "after it went on":
        held.append(shard.init(producer))
    if when != "an operator":
        shard.init()
    for zombie, commit in product(held, (True, False)):
        assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, zombie)) is ErrorCode.PRODUCER_FENCED
        assert shard.refused(EndTxnRequest(ID, zombie, commit, V2)) is ErrorCode.PRODUCER_FENCED
        assert shard.refused(add_request(zombie)) is ErrorCode.PRODUCER_FENCED


def test_T10_a_timeout_under_the_last_epoch_moves_its_producer_on_to_a_new_id_once() -> None:
    shard = Shard()
    shard.put(state=S.ONGOING, producer_epoch=32766, partitions=frozenset({P0}), start_ms=START_MS)
    last = ProducerIdAndEpoch(5, 32766)
    shard.now_ms += TIMEOUT_MS
    shard.tick()
    assert shard.markers().marker.producer == (5, 32767)
    shard.write_markers()
    assert shard.refused(EndTxnRequest(ID, last, False)) is ErrorCode.PRODUCER_FENCED
    for _ in range(2):
        assert shard.init(last) == (1001, 0)
        shard.reload()
    assert shard.init() == (1001, 1)
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, last)) is ErrorCode.PRODUCER_FENCED


def timed_out(version: TransactionVersion) -> tuple[Shard, ProducerIdAndEpoch]:
    """A transaction that was aborted because of its time, and whose it was."""
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, version=version)
    shard.now_ms += TIMEOUT_MS
    shard.tick()
    shard.write_markers()
    return shard, producer


def test_T9_the_timeout_counts_from_the_first_partition_and_from_the_log_alone() -> None:
    shard = Shard()
    producer = shard.init()
    shard.now_ms += TIMEOUT_MS
    shard.add(producer, P0)
    shard.now_ms += TIMEOUT_MS // 2
    shard.add(producer, P1)
    shard.reload()
    shard.now_ms += TIMEOUT_MS // 2
    shard.tick()
    assert shard.state() == "PrepareAbort"


def test_T9_what_ended_or_was_begun_anew_is_not_timed_out_by_an_earlier_timer() -> None:
    shard = Shard()
    producer = shard.run(shard.init())
    shard.now_ms += TIMEOUT_MS - 1
    shard.add(producer, P0)
    shard.now_ms += 1
    shard.tick()
    assert shard.state() == "Ongoing"
    shard.end(producer, commit=True)
    shard.now_ms += TIMEOUT_MS
    shard.tick()
    assert shard.state() == "PrepareCommit", "a decision never times out"


def test_T9_one_tick_takes_up_a_bounded_number_and_the_next_follows_at_once() -> None:
    shard = Shard(config=TransactionConfig(tick_records_max=2))
    for name in "abcde":
        txn = TransactionMetadata(name, 5, 0, TIMEOUT_MS, S.ONGOING, START_MS, frozenset({P0}), START_MS, V2)
        shard.log.append(CoordinatorRecord(encode_key(name), encode_value(txn)))
    shard.reload()
    shard.now_ms += TIMEOUT_MS
    counts = []
    while (deadline := shard.machine.next_deadline_ms()) is not None and deadline <= shard.now_ms:
        before = len(shard.log)
        shard.submit(TICK)
        counts.append(len(shard.log) - before)
    assert counts == [2, 2, 1]


# -- T10: the end of the epochs


@pytest.mark.parametrize("commit", [True, False])
def test_T10_the_last_epochs_end_rotates_the_producer_id(commit: bool) -> None:
    shard = Shard()
    shard.put(state=S.ONGOING, producer_epoch=32766, partitions=frozenset({P0}), start_ms=START_MS)
    assert shard.end(ProducerIdAndEpoch(5, 32766), commit=commit) == (1001, 0)
    decided = shard.stored()
    assert (decided.producer, decided.next_producer_id) == ((5, 32767), 1001)
    assert shard.markers().marker.producer == (5, 32767)
    shard.reload()
    shard.write_markers()
    completed = shard.stored()
    assert completed.producer == (1001, 0)
    assert (completed.previous_producer_id, completed.next_producer_id) == (5, -1)
    assert shard.run(ProducerIdAndEpoch(1001, 0)) == (1001, 1)


def test_T10_aborting_nothing_at_the_last_epoch_rotates_too() -> None:
    shard = Shard()
    shard.put(producer_epoch=32766)
    assert shard.end(ProducerIdAndEpoch(5, 32766), commit=False) == (1001, 0)
    assert shard.stored().producer == (1001, 0)


def test_T10_with_the_older_protocol_only_initialising_rotates() -> None:
    shard = Shard()
    shard.put(producer_epoch=32766)
    last = ProducerIdAndEpoch(5, 32766)
    assert shard.run(last, version=V1) == last
    assert shard.init() == (1001, 0)
    assert shard.refused(add_request(last)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_T10_initialising_rotates_once_however_often_it_is_repeated() -> None:
    shard = Shard()
    shard.put(producer_epoch=32766)
    last = ProducerIdAndEpoch(5, 32766)
    for _ in range(3):
        assert shard.init(last) == (1001, 0)
        shard.reload()
    assert shard.next_id == 1001
    assert shard.init() == (1001, 1)
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, last)) is ErrorCode.PRODUCER_FENCED


def test_T10_the_epoch_before_the_last_does_not_rotate() -> None:
    shard = Shard()
    shard.put(producer_epoch=32765)
    assert shard.init() == (5, 32766)
    assert shard.next_id == 1000


@pytest.mark.parametrize("how", ["timeout", "operator", "init"])
def test_T10_fencing_the_last_epoch_bumps_once_and_the_next_initialising_rotates(how: str) -> None:
    """KAFKA-19367, KAFKA-20090: nobody ever gets the fencing epoch, whatever comes late."""
    shard = Shard()
    shard.put(state=S.ONGOING, producer_epoch=32766, partitions=frozenset({P0}), start_ms=START_MS)
    last = ProducerIdAndEpoch(5, 32766)
    if how == "timeout":
        shard.now_ms += TIMEOUT_MS
        shard.tick()
    elif how == "operator":
        shard.submit(AbortTransactionRequest(ID))
    else:
        assert shard_codes(shard, InitProducerIdRequest(ID, TIMEOUT_MS)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.markers().marker.producer == (5, 32767)
    shard.write_markers()
    fencing = ProducerIdAndEpoch(5, 32767)
    for producer, commit, version in product((last, fencing), (True, False), (V1, V2)):
        assert shard.refused(EndTxnRequest(ID, producer, commit, version)) is ErrorCode.PRODUCER_FENCED
    for producer in (last, fencing):
        assert shard.refused(add_request(producer)) is ErrorCode.PRODUCER_FENCED
        if how != "timeout":
            assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, producer)) is ErrorCode.PRODUCER_FENCED
    assert shard.refused(InitProducerIdRequest(ID, TIMEOUT_MS, fencing)) is ErrorCode.PRODUCER_FENCED
    assert shard.init() == (1001, 0)


def test_T10_a_producer_that_fences_its_own_last_epoch_moves_on_to_a_new_id_once() -> None:
    shard = Shard()
    shard.put(state=S.ONGOING, producer_epoch=32766, partitions=frozenset({P0}), start_ms=START_MS)
    last = ProducerIdAndEpoch(5, 32766)
    assert shard_codes(shard, InitProducerIdRequest(ID, TIMEOUT_MS, last)) is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    assert shard.refused(EndTxnRequest(ID, last, False)) is ErrorCode.PRODUCER_FENCED
    for _ in range(2):
        assert shard.init(last) == (1001, 0)
        shard.reload()


def test_T10_an_id_that_holds_the_fencing_epoch_already_recovers() -> None:
    """Logs of coordinators that let 32767 through exist (KAFKA-20090)."""
    shard = Shard()
    shard.put(state=S.ONGOING, producer_epoch=32767, partitions=frozenset({P0}), start_ms=START_MS)
    assert shard.refused(EndTxnRequest(ID, ProducerIdAndEpoch(5, 32767), True)) is ErrorCode.PRODUCER_FENCED
    assert shard_codes(shard, InitProducerIdRequest(ID, TIMEOUT_MS)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.markers().marker.producer == (5, 32767)
    assert shard.markers().marker.version < V2, "a newer marker at the epoch of the data would be refused"
    shard.write_markers()
    assert shard.init() == (1001, 0)


# -- T11: transactions with less than usual in them


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [V1, V2])
def test_T11_offsets_only(commit: bool, version: TransactionVersion) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, OFFSETS, version=version)
    shard.end(producer, commit=commit, version=version)
    assert shard.markers().marker.partitions == (OFFSETS,)
    shard.write_markers()
    assert shard.state() == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [V1, V2])
def test_T11_begun_without_partitions_ends_in_one_batch(commit: bool, version: TransactionVersion) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, version=version)
    assert shard.state() == "Ongoing"
    shard.end(producer, commit=commit, version=version)
    assert shard.state() == ("CompleteCommit" if commit else "CompleteAbort")
    assert shard.effects == [TransactionCompleted(ID)]


@pytest.mark.parametrize(("commit", "version"), [(True, V1), (False, V1), (True, V2)])
def test_T11_ending_what_never_began_is_refused(commit: bool, version: TransactionVersion) -> None:
    shard = Shard()
    producer = shard.init()
    assert shard.refused(EndTxnRequest(ID, producer, commit, version)) is ErrorCode.INVALID_TXN_STATE
    if version is V2:
        producer = shard.run(producer)
        assert shard.refused(EndTxnRequest(ID, producer, commit, version)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(("commit", "version"), list(product([True, False], [V1, V2])))
def test_T11_ending_while_the_previous_one_completes_is_never_an_empty_success(
    commit: bool, version: TransactionVersion
) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0, version=version)
    following = shard.end(producer, commit=True, version=version)
    assert shard.refused(EndTxnRequest(ID, following, commit, version)) is ErrorCode.CONCURRENT_TRANSACTIONS


# -- fields of other writers


def test_tagged_fields_of_others_do_no_harm() -> None:
    shard = Shard()
    txn = shard.put(producer_epoch=4)
    value = encode_value(txn)
    assert value.endswith(b"\x01\x02\x02\x00\x02"), "one tagged field: the client's version"
    extended = value[:-5] + b"\x03\x02\x02\x00\x02\x04\x02\x00\x09" + b"\xa0\x9c\x01\x04abcd"
    assert decode_value(ID, extended) == txn


# -- expiry


def test_an_idle_id_expires_by_a_tombstone() -> None:
    shard = Shard()
    producer = shard.run(shard.init())
    shard.now_ms = shard.stored().last_update_ms + shard.config.transactional_id_expiration_ms - 1
    shard.tick()
    assert shard.state() == "CompleteCommit"
    shard.now_ms += 1
    shard.tick()
    assert shard.log[-1] == CoordinatorRecord(encode_key(ID), None)
    assert shard.refused(DescribeTransactionRequest(ID)) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert shard.refused(add_request(producer)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    shard.reload()
    assert shard.refused(DescribeTransactionRequest(ID)) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert shard.init(producer) == (1002, 0)


@pytest.mark.parametrize("state", sorted(OPEN, key=lambda state: state.number))
def test_an_id_with_an_open_transaction_never_expires(state: S) -> None:
    shard = Shard()
    shard.put(timeout_ms=2**31 - 1)
    shard.put(state=state, start_ms=START_MS, partitions=frozenset({P0}), timeout_ms=2**31 - 1)
    shard.now_ms += shard.config.transactional_id_expiration_ms * 2
    shard.tick()
    assert shard.state() == state.label


def test_an_id_that_was_busy_expires_so_long_after_its_last_transaction() -> None:
    shard = Shard()
    producer = shard.init()
    for _ in range(10):
        shard.now_ms += shard.config.transactional_id_expiration_ms // 2
        producer = shard.run(producer)
        shard.tick()
    ended_ms = shard.stored().last_update_ms
    shard.now_ms += shard.config.transactional_id_expiration_ms - 1
    shard.tick()
    assert shard.state() == "CompleteCommit"
    assert shard.machine.next_deadline_ms() == ended_ms + shard.config.transactional_id_expiration_ms


def test_timers_do_not_grow_with_the_transactions_ever_run() -> None:
    shard = Shard()
    producer = shard.init()
    for _ in range(500):
        shard.now_ms += 1_000
        shard.tick()
        producer = shard.run(producer)
    assert len(shard.machine._timeouts._heap) + len(shard.machine._expirations._heap) <= 3


def test_a_deadline_that_moves_earlier_rings_once() -> None:
    timers = Timers()
    timers.want("a", 100)
    timers.want("a", 50)
    timers.want("a", 70)
    assert timers.next_ms() == 50
    assert [timers.pop_due(60), timers.pop_due(60)] == ["a", None]
    timers.want("a", 200)
    assert timers.pop_due(150) is None
    assert [timers.pop_due(200), timers.pop_due(200), timers.next_ms()] == ["a", None, None]


def test_timers_of_keys_that_come_and_go_leave_nothing_behind() -> None:
    """Each writer of a shared transaction is a key of its own, and most are gone long before their deadline."""
    timers = Timers()
    timers.want("stays", 5_000)
    for number in range(10_000):
        timers.want(f"writer-{number}", 10_000 + number)
        timers.forget(f"writer-{number}")
        assert len(timers._heap) < 100
    timers.forget("unknown")
    assert [timers.pop_due(1_000_000), timers.pop_due(1_000_000)] == ["stays", None]


# -- operators


def test_an_operators_abort_fences_the_producer() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    shard.submit(AbortTransactionRequest(ID))
    assert shard.markers().marker.producer == (producer.producer_id, 1)
    shard.submit(AbortTransactionRequest(ID))
    shard.write_markers()
    shard.submit(AbortTransactionRequest(ID))
    with pytest.raises(FencedError):
        shard.end(producer, commit=False)


@pytest.mark.parametrize("state", [S.EMPTY, S.PREPARE_COMMIT, S.COMPLETE_COMMIT])
def test_an_operators_abort_comes_too_late_or_finds_nothing(state: S) -> None:
    shard = Shard()
    assert shard.refused(AbortTransactionRequest(ID)) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    shard.put(state=state)
    assert shard.refused(AbortTransactionRequest(ID)) is ErrorCode.INVALID_TXN_STATE


def test_describe() -> None:
    shard = Shard()
    producer = shard.init()
    found = shard.submit(DescribeTransactionRequest(ID))
    assert (found.state, found.start_time_ms, found.partitions) == ("Empty", -1, ())
    shard.now_ms += 5
    shard.add(producer, P1, P0)
    found = shard.submit(DescribeTransactionRequest(ID))
    assert (found.state, found.producer, found.partitions) == ("Ongoing", producer, (P0, P1))
    assert (found.timeout_ms, found.start_time_ms, found.last_update_ms) == (TIMEOUT_MS, START_MS + 5, START_MS + 5)
    assert found.coordinator_epoch == shard.epoch
    shard.end(producer, commit=True)
    shard.write_markers()
    found = shard.submit(DescribeTransactionRequest(ID))
    assert (found.start_time_ms, found.partitions) == (-1, ())


def test_list_filters_are_alternatives_within_and_conjunctive_between_themselves() -> None:
    shard = Shard()
    for name, producer_id, state, age_ms in [
        ("a-1", 1, S.ONGOING, 100),
        ("a-2", 2, S.ONGOING, 10),
        ("b-1", 3, S.PREPARE_COMMIT, 100),
        ("b-2", 4, S.EMPTY, 100),
        ("b-3", 5, S.COMPLETE_ABORT, 100),
    ]:
        started_ms = START_MS - age_ms
        txn = TransactionMetadata(name, producer_id, 0, TIMEOUT_MS, state, START_MS, start_ms=started_ms)
        shard.log.append(CoordinatorRecord(encode_key(name), encode_value(txn)))
    shard.reload()

    def found(**filters: Any) -> list[str]:
        response = shard.submit(ListTransactionsRequest(**filters))
        return [item.transactional_id for item in response.transactions]

    assert found() == ["a-1", "a-2", "b-1", "b-2", "b-3"]
    assert found(states=frozenset({"Ongoing", "Empty"})) == ["a-1", "a-2", "b-2"]
    assert found(producer_ids=frozenset({2, 3, 99})) == ["a-2", "b-1"]
    assert found(states=frozenset({"Ongoing"}), producer_ids=frozenset({2, 3})) == ["a-2"]
    assert found(min_duration_ms=50) == ["a-1", "b-1"], "only what is open has a duration"
    assert found(min_duration_ms=100) == []
    assert found(states=frozenset({"Confused"})) == []
    response = shard.submit(ListTransactionsRequest(states=frozenset({"Confused", "Ongoing"})))
    assert response.unknown_states == ("Confused",)
    assert [item.state for item in response.transactions] == ["Ongoing", "Ongoing"]


# -- the log


def test_kinds_of_records_that_are_not_known_are_stepped_over() -> None:
    shard = Shard()
    shard.machine.replay(CoordinatorRecord(b"\x00\x07whatever", b"x"), 0, None, START_MS)
    assert shard.submit(ListTransactionsRequest()).transactions == ()


def test_markers_and_tickets_are_none_of_its_business() -> None:
    machine = Shard().machine
    assert machine.replay_marker(ProducerIdAndEpoch(1, 0), True, START_MS) is None
    assert machine.closed() == ()
    assert machine.next_deadline_ms() is None


def test_time_that_goes_back_makes_no_record_older() -> None:
    shard = Shard()
    producer = shard.init()
    shard.now_ms -= 10_000
    shard.add(producer, P0)
    assert shard.stored().last_update_ms == START_MS
    shard.end(producer, commit=True)
    assert shard.stored().last_update_ms == START_MS + 1
    shard.write_markers()
    assert shard.stored().last_update_ms == START_MS + 1


def test_completed_states_are_what_expires_and_begins_anew() -> None:
    assert COMPLETED | {S.EMPTY} == LEGAL_PREDECESSORS[S.DEAD]


def test_config_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="record_bytes_max"):
        TransactionConfig(record_bytes_max=0)
