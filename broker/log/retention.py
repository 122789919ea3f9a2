"""Which segments are to go: too old, too much, or below the start of the log. Sources: Kafka's UnifiedLog, KIP-107."""

from __future__ import annotations

from collections.abc import Callable

from semel.broker.log.config import UNLIMITED, LogConfig
from semel.broker.log.segment import Segment
from semel.broker.log.segments import Segments
from semel.runtime.storage import Storage


def segments_to_delete(
    segments: Segments,
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    recovery_point: int,
    is_led_here: bool = True,
    tiered_end: int | None = None,
    tiered_start: int | None = None,
) -> list[Segment]:
    """Return the oldest segments that retention removes, oldest first (D6).

    Age and size are the leader's to judge, by its clock: a follower's log starts where the leader's does. Only what is
    below the high watermark goes, so an open transaction's undecided data may go by age or size, as in Kafka. The
    active segment goes only when all of it is on the disk; an empty one stays.

    tiered_end: up to here the remote storage has the log. So far segments go by the local retention, which does not
        move the start of the log, so followers judge, too. None: the log is on this disk alone.
    tiered_start: where the log begins by what is noted beside the remote storage, as far as it is known. A deletion
        that is not noted there may not have happened (D6)

    Of a tiered log only what is on the disk goes: after a power cut the journal is put back behind what is left (D1).
    """
    kept_ms, kept_bytes, is_deleted = config.retention_ms, config.retention_bytes, config.is_deleted
    if tiered_end is not None:
        kept_ms, kept_bytes, is_deleted = config.kept_locally_ms, config.kept_locally_bytes, True
    found: list[Segment] = []
    remaining = list(segments)
    excess = sum(segment.size for segment in remaining) - kept_bytes

    def is_below_start(segment: Segment, end: int) -> bool:
        return end <= log_start_offset

    def is_too_much(segment: Segment, end: int) -> bool:
        nonlocal excess
        if excess < segment.size:
            return False
        excess -= segment.size
        return True

    def is_too_old(segment: Segment, end: int) -> bool:
        newest = segment.max_timestamp[0]
        return now_ms - (newest if newest >= 0 else segment.created_ms) > kept_ms

    def take(is_due: Callable[[Segment, int], bool], upto: int) -> None:
        while remaining:
            segment = remaining[0]
            end = segments.end_of(segment, log_end_offset)
            active = segment is segments.active
            if end > upto or (active and (segment.size == 0 or recovery_point < end)):
                return
            if not is_due(segment, end):
                return
            found.append(remaining.pop(0))

    gone_upto = high_watermark
    if tiered_end is not None:
        high_watermark = min(high_watermark, recovery_point)
        gone_upto = high_watermark if tiered_start is None else min(high_watermark, max(tiered_end, tiered_start))
    take(is_below_start, gone_upto)
    excess -= sum(segment.size for segment in found)
    if tiered_end is None and not is_led_here:
        return found
    deletable = high_watermark if tiered_end is None else min(high_watermark, tiered_end)
    if is_deleted and kept_bytes != UNLIMITED:
        take(is_too_much, deletable)
    if is_deleted and kept_ms != UNLIMITED:
        take(is_too_old, deletable)
    return found


class DeletedFiles:
    """Files renamed to `.deleted` that wait for `file.delete.delay.ms`, so that readers on them can finish."""

    __slots__ = ("_storage", "_waiting")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._waiting: list[tuple[int, str]] = []

    def add(self, paths: list[str], due_ms: int) -> None:
        self._waiting.extend((due_ms, path) for path in paths)

    def remove_due(self, now_ms: int) -> int:
        """Remove the files whose time has come. Returns how many. Raises `OSError`."""
        removed = 0
        while self._waiting and self._waiting[0][0] <= now_ms:
            path = self._waiting[0][1]
            if self._storage.exists(path):
                self._storage.remove(path)
            del self._waiting[0]
            removed += 1
        return removed

    def __len__(self) -> int:
        return len(self._waiting)
