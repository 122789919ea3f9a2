"""What must always hold in a log: each rule is broken here, and the log goes offline with the rule and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from compiled_classes import set_method
from log_model import FOLDER, NOW, SMALL_SEGMENTS, dump, make_batch, open_log, storage_with_folder

from semel.broker.log import local_log, partition_log, recovery
from semel.broker.log.config import AppendOrigin
from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_state import ProducerState
from semel.broker.log.recovery import LoadedLog, LogLoader
from semel.broker.log.segment import Segment
from semel.broker.log.segments import Segments
from semel.broker.log.time_index import TimeIndex
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.simulated_storage import SimulatedStorage

ENDS = "the log, its producers and its active segment end at the same offset"
PRODUCER = ProducerIdAndEpoch(7, 0)


def add(log: PartitionLog, count: int = 1) -> None:
    log.append(make_batch([(b"k", b"v" * 50)] * count), leader_epoch=0, now_ms=NOW)


def filled(storage: SimulatedStorage | None = None) -> PartitionLog:
    log = open_log(storage or storage_with_folder(), SMALL_SEGMENTS)
    for _ in range(60):
        add(log, 2)
    return log


def refused(log: PartitionLog, act: Callable[[], object], rule: str, *numbers: str) -> None:
    """`act` finds the rule broken, and the log takes and changes nothing any more."""
    with pytest.raises(RetriableError) as caught:
        act()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert isinstance(caught.value.__cause__, BrokenInvariantError)
    for words in (str(log.tp), f"broken invariant: {rule}", *numbers, "restart the node"):
        assert words in caught.value.message
    assert log.offline_error is caught.value
    before = log.log_end_offset
    for again in (lambda: add(log), log.flush, lambda: log.truncate_to(0, now_ms=NOW)):
        with pytest.raises(SemelError, match="is offline, because what must always hold does not"):
            again()
    assert log.log_end_offset == before


def append_marker(log: PartitionLog) -> None:
    log.append_marker(PRODUCER, 0, True, NOW, leader_epoch=0)


def append_transactional(log: PartitionLog) -> None:
    data = make_batch([(b"k", b"v")], producer=PRODUCER, sequence=0, transactional=True)
    log.append(data, leader_epoch=0, now_ms=NOW, verified=True)


def append_as_a_coordinator(log: PartitionLog) -> None:
    log.append(make_batch([(b"k", b"v")]), origin=AppendOrigin.COORDINATOR, leader_epoch=0, now_ms=NOW)


@pytest.mark.parametrize("act", [add, append_marker, append_transactional, append_as_a_coordinator])
def test_an_append_finds_producers_that_end_elsewhere(act: Callable[[PartitionLog], None]) -> None:
    log = filled()
    log.producer_state.end_offset -= 3
    end = log.log_end_offset
    refused(
        log, lambda: act(log), ENDS,
        f"log_end_offset={end + 1}", f"producers_end_offset={end - 2}", f"segment_end_offset={end + 1}",
    )  # fmt: skip


@pytest.mark.parametrize("act", [add, append_marker])
def test_an_append_finds_a_segment_that_ends_elsewhere(
    act: Callable[[PartitionLog], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_shorter = False

    class Shorter(Segment):
        def append(self, *what: Any) -> int:
            position = super().append(*what)
            self.end_offset -= is_shorter
            return position

    for module in (local_log, recovery):
        monkeypatch.setattr(module, "Segment", Shorter)
    log = filled()
    is_shorter = True
    end = log.log_end_offset
    refused(log, lambda: act(log), ENDS, f"log_end_offset={end + 1}", f"segment_end_offset={end}")


def test_an_append_writes_nothing_over_offsets_that_the_segment_has() -> None:
    log = filled()
    size = log.size_bytes
    log.segments.active.end_offset += 9
    refused(log, lambda: add(log), "offsets only grow in a segment", "appended=120", "segment_end_offset=129")
    assert log.size_bytes == size


def replay(log: PartitionLog) -> None:
    data = make_batch([(b"k", b"v")])
    data[:8] = log.log_end_offset.to_bytes(8, "big")
    log.replay_append(None, data, now_ms=NOW)


def test_a_replayed_append_writes_nothing_over_offsets_that_the_segment_has() -> None:
    log = filled()
    size = log.size_bytes
    log.segments.active.end_offset += 9
    refused(log, lambda: replay(log), "offsets only grow in a segment", "appended=120", "segment_end_offset=129")
    assert log.size_bytes == size


def test_a_replayed_append_finds_a_segment_that_ends_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled()
    set_method(monkeypatch, Segment, "append_run", lambda *what: None)
    refused(log, lambda: replay(log), ENDS, "log_end_offset=121", "segment_end_offset=120")


def test_a_roll_begins_at_the_end_of_the_log() -> None:
    log = filled()
    log.producer_state.end_offset -= 1
    segments = len(log.segments)
    refused(log, lambda: log.roll(NOW), ENDS, "log_end_offset=120", "producers_end_offset=119")
    log = filled()
    rule = "a new segment and its snapshot begin where the active segment ends"
    refused(log, lambda: log.roll(NOW, 100), rule, "base_offset=100", "segment_end_offset=120")
    assert len(log.segments) == segments


def test_a_roll_that_fails_behind_a_gap_leaves_all_ends_as_they_were() -> None:
    storage = storage_with_folder()
    log = filled(storage)
    storage.fail_next("open", OSError("no"))
    with pytest.raises(OSError, match="no"):
        log.roll(NOW, 1 << 33)
    add(log)
    assert (log.log_end_offset, log.offline_error) == (121, None)


def keep_offset_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetIndex, "truncate_to", lambda self, offset: None)
    monkeypatch.setattr(OffsetIndex, "truncate_positions", lambda self, position: None)


def keep_time_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeIndex, "truncate_to", lambda self, offset: None)


def keep_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Segment, size: int, end_offset: int) -> None:
        self.end_offset = end_offset

    set_method(monkeypatch, Segment, "cut", cut)


def end_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Segment.truncate_to
    set_method(monkeypatch, Segment, "truncate_to", lambda self, offset: real(self, offset) + 1)


@pytest.mark.parametrize("fault", [keep_offset_entries, keep_time_entries, keep_batches, end_elsewhere])
def test_a_truncation_leaves_nothing_of_its_offset_or_behind_it(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(storage_with_folder(), SMALL_SEGMENTS)
    for n in range(14):
        log.append(make_batch([(b"k", b"v" * 50)], timestamp_ms=NOW + n), leader_epoch=0, now_ms=NOW)
    assert len(log.segments.active.offsets) > 2
    fault(monkeypatch)
    rule = "a truncation leaves nothing of its offset or behind it"
    refused(log, lambda: log.truncate_to(2, now_ms=NOW), rule, "truncated_to=2", "segment_end_offset=2")


def test_a_truncation_leaves_producers_that_know_of_nothing_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled()

    def replay_too_much(segments: Segments, state: ProducerState, start: int, upto: int, now_ms: int) -> None:
        state.end_offset = upto + 1

    monkeypatch.setattr(partition_log, "replay_headers", replay_too_much)
    rule = "the producers know of nothing behind the end of the log"
    refused(log, lambda: log.truncate_to(101, now_ms=NOW), rule, "producers_end_offset=101", "log_end_offset=100")


def test_R1_the_log_knows_that_nothing_is_committed_behind_its_end() -> None:
    for act in (
        lambda log: log.first_unstable_offset(121),
        lambda log: log.delete_old_segments(NOW, 121),
    ):
        log = filled()
        rule = "nothing is committed that is not in the log"
        refused(log, lambda act=act, log=log: act(log), rule, "high_watermark=121", "log_end_offset=120")  # type: ignore[misc]


def test_only_a_segment_of_the_log_is_taken_out_of_it() -> None:
    log, other = filled(), filled()
    sources = list(other.segments)[:1]
    cleaned = other.segments.active
    refused(
        log, lambda: log.replace_segments(sources, cleaned, NOW), "only a segment of the log is taken out of it"
    )  # fmt: skip


def test_a_log_whose_recovery_contradicts_itself_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = storage_with_folder()
    filled(storage)
    storage.crash(power=False)
    real = LogLoader.load

    def load(self: LogLoader) -> LoadedLog:
        loaded = real(self)
        loaded.producers.end_offset -= 1
        return loaded

    monkeypatch.setattr(LogLoader, "load", load)
    with pytest.raises(SemelError, match=f"{ENDS}.*log_end_offset=120, producers_end_offset=119"):
        open_log(storage, SMALL_SEGMENTS)


def test_after_a_restart_the_log_is_as_its_batches_say() -> None:
    storage = storage_with_folder()
    log = filled(storage)
    expected = dump(log)
    log.segments.active.end_offset += 9
    refused(log, lambda: add(log), "offsets only grow in a segment")
    with pytest.raises(SemelError):
        log.truncate_to(3, now_ms=NOW)
    log.close()
    assert not [name for name in storage.list_folder(FOLDER) if name == "00000000000000000120.snapshot"]
    again = open_log(storage, SMALL_SEGMENTS)
    assert dump(again) == expected
    add(again)
    assert again.log_end_offset == 121
