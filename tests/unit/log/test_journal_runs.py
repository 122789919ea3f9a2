"""Entries of the journal that a recovery takes together: where such a run ends, and what is taken alone (D1 to D3)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from compiled_classes import set_method

from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.journal import Journal
from semel.broker.log.journal_format import JournalEntry
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.segment import Segment
from semel.broker.logs.journal_replay import RecoveryReport, replay_journal
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedStorage

NOW = 1_700_000_000_000
TOPIC = TopicId(UUID(int=7))
TP = TopicPartition("t", 0)
KEY = TOPIC, 0
LOG = "/data/t-0"


def batch(offset: int, *, value: bytes = b"value", time: int = NOW, epoch: int = 0, **fields: Any) -> bytes:
    data = bytearray(encode_batch([(time, b"k", value, ())], **fields))
    set_base_offset(data, 0, offset, epoch)
    return bytes(data)


class Aside:
    """Keeps the entries that a log did not take, or all of them where it could not be flushed."""

    def __init__(self, is_flushed: bool = False) -> None:
        self.is_flushed = is_flushed
        self.kept: list[JournalEntry] = []
        self.errors: list[Exception] = []

    def is_wanted(self, key: tuple[TopicId, int]) -> bool:
        return key == KEY

    def log_failed(self, log: PartitionLog, error: Exception) -> bool:
        self.errors.append(error)
        return self.is_flushed

    def keep(self, key: tuple[TopicId, int], entry: JournalEntry) -> None:
        assert key == KEY
        self.kept.append(entry)


class Folder:
    """One log, and a journal that is written by hand. `appended` counts the writes to the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: LogConfig | None = None) -> None:
        self.storage = SimulatedStorage()
        self.storage.make_folder("/data")
        self.config = config or LogConfig()
        self.journal = Journal.open(self.storage, "/data/journal", clock=ManualClock())
        self.log = self.open_log(LOG)
        self.writes: list[int] = []
        real = Segment.append_run

        def append_run(segment: Segment, run: memoryview, headers: Any, interval: int) -> None:
            self.writes.append(len(headers))
            real(segment, run, headers, interval)

        set_method(monkeypatch, Segment, "append_run", append_run)

    def open_log(self, path: str) -> PartitionLog:
        return PartitionLog.open(self.storage, path, TP, TOPIC, self.config, now_ms=NOW)

    def has(self, *batches: bytes) -> None:
        """Let the log have batches already."""
        for one in batches:
            self.log.replay_append(None, one, now_ms=NOW)
        self.writes.clear()

    def replay(self, point: int = 0, aside: Aside | None = None) -> RecoveryReport:
        self.journal.close()
        journal = Journal.open(self.storage, "/data/journal", clock=ManualClock())
        return replay_journal(journal, {KEY: self.log}, {TP: point}, journal.cuts(), NOW, aside)

    def content(self) -> bytes:
        return b"".join(segment.file.read_at(segment.size, 0) for segment in self.log.segments)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(monkeypatch)


def test_D1_entries_that_follow_each_other_are_put_back_together(folder: Folder) -> None:
    expected = [batch(n) for n in range(20)]
    for n, one in enumerate(expected):
        folder.journal.append(TOPIC, 0, n, [one])
        folder.journal.append(TOPIC, 1, n, [one])  # of a partition that was deleted
    report = folder.replay()
    assert folder.content() == b"".join(expected)
    assert (report.restored_batches, report.journal_entries, report.skipped_entries) == (20, 40, 20)
    assert (sum(folder.writes), max(folder.writes)) == (20, 10), "the first one of a segment alone, then many"
    assert folder.log.log_end_offset == 20


def test_D1_entries_that_the_log_has_are_left_as_they_are(folder: Folder) -> None:
    expected = [batch(n) for n in range(20)]
    folder.has(*expected)
    for n, one in enumerate(expected):
        folder.journal.append(TOPIC, 0, n, [one])
    assert folder.replay().restored_batches == 0
    assert not folder.writes
    assert folder.content() == b"".join(expected)


@pytest.mark.parametrize("wrong", [0, 7, 19])
def test_D3_a_run_that_the_log_has_ends_where_its_bytes_are_others(folder: Folder, wrong: int) -> None:
    """The batches are whole and of the same size: only a comparison of every byte tells."""
    expected = [batch(n) for n in range(20)]
    other = list(expected)
    other[wrong] = batch(wrong, value=b"valuE")
    folder.has(*other)
    for n, one in enumerate(expected):
        folder.journal.append(TOPIC, 0, n, [one])
    assert folder.replay().restored_batches == 20 - wrong
    assert folder.content() == b"".join(expected)


def test_D1_what_ends_below_the_recovery_point_is_not_compared_amid_a_run(folder: Folder) -> None:
    """It may have been compacted: the log has a gap where the journal has batches."""
    batches = [batch(n) for n in range(10)]
    folder.has(batches[0], *batches[3:8])
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, n, [one])
    assert folder.replay(point=5).restored_batches == 2
    assert folder.content() == b"".join([batches[0], *batches[3:]])


def test_D1_a_recovery_point_within_an_entry_spares_its_first_batches_alone(folder: Folder) -> None:
    batches = [batch(n) for n in range(6)]
    folder.has(batches[0], *batches[2:4])
    folder.journal.append(TOPIC, 0, 0, [b"".join(batches[:4])])
    folder.journal.append(TOPIC, 0, 4, [b"".join(batches[4:])])
    assert folder.replay(point=2).restored_batches == 2
    assert folder.content() == b"".join([batches[0], *batches[2:]])


def test_R3_a_cut_between_two_runs_is_made_between_them(folder: Folder) -> None:
    first = [batch(n) for n in range(10)]
    second = [batch(n, value=b"other", epoch=1) for n in range(6, 12)]
    for n, one in enumerate(first):
        folder.journal.append(TOPIC, 0, n, [one])
    folder.journal.append_truncation(TOPIC, 0, 6)
    for n, one in enumerate(second, 6):
        folder.journal.append(TOPIC, 0, n, [one])
    assert folder.replay().restored_batches == 16
    assert folder.content() == b"".join([*first[:6], *second])
    assert folder.log.replayed_cut == 6
    assert folder.log.epochs.entries() == [(0, 0), (1, 6)]
    assert (sum(folder.writes), folder.writes[-1]) == (16, 6)


def test_R3_a_log_that_was_cut_already_gets_what_was_cut_and_is_cut_again(folder: Folder) -> None:
    first = [batch(n) for n in range(10)]
    second = [batch(n, value=b"other", epoch=1) for n in range(6, 12)]
    folder.has(*first[:6], *second)
    for n, one in enumerate(first):
        folder.journal.append(TOPIC, 0, n, [one])
    folder.journal.append_truncation(TOPIC, 0, 6)
    for n, one in enumerate(second, 6):
        folder.journal.append(TOPIC, 0, n, [one])
    folder.replay()
    assert folder.content() == b"".join([*first[:6], *second])
    assert folder.log.epochs.entries() == [(0, 0), (1, 6)]


def test_D1_a_gap_that_compaction_left_is_no_end_of_a_run_and_one_of_lost_records_is(folder: Folder) -> None:
    gaps = [batch(0), batch(4), batch(5), batch(9)]
    ends = [0, 1, 5, 6]
    for end, one in zip(ends, gaps, strict=True):
        folder.journal.append(TOPIC, 0, end, [one])
    folder.journal.append(TOPIC, 0, 12, [batch(12)])  # the log ended there: 10 and 11 were flushed
    with pytest.raises(SemelError, match="ends at 10, and the journal continues at 12"):
        folder.replay()
    assert folder.content() == b"".join(gaps)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_D1_what_comes_before_a_broken_batch_amid_a_run_is_put_back_and_the_rest_is_kept(
    folder: Folder, is_flushed: bool
) -> None:
    """Where the log can't be flushed, what it has taken in is kept, too."""
    batches = [batch(n) for n in range(10)]
    broken = bytearray(batches[6])
    broken[-1] ^= 1
    batches[6] = bytes(broken)
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, n, [one])
    aside = Aside(is_flushed)
    report = folder.replay(aside=aside)
    assert folder.content() == b"".join(batches[:6])
    assert [one.payload for one in aside.kept] == (batches[6:] if is_flushed else batches)
    assert (report.restored_batches, report.kept_entries, report.skipped_entries) == (6, len(aside.kept), 0)
    assert [error.code for error in aside.errors if isinstance(error, SemelError)] == [ErrorCode.CORRUPT_MESSAGE]


def test_D1_a_disk_that_fails_amid_a_run_costs_no_entry(folder: Folder) -> None:
    batches = [batch(n) for n in range(10)]
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, n, [one])
    folder.storage.fail_next("append", OSError(5, "no"), path_part=LOG, times=2)
    aside = Aside()
    folder.replay(aside=aside)
    assert folder.content() == b""
    assert [one.payload for one in aside.kept] == batches
    folder.storage.fail_no_more()


def test_S3_a_cut_that_a_later_one_contains_is_not_held_in_memory(folder: Folder) -> None:
    for offset in (5, 9, 7, 3, 8, 12, 12, 10):
        folder.journal.append_truncation(TOPIC, 0, offset)
    folder.journal.close()
    again = Journal.open(folder.storage, "/data/journal", clock=ManualClock())
    assert [cut.offset for cut in again.cuts()[KEY]] == [3, 8, 10]


def test_D1_records_that_are_gone_are_found_behind_a_cut_too(folder: Folder) -> None:
    """Only what the journal cuts later may be missing in the log of an only replica."""
    folder.has(*[batch(n) for n in range(3)])
    folder.journal.append_truncation(TOPIC, 0, 5)
    folder.journal.append(TOPIC, 0, 5, [batch(5)])
    aside = Aside()
    folder.replay(aside=aside)
    [error] = aside.errors
    assert "ends at 3, and the journal continues at 5" in str(error)
    assert folder.log.log_end_offset == 3


@pytest.mark.parametrize("junk", [b"x", b"x" * 80], ids=["no room for a header", "no header"])
@pytest.mark.parametrize("known", [0, 3, 5])
def test_bytes_that_are_no_batch_at_the_end_of_an_entry_end_a_run(folder: Folder, junk: bytes, known: int) -> None:
    batches = [batch(n) for n in range(5)]
    folder.has(*batches[:known])
    folder.journal.append(TOPIC, 0, 0, [b"".join(batches[:2])])
    folder.journal.append(TOPIC, 0, 2, [batches[2] + junk])
    for n in (3, 4):
        folder.journal.append(TOPIC, 0, n, [batches[n]])
    aside = Aside()
    folder.replay(aside=aside)
    whole = junk == b"x"
    assert folder.content() == b"".join(batches if whole or known == 5 else batches[: max(known, 3)])
    assert len(aside.kept) == (0 if whole else 4), "all, where the log can't take one"


SEGMENTS = {
    "bytes": (LogConfig(segment_bytes=1000), NOW, 0),
    "age": (LogConfig(segment_ms=50), NOW, 7),
    "index": (LogConfig(segment_index_bytes=120, index_interval_bytes=100), NOW, 0),
}


@pytest.mark.parametrize("bound", SEGMENTS)
@pytest.mark.parametrize("held", [0, 5, 23])
def test_D1_a_log_put_back_in_runs_has_the_segments_that_it_had(
    monkeypatch: pytest.MonkeyPatch, bound: str, held: int
) -> None:
    config, begin, step = SEGMENTS[bound]
    folder = Folder(monkeypatch, config)
    live = folder.open_log("/data/live-0")
    batches = []
    for n in range(150):
        one = bytearray(
            batch(n, time=begin + n * step, value=b"v" * (n % 7), producer_id=9, producer_epoch=0, base_sequence=n)
        )
        live.append(one, origin=AppendOrigin.CLIENT, leader_epoch=0, now_ms=NOW)
        batches.append(bytes(one))
    folder.has(*batches[:held])
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, n, [one])
    assert folder.replay().restored_batches == 150 - held
    assert len(live.segments) > 4
    log = folder.log
    assert list(log.segments.base_offsets) == list(live.segments.base_offsets)
    for mine, its in zip(log.segments, live.segments, strict=True):
        assert mine.file.read_at(mine.size, 0) == its.file.read_at(its.size, 0)
        for index, same in ((mine.offsets, its.offsets), (mine.times, its.times)):
            assert [index.entry(n) for n in range(len(index))] == [same.entry(n) for n in range(len(same))]
    assert log.producer_state == live.producer_state
    assert len(folder.writes) < 150 - held, "some were written together"


def test_L1_L3_P7_markers_amid_a_run_end_their_transactions(folder: Folder) -> None:
    live = folder.open_log("/data/live-0")
    sequences = {7: 0, 8: 0}
    for n in range(40):
        producer = ProducerIdAndEpoch(7 + n % 2, 0)
        if n % 5 == 4:
            result = live.append_marker(producer, 0, n % 3 == 0, NOW, leader_epoch=0)
        else:
            one = bytearray(
                batch(
                    0, producer_id=producer.producer_id, producer_epoch=0,
                    base_sequence=sequences[producer.producer_id], transactional=True,
                )
            )  # fmt: skip
            result = live.append(one, leader_epoch=0, now_ms=NOW, verified=True)
            sequences[producer.producer_id] += 1
        folder.journal.append(TOPIC, 0, result.base_offset, result.appended)
    assert folder.replay().restored_batches == 40
    assert len(folder.writes) < 20  # each of the eight alone, and what is between them together
    log = folder.log
    assert log.producer_state == live.producer_state
    assert log.first_unstable_offset(40) == live.first_unstable_offset(40) is not None
    aborted = live.aborted_transactions(0, 40)
    assert log.aborted_transactions(0, 40) == aborted
    assert len(aborted) > 3
    reopened = folder.open_log(LOG)
    assert reopened.producer_state == live.producer_state
    assert reopened.aborted_transactions(0, 40) == aborted


@pytest.mark.parametrize("offsets", [(4,), (4, 9), (1, 9)])
def test_D1_R5_a_gap_that_compaction_left_before_or_in_a_lone_entry_is_no_loss(
    folder: Folder, offsets: tuple[int, ...]
) -> None:
    folder.has(batch(0))
    batches = [batch(offset) for offset in offsets]
    folder.journal.append(TOPIC, 0, 1, [b"".join(batches)])
    assert folder.replay().restored_batches == len(offsets)
    assert folder.content() == b"".join([batch(0), *batches])


def test_D1_entries_with_gaps_between_them_are_put_back_together(folder: Folder) -> None:
    folder.has(batch(0))
    batches = [batch(2 * n) for n in range(1, 9)]
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, 2 * n + 1, [one])
    assert folder.replay().restored_batches == 8
    assert folder.content() == b"".join([batch(0), *batches])
    assert folder.writes == [8]


def test_D1_a_marker_that_is_none_amid_a_run_costs_its_own_log_alone_and_no_entry_before_it(folder: Folder) -> None:
    """Its checksum is right, so it is found only when the run is in the segment already."""
    unknown_kind = (NOW, b"\0\0\0\x09", bytes(6), ())
    marker = bytearray(encode_batch([unknown_kind], producer_id=7, producer_epoch=0, transactional=True, control=True))
    set_base_offset(marker, 0, 6, 0)
    batches = [batch(n) for n in range(10)]
    batches[6] = bytes(marker)
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, n, [one])
    aside = Aside()
    report = folder.replay(aside=aside)
    assert [error.code for error in aside.errors if isinstance(error, SemelError)] == [ErrorCode.CORRUPT_MESSAGE]
    assert [one.payload for one in aside.kept] == batches
    assert (report.restored_batches, folder.log.log_end_offset) == (6, 6)
    assert folder.log.offline_error is None


@pytest.mark.parametrize("times", [1, 2])
def test_D1_what_was_put_back_before_a_disk_failed_amid_a_run_is_counted(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    batches = [batch(n) for n in range(10)]
    for n, one in enumerate(batches):
        folder.journal.append(TOPIC, 0, n, [one])
    real, calls = Segment.append_run, 0

    def append_run(segment: Segment, run: memoryview, headers: Any, interval: int) -> None:
        nonlocal calls
        calls += 1
        if 2 <= calls < 2 + times:
            raise OSError(28, "no room")
        real(segment, run, headers, interval)

    set_method(monkeypatch, Segment, "append_run", append_run)
    aside = Aside()
    report = folder.replay(aside=aside)
    assert report.restored_batches == folder.log.log_end_offset
    assert len(aside.kept) == (0 if folder.log.log_end_offset == 10 else 10)
