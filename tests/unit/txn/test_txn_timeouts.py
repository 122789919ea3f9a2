"""Time in the transaction coordinator's machine: transactions that run too long, and ids that expire."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from txn_producer import ID, P0, P1, TIMEOUT_MS, V1, V2, S, Shard, add_request, shard_codes, verify_request
from txn_shard import START_MS

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.machine import TICK, CoordinatorRecord
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import (
    OPEN,
    TransactionMetadata,
)

# --- T9: time ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("off_ms", [TIMEOUT_MS, 3_600_000, -1, -3_600_000])
def test_T9_a_coordinator_whose_clock_is_another_gives_an_open_transaction_its_time(off_ms: int) -> None:
    """Not nothing of it where its clock is ahead, and not an hour more where it is behind."""
    shard = Shard()
    producer = shard.init()
    shard.now_ms += TIMEOUT_MS
    shard.add(producer, P0)
    shard.now_ms += off_ms
    shard.reload()
    shard.add(producer, P1)
    shard.now_ms += TIMEOUT_MS - 1
    shard.tick()
    assert shard.state() == "Ongoing"
    shard.now_ms += 1
    shard.tick()
    assert shard.state() == "PrepareAbort"


def test_T9_the_next_transaction_of_an_id_has_its_own_time() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    shard.now_ms += 3_600_000
    shard.reload()
    shard.now_ms += 1
    producer = shard.run(producer)
    shard.add(producer, P0)
    shard.now_ms += TIMEOUT_MS - 1
    shard.tick()
    assert shard.state() == "Ongoing"
    shard.now_ms += 1
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
    shard = Shard(config=TransactionConfig(transaction_tick_max_records=2))
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


# --- Expiry -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("state", sorted(OPEN))
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
