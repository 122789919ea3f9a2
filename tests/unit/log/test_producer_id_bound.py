"""How many producer ids are remembered, and how a large snapshot of them is written (S2, S3, P1, P7, P8)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from log_model import FOLDER, NOW, dump, make_batch, open_log, storage_with_folder
from simulated_folder import CONFIG, Node
from simulated_folder import TP as FIRST

from semel.broker.log import producer_snapshot
from semel.broker.log.config import LogConfig
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_id_bound import ProducerIdBound
from semel.broker.log.producer_state import ProducerState
from semel.broker.logs.config import LogManagerConfig
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.simulated_storage import SimulatedStorage

SEGMENTS = LogConfig(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=0)
MANY = 20
"""In these tests so many producers are too many for a snapshot at the roll."""


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshot, "AT_ONCE_MAX", MANY - 1)


def append(log: PartitionLog, producer_id: int, sequence: int = 0, **options: bool) -> bool:
    """Append a batch. Returns whether it was a duplicate."""
    producer = ProducerIdAndEpoch(producer_id, 0)
    batch = make_batch([(b"k", b"v")], producer=producer, sequence=sequence, **options)
    return log.append(batch, leader_epoch=0, now_ms=NOW, verified=True).duplicate


def refused(log: PartitionLog, producer_id: int, **options: bool) -> str:
    with pytest.raises(RetriableError) as found:
        append(log, producer_id, **options)
    assert found.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    return found.value.message


def snapshots(storage: SimulatedStorage) -> list[int]:
    return sorted(int(name[:20]) for name in storage.list_folder(FOLDER) if name.endswith(".snapshot"))


# --- The bound --------------------------------------------------------------------------------------------------------


def test_S2_P1_beyond_the_bound_new_producer_ids_are_refused_and_known_ones_continue() -> None:
    bound = ProducerIdBound(per_partition_max=3)
    log = open_log(SimulatedStorage(), SEGMENTS, producer_ids=bound)
    append(log, 0, transactional=True)
    append(log, 1)
    append(log, 2)
    end = log.log_end_offset
    assert "producer.ids.per.partition.max=3" in refused(log, 3)
    assert refused(log, 4, transactional=True)
    assert (log.log_end_offset, len(log.producer_state), bound.refused) == (end, 3, 2)
    assert append(log, 1), "a batch that is sent again is still known"
    assert not append(log, 1, 1)
    assert not append(log, 0, 1, transactional=True)
    log.append_marker(ProducerIdAndEpoch(0, 0), 0, True, NOW, leader_epoch=0)
    log.append_marker(ProducerIdAndEpoch(5, 0), 0, True, NOW, leader_epoch=0)  # what a coordinator decided
    assert len(log.producer_state) == 4
    assert refused(log, 3)


def test_S2_there_is_room_again_when_producer_ids_expired() -> None:
    log = open_log(SimulatedStorage(), SEGMENTS, producer_ids=ProducerIdBound(per_partition_max=2))
    append(log, 1)
    append(log, 2)
    refused(log, 3)
    assert sum(log.expire_producers(NOW + log.producer_id_expiration_ms)) == 2
    assert not append(log, 3)


def test_S2_producer_ids_are_bounded_over_all_partitions_and_a_deleted_one_makes_room() -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(disk_min_free_bytes=0, producer_ids_max=6))
        node.start()
        other = TopicPartition("orders", 1)
        logs = [node.create(tp).log for tp in (FIRST, other)]
        for number in range(6):
            append(logs[number % 2], number)
        assert node.logs.statistics().producer_ids == 6
        assert "producer.ids.max=6" in refused(logs[0], 6)
        assert not append(logs[0], 0, 1)
        node.logs.delete_partition(other)
        before = NOW + 1_000
        producer = ProducerIdAndEpoch(6, 0)
        logs[0].append(make_batch([(b"k", b"v")], producer=producer, sequence=0), leader_epoch=0, now_ms=before)
        assert node.logs.statistics().producer_ids == 4
        await node.logs.close()

    asyncio.run(run())


def test_S2_a_start_with_more_than_the_bound_keeps_them() -> None:
    storage = storage_with_folder()
    log = open_log(storage, SEGMENTS)
    for number in range(5):
        append(log, number)
    log.close()
    log = open_log(storage, SEGMENTS, clean=True, producer_ids=ProducerIdBound(per_partition_max=2))
    assert append(log, 4)
    assert not append(log, 4, 1)
    refused(log, 5)


def test_S2_the_log_tells_once_a_minute_how_many_were_refused(caplog: pytest.LogCaptureFixture) -> None:
    bound = ProducerIdBound(per_partition_max=0)
    with caplog.at_level(logging.WARNING):
        for now_ms in (*range(NOW, NOW + 50), NOW + 60_000):
            with pytest.raises(SemelError):
                bound.admit(FIRST, 0, now_ms)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].endswith("since this was last said: 1")
    assert told[1].endswith("since this was last said: 50")


# --- Expiry -----------------------------------------------------------------------------------------------------------


def test_S3_P8_many_producers_expire_in_parts_and_one_that_comes_back_meanwhile_stays() -> None:
    state = ProducerState(FIRST)
    count = 10_000

    def seen(producer_id: int, now_ms: int) -> None:
        state.apply_batch(producer_id, 0, 0, 0, producer_id, producer_id, NOW, False, now_ms)

    for producer_id in range(count):
        seen(producer_id, NOW)
    gone = []
    for part in state.expire_in_parts(NOW + 10, 10):
        gone.append(part)
        if len(gone) == 1:
            seen(count - 1, NOW + 10)
    assert max(gone) <= 2_000
    assert sum(gone) == count - 1
    assert [entry.producer_id for entry in state] == [count - 1]


# --- Snapshots --------------------------------------------------------------------------------------------------------


def filled(storage: SimulatedStorage, config: LogConfig = SEGMENTS) -> PartitionLog:
    log = open_log(storage, config)
    for number in range(MANY):
        append(log, number)
    log.flush()
    return log


def fill_segment(log: PartitionLog) -> Iterator[int]:
    """Append until the log rolls."""
    count, sequence = len(log.segments), log.log_end_offset
    while len(log.segments) == count:
        yield append(log, 1000 + sequence)
        sequence += 1


@pytest.mark.usefixtures("few_at_once")
def test_S3_a_roll_leaves_a_large_snapshot_to_the_flush() -> None:
    storage = storage_with_folder()
    log = filled(storage)
    before = snapshots(storage)
    list(fill_segment(log))
    base = log.segments.active.base_offset
    assert log.needs_flush
    assert snapshots(storage) == before
    log.flush()
    assert snapshots(storage)[-1] == base
    assert not log.needs_flush


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("power", [True, False])
def test_P7_a_snapshot_written_during_appends_is_of_the_offset_in_its_name(power: bool) -> None:
    storage = storage_with_folder()
    log = filled(storage)
    append(log, 3, 1)
    list(fill_segment(log))
    append(log, 3, 2)
    append(log, 4, 1, transactional=True)
    work = log.begin_flush()
    append(log, 3, 3)
    log.append_marker(ProducerIdAndEpoch(4, 1), 0, False, NOW, leader_epoch=0)
    work.run()
    append(log, 3, 4)
    point = log.end_flush(work)
    assert work.snapshot is not None
    assert snapshots(storage)[-1] == work.snapshot.offset == log.segments.active.base_offset
    log.flush()
    expected = dump(log)
    storage.crash(power=power)
    assert dump(open_log(storage, SEGMENTS, recovery_point=point)) == expected
    data = storage.open(f"{FOLDER}/{work.snapshot.offset:020d}.snapshot")
    entries = producer_snapshot.decode_snapshot(data.read_at(data.size(), 0), now_ms=NOW)
    replayed = open_log(storage, SEGMENTS, recovery_point=0)
    replayed.truncate_to(work.snapshot.offset, now_ms=NOW)
    assert sorted(entries, key=lambda one: one.producer_id) == sorted(
        replayed.producer_state, key=lambda one: one.producer_id
    )


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("flushed", [True, False])
def test_P7_a_crash_before_the_snapshot_is_written_replays_from_an_older_one(flushed: bool) -> None:
    storage = storage_with_folder()
    log = filled(storage)
    list(fill_segment(log))
    if flushed:
        log.flush()
    point = log.recovery_point
    list(fill_segment(log))
    append(log, 5, 1)
    expected = dump(log)
    storage.crash(power=False)
    assert dump(open_log(storage, SEGMENTS, recovery_point=point)) == expected


@pytest.mark.usefixtures("few_at_once")
def test_P7_retention_keeps_what_no_snapshot_tells_of_yet() -> None:
    storage = storage_with_folder()
    log = filled(storage, replace(SEGMENTS, retention_ms=1000))
    list(fill_segment(log))
    known = len(log.producer_state)
    later = NOW + 10_000
    log.delete_old_segments(later, log.log_end_offset)
    log.local.recovery_point = log.log_end_offset
    log.delete_old_segments(later, log.log_end_offset)
    storage.crash(power=False)
    again = open_log(storage, log.config, recovery_point=log.recovery_point)
    assert len(again.producer_state) == known, "with the segments these producers would be forgotten (P1)"
    assert append(again, MANY - 1), "still a duplicate"


def test_P7_P2_a_power_cut_after_retention_leaves_the_snapshot_that_tells_of_what_is_gone() -> None:
    """It was written when the segment began, and nobody had brought it to the disk."""
    storage = storage_with_folder()
    log = filled(storage, replace(SEGMENTS, retention_ms=1000))
    list(fill_segment(log))
    log.flush()
    known = len(log.producer_state)
    assert log.delete_old_segments(NOW + 10_000, log.log_end_offset)
    storage.crash(power=True, torn=False)
    again = open_log(storage, log.config, recovery_point=log.recovery_point)
    assert again.log_start_offset > 0
    assert len(again.producer_state) == known
    assert append(again, MANY - 1), "still a duplicate"


@pytest.mark.usefixtures("few_at_once")
def test_retention_of_all_records_waits_only_for_the_next_flush() -> None:
    async def run() -> None:
        config = replace(CONFIG, retention_ms=1000, segment_bytes=1000)
        node = Node()
        node.start(config)
        log = node.create(log_config=config).log
        for number in range(MANY):
            append(log, number)
        log.flush()
        node.get().advance_high_watermark(log.log_end_offset)
        node.clock.advance(ms=NOW + 10_000)
        await node.logs.maintenance.check_retention()
        await node.logs.maintenance.flush()
        await node.logs.maintenance.check_retention()
        assert (log.log_start_offset, log.size_bytes) == (log.log_end_offset, 0)
        await node.logs.close()
        node.start(config)
        assert len(node.get().log.producer_state) == MANY

    asyncio.run(run())


@pytest.mark.usefixtures("few_at_once")
def test_S3_large_snapshots_take_a_bounded_share_of_the_log() -> None:
    storage = storage_with_folder()
    log = filled(storage)
    sequence = 1
    for _ in range(60):
        for number in range(MANY):
            append(log, number, sequence)
        sequence += 1
        log.flush()
    assert len(log.segments) > 50
    kept = snapshots(storage)
    sizes = [storage.open(f"{FOLDER}/{offset:020d}.snapshot").size() for offset in kept]
    assert sum(sizes[1:-1]) <= log.size_bytes / 4
    assert len(kept) > 3, "some stay, for retention and for what recovery can't read"
    log.close()
    assert dump(open_log(storage, SEGMENTS, clean=True)) == dump(log)


@pytest.mark.usefixtures("few_at_once")
def test_a_snapshot_that_a_full_disk_did_not_take_is_written_by_the_next_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = storage_with_folder()
    log = filled(storage)
    list(fill_segment(log))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(producer_snapshot, "write_whole", full)
        assert log.flush() == log.log_end_offset
    assert log.offline_error is None
    assert log.needs_flush
    log.flush()
    assert snapshots(storage)[-1] == log.segments.active.base_offset
