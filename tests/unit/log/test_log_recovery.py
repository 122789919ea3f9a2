"""Opening a log: clean, after a kill, after a torn tail, with files missing or broken (D1, D2, P7), and Kafka's
formats.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from log_model import (
    FOLDER,
    NOW,
    SMALL_SEGMENTS,
    dump,
    fill,
    indexes,
    make_batch,
    open_log,
    read_batches,
    storage_with_folder,
)

from semel.broker.log.config import LogConfig
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.api.topics import MAX_TIMESTAMP
from semel.protocol.batch_header import BatchHeader
from semel.protocol.crc32c import crc32c
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.simulated_storage import SimulatedFile, SimulatedStorage


class CountedReads:
    """Counts the bytes read of each kind of file. A map is not counted: it reads only what is then touched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        read_at = SimulatedFile.read_at

        def counted_read(file: SimulatedFile, size: int, position: int) -> bytes:
            data = read_at(file, size, position)
            self.bytes[file.path.rpartition(".")[2]] += len(data)
            return data

        monkeypatch.setattr(SimulatedFile, "read_at", counted_read)


def test_a_clean_start_reads_only_what_follows_the_last_index_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    expected = dump(log)
    batches = read_batches(log)
    log.close()
    snapshot = storage.open(f"{FOLDER}/{log.log_end_offset:020d}.snapshot").size()
    names = storage.list_folder(FOLDER)
    aborted = sum(storage.open(f"{FOLDER}/{name}").size() for name in names if name.endswith(".txnindex"))
    reads = CountedReads(monkeypatch)
    log = open_log(storage, SMALL_SEGMENTS, clean=True)
    segments = len(log.segments)
    largest = max(header.size_bytes for header, _ in batches)
    # Entries are this far apart, give or take a batch, and the last batch follows.
    assert reads.bytes["log"] <= segments * (SMALL_SEGMENTS.index_interval_bytes + 2 * largest)
    assert reads.bytes["snapshot"] == snapshot, "one snapshot"
    assert reads.bytes["index"] <= 8 * segments
    assert reads.bytes["timeindex"] <= 12 * segments
    assert reads.bytes["txnindex"] == aborted
    assert log.recovery_point == log.log_end_offset
    read = reads.bytes["log"]
    log.append(make_batch([(b"k", b"v")]), leader_epoch=2, now_ms=NOW)
    assert reads.bytes["log"] - read <= 61, "the age of the segment, once, at the first append"
    log.truncate_to(log.log_end_offset - 1, now_ms=NOW)
    monkeypatch.undo()
    assert dump(log) == expected


def test_D1_what_is_appended_to_a_segment_while_it_is_flushed_is_synced_by_the_next_flush() -> None:
    """The segment was rolled before that flush ended, which took it for synced. A power cut lost its last batches."""
    storage = storage_with_folder()
    log = open_log(storage, SMALL_SEGMENTS)
    log.flush()
    log.append(make_batch([(b"k", b"before")]), leader_epoch=0, now_ms=NOW)
    work = log.begin_flush()
    work.run()
    log.append(make_batch([(b"k", b"meanwhile")]), leader_epoch=0, now_ms=NOW)
    log.roll(NOW)
    assert log.end_flush(work) == 1
    log.append(make_batch([(b"k", b"after")]), leader_epoch=0, now_ms=NOW)
    assert log.flush() == 3
    expected = dump(log)
    storage.crash(power=True, torn=False)
    assert dump(open_log(storage, SMALL_SEGMENTS, recovery_point=3)) == expected


def rolled_while_it_is_flushed(storage: SimulatedStorage, config: LogConfig) -> int:
    """Write three batches, the second of which is the newest, and return the recovery point.

    The entry for the largest timestamp is written when the segment is rolled: that flush does not sync it.
    """
    log = open_log(storage, config)
    log.flush()
    for age_ms in (3_000, 0, 1_000):
        log.append(make_batch([(b"k", b"v")], timestamp_ms=NOW - age_ms), leader_epoch=0, now_ms=NOW)
    work = log.begin_flush()
    work.run()
    log.roll(NOW)
    point = log.end_flush(work)
    assert point == 3
    log.local.keep_snapshot(point)  # or it is on the disk by chance
    return point


def append_older(log: PartitionLog) -> None:
    log.append(make_batch([(b"k", b"v")], timestamp_ms=NOW - 2_000), leader_epoch=0, now_ms=NOW)


def assert_the_newest_is_found(log: PartitionLog) -> None:
    for asked in (NOW, NOW - 999, MAX_TIMESTAMP):
        found = log.offset_for_timestamp(asked)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (1, NOW)


@pytest.mark.parametrize("interval_bytes", [0, 100_000])
@pytest.mark.parametrize("crashes", [(True,), (False, True), (True, True), (False, False)])
def test_L2_the_largest_timestamp_of_a_segment_that_is_rolled_while_it_is_flushed_survives_crashes(
    crashes: tuple[bool, ...], interval_bytes: int
) -> None:
    config = replace(SMALL_SEGMENTS, index_interval_bytes=interval_bytes)
    storage = storage_with_folder()
    point = rolled_while_it_is_flushed(storage, config)
    for power in crashes:
        storage.crash(power=power, torn=False)
        log = open_log(storage, config, recovery_point=point)
        append_older(log)
        point = log.flush()
        assert_the_newest_is_found(log)


def test_L2_the_largest_timestamp_is_on_the_disk_once_a_later_segment_is() -> None:
    """A killed process has written its entry, and not synced it. The next power cut comes some segments later."""
    config = replace(SMALL_SEGMENTS, index_interval_bytes=100_000)
    storage = storage_with_folder()
    point = rolled_while_it_is_flushed(storage, config)
    storage.crash(power=False)
    log = open_log(storage, config, recovery_point=point)
    append_older(log)
    log.roll(NOW)
    append_older(log)
    point = log.flush()
    log.local.keep_snapshot(4)
    storage.crash(power=True, torn=False)
    log = open_log(storage, config, recovery_point=point)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 4]
    assert_the_newest_is_found(log)


def test_L2_a_full_disk_keeps_no_log_from_starting_whose_largest_timestamp_was_lost() -> None:
    """There is no room for its entry until the next flush that has some."""
    config = replace(SMALL_SEGMENTS, index_interval_bytes=100_000)
    storage = storage_with_folder()
    point = rolled_while_it_is_flushed(storage, config)
    storage.crash(power=True, torn=False)
    storage.set_free_bytes(0)
    log = open_log(storage, config, recovery_point=point)
    assert_the_newest_is_found(log)
    storage.set_free_bytes(None)
    append_older(log)
    log.roll(NOW)
    append_older(log)
    point = log.flush()
    log.local.keep_snapshot(4)
    storage.crash(power=True, torn=False)
    assert_the_newest_is_found(open_log(storage, config, recovery_point=point))


def test_R3_a_replica_is_cut_where_synced_records_are_gone_and_keeps_no_offsets_for_them() -> None:
    """It was cut to follow its leader, and the power went before the next flush noted that less is synced now."""
    storage = storage_with_folder()
    log = open_log(storage, SMALL_SEGMENTS)
    for value in (b"1", b"2", b"3"):
        log.append(make_batch([(b"k", value)]), leader_epoch=0, now_ms=NOW)
    assert log.flush() == 3
    log.truncate_to(1, now_ms=NOW)
    log.flush()
    storage.crash(power=True, torn=False)
    replica = open_log(storage, SMALL_SEGMENTS, recovery_point=3, is_only_replica=False)
    assert (replica.log_end_offset, replica.recovered_damage) == (1, "")
    assert [header.record_count for header, _ in read_batches(replica)] == [1]


def test_D1_a_killed_process_loses_nothing_that_was_appended() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    expected, entries = dump(log), indexes(log)
    storage.crash(power=False)
    again = open_log(storage, SMALL_SEGMENTS)
    assert dump(again) == expected
    assert again.recovered_bytes_cut == 0
    assert [one[:2] for one in indexes(again)] == [one[:2] for one in entries], "the same offset indexes"


def test_D2_a_broken_batch_and_all_behind_it_are_cut_and_nothing_before() -> None:
    for offset in (0, 1, 40, 150, 200):
        storage = SimulatedStorage()
        log = open_log(storage, SMALL_SEGMENTS)
        fill(log)
        batches = read_batches(log)
        found = log.read(offset, 1, log.log_end_offset)
        segment = log.segments.from_offset(offset)[0]
        kept = [data for header, data in batches if header.last_offset < found.first_offset]
        storage.crash(power=False)
        assert found.records is not None
        storage.corrupt(segment.path(".log"), found.records.position + 40, b"\xff\x00\xff")
        again = open_log(storage, SMALL_SEGMENTS)
        assert [data for _, data in read_batches(again)] == kept
        assert again.log_end_offset == found.first_offset
        assert again.recovered_bytes_cut > 0
        # State and indexes are those of a log that never had more.
        other = open_log(SimulatedStorage(), SMALL_SEGMENTS)
        for data in kept:
            other.replay_append(None, data, now_ms=NOW)
        assert dump(again)[1:] == dump(other)[1:]
        again.append(make_batch([(b"k", b"v")]), leader_epoch=9, now_ms=NOW)


@pytest.mark.parametrize("torn", [1, 60, 61, 70])
def test_D2_a_torn_tail_is_cut(torn: int) -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log, 20)
    expected = dump(log)
    path = log.segments.active.path(".log")
    storage.crash(power=False)
    storage.open(path).append([bytes(make_batch([(b"k", b"v" * 50)]))[:torn]])
    again = open_log(storage, SMALL_SEGMENTS)
    assert dump(again) == expected
    assert again.recovered_bytes_cut == torn
    storage.crash(power=False)
    storage.open(path).append([bytes(torn)])  # a file that grew without its bytes
    assert dump(open_log(storage, SMALL_SEGMENTS)) == expected


@pytest.mark.parametrize("damaged", [1, 2, 3, 99])
@pytest.mark.parametrize("how", ["missing", "corrupt", "empty"])
@pytest.mark.parametrize("options", ["clean", "flushed", "unflushed"])
def test_P7_snapshots_only_shorten_the_replay(damaged: int, how: str, options: str) -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    expected = dump(log)
    log.close()
    names = [name for name in storage.list_folder(FOLDER) if name.endswith(".snapshot")]
    assert len(names) > 3
    for name in names[-damaged:]:
        path = f"{FOLDER}/{name}"
        if how == "missing":
            storage.remove(path)
        elif how == "corrupt":
            storage.corrupt(path, 8, b"\xff\xff")
        else:
            storage.open(path).truncate(0)
    again = open_log(
        storage,
        SMALL_SEGMENTS,
        clean=options == "clean",
        recovery_point=log.log_end_offset if options == "flushed" else 0,
    )
    assert dump(again) == expected


@pytest.mark.parametrize("is_only_replica", [True, False])
def test_D1_an_index_that_outlives_the_batch_it_points_to_hides_nothing_that_was_synced(is_only_replica: bool) -> None:
    """A power cut takes of each file what it likes. The entry's batch would begin where the log ends now."""
    storage = storage_with_folder()
    config = replace(SMALL_SEGMENTS, segment_bytes=1 << 20, index_interval_bytes=1)
    log = open_log(storage, config)
    for _ in range(5):
        log.append(make_batch([(None, b"value")]), leader_epoch=0, now_ms=NOW)
    synced, expected = log.log_end_offset, [data for _, data in read_batches(log)]
    size = storage.open(f"{FOLDER}/{0:020d}.log").size()
    log.close()
    index = storage.open(f"{FOLDER}/{0:020d}.index")
    index.append((struct.pack(">ii", synced, size),))
    log = open_log(storage, config, recovery_point=synced, is_only_replica=is_only_replica)
    assert (log.log_end_offset, log.recovered_damage) == (synced, "")
    assert [data for _, data in read_batches(log)] == expected


def test_recovery_reads_only_from_the_recovery_point(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log, 100)
    point = log.flush()
    fill_more = make_batch([(b"k", b"v" * 50)])
    for _ in range(5):
        log.append(fill_more, leader_epoch=2, now_ms=NOW)
    expected = dump(log)
    storage.crash(power=False)
    reads = CountedReads(monkeypatch)
    again = open_log(storage, SMALL_SEGMENTS, recovery_point=point)
    assert reads.bytes["log"] < 3 * SMALL_SEGMENTS.segment_bytes < again.size_bytes
    monkeypatch.undo()
    assert dump(again) == expected


def test_L3_indexes_that_recovery_rebuilt_below_the_recovery_point_are_synced_with_it() -> None:
    """A second power cut took the list of aborted transactions of a segment whose snapshot the first one had torn."""
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log, 100)
    point = log.flush()
    storage.sync_folder("data")
    storage.sync_folder("/")
    expected = log.aborted_transactions(0, point)
    storage.crash(power=True)
    for name in storage.list_folder(FOLDER):
        if name.endswith(".snapshot"):
            storage.corrupt(f"{FOLDER}/{name}", 0, b"torn")
    again = open_log(storage, SMALL_SEGMENTS, recovery_point=point)
    assert again.flush() == point
    assert storage.unsynced_bytes() == 0
    for seed in range(20):
        storage.random.seed(seed)
        storage.crash(power=True)
        again = open_log(storage, SMALL_SEGMENTS, recovery_point=point, clean=True)
        assert again.aborted_transactions(0, point) == expected


@pytest.mark.parametrize("behind", [True, False])
def test_L3_aborted_transactions_are_kept_where_a_power_cut_tears_what_recovery_begins_with(behind: bool) -> None:
    """Whether the first batch behind the snapshot is torn, or, as no disk should, one before it."""
    config = replace(SMALL_SEGMENTS, segment_bytes=100_000, index_interval_bytes=100_000)
    storage = SimulatedStorage()
    log = open_log(storage, config)
    fill(log, 100)
    log.close()
    storage.sync_folder("data")
    storage.sync_folder("/")
    log = open_log(storage, config, clean=True)
    point = log.log_end_offset
    expected = log.aborted_transactions(0, point)
    assert len(expected) > 3
    size = log.segments.active.size
    for _ in range(3):
        log.append(make_batch([(b"k", b"v")]), leader_epoch=2, now_ms=NOW)
    batches = read_batches(log, 0)
    storage.crash(power=False)
    torn = size if behind else next(at for at, data in places(batches) if data.base_offset >= expected[-1].last_offset)
    storage.corrupt(f"{FOLDER}/{0:020d}.log", torn, bytes(61))
    log = open_log(storage, config, recovery_point=point)
    assert log.log_end_offset == point, "what was synced is no torn tail: a batch stands for what is lost"
    assert log.aborted_transactions(0, point) == (expected if behind else expected[:-1])
    if not behind:
        log.truncate_to(expected[-1].last_offset, now_ms=NOW)
    for header, data in batches:
        if header.base_offset >= log.log_end_offset:
            log.replay_append(header.base_offset, data, now_ms=NOW)
    assert log.aborted_transactions(0, point) == expected


def test_L3_a_power_cut_takes_no_list_of_aborted_transactions_that_a_flush_has_synced() -> None:
    """Nor its name, which is new with the first abort of a segment."""
    storage = storage_with_folder()
    log = open_log(storage, SMALL_SEGMENTS)
    log.append(make_batch([(b"k", b"v")]), leader_epoch=0, now_ms=NOW)
    log.flush()
    producer = ProducerIdAndEpoch(1, 0)
    log.append(
        make_batch([(b"k", b"v")], producer=producer, sequence=0, transactional=True),
        leader_epoch=0, now_ms=NOW, verified=True,
    )  # fmt: skip
    log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    point = log.flush()
    expected = log.aborted_transactions(0, log.log_end_offset)
    assert [(one.first_offset, one.last_offset) for one in expected] == [(1, 2)]
    storage.crash(power=True, torn=False)
    assert f"{0:020d}.txnindex" in storage.list_folder(FOLDER)
    again = open_log(storage, SMALL_SEGMENTS, recovery_point=point)
    assert again.aborted_transactions(0, again.log_end_offset) == expected


def test_a_segment_closed_after_a_kill_forgot_the_largest_timestamp_before_the_recovery_point() -> None:
    """Look-ups by time passed over the segment: its last entry in the time index was older than its last records."""
    storage = SimulatedStorage()
    config = LogConfig(index_interval_bytes=100_000)
    log = open_log(storage, config)
    for number in range(5):
        log.append(make_batch([(b"k", b"v")], timestamp_ms=NOW + number), leader_epoch=0, now_ms=NOW)
    point = log.flush()
    log.close()  # notes the largest timestamp, and leaves a snapshot from which the next recovery begins
    open_log(storage, config, clean=True, recovery_point=point)
    storage.crash(power=False)
    log = open_log(storage, config, recovery_point=point)
    log.roll(NOW)
    log.append(make_batch([(b"k", b"v")], timestamp_ms=NOW), leader_epoch=0, now_ms=NOW)
    found = log.offset_for_timestamp(NOW + 4)
    assert found is not None
    assert found.offset == 4


def places(batches: list[tuple[BatchHeader, bytes]]) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    for header, data in batches:
        yield position, header
        position += len(data)


def test_missing_and_impossible_indexes_are_built_again() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    expected, entries = dump(log), indexes(log)
    log.close()
    bases = list(log.segments.base_offsets)
    storage.remove(f"{FOLDER}/{bases[0]:020d}.index")
    storage.remove(f"{FOLDER}/{bases[2]:020d}.timeindex")
    again = open_log(storage, SMALL_SEGMENTS, clean=True)
    assert dump(again) == expected
    assert [one[1] for one in indexes(again)] == [one[1] for one in entries]
    assert [one[2] for one in indexes(again)][:-1] == [one[2] for one in entries][:-1]
    storage.crash(power=False)
    size = storage.open(f"{FOLDER}/{bases[1]:020d}.index").size()
    storage.corrupt(f"{FOLDER}/{bases[1]:020d}.index", size - 4, b"\x7f\xff\xff\xff")
    again = open_log(storage, SMALL_SEGMENTS, recovery_point=again.log_end_offset)
    assert [one[1] for one in indexes(again)] == [one[1] for one in entries]


def test_zeros_that_kafka_left_in_an_index_are_no_entries() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    expected, entries = dump(log), indexes(log)
    log.close()
    for suffix in (".index", ".timeindex"):
        path = log.segments.active.path(suffix)
        storage.open(path).append([bytes(1200)])
    again = open_log(storage, SMALL_SEGMENTS, clean=True)
    assert dump(again) == expected
    assert indexes(again)[-1][1] == entries[-1][1]


def test_a_start_offset_beyond_the_end_begins_an_empty_log() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    end = log.log_end_offset
    log.close()
    again = open_log(storage, SMALL_SEGMENTS, log_start_offset=end + 100)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (end + 100, end + 100, 0)
    assert len(again.producer_state) == 0
    result = again.append(make_batch([(b"k", b"v")]), leader_epoch=0, now_ms=NOW)
    assert result.base_offset == end + 100


def test_the_start_offset_is_kept_by_its_checkpoint() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL_SEGMENTS)
    fill(log)
    log.delete_records(100)
    log.close()
    again = open_log(storage, SMALL_SEGMENTS, clean=True, log_start_offset=100)
    assert again.log_start_offset == 100
    assert read_batches(again)[0][0].last_offset >= 100


def test_leftovers_are_removed() -> None:
    storage = SimulatedStorage()
    open_log(storage, SMALL_SEGMENTS).close()
    for name in (
        "00000000000000000099.index", "00000000000000000099.txnindex", "00000000000000000000.log.deleted",
        "00000000000000000007.log.cleaned", "leader-epoch-checkpoint.tmp",
    ):  # fmt: skip
        storage.open(f"{FOLDER}/{name}", create=True)
    storage.open(f"{FOLDER}/partition.metadata", create=True)
    open_log(storage, SMALL_SEGMENTS)
    names = storage.list_folder(FOLDER)
    assert "partition.metadata" in names
    assert not any("099" in name or name.endswith((".deleted", ".cleaned", ".tmp")) for name in names)


def test_files_are_in_kafkas_formats() -> None:
    """Byte for byte as Kafka's OffsetIndex, TimeIndex, TransactionIndex and ProducerStateManager read them."""
    storage = SimulatedStorage()
    log = open_log(storage, replace(SMALL_SEGMENTS, index_interval_bytes=0, segment_bytes=10_000))
    producer = ProducerIdAndEpoch(77, 3)
    for n in range(3):
        log.append(
            make_batch([(b"k", b"v")] * 2, producer=producer, sequence=2 * n, transactional=True, timestamp_ms=NOW + n),
            leader_epoch=5,
            now_ms=NOW,
            verified=True,
        )
    log.append_marker(producer, 9, False, NOW + 50, leader_epoch=5)
    sizes = [len(data) for _, data in read_batches(log)]
    log.close()

    def content(suffix: str, offset: int = 0) -> bytes:
        file = storage.open(f"{FOLDER}/{offset:020d}{suffix}")
        return file.read_at(file.size(), 0)

    assert list(struct.iter_unpack(">ii", content(".index"))) == [
        (3, sizes[0]), (5, sum(sizes[:2])), (6, sum(sizes[:3])),
    ]  # fmt: skip
    assert list(struct.iter_unpack(">qi", content(".timeindex"))) == [(NOW + 2, 3), (NOW + 3, 5), (NOW + 50, 6)]
    assert struct.unpack(">hqqqq", content(".txnindex")) == (0, 77, 0, 6, 7)
    snapshot = content(".snapshot", 7)
    version, crc, count = struct.unpack_from(">hIi", snapshot)
    assert (version, count) == (1, 1)
    assert crc == crc32c(snapshot[6:])
    assert struct.unpack_from(">qhiqiqiq", snapshot, 10) == (77, 3, 5, 5, 1, NOW + 50, 9, -1)
    assert content(".log") == b"".join(data for _, data in read_batches(open_log(storage, SMALL_SEGMENTS, clean=True)))
