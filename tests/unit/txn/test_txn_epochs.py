"""Producer ids and epochs on the machine: how they are given, bumped, fenced and rotated."""

from __future__ import annotations

from itertools import product

import pytest
from txn_producer import ID, P0, P1, TIMEOUT_MS, V1, V2, S, Shard, add_request, shard_codes, verify_request
from txn_shard import START_MS

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import AbortTransactionRequest, DescribeTransactionRequest, EndTxnRequest
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch
from semel.txn_coordinator.state import (
    OPEN,
)

# --- T5: InitProducerId -----------------------------------------------------------------------------------------------


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


# --- T6: an epoch of its own for every transaction --------------------------------------------------------------------


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


# --- T10: the end of the epochs ---------------------------------------------------------------------------------------


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
