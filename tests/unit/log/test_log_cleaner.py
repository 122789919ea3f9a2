"""Compaction (D4): last values, tombstones, transactions, producers' sequences, markers, bounded maps."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace

import pytest
from log_model import NOW, make_batch, open_log, read_batches, read_committed, storage_with_folder

from semel.broker.log.cleaner import CompactionAbandoned, compact, dirtiness, plan_compaction
from semel.broker.log.config import CleanupPolicy, LogConfig
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.compression import Compression
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage

DAY_MS = 24 * 60 * 60 * 1000
CONFIG = LogConfig(
    segment_bytes=1000,
    index_interval_bytes=200,
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
    min_cleanable_dirty_ratio=0.0,
)


def put(log: PartitionLog, key: str, value: str | None, **fields: object) -> None:
    data = make_batch([(key.encode(), None if value is None else value.encode())], **fields)  # type: ignore[arg-type]
    log.append(data, leader_epoch=0, now_ms=NOW, verified=True)


def clean(log: PartitionLog, *, now_ms: int = NOW, first_dirty_offset: int = 0, keys_max: int = 1000) -> int:
    stable = log.first_unstable_offset(log.log_end_offset)
    return compact(
        log,
        first_dirty_offset=first_dirty_offset,
        last_stable_offset=log.log_end_offset if stable is None else stable,
        now_ms=now_ms,
        keys_max=keys_max,
    )


def roll(log: PartitionLog) -> None:
    log.roll(NOW)


def table(log: PartitionLog) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for record in read_committed(log):
        assert record.key is not None
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
    return found


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_D4_the_last_value_of_each_key_stays_at_its_offset(compression: Compression) -> None:
    log = open_log(SimulatedStorage(), CONFIG)
    rng = random.Random(2)
    last: dict[bytes, tuple[int, bytes]] = {}
    for n in range(120):
        records = [(f"key-{rng.randrange(20)}".encode() * rng.choice([1, 5]), f"{n}.{m}".encode()) for m in range(3)]
        result = log.append(make_batch(records, compression=compression), leader_epoch=0, now_ms=NOW)
        for m, (key, value) in enumerate(records):
            last[key] = (result.base_offset + m, value)
    active = log.segments.active.base_offset
    before = read_batches(log, active)
    size = log.size_bytes
    assert clean(log) == active
    assert log.size_bytes < size / 2
    found = {record.key: (record.offset, record.value) for record in read_committed(log)}
    assert found == last
    below = [record for record in read_committed(log) if record.offset < active]
    assert len(below) == len({record.key for record in below})
    assert [data for _, data in read_batches(log, active)] == [data for _, data in before], "the active segment stays"
    for offset in range(active):
        log.read(offset, 1, log.log_end_offset)  # gaps can be read across
    assert clean(log, first_dirty_offset=active) == active, "nothing is dirty"


def test_D4_tombstones_stay_until_the_delete_horizon() -> None:
    log = open_log(SimulatedStorage(), replace(CONFIG, delete_retention_ms=1000))
    put(log, "a", "1")
    put(log, "a", None)
    put(log, "b", "1")
    roll(log)
    put(log, "c", "1")
    roll(log)
    end = clean(log)
    assert [(record.key, record.value) for record in read_committed(log)] == [(b"a", None), (b"b", b"1"), (b"c", b"1")]
    put(log, "d", "1")
    roll(log)
    end = clean(log, now_ms=NOW + 999, first_dirty_offset=end)
    assert (b"a", None) in [(record.key, record.value) for record in read_committed(log)]
    put(log, "e", "1")
    roll(log)
    clean(log, now_ms=NOW + 1000, first_dirty_offset=end)
    assert [record.key for record in read_committed(log)] == [b"b", b"c", b"d", b"e"]
    assert [record.timestamp_ms for record in read_committed(log)] == [NOW] * 4


def test_D4_aborted_records_neither_stay_nor_hide_committed_ones() -> None:
    log = open_log(SimulatedStorage(), CONFIG)
    one, two = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)
    put(log, "a", "committed")
    put(log, "a", "aborted", producer=one, sequence=0, transactional=True)
    put(log, "b", "in a transaction", producer=two, sequence=0, transactional=True)
    log.append_marker(one, 0, False, NOW, leader_epoch=0)
    log.append_marker(two, 0, True, NOW, leader_epoch=0)
    put(log, "c", "later", producer=one, sequence=1, transactional=True)
    log.append_marker(one, 0, True, NOW, leader_epoch=0)
    roll(log)
    put(log, "z", "1")
    roll(log)
    expected = {b"a": b"committed", b"b": b"in a transaction", b"c": b"later", b"z": b"1"}
    assert table(log) == expected
    end = clean(log)
    assert table(log) == expected
    assert b"aborted" not in b"".join(data for _, data in read_batches(log))
    put(log, "y", "1")
    roll(log)
    clean(log, first_dirty_offset=end)
    assert table(log) == {**expected, b"y": b"1"}


def test_D4_an_aborted_transaction_in_the_clean_part_does_not_hide_the_producers_later_deletions() -> None:
    """A round took the producer for aborting still, so a value below its tombstone stayed, and outlived it."""
    log = open_log(SimulatedStorage(), replace(CONFIG, delete_retention_ms=0))
    one = ProducerIdAndEpoch(1, 0)
    put(log, "x", "aborted", producer=one, sequence=0, transactional=True)
    log.append_marker(one, 0, False, NOW, leader_epoch=0)
    roll(log)
    end = clean(log)
    put(log, "a", "deleted soon")
    put(log, "a", None, producer=one, sequence=1, transactional=True)
    put(log, "b", "1", producer=one, sequence=2, transactional=True)
    log.append_marker(one, 0, True, NOW, leader_epoch=0)
    roll(log)
    end = clean(log, first_dirty_offset=end)
    assert [(record.key, record.value) for record in read_committed(log)] == [(b"a", None), (b"b", b"1")]
    put(log, "c", "1")
    roll(log)
    clean(log, first_dirty_offset=end)
    assert table(log) == {b"b": b"1", b"c": b"1"}, "what was deleted stays deleted"


def test_D4_an_aborted_transaction_that_began_before_the_dirty_part_hides_no_committed_value() -> None:
    """As where a map of keys that was full had ended the round before in the middle of the transaction."""
    log = open_log(SimulatedStorage(), CONFIG)
    producer = ProducerIdAndEpoch(1, 0)
    put(log, "k", "committed")
    put(log, "a", "aborted", producer=producer, sequence=0, transactional=True)
    roll(log)
    middle = log.log_end_offset
    put(log, "k", "aborted", producer=producer, sequence=1, transactional=True)
    log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    roll(log)
    clean(log, first_dirty_offset=middle)
    assert table(log) == {b"k": b"committed"}


class ChosenNames(random.Random):
    """Draws which changes of names a power cut leaves: the bits of `kept`, oldest first, and no unsynced bytes."""

    kept = 0

    def random(self) -> float:
        self.kept, keeps = divmod(self.kept, 2)
        return 0.0 if keeps else 1.0

    def randrange(self, *_: object) -> int:
        return 0


def test_D2_D4_a_power_cut_during_the_swap_leaves_the_old_segments_or_the_new_one() -> None:
    """At each change of the disk, with many a choice of the names that were not synced."""

    def cut(point: int, kept: int) -> int | None:
        """Return how many names were not synced, None where the round had ended before."""
        storage = storage_with_folder()
        log = open_log(storage, CONFIG)
        for number in range(3):
            put(log, f"key-{number % 2}", str(number))
            roll(log)
        expected, point_of_recovery = table(log), log.flush()
        chance = storage._disk._random = ChosenNames()
        storage.crash_at(point)
        with contextlib.suppress(SimulatedCrash):
            clean(log)
        if not storage.crashed:
            return None
        unsynced = len(storage._disk._names_pending)
        chance.kept = kept
        storage.crash(power=True)
        assert table(open_log(storage, CONFIG, recovery_point=point_of_recovery)) == expected, (point, bin(kept))
        return unsynced

    for point in itertools.count(1):
        unsynced = cut(point, 0)
        if unsynced is None:
            break
        every = (1 << unsynced) - 1
        for number in range(unsynced):
            # The first ones alone, the last ones alone, one alone, and all but one.
            for kept in (every >> number, every & (every << number), 1 << number, every & ~(1 << number)):
                cut(point, kept)
    assert point > 10


def test_D4_open_transactions_are_not_touched() -> None:
    log = open_log(SimulatedStorage(), CONFIG)
    put(log, "a", "1")
    put(log, "a", "2")
    roll(log)
    put(log, "a", "3", producer=ProducerIdAndEpoch(1, 0), sequence=0, transactional=True)
    put(log, "b", "1")
    put(log, "b", "2")
    roll(log)
    put(log, "z", "1")
    roll(log)
    assert clean(log) == 2
    assert [header.base_offset for header, _ in read_batches(log)] == [1, 2, 3, 4, 5]
    log.append_marker(ProducerIdAndEpoch(1, 0), 0, False, NOW, leader_epoch=0)
    roll(log)
    clean(log, first_dirty_offset=2)
    assert table(log) == {b"a": b"2", b"b": b"2", b"z": b"1"}


def test_D4_markers_stay_while_needed_and_go_after_the_horizon() -> None:
    log = open_log(SimulatedStorage(), replace(CONFIG, delete_retention_ms=1000))
    producer = ProducerIdAndEpoch(1, 0)
    put(log, "a", "1", producer=producer, sequence=0, transactional=True)
    log.append_marker(producer, 0, True, NOW, leader_epoch=0)
    put(log, "k", "1", producer=producer, sequence=1, transactional=True)
    log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    put(log, "x", "1", producer=producer, sequence=2)
    roll(log)
    put(log, "a", "2")
    roll(log)

    def markers() -> list[int]:
        return [header.base_offset for header, _ in read_batches(log) if header.is_control]

    end = clean(log)
    assert markers() == [1, 3], "their data was there in this round"
    # As a recovery would find it: a check of the log misses no entry for an abort that is there.
    assert [(one.producer_id, one.last_offset) for one in log.aborted_transactions(0, log.log_end_offset)] == [(1, 3)]
    for round_number, now_ms in enumerate((NOW, NOW + 999, NOW + 1000)):
        put(log, f"r{round_number}", "1")
        roll(log)
        end = clean(log, now_ms=now_ms, first_dirty_offset=end)
        assert markers() == ([1, 3] if now_ms < NOW + 1000 else [])
    assert log.aborted_transactions(0, log.log_end_offset) == []


def test_P7_sequences_survive_compaction() -> None:
    """A producer's last batch stays, empty, so that a log read from its beginning still knows the sequence."""
    storage = SimulatedStorage()
    log = open_log(storage, CONFIG)
    one, two = ProducerIdAndEpoch(1, 3), ProducerIdAndEpoch(2, 0)
    for n in range(10):
        put(log, "a", str(n), producer=one, sequence=n)
    put(log, "b", "1", producer=two, sequence=0, transactional=True)
    log.append_marker(ProducerIdAndEpoch(2, 1), 7, True, NOW, leader_epoch=0)
    put(log, "a", "last")
    put(log, "b", "last")
    roll(log)
    put(log, "z", "last")
    roll(log)
    end = clean(log, now_ms=NOW)
    for n in range(3):
        put(log, f"{n}", "1")
        roll(log)
        end = clean(log, now_ms=NOW + 2 * DAY_MS * (n + 1), first_dirty_offset=end)
    entry = log.producer_state.entry(1)
    assert entry is not None
    log.flush()
    for name in storage.list_folder("data/t-0"):
        if name.endswith(".snapshot"):
            storage.remove(f"data/t-0/{name}")
    again = open_log(storage, CONFIG, recovery_point=0)
    found = again.producer_state.entry(1)
    assert found is not None
    assert (found.epoch, found.last_sequence, found.last_data_offset) == (3, 9, entry.last_data_offset)
    found = again.producer_state.entry(2)
    assert found is not None
    assert (found.epoch, found.coordinator_epoch, found.transaction_first_offset) == (1, 7, -1)
    assert again.log_end_offset == log.log_end_offset


def test_D4_a_full_map_ends_the_round_early_and_the_next_goes_on() -> None:
    log = open_log(SimulatedStorage(), CONFIG)
    for n in range(200):
        put(log, f"key-{n % 50}", str(n))
    expected = table(log)
    end, rounds = 0, 0
    while (after := clean(log, first_dirty_offset=end, keys_max=10)) > end:
        end = after
        rounds += 1
        assert table(log) == expected
    assert rounds > 5
    keys = [record.key for record in read_committed(log) if record.offset < log.segments.active.base_offset]
    assert len(keys) == len(set(keys))


def test_rounds_wait_for_dirt_and_age() -> None:
    log = open_log(SimulatedStorage(), replace(CONFIG, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=5000))
    for n in range(100):
        put(log, f"key-{n}", "1", timestamp_ms=NOW + n)
    end = log.segments.active.base_offset
    options = {"first_dirty_offset": 0, "last_stable_offset": log.log_end_offset}
    found = dirtiness(log, now_ms=NOW, **options)
    assert found is not None
    assert (found.ratio, found.end_offset, found.is_overdue) == (1.0, end, False)
    first_dirty = list(log.segments)[-3].base_offset
    options["first_dirty_offset"] = first_dirty
    assert plan_compaction(log, now_ms=NOW, **options) is None
    assert plan_compaction(log, now_ms=NOW + 6000, **options) is not None
    log.update_config(replace(log.config, min_compaction_lag_ms=1000, max_compaction_lag_ms=DAY_MS))
    assert dirtiness(log, now_ms=NOW, **options) is None
    log.update_config(LogConfig())
    assert plan_compaction(log, now_ms=NOW, **options) is None


def test_small_segments_are_put_together() -> None:
    log = open_log(SimulatedStorage(), CONFIG)
    for n in range(200):
        put(log, f"key-{n % 5}", str(n))
    count = len(log.segments)
    end = clean(log)
    assert len(log.segments) == count, "full ones are not put together before they are clean"
    put(log, "key-0", "last")
    roll(log)
    clean(log, first_dirty_offset=end)
    assert len(log.segments) < count / 4
    assert len([name for name in log.storage.list_folder("data/t-0") if name.endswith(".log")]) == len(log.segments)


def test_D6_who_reads_on_after_a_round_misses_nothing_that_stayed() -> None:
    """A read remembers where the next one begins. In what takes the place of the segment, that is elsewhere."""
    log = open_log(SimulatedStorage(), CONFIG)
    for key in ("gone", "gone", "kept", "kept, too", "gone"):
        put(log, key, "value")
    roll(log)
    (_, first), (_, second), *_ = read_batches(log)
    assert log.read(0, len(first) + len(second), log.log_end_offset).next_offset == 2
    clean(log)
    assert [header.base_offset for header, _ in read_batches(log, 2)] == [2, 3, 4]


def test_a_round_gives_up_when_the_log_changes_under_it() -> None:
    log = open_log(SimulatedStorage(), CONFIG)
    for n in range(100):
        put(log, f"key-{n % 5}", str(n), producer=NO_PRODUCER)
    options = {"first_dirty_offset": 0, "last_stable_offset": log.log_end_offset, "now_ms": NOW}
    compaction = plan_compaction(log, **options)
    assert compaction is not None
    compaction.prepare()
    compaction.clean_next()
    log.truncate_to(50, now_ms=NOW)
    with pytest.raises(CompactionAbandoned):
        compaction.swap(NOW)
    assert not any(name.endswith(".cleaned") for name in log.storage.list_folder(log.folder))
    compaction = plan_compaction(log, **options)
    assert compaction is not None
    compaction.prepare()
    compaction.cancelled = True
    with pytest.raises(CompactionAbandoned):
        compaction.clean_next()
    assert clean(log) == log.segments.active.base_offset
    assert table(log) == {f"key-{n}".encode(): str(n + 45).encode() for n in range(5)}


@pytest.mark.parametrize("power", [False, True])
def test_D1_R4_a_replica_of_a_compacted_log_keeps_all_wherever_its_high_watermark_was_noted(power: bool) -> None:
    """A crash comes before a higher one is noted, and compaction has left gaps around what was."""

    def made() -> tuple[SimulatedStorage, PartitionLog]:
        storage = storage_with_folder()
        log = open_log(storage, CONFIG)
        for n in range(30):
            put(log, f"key-{n % 3}", str(n))
            if n % 7 == 6:
                roll(log)
        log.flush()
        clean(log)
        put(log, "last", "1")
        return storage, log

    def shape(log: PartitionLog) -> list[tuple[int, int, int]]:
        return [(header.base_offset, header.next_offset, header.record_count) for header, _ in read_batches(log)]

    _, log = made()
    synced = log.recovery_point
    assert any(later[0] > before[1] for before, later in itertools.pairwise(shape(log))), "gaps"
    for high_watermark in range(synced + 1):
        storage, log = made()
        log.flush()
        expected = shape(log)
        for name in storage.list_folder("data/t-0"):
            if name.endswith(".snapshot"):
                storage.remove(f"data/t-0/{name}")  # or the log would be read from the last one on
        storage.crash(power=power)
        again = open_log(storage, CONFIG, recovery_point=synced, high_watermark=high_watermark, is_only_replica=False)
        assert (again.recovered_damage, again.log_end_offset) == ("", log.log_end_offset), high_watermark
        assert shape(again) == expected
        assert table(again)[b"last"] == b"1"
