"""The end of a transaction on the machine: decision, markers, completion; repeated ends and empty transactions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from txn_producer import ID, P0, P1, TIMEOUT_MS, V0, V1, V2, S, Shard, add_request, shard_codes, verify_request
from txn_shard import START_MS

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import TICK, CoordinatorRecord, Result, Ticket
from semel.txn_coordinator.effects import (
    MarkersWritten,
    SendMarkers,
    TransactionCompleted,
)
from semel.txn_coordinator.schemas import decode_value, encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata

OFFSETS = TopicPartition("__consumer_offsets", 7)


# --- T2, T3: decision, then markers, then completion ------------------------------------------------------------------


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


# --- T7: the end, repeated --------------------------------------------------------------------------------------------


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
        assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS, "the holder of the id retries"
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


# --- T11: transactions with less than usual in them -------------------------------------------------------------------


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
