"""Which segments are to go: too old, too much, or below the start of the log. Sources: Kafka's UnifiedLog, KIP-107."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from semel.broker.log.config import LogConfig
from semel.broker.log.segment import Segment
from semel.broker.log.segments import Segments
from semel.runtime.storage import Storage

UNLIMITED: Final = -1


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
) -> list[Segment]:
    """Return the oldest segments that retention removes, oldest first (D6).

    Age and size are the leader's to judge, by its clock: a follower's log starts where the leader's does. Only what is
    below the high watermark goes, so an open transaction's undecided data may go by age or size, as in Kafka. The
    active segment goes only when all of it is on the disk; an empty one stays.
    """
    found: list[Segment] = []
    remaining = list(segments)
    excess = sum(segment.size for segment in remaining) - config.retention_bytes

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
        return now_ms - (newest if newest >= 0 else segment.created_ms) > config.retention_ms

    def take(is_due: Callable[[Segment, int], bool]) -> None:
        while remaining:
            segment = remaining[0]
            end = segments.end_of(segment, log_end_offset)
            active = segment is segments.active
            if end > high_watermark or (active and (segment.size == 0 or recovery_point < end)):
                return
            if not is_due(segment, end):
                return
            found.append(remaining.pop(0))

    take(is_below_start)
    excess -= sum(segment.size for segment in found)
    if not is_led_here:
        return found
    if config.is_deleted and config.retention_bytes != UNLIMITED:
        take(is_too_much)
    if config.is_deleted and config.retention_ms != UNLIMITED:
        take(is_too_old)
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
