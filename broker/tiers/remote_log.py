"""What the remote storage has of one partition: its segments in order, as this node knows them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Piece(NamedTuple):
    """Where a part of an object lies, and its checksum (CRC-32C)."""

    position: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """One segment in the store. It has the batches from `base_offset` on; readers take them from `start_offset` on.

    The two differ where another leader had copied a part of it already. `index`, `aborted` and `producers` lie behind
    the batches in the same object.
    """

    segment_id: str
    key: str
    base_offset: int
    start_offset: int
    end_offset: int
    size_bytes: int
    """Of the batches."""
    max_timestamp_ms: int
    """-1 where no record has one."""
    copied_at_ms: int
    leader_epoch: int
    node_id: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its first offset) within the segment."""
    index: Piece
    """Where batches are, by their offsets and timestamps."""
    aborted: Piece
    """Every aborted transaction that overlaps the segment, wherever its marker is (L3)."""
    producers: Piece
    """A snapshot of the producers at the end of the segment, where there was one."""

    @property
    def stored_bytes(self) -> int:
        """How large its object is, but for some hundred bytes of description."""
        return max(self.size_bytes, self.producers.position + self.producers.size_bytes)


@dataclass(slots=True)
class RemoteLog:
    """The segments of one partition, without gaps between them. `version` grows with each change of any node."""

    version: int = 0
    start_offset: int = 0
    """Where the log begins, by the word of its last leader. What is below has no segment, or a part of one."""
    end_offset: int = 0
    """Behind the last segment; 0 where nothing was ever copied."""
    segments: list[RemoteSegment] = field(default_factory=list)
    size_bytes: int = field(default=0, compare=False)
    """Of all batches that are there."""
    stored_bytes: int = field(default=0, compare=False)
    """Of all objects that are there."""

    @classmethod
    def of(cls, version: int, start_offset: int, end_offset: int, segments: list[RemoteSegment]) -> RemoteLog:
        size_bytes, stored_bytes = sum(one.size_bytes for one in segments), sum(one.stored_bytes for one in segments)
        return cls(version, start_offset, end_offset, segments, size_bytes, stored_bytes)

    def with_segment(self, segment: RemoteSegment, *, start_offset: int) -> RemoteLog:
        """Return what there is once a segment has been added at the end."""
        size_bytes, stored_bytes = self.size_bytes + segment.size_bytes, self.stored_bytes + segment.stored_bytes
        segments = [*self.segments, segment]
        return RemoteLog(self.version + 1, start_offset, segment.end_offset, segments, size_bytes, stored_bytes)

    def with_replaced(self, first: int, count: int, segments: list[RemoteSegment]) -> RemoteLog:
        """Return what there is once others are in place of `count` segments from the one at the index `first` on."""
        now = [*self.segments[:first], *segments, *self.segments[first + count :]]
        return RemoteLog.of(self.version + 1, self.start_offset, now[-1].end_offset, now)

    def from_start(self, start_offset: int, *, keeps_last: bool = False) -> RemoteLog:
        """Return what there is once the log begins at an offset.

        keeps_last: the last segment that says what its producers are stays, with those behind it, also where none of
            their records does (P7)
        """
        segments, size_bytes, stored_bytes = self.segments, self.size_bytes, self.stored_bytes
        gone, most = 0, self._last_telling() if keeps_last else len(segments)
        while gone < most and segments[gone].end_offset <= start_offset:
            size_bytes -= segments[gone].size_bytes
            stored_bytes -= segments[gone].stored_bytes
            gone += 1
        left = segments[gone:]
        return RemoteLog(self.version + 1, start_offset, self.end_offset, left, size_bytes, stored_bytes)

    def _last_telling(self) -> int:
        """Return the index of the last segment that says what its producers are, or else of the last one."""
        segments = self.segments
        telling = (at for at in range(len(segments) - 1, -1, -1) if segments[at].producers.size_bytes)
        return next(telling, max(len(segments) - 1, 0))

    @property
    def first_offset(self) -> int:
        """The first offset that a segment has; the end where there is none."""
        return self.segments[0].start_offset if self.segments else self.end_offset

    def find(self, offset: int) -> RemoteSegment | None:
        """Return the segment that holds an offset; None where none does."""
        at = bisect_right(self.segments, offset, key=_start_of) - 1
        if at < 0 or offset >= self.segments[at].end_offset:
            return None
        return self.segments[at]

    def after(self, segment: RemoteSegment) -> RemoteSegment | None:
        """Return the next segment, where there is one."""
        return self.find(segment.end_offset)

    def epochs(self) -> Iterator[tuple[int, int]]:
        """Yield (leader epoch, its first offset), both growing."""
        latest = -1
        for segment in self.segments:
            for epoch, begins in segment.epochs:
                if epoch > latest:
                    latest = epoch
                    yield epoch, begins

    def due(
        self, *, log_start_offset: int, retention_ms: int, excess_bytes: int | None, now_ms: int
    ) -> list[RemoteSegment]:
        """Return the oldest segments that retention removes (D6).

        excess_bytes: by how much the whole partition is too large; None: it may have any size
        retention_ms: -1: no limit
        """
        found: list[RemoteSegment] = []
        for one in self.segments:
            is_below = one.end_offset <= log_start_offset
            is_too_much = excess_bytes is not None and excess_bytes >= one.size_bytes
            newest_ms = one.max_timestamp_ms if one.max_timestamp_ms >= 0 else one.copied_at_ms
            is_too_old = retention_ms >= 0 and newest_ms < now_ms - retention_ms
            if not (is_below or is_too_much or is_too_old):
                break
            found.append(one)
            if excess_bytes is not None:
                excess_bytes -= one.size_bytes
        return found


def _start_of(segment: RemoteSegment) -> int:
    return segment.start_offset


class Stretch(NamedTuple):
    """Segments on the disk, and those in the remote storage that have the same offsets.

    first, replaced: the index of the first remote one, and how many they are
    """

    local: list[tuple[int, int, int]]
    first: int
    replaced: int


def changed_stretch(local: Sequence[tuple[int, int, int]], remote: RemoteLog) -> Stretch | None:
    """Return the first stretch of a compacted log that is another on the disk than in the remote storage; None where
    there is none. Compaction makes one segment of several, so a stretch ends where both have the end of a segment.

    local: (first offset, end offset, size in bytes) of the closed segments
    """
    segments, at = remote.segments, 0
    here: list[tuple[int, int, int]] = []
    first = 0
    for one in local:
        start, end, size = one
        if not here:
            while at < len(segments) and segments[at].end_offset <= start:
                at += 1
            first = at
        here.append(one)
        while at < len(segments) and segments[at].end_offset <= end:
            at += 1
        if at < len(segments) and segments[at].start_offset < end:
            continue  # the last of them reaches behind what is on the disk
        same = at - first == len(here) == 1 and segments[first].size_bytes == size
        if not (same and segments[first].end_offset == end):
            return Stretch(here, first, at - first)
        here = []
    return None


def is_whole(segments: Iterable[RemoteSegment]) -> bool:
    """Say whether segments follow each other without a gap."""
    end: int | None = None
    for one in segments:
        if end is not None and one.start_offset != end:
            return False
        end = one.end_offset
    return True
