"""A log whose machine dies between any two steps: what is left is a prefix, and everything derived fits it (D1, D2,
D4, P7).
"""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_model import FOLDER, NOW, make_batch, open_log, read_batches, read_committed
from longer_runs import examples

from semel.broker.log import producer_snapshot
from semel.broker.log.cleaner import compact
from semel.broker.log.config import CleanupPolicy, LogConfig
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=0)
COMPACTED = replace(
    CONFIG, cleanup_policy=frozenset({CleanupPolicy.COMPACT}), min_cleanable_dirty_ratio=0.0, delete_retention_ms=0
)


class Writer:
    """Appends what a seed says, flushes now and then, and keeps what was answered and what was synced."""

    def __init__(self, storage: SimulatedStorage, seed: int, config: LogConfig = CONFIG) -> None:
        self.random = random.Random(seed)
        self.storage = storage
        self.written: list[bytes] = []
        self.synced = 0
        self.recovery_point = 0
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        storage.make_folder(FOLDER)
        for folder in ("", "data"):
            storage.sync_folder(folder)  # as the log manager does for a new partition
        self.log = open_log(storage, config)

    def step(self) -> None:
        producer_id = self.random.randrange(3)
        producer = ProducerIdAndEpoch(producer_id, 0)
        what = self.random.random()
        if what < 0.08:
            self.log.flush()
            self.recovery_point, self.synced = self.log.recovery_point, len(self.written)
        elif what < 0.3 and producer_id in self.open:
            committed = self.random.random() < 0.5
            result = self.log.append_marker(producer, 0, committed, NOW, leader_epoch=len(self.written) // 20)
            self.written.append(bytes(result.appended[0]))
            self.open.discard(producer_id)
        else:
            transactional = producer_id in self.open or self.random.random() < 0.4
            count = self.random.randint(1, 3)
            records: list[tuple[bytes | None, bytes | None]] = [
                (
                    f"key-{self.random.randrange(6)}".encode(),
                    None if self.random.random() < 0.1 else f"{len(self.written)}.{n}".encode(),
                )
                for n in range(count)
            ]
            sequence = self.sequences.get(producer_id, 0)
            result = self.log.append(
                make_batch(
                    records, producer=producer, sequence=sequence, transactional=transactional,
                    timestamp_ms=NOW + self.random.randrange(100),
                ),
                leader_epoch=len(self.written) // 20,
                now_ms=NOW,
                verified=True,
            )  # fmt: skip
            self.written.append(bytes(result.appended[0]))
            self.sequences[producer_id] = sequence + count
            if transactional:
                self.open.add(producer_id)


def check_derived(log: PartitionLog) -> None:
    """Indexes tell the truth, lookups find everything, and state equals that of a log which was given the same
    batches.
    """
    batches = read_batches(log)
    by_last = {header.last_offset: header for header, _ in batches}
    for segment in log.segments:
        positions = {}
        position, largest = 0, {}
        newest = -1
        end = log.segments.end_of(segment, log.log_end_offset)
        for header, data in batches:
            if segment.base_offset <= header.base_offset < end:
                positions[header.last_offset] = position
                position += len(data)
                newest = max(newest, header.max_timestamp_ms)
                largest[header.last_offset] = newest
        assert position == segment.size
        entries = [segment.offsets.entry(n) for n in range(len(segment.offsets))]
        assert entries == sorted(set(entries))
        for relative, at in entries:
            assert positions[segment.base_offset + relative] == at
        times = [segment.times.entry(n) for n in range(len(segment.times))]
        assert times == sorted(times)
        for timestamp_ms, relative in times:
            assert by_last[segment.base_offset + relative].max_timestamp_ms == timestamp_ms
            assert largest[segment.base_offset + relative] == timestamp_ms, "no earlier batch is newer"
    other = open_log(SimulatedStorage(), CONFIG, folder="other")
    for _, data in batches:
        other.replay_append(None, data, now_ms=NOW)
    assert repr(log.producer_state) == repr(other.producer_state)
    assert log.aborted_transactions(0, 1 << 60) == other.aborted_transactions(0, 1 << 60)
    assert log.epochs.entries() == other.epochs.entries()
    for header, _ in batches[:: max(1, len(batches) // 10)]:
        found = log.read(header.last_offset, 1, log.log_end_offset)
        assert found.first_offset == header.base_offset
    wanted = NOW + 50
    expected = next((header for header, _ in batches if header.max_timestamp_ms >= wanted), None)
    found_time = log.offset_for_timestamp(wanted)
    assert (found_time is None) == (expected is None)
    if found_time is not None and expected is not None:
        assert expected.base_offset <= found_time.offset <= expected.last_offset


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    crash_at=st.integers(1, 400),
    power=st.booleans(),
    again=st.integers(1, 40),
    at_once_max=st.sampled_from([0, 1000]),
)
def test_D1_D2_after_any_crash_the_log_is_a_prefix_of_what_was_appended(
    seed: int, crash_at: int, power: bool, again: int, at_once_max: int
) -> None:
    with patch.object(producer_snapshot, "AT_ONCE_MAX", at_once_max):  # the flushes write snapshots, or the rolls
        check_a_crash(seed, crash_at, power, again)


def check_a_crash(seed: int, crash_at: int, power: bool, again: int) -> None:
    storage = SimulatedStorage(seed)
    writer = Writer(storage, seed)
    storage.crash_at(crash_at)
    try:
        for _ in range(150):
            writer.step()
        writer.log.close()
    except SimulatedCrash:
        pass
    storage.crash(power=power)
    log = None
    storage.crash_at(again)  # and once more, during the recovery
    try:
        log = open_log(storage, CONFIG, recovery_point=writer.recovery_point)
        storage.crash_at(None)
    except SimulatedCrash:
        storage.crash(power=power)
    if log is None:
        log = open_log(storage, CONFIG, recovery_point=writer.recovery_point)
    left = [data for _, data in read_batches(log)]
    assert left[: len(writer.written)] == writer.written[: len(left)]
    assert len(left) <= len(writer.written) + 1, "one append may have been under way"
    assert len(left) >= (writer.synced if power else len(writer.written))
    assert log.log_end_offset >= writer.recovery_point
    check_derived(log)
    before = log.log_end_offset
    assert log.append(make_batch([(b"k", b"v")]), leader_epoch=99, now_ms=NOW).base_offset == before
    log.close()
    storage.crash(power=True)
    assert open_log(storage, CONFIG, clean=True).log_end_offset == before + 1


def committed_table(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    table = {record.key: record.value for record in read_committed(log)}
    return {key: value for key, value in table.items() if value is not None}


def build(seed: int) -> Writer:
    storage = SimulatedStorage(seed)
    writer = Writer(storage, seed, COMPACTED)
    for _ in range(90):
        writer.step()
    for producer_id in sorted(writer.open):
        writer.log.append_marker(ProducerIdAndEpoch(producer_id, 0), 0, False, NOW, leader_epoch=9)
    writer.log.append(make_batch([(b"end", b"1")]), leader_epoch=9, now_ms=NOW)
    writer.recovery_point = writer.log.flush()
    return writer


def run_round(log: PartitionLog, first_dirty_offset: int) -> int:
    end = compact(log, first_dirty_offset=first_dirty_offset, last_stable_offset=log.log_end_offset, now_ms=NOW + 1000)
    log.delete_old_segments(NOW + 1000, log.log_end_offset)
    return end


@pytest.mark.drawn(4)
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_D4_a_crash_at_any_point_of_compaction_changes_nothing_for_readers(seed: int, power: bool) -> None:
    writer = build(seed)
    expected, end = committed_table(writer.log), writer.log.log_end_offset
    count = writer.storage.operations
    run_round(writer.log, 0)
    points = writer.storage.operations - count
    assert points > 50
    assert committed_table(writer.log) == expected
    sequences = dict(writer.sequences)
    for point in range(1, points + 1, 1 if points < 150 else 3):
        writer = build(seed)
        storage = writer.storage
        storage.crash_at(point)
        with pytest.raises(SimulatedCrash):
            run_round(writer.log, 0)
        storage.crash(power=power)
        storage.crash_at(1 + point % 13)  # and once more, while recovery finishes or undoes it
        log = None
        try:
            log = open_log(storage, COMPACTED, recovery_point=writer.recovery_point)
            storage.crash_at(None)
        except SimulatedCrash:
            storage.crash(power=power)
        if log is None:
            log = open_log(storage, COMPACTED, recovery_point=writer.recovery_point)
        names = storage.list_folder(FOLDER)
        assert not any(name.endswith((".cleaned", ".swap", ".deleted")) for name in names)
        assert committed_table(log) == expected, point
        assert log.log_end_offset == end
        for producer_id, sequence in sequences.items():
            entry = log.producer_state.entry(producer_id)
            assert entry is not None
            assert (entry.last_sequence + 1, entry.transaction_first_offset) == (sequence, -1)
        run_round(log, 0)
        assert committed_table(log) == expected, point
        assert log.append(make_batch([(b"k", b"v")]), leader_epoch=99, now_ms=NOW).base_offset == end


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 1 << 32), rounds=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_D4_rounds_of_compaction_between_appends_keep_what_readers_see(seed: int, rounds: list[int]) -> None:
    writer = Writer(SimulatedStorage(seed), seed, COMPACTED)
    dirty = 0
    for steps in rounds:
        for _ in range(steps):
            writer.step()
        expected = committed_table(writer.log)
        stable = writer.log.first_unstable_offset(writer.log.log_end_offset)
        above = [
            data for header, data in read_batches(writer.log) if stable is not None and header.base_offset >= stable
        ]
        dirty = compact(
            writer.log,
            first_dirty_offset=dirty,
            last_stable_offset=writer.log.log_end_offset if stable is None else stable,
            now_ms=NOW + 10,
        )
        assert committed_table(writer.log) == expected
        left = [data for _, data in read_batches(writer.log)]
        assert left[len(left) - len(above) :] == above, "what open transactions may need is not touched"
    expected, state = committed_table(writer.log), repr(writer.log.producer_state)
    writer.storage.crash(power=False)
    log = open_log(writer.storage, COMPACTED)
    assert committed_table(log) == expected
    for entry in writer.log.producer_state:
        found = log.producer_state.entry(entry.producer_id)
        assert found is not None, state
        assert (found.epoch, found.last_sequence) == (entry.epoch, entry.last_sequence)
        assert found.transaction_first_offset == entry.transaction_first_offset
