"""The partition: what is committed when, who is told, and what readers see (D1, L1, L2, L3, R1, R2)."""

from __future__ import annotations

import asyncio
import errno

import pytest
from leader_states import of_two

from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.journal import Journal
from semel.broker.log.partition_log import PartitionLog
from semel.broker.logs.commit_tracker import CommitTracker
from semel.broker.logs.disk_space import DiskSpace
from semel.broker.logs.partition import HIGH_WATERMARK, Partition
from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, IsolationLevel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedStorage

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
PRODUCER = ProducerIdAndEpoch(5, 0)


class Place:
    """A disk with a journal and partitions, synced when the test says so."""

    def __init__(self, *, durable: bool = True, config: LogConfig | None = None) -> None:
        self.storage = SimulatedStorage()
        self.storage.make_folder("/d")
        self.clock = ManualClock()
        self.config = config or LogConfig(segment_ms=1 << 60)
        self.failures: list[SemelError] = []
        self.journal = (
            Journal.open(self.storage, "/d/journal", clock=self.clock, on_failure=self.journal_failed)
            if durable
            else None
        )
        self.space = DiskSpace(self.storage, "/d", 1000)
        self.commits = CommitTracker(self.journal, self.space)
        self.partitions: list[Partition] = []
        self.moved: list[Partition] = []

    def journal_failed(self, error: SemelError) -> None:
        self.failures.append(error)
        for partition in self.partitions:
            partition.go_offline(error)

    def partition(self) -> Partition:
        tp = TopicPartition("t", len(self.partitions))
        log = PartitionLog.open(self.storage, f"/d/{tp}", tp, new_topic_id(), self.config, now_ms=0, clean=True)
        partition = Partition(log, self.commits, self.clock, leader_epoch=3, on_log_start_moved=self.moved.append)
        self.partitions.append(partition)
        return partition

    def sync(self) -> None:
        assert self.journal is not None
        self.journal.sync_now()


def batch(
    count: int = 1, *, timestamp_ms: int = 1000, sequence: int | None = None, transactional: bool = False
) -> bytearray:
    records = [(timestamp_ms + n, b"k", b"v%d" % n, ()) for n in range(count)]
    if sequence is None:
        return bytearray(encode_batch(records))
    return bytearray(
        encode_batch(
            records,
            producer_id=PRODUCER.producer_id,
            producer_epoch=PRODUCER.producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


def test_D1_L2_nothing_is_committed_or_seen_before_the_sync() -> None:
    place = Place()
    partition = place.partition()
    answers: list[SemelError | None] = []
    result = partition.append(batch(3))
    partition.when_committed(result.last_offset, answers.append)
    assert (result.base_offset, result.last_offset) == (0, 2)
    assert (partition.high_watermark, partition.log_end_offset) == (0, 3)
    assert partition.read(0, max_bytes=1000).size == 0
    assert partition.list_offset(LATEST_TIMESTAMP).offset == 0
    assert partition.list_offset(1000).offset == -1
    assert answers == []
    place.sync()
    assert answers == [None]
    assert partition.high_watermark == 3
    found = partition.read(0, max_bytes=1000)
    assert (found.first_offset, found.next_offset) == (0, 3)
    assert (partition.high_watermark, partition.log_start_offset) == (3, 0)
    assert [record.value for record in decode_records(found.read())] == [b"v0", b"v1", b"v2"]
    assert next(iter(iter_batches(found.read()))).leader_epoch == 3


def test_without_a_journal_the_high_watermark_is_the_end_of_the_log() -> None:
    partition = Place(durable=False).partition()
    answers: list[SemelError | None] = []
    result = partition.append(batch(2))
    partition.when_committed(result.last_offset, answers.append)
    assert partition.high_watermark == 2
    assert answers == [None]


def test_R1_high_watermark_moves_for_what_was_synced_alone() -> None:
    async def run() -> None:
        place = Place()
        first, second = place.partition(), place.partition()
        first.append(batch())
        place.sync()
        first.append(batch())
        second.append(batch())
        assert (first.high_watermark, second.high_watermark) == (1, 0)
        waits = [asyncio.create_task(one.wait_committed(end)) for one, end in ((first, 1), (second, 0))]
        await asyncio.gather(*waits)
        assert (first.high_watermark, second.high_watermark) == (2, 1)
        await first.wait_committed(0)

    asyncio.run(run())


def test_R1_the_high_watermark_never_goes_back() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(3))
    place.sync()
    told: list[Partition] = []
    partition.add_append_listener(told.append)
    for offset in (2, 0, 3):
        partition.advance_high_watermark(offset)
        assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)
    assert told == []
    partition.append(batch(1))
    partition.pause()
    place.sync()
    partition.advance_high_watermark(1)
    partition.resume()
    assert partition.high_watermark == 4


def test_waiters_are_told_in_order_of_offset_each_once() -> None:
    place = Place()
    partition = place.partition()
    told: list[int] = []
    for offset in (2, 0, 1, 3, 1):
        partition.when_committed(offset, lambda error, offset=offset: told.append(offset))  # type: ignore[misc]
    partition.append(batch(3))
    place.sync()
    assert told == [0, 1, 1, 2]
    partition.append(batch())
    place.sync()
    assert told == [0, 1, 1, 2, 3]


def test_failing_callbacks_hurt_nobody_else() -> None:
    place = Place()
    partition = place.partition()
    told: list[object] = []

    def broken(argument: object) -> None:
        raise RuntimeError("broken")

    partition.when_committed(0, broken)
    partition.when_committed(0, told.append)
    partition.add_append_listener(broken)
    partition.add_append_listener(told.append)
    partition.append(batch())
    place.sync()
    assert told == [None, partition]


def test_listeners_are_called_when_more_can_be_read_until_removed() -> None:
    place = Place()
    partition, other = place.partition(), place.partition()
    told: list[Partition] = []
    partition.add_append_listener(told.append)
    partition.append(batch())
    other.append(batch())
    assert told == []
    place.sync()
    assert told == [partition]
    partition.remove_append_listener(told.append)
    partition.remove_append_listener(told.append)
    partition.append(batch())
    place.sync()
    assert told == [partition]


def test_a_paused_partition_commits_nothing_and_gives_readers_nothing_until_it_is_resumed() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch())
    place.sync()
    answers: list[SemelError | None] = []
    calls: list[int] = []
    partition.add_append_listener(lambda one: calls.append(one.high_watermark))
    partition.pause()
    assert partition.read(0, max_bytes=1000).size == 0
    result = partition.append(batch(2))
    partition.when_committed(result.last_offset, answers.append)
    place.sync()
    assert (partition.high_watermark, answers, calls) == (1, [], [])
    partition.resume()
    assert (partition.high_watermark, answers) == (3, [None])
    assert set(calls) == {3}
    assert partition.read(0, max_bytes=1000).next_offset == 3


def test_resuming_a_partition_wakes_those_who_wait_for_what_was_there_before() -> None:
    place = Place()
    partition = place.partition()
    calls: list[int] = []
    partition.add_append_listener(lambda one: calls.append(one.high_watermark))
    partition.resume()
    assert calls == []
    partition.pause()
    partition.pause()
    partition.resume()
    assert calls == [0]


def test_P1_duplicate_gets_the_original_offset_and_waits_for_it() -> None:
    place = Place()
    partition = place.partition()
    assert partition.append(batch(2, sequence=0)).base_offset == 0
    again = partition.append(batch(2, sequence=0))
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 0, 1)
    answers: list[SemelError | None] = []
    partition.when_committed(again.last_offset, answers.append)
    assert answers == []
    place.sync()
    assert answers == [None]
    assert partition.log_end_offset == 2


def test_L1_L2_open_transaction_holds_the_last_stable_offset_until_its_marker_is_durable() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch())
    partition.append(batch(2, sequence=0, transactional=True), verified=True)
    partition.append(batch())
    place.sync()
    assert (partition.high_watermark, partition.last_stable_offset) == (4, 1)
    assert partition.list_offset(LATEST_TIMESTAMP, COMMITTED).offset == 1
    assert partition.list_offset(LATEST_TIMESTAMP, UNCOMMITTED).offset == 4
    assert partition.read(0, max_bytes=10_000, isolation=COMMITTED).next_offset == 1
    assert partition.read(1, max_bytes=10_000, isolation=COMMITTED).size == 0
    assert partition.read(0, max_bytes=10_000).next_offset == 4
    assert partition.append_marker(PRODUCER, 0, True) == 4
    assert partition.last_stable_offset == 1, "the marker is not below the high watermark"
    place.sync()
    assert partition.last_stable_offset == partition.high_watermark == 5
    found = partition.read(0, max_bytes=10_000, isolation=COMMITTED)
    assert (found.next_offset, list(found.aborted_transactions)) == (5, [])


def test_L3_fetch_names_the_aborted_transactions_of_its_range() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(2, sequence=0, transactional=True), verified=True)
    partition.append_marker(PRODUCER, 0, False)
    partition.append(batch())
    place.sync()
    found = partition.read(0, max_bytes=10_000, isolation=COMMITTED)
    assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == [(5, 0)]
    assert partition.read(3, max_bytes=10_000, isolation=COMMITTED).aborted_transactions == []
    assert partition.read(0, max_bytes=10_000).aborted_transactions == ()


def test_P9_repeated_marker_appends_nothing() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(1, sequence=0, transactional=True), verified=True)
    assert partition.append_marker(PRODUCER, 0, True) == 1
    assert partition.append_marker(PRODUCER, 0, True) is None
    assert partition.log_end_offset == 2


def test_coordinators_append_and_load_their_batches() -> None:
    place = Place()
    partition = place.partition()
    assert partition.append_batch(batch(2)) == 0
    assert partition.append_batch(batch(1)) == 2
    loaded = partition.read_batches(0, 1 << 20)
    assert [header.base_offset for header in iter_batches(loaded)] == [0, 2], "committed or not"
    assert partition.read_batches(3, 100) == b""
    assert [header.base_offset for header in iter_batches(partition.read_batches(0, 1))] == [0]


def test_read_outside_the_log_is_refused_and_at_its_end_empty() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(4))
    place.sync()
    for offset in (-1, 5):
        with pytest.raises(SemelError, match="not within 0 to 4") as caught:
            partition.read(offset, max_bytes=100)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.read(4, max_bytes=100).size == 0
    assert partition.read(2, max_bytes=1).first_offset == 0, "one batch at least"
    assert partition.read(2, max_bytes=1, min_one_batch=False).size == 0


def test_list_offset_by_timestamp_sees_only_what_the_reader_may() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(2, timestamp_ms=1000))
    partition.append(batch(1, timestamp_ms=5000))
    place.sync()
    partition.append(batch(1, timestamp_ms=9000))
    assert (partition.list_offset(1001).offset, partition.list_offset(1001).timestamp_ms) == (1, 1001)
    assert partition.list_offset(2000).offset == 2
    assert partition.list_offset(2000).leader_epoch == 3
    assert partition.list_offset(6000).offset == -1
    assert partition.list_offset(EARLIEST_TIMESTAMP).offset == 0
    place.sync()
    assert partition.list_offset(6000).offset == 3
    assert partition.list_offset(MAX_TIMESTAMP).offset == 3


def test_delete_records_moves_the_start_up_to_the_high_watermark() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(4))
    place.sync()
    partition.append(batch(1))
    assert partition.delete_records(2) == 2
    assert partition.list_offset(EARLIEST_TIMESTAMP).offset == 2
    assert place.moved == [partition]
    assert partition.delete_records(HIGH_WATERMARK) == 4
    with pytest.raises(SemelError, match="up to the high watermark 4") as caught:
        partition.delete_records(5)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(SemelError):
        partition.read(3, max_bytes=100)


def test_L1_committed_records_do_not_end_before_the_log_begins_where_an_undecided_head_is_deleted() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch())
    partition.append(batch(2, sequence=0, transactional=True), verified=True)
    partition.append(batch())
    place.sync()
    assert partition.delete_records(2) == 2
    assert partition.last_stable_offset == 2
    assert partition.list_offset(LATEST_TIMESTAMP, COMMITTED).offset == 2
    assert partition.read(2, max_bytes=10_000, isolation=COMMITTED).size == 0, "the rest of it is not decided"
    assert partition.append_marker(PRODUCER, 0, True) == 4
    place.sync()
    assert partition.last_stable_offset == partition.list_offset(LATEST_TIMESTAMP, COMMITTED).offset == 5


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_D1_failed_journal_refuses_waiters_readers_and_writers(operation: str) -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch())
    place.sync()
    answers: list[SemelError | None] = []
    woken: list[Partition] = []
    partition.append(batch())
    partition.when_committed(1, answers.append)
    partition.add_append_listener(woken.append)
    place.storage.fail_next(operation, OSError(errno.EIO, "Input/output error"), path_part="journal")
    with pytest.raises(RetriableError):
        place.sync()
    assert len(place.failures) == 1
    assert [error.code for error in answers if error is not None] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert woken == [partition]
    assert partition.high_watermark == 1, "what was not synced is not shown"
    assert partition.offline_error is not None
    partition.when_committed(1, answers.append)
    assert len(answers) == 2
    for call in (
        lambda: partition.append(batch()),
        lambda: partition.read(0, max_bytes=100),
        lambda: partition.list_offset(LATEST_TIMESTAMP),
        lambda: partition.append_marker(PRODUCER, 0, True),
        lambda: partition.delete_records(0),
    ):
        with pytest.raises(RetriableError, match="Input/output error") as caught:
            call()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_full_disk_is_said_once_in_the_nodes_own_log_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Clients tried again for ever, and nobody was told why."""
    caplog.set_level("INFO")
    place = Place()
    partition = place.partition()
    place.storage.fail_next("append", OSError(errno.ENOSPC, "No space left on device"), path_part=".log", times=3)
    for _ in range(3):
        with pytest.raises(RetriableError, match="make room") as caught:
            partition.append(batch())
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{partition.tp}: nothing was appended, because writing in {partition.log.folder} failed" in error
    assert "make room on the disk" in error
    for _ in range(2):
        partition.append(batch())
    assert [record.getMessage() for record in caplog.records if record.levelname == "INFO"] == [
        "appends succeed again, after 3 had failed"
    ]


def test_failed_write_to_the_log_appends_nothing_and_the_next_one_goes_on() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch())
    place.storage.fail_next("append", OSError(errno.ENOSPC, "No space left on device"), path_part=".log")
    with pytest.raises(RetriableError, match="No space left") as caught:
        partition.append(batch())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.offline_error is None
    assert partition.append(batch()).base_offset == 1
    place.sync()
    assert partition.high_watermark == 2


def test_log_that_cannot_be_fixed_takes_its_partition_offline() -> None:
    place = Place()
    partition = place.partition()
    answers: list[SemelError | None] = []
    partition.append(batch())
    partition.when_committed(0, answers.append)
    place.storage.fail_next("append", OSError(errno.EIO, "Input/output error"), path_part=".log")
    place.storage.fail_next("truncate", OSError(errno.EIO, "Input/output error"), path_part=".log")
    with pytest.raises(RetriableError):
        partition.append(batch())
    assert partition.offline_error is not None
    assert [error.code for error in answers if error is not None] == [ErrorCode.KAFKA_STORAGE_ERROR]
    place.sync()
    assert partition.high_watermark == 0


def test_nearly_full_disk_refuses_clients_and_lets_transactions_end() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(1, sequence=0, transactional=True), verified=True)
    place.storage.set_free_bytes(1500)
    place.space.refresh()
    with pytest.raises(RetriableError, match="1500 bytes are free, 1000 are kept in reserve") as caught:
        partition.append(batch(100))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.append_marker(PRODUCER, 0, True) == 1
    assert partition.append(batch(1), origin=AppendOrigin.COORDINATOR).base_offset == 2
    place.storage.set_free_bytes(None)
    assert partition.append(batch(100)).base_offset == 3


def test_journal_beyond_its_bound_refuses_clients() -> None:
    place = Place()
    partition = place.partition()
    place.commits.journal_max_bytes = 100
    partition.append(batch(10))
    with pytest.raises(RetriableError, match="more than its bound of 100"):
        partition.append(batch())
    assert partition.append_batch(batch()) == 10


def test_R2_acks_all_needs_enough_replicas_before_the_append() -> None:
    partition = Place(config=LogConfig(min_insync_replicas=2)).partition()
    partition.lead(of_two(4, isr=(1,), min_isr=2))
    with pytest.raises(RetriableError, match=r"min\.insync\.replicas=2") as caught:
        partition.append(batch())
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log_end_offset == 0
    assert partition.append(batch(), acks=1).base_offset == 0


def test_a_new_leader_does_not_say_where_the_log_ends_before_it_knows_how_far_it_is_committed() -> None:
    """What the leader before had committed is no offset out of range, and no end goes back."""
    place = Place()
    partition = place.partition()
    partition.append(batch(4))
    partition.lead(of_two(4, min_isr=2, begin_offset=4))
    place.sync()
    for ask in (
        lambda: partition.delete_records(2),
        lambda: partition.delete_records(HIGH_WATERMARK),
        lambda: partition.list_offset(LATEST_TIMESTAMP),
    ):
        with pytest.raises(RetriableError, match="does not know yet how far") as caught:
            ask()
        assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    partition.fetched_by(2, 1, 4)
    assert partition.delete_records(HIGH_WATERMARK) == 4
    assert partition.list_offset(LATEST_TIMESTAMP).offset == 4


def test_R1_what_a_refused_proposal_had_held_back_is_committed_by_the_next_fetch() -> None:
    """Also by one from the same offset as before: the follower may have nothing new to say for long."""
    place = Place()
    partition = place.partition()
    leader = of_two(4, isr=(1,))
    partition.lead(leader)
    partition.append(batch())
    place.sync()
    partition.fetched_by(2, 5, 1)
    asked = leader.wanted_isr(1, now_s=0.0, lag_max_s=9.0, log_start_offset=0, log_end_offset=1, usable={1: 4, 2: 5})
    assert asked is not None
    partition.append(batch())
    place.sync()
    assert partition.high_watermark == 1, "the follower may have been taken as in sync"
    leader.refused()
    partition.fetched_by(2, 5, 1)
    assert partition.high_watermark == 2


def test_R2_where_there_are_fewer_replicas_than_min_insync_replicas_all_are_enough() -> None:
    """KIP-966: a topic with one replica takes acks=all under a cluster's default of two."""
    place = Place(config=LogConfig(min_insync_replicas=2))
    partition = place.partition()
    partition.update_config(place.config)
    assert partition.append(batch()).base_offset == 0
    place.sync()
    assert partition.high_watermark == 1


@pytest.mark.parametrize(("durable", "fits"), [(True, 2), (False, 4)])
def test_the_reserve_of_the_disk_counts_the_journal_too(
    monkeypatch: pytest.MonkeyPatch, durable: bool, fits: int
) -> None:
    """Each append is written twice, and the reserve was eaten up by what the journal took."""
    place = Place(durable=durable)
    partition = place.partition()
    size = len(batch())
    monkeypatch.setattr(place.storage, "free_bytes", lambda _: place.space.min_free_bytes + 4 * size)
    for _ in range(fits):
        partition.append(batch())
    monkeypatch.setattr(place.storage, "free_bytes", lambda _: place.space.min_free_bytes)
    with pytest.raises(RetriableError, match="nearly full"):
        partition.append(batch())


def test_flush_is_wanted_after_so_many_bytes() -> None:
    place = Place()
    wanted: list[int] = []
    commits = CommitTracker(place.journal, flush_bytes=200, on_flush_wanted=lambda: wanted.append(1))
    place.commits = commits
    partition = place.partition()
    for _ in range(10):
        partition.append(batch())
    assert wanted == [1]
    assert list(commits.dirty) == [partition]
    assert commits.flush_begins() == [partition]
    assert not commits.flush_wanted
    assert not commits.dirty


def test_R3_truncation_drops_what_is_not_committed_and_its_waiters() -> None:
    place = Place()
    partition = place.partition()
    partition.append(batch(2))
    place.sync()
    partition.append(batch(2))
    answers: list[SemelError | None] = []
    partition.when_committed(3, answers.append)
    with pytest.raises(SemelError, match="committed up to 2"):
        partition.truncate_to(1)
    assert partition.truncate_to(2)
    assert not partition.truncate_to(2)
    assert [error.code for error in answers if error is not None] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    partition.append(batch(1))
    place.sync()
    assert partition.high_watermark == 3
