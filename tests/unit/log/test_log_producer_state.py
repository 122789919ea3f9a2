"""The producer machine, rule by rule: P1 to P10, L1, T8."""

from __future__ import annotations

import pytest

from semel.broker.log.producer_snapshot import CorruptSnapshotError, decode_snapshot, encode_packed
from semel.broker.log.producer_state import MAX_SEQUENCE, MarkerVerdict, ProducerState
from semel.broker.log.verification import Verifications
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

TP = TopicPartition("t", 0)
DAY_MS = 24 * 60 * 60 * 1000
V1, V2 = TransactionVersion.V1, TransactionVersion.V2


def append(
    state: ProducerState,
    first: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    transactional: bool = False,
    coordinator: bool = False,
    now_ms: int = 0,
) -> int:
    """Check and apply a batch as the log does; returns its base offset."""
    last = (first + count - 1) % (MAX_SEQUENCE + 1)
    base = state.end_offset
    state.check_batch(producer_id, epoch, first, transactional, check_sequence=not coordinator, verified=True)
    state.apply_batch(producer_id, epoch, first, last, base, base + count - 1, 1000 + base, transactional, now_ms)
    state.end_offset = base + count
    return base


def mark(
    state: ProducerState, epoch: int = 0, *, committed: bool = True, coordinator_epoch: int = 0, now_ms: int = 0
) -> object:
    offset = state.end_offset
    completed = state.apply_marker(ProducerIdAndEpoch(7, epoch), coordinator_epoch, committed, offset, 1000, now_ms)
    state.end_offset = offset + 1
    return completed


def refused(code: ErrorCode) -> object:
    return pytest.raises(SemelError, match=code.name)


def test_P1_the_last_five_batches_are_duplicates_of_their_range_alone() -> None:
    state = ProducerState(TP)
    offsets = [append(state, 10 * n, 10) for n in range(7)]
    for n in range(2, 7):
        found = state.find_duplicate(7, 0, 10 * n, 10 * n + 9)
        assert found is not None
        assert (found.first_offset, found.timestamp_ms) == (offsets[n], 1000 + offsets[n])
    assert state.find_duplicate(7, 0, 10, 19) is None, "older than five"
    assert state.find_duplicate(7, 0, 60, 68) is None, "another range"
    assert state.find_duplicate(7, 1, 60, 69) is None, "another epoch"
    assert state.find_duplicate(8, 0, 60, 69) is None


def test_P1_a_batch_repeats_one_of_its_own_transaction_alone() -> None:
    """What repeats a batch of an ended transaction is refused: "is in already" could lose another batch in silence."""
    state = ProducerState(TP)
    append(state, 0, transactional=True)
    earlier = state.find_duplicate(7, 0, 0, 0)
    assert earlier is not None
    state.check_repetition(7, earlier)
    mark(state, committed=False)
    with refused(ErrorCode.INVALID_TXN_STATE):
        state.check_repetition(7, earlier)
    append(state, 1, transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        state.check_repetition(7, earlier)
    own = state.find_duplicate(7, 0, 1, 1)
    assert own is not None
    state.check_repetition(7, own)
    assert state.find_duplicate(7, 0, 0, 0) == earlier, "judging changes nothing"


def test_P2_sequences_follow_and_wrap() -> None:
    state = ProducerState(TP)
    append(state, 5)
    for wrong in (5, 4, 7, 0):
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            append(state, wrong)
    append(state, 6)
    state = ProducerState(TP)
    append(state, MAX_SEQUENCE - 1, 2)
    append(state, 0)
    state = ProducerState(TP)
    append(state, MAX_SEQUENCE, 3)  # the batch itself wraps: its last sequence is 1
    entry = state.entry(7)
    assert entry is not None
    assert entry.last_sequence == 1
    append(state, 2)


@pytest.mark.parametrize("counts", [(1, 1, 1), (3, 2, 4), (2, 5, 1)])
def test_P2_P1_duplicates_across_the_wrap(counts: tuple[int, int, int]) -> None:
    """The batches before 2^31-1 are remembered behind it, and so is one that wraps itself."""
    state = ProducerState(TP)
    first, sent = MAX_SEQUENCE - counts[0], []
    for count in counts:
        last = (first + count - 1) % (MAX_SEQUENCE + 1)
        sent.append((first, last, append(state, first, count)))
        first = (last + 1) % (MAX_SEQUENCE + 1)
    for first_sequence, last_sequence, offset in sent:
        found = state.find_duplicate(7, 0, first_sequence, last_sequence)
        assert found is not None
        assert found.first_offset == offset


def test_P3_new_epochs_start_at_zero_and_unknown_ids_anywhere() -> None:
    state = ProducerState(TP)
    append(state, 1234)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(state, 1235, epoch=1)
    append(state, 0, epoch=1)


def test_P4_a_lower_epoch_is_refused() -> None:
    state = ProducerState(TP)
    append(state, 0, epoch=3)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(state, 1, epoch=2)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        state.check_marker(ProducerIdAndEpoch(7, 2), 0, V1)


def test_P5_coordinators_are_checked_for_the_epoch_alone() -> None:
    state = ProducerState(TP)
    append(state, -1, coordinator=True, epoch=1, transactional=True)
    append(state, -1, coordinator=True, epoch=1, transactional=True)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(state, -1, coordinator=True, epoch=0, transactional=True)


def test_P6_no_other_batch_inside_an_open_transaction() -> None:
    state = ProducerState(TP)
    append(state, 0, transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(state, 1)
    append(state, 0, producer_id=8)


def test_P6_the_short_way_takes_only_what_the_long_one_would() -> None:
    state = ProducerState(TP)
    append(state, 0)
    assert state.follows(7, 0, 1, False)
    assert not state.follows(7, 0, 1, True), "nobody has verified it (T8)"
    append(state, 1, transactional=True)
    assert state.follows(7, 0, 2, True)
    assert not state.follows(7, 0, 2, False), "it would be in the transaction"
    for epoch, sequence in ((1, 2), (0, 3), (0, 1), (0, 0)):
        assert not state.follows(7, epoch, sequence, True)


def test_T6_a_new_epoch_never_joins_an_older_open_transaction() -> None:
    state = ProducerState(TP)
    append(state, 0, transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(state, 0, epoch=1, transactional=True)


def test_T8_a_first_transactional_batch_needs_verification() -> None:
    state = ProducerState(TP)
    producer = ProducerIdAndEpoch(7, 0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        state.check_batch(7, 0, 0, True, check_sequence=True, verified=False)
    assert not state.has_ongoing_transaction(producer)
    append(state, 0, transactional=True)
    assert state.has_ongoing_transaction(producer)
    assert not state.has_ongoing_transaction(ProducerIdAndEpoch(7, 1))
    state.check_batch(7, 0, 1, True, check_sequence=True, verified=False)
    mark(state)
    assert not state.has_ongoing_transaction(producer)
    with refused(ErrorCode.INVALID_TXN_STATE):
        state.check_batch(7, 0, 1, True, check_sequence=True, verified=False)


def test_T8_a_guard_is_void_after_a_marker_and_keeps_the_order() -> None:
    verifications = Verifications()
    producer = ProducerIdAndEpoch(7, 0)
    guard = verifications.start(producer, 5, 0)
    assert verifications.start(producer, 3, 0) is guard
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        verifications.check_sequence(TP, 7, 0, 5)
    verifications.check_sequence(TP, 7, 0, 3)
    verifications.check_sequence(TP, 7, 1, 5)
    verifications.start(ProducerIdAndEpoch(7, 1), 0, 0)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        verifications.check_sequence(TP, 7, 1, 5)
    assert verifications.holds(guard, 7)
    verifications.finish(7)
    assert not verifications.holds(guard, 7)
    verifications.start(producer, 0, 0)
    assert not verifications.holds(guard, 7), "the next transaction's guard is another"
    verifications.expire(DAY_MS, DAY_MS)
    assert not verifications.holds(guard, 7)


def test_P8_idle_ids_expire_by_the_brokers_clock_and_never_inside_a_transaction() -> None:
    state = ProducerState(TP)
    append(state, 0, now_ms=1000)
    append(state, 0, producer_id=8, transactional=True, now_ms=1000)
    assert state.expire(1000 + DAY_MS - 1, DAY_MS) == 0
    assert state.expire(1000 + DAY_MS, DAY_MS) == 1
    assert state.entry(7) is None
    assert state.entry(8) is not None
    append(state, 99)  # unknown again, so it may start anywhere


def test_P8_a_jump_of_the_clock_makes_nobody_idle() -> None:
    state = ProducerState(TP)
    append(state, 0, now_ms=1000)
    now_ms = 1000 + 500 + 2 * DAY_MS  # half a second later, two days ahead
    append(state, 0, producer_id=8, now_ms=now_ms - 1)
    assert list(state.clock_jumped(2 * DAY_MS, now_ms)) == [None]
    assert state.expire(now_ms - 500 + DAY_MS - 1, DAY_MS) == 0
    assert state.expire(now_ms - 500 + DAY_MS, DAY_MS) == 1, "as long after its batch as without the jump"
    assert state.entry(8) is not None
    list(state.clock_jumped(-4 * DAY_MS, now_ms - 4 * DAY_MS))
    assert state.expire(now_ms - 3 * DAY_MS - 1, DAY_MS) == 0
    assert state.expire(now_ms - 3 * DAY_MS, DAY_MS) == 1, "its time began anew"


def test_P8_a_marker_counts_as_activity() -> None:
    state = ProducerState(TP)
    append(state, 0, transactional=True, now_ms=0)
    mark(state, now_ms=DAY_MS)
    assert state.expire(DAY_MS + DAY_MS - 1, DAY_MS) == 0
    assert state.expire(DAY_MS + DAY_MS, DAY_MS) == 1


def test_P9_a_late_marker_of_a_former_coordinator_does_not_end_the_next_transaction() -> None:
    """The former one did not hear that its marker was written, and repeats it. So does the next one, and then begins a
    transaction of the same producer epoch. The former one's last try comes behind all of that.
    """
    state = ProducerState(TP)
    producer = ProducerIdAndEpoch(7, 0)
    append(state, 0, transactional=True)
    mark(state, coordinator_epoch=5)
    assert state.check_marker(producer, 6, V1) is MarkerVerdict.APPEND, "who is coordinator now has to be in the log"
    mark(state, coordinator_epoch=6)
    assert state.check_marker(producer, 6, V1) is MarkerVerdict.ALREADY_APPLIED
    append(state, 1, transactional=True)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        state.check_marker(producer, 5, V1)
    assert state.check_marker(producer, 6, V1) is MarkerVerdict.APPEND


def test_P9_markers_of_old_coordinators_are_fenced_and_repeated_ones_change_nothing() -> None:
    state = ProducerState(TP)
    producer = ProducerIdAndEpoch(7, 0)
    append(state, 0, transactional=True)
    assert state.check_marker(producer, 5, V1) is MarkerVerdict.APPEND
    mark(state, coordinator_epoch=5)
    assert state.check_marker(producer, 5, V1) is MarkerVerdict.ALREADY_APPLIED
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        state.check_marker(producer, 4, V1)
    assert state.check_marker(ProducerIdAndEpoch(99, 0), 0, V1) is MarkerVerdict.APPEND


def test_P9_a_forged_coordinator_epoch_fences_nobody_and_only_it() -> None:
    """`forged_epoch` is the very epoch that the metadata knows to be nobody's; another one still fences (P9)."""
    state = ProducerState(TP)
    producer = ProducerIdAndEpoch(7, 0)
    mark(state, 9, coordinator_epoch=100)
    for forged in (-1, 99, 101):
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            state.check_marker(producer, 5, V1, forged_epoch=forged)
        with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
            state.check_marker(ProducerIdAndEpoch(7, 9), 5, V1, forged_epoch=forged)
    assert state.check_marker(producer, 5, V1, forged_epoch=100) is MarkerVerdict.APPEND
    assert state.check_marker(ProducerIdAndEpoch(7, 9), 5, V1, forged_epoch=100) is MarkerVerdict.APPEND
    mark(state, coordinator_epoch=5)
    assert state.check_marker(producer, 5, V1) is MarkerVerdict.ALREADY_APPLIED
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        state.check_marker(producer, 4, V1, forged_epoch=100)


def test_P9_a_forged_epoch_does_not_let_a_marker_end_data_of_a_later_epoch() -> None:
    state = ProducerState(TP)
    mark(state, 3, coordinator_epoch=100)
    append(state, 0, epoch=3, transactional=True)
    for version, epoch in ((V1, 2), (V2, 3)):
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            state.check_marker(ProducerIdAndEpoch(7, epoch), 5, version, forged_epoch=100)
    assert state.check_marker(ProducerIdAndEpoch(7, 4), 5, V2, forged_epoch=100) is MarkerVerdict.APPEND
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        state.check_marker(ProducerIdAndEpoch(7, 4), 5, V2)


def test_P7_the_highest_coordinator_epoch_is_known_after_a_restore() -> None:
    state, again = ProducerState(TP), ProducerState(TP)
    mark(state, coordinator_epoch=5)
    mark(state, coordinator_epoch=-1)
    again.restore(list(state), state.end_offset)
    for one in (state, again):
        assert one.coordinator_epoch_max == 5
        (entry,) = one
        assert entry.coordinator_epoch == 5, "a marker that was emptied by compaction says none"


@pytest.mark.parametrize(("version", "epoch"), [(V1, 0), (V1, 1), (V2, 1)])
def test_P9_an_older_coordinator_cannot_end_what_is_open(version: TransactionVersion, epoch: int) -> None:
    state = ProducerState(TP)
    append(state, 0, transactional=True)
    mark(state, coordinator_epoch=5)
    append(state, 1, transactional=True)
    marker = ProducerIdAndEpoch(7, epoch)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        state.check_marker(marker, 4, version)
    for coordinator_epoch in (5, 6):
        assert state.check_marker(marker, coordinator_epoch, version) is MarkerVerdict.APPEND


def test_P9_a_late_marker_never_ends_the_next_transaction() -> None:
    """KAFKA-19999: with an epoch for each transaction, a marker's epoch is above that of the data it ends."""
    state = ProducerState(TP)
    append(state, 0, epoch=0, transactional=True)
    assert state.check_marker(ProducerIdAndEpoch(7, 1), 0, V2) is MarkerVerdict.APPEND
    mark(state, 1)
    append(state, 0, epoch=1, transactional=True)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        state.check_marker(ProducerIdAndEpoch(7, 1), 0, V2)
    assert state.check_marker(ProducerIdAndEpoch(7, 2), 0, V2) is MarkerVerdict.APPEND


@pytest.mark.parametrize("version", [V1, V2])
def test_P10_after_a_marker_that_bumps_the_epoch(version: TransactionVersion) -> None:
    state = ProducerState(TP)
    append(state, 41, transactional=True)
    assert state.check_marker(ProducerIdAndEpoch(7, 1), 0, version) is MarkerVerdict.APPEND
    completed = mark(state, 1, committed=False)
    assert completed is not None
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(state, 42, transactional=True)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(state, 42, epoch=1, transactional=True)
    append(state, 0, epoch=1, transactional=True)


def test_L1_open_and_undecided_transactions_hold_the_stable_offset() -> None:
    state = ProducerState(TP)
    assert state.first_unstable_offset(0) is None
    append(state, 0, transactional=True)  # 0, producer 7
    append(state, 0, producer_id=8, transactional=True)  # 1
    assert state.first_unstable_offset(2) == 0
    mark(state)  # 2
    assert state.first_unstable_offset(2) == 0, "its marker is not below the high watermark"
    assert state.first_unstable_offset(3) == 1
    append(state, 1, transactional=True)  # 3
    assert state.first_unstable_offset(4) == 1
    state.apply_marker(ProducerIdAndEpoch(8, 0), 0, False, 4, 0, 0)
    assert state.first_unstable_offset(4) == 1
    assert state.first_unstable_offset(5) == 3


def test_L1_a_transaction_decided_later_but_begun_earlier_holds_longest() -> None:
    state = ProducerState(TP)
    append(state, 0, transactional=True)  # 0
    append(state, 0, producer_id=8, transactional=True)  # 1
    state.apply_marker(ProducerIdAndEpoch(8, 0), 0, True, 2, 0, 0)
    state.apply_marker(ProducerIdAndEpoch(7, 0), 0, True, 3, 0, 0)
    assert state.first_unstable_offset(2) == 0
    assert state.first_unstable_offset(3) == 0
    assert state.first_unstable_offset(4) is None


@pytest.mark.parametrize("order", [(3, 5), (5, 3)])
def test_L1_after_a_restart_the_earliest_transaction_holds(order: tuple[int, int]) -> None:
    """Whichever producer comes first in the snapshot."""
    live = ProducerState(TP)
    append(live, 0, producer_id=5, transactional=True)  # 0
    append(live, 0, producer_id=3, transactional=True)  # 1
    entries = [live.entry(producer_id) for producer_id in order]
    state = ProducerState(TP)
    state.restore([entry for entry in entries if entry is not None], live.end_offset)
    assert state.first_unstable_offset(2) == 0
    assert list(state.open_transactions.items()) == [(0, 5), (1, 3)]
    completed = state.apply_marker(ProducerIdAndEpoch(3, 0), 0, False, 2, 0, 0)
    assert completed is not None
    assert completed.last_stable_offset == 0, "the index of aborted transactions would end a look-up too early (L3)"


def test_P7_a_snapshot_holds_the_whole_state() -> None:
    state = ProducerState(TP)
    for n in range(6):
        append(state, 10 * n, 10)
    append(state, MAX_SEQUENCE, 3, producer_id=8, transactional=True)
    append(state, -1, producer_id=9, coordinator=True, transactional=True)
    state.apply_marker(ProducerIdAndEpoch(9, 1), 3, True, state.end_offset, 5, 5)
    state.end_offset += 1
    data = encode_packed(each.packed() for each in state)
    restored = ProducerState(TP)
    restored.restore(decode_snapshot(data, now_ms=0), state.end_offset)
    assert restored == state
    for position in (0, 3, 9, len(data) // 2, len(data) - 1):
        broken = bytearray(data)
        broken[position] ^= 1
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(broken), now_ms=0)
    for size in (0, 5, 20, len(data) - 1):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(data[:size], now_ms=0)


def test_P7_a_batch_that_does_not_follow_tells_that_the_id_had_expired() -> None:
    """Replay never expires, so it must come to the same batches as a state that did."""
    live, replayed = ProducerState(TP), ProducerState(TP)
    for state in (live, replayed):
        append(state, 0)
    live.expire(DAY_MS, DAY_MS)
    append(live, 50)
    replayed.apply_batch(7, 0, 50, 50, 1, 1, 1001, False, 0)
    replayed.end_offset = 2
    assert live == replayed
