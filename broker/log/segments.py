"""All segments of one log in order of their base offsets, and the lookups that may cross from one into the next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from semel.broker.log.batch_scan import scan_headers
from semel.broker.log.log_types import NOTHING_OPENED, AbortedTransaction, LogRange, Opened, TimestampOffset
from semel.broker.log.segment import LOG_SUFFIX, Segment
from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, TimestampType, check_crc32c, read_header
from semel.protocol.compression import Buffer, Compression, decompress_within
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.record_check import find_time
from semel.protocol.record_decoder import record_bytes
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.storage import FileRange, StorageFile

_HINTS_MAX = 16
_PLAIN_BYTES_MAX = 2 << 20
_COMPRESSED_BYTES_MAX = 64 << 10
_ROOM_BYTES = 256 << 10
"""What a look-up by time opens on the event loop; more is for a thread (S3)."""


class Segments:
    """Never empty once the log is open: the last one is active."""

    __slots__ = ("_bases", "_hints", "_segments", "active")

    active: Segment
    """The last one. Kept beside the list, because each append asks for it."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._segments]
        # Offset -> (segment, position) where a read ended: the next one by the same reader begins there.
        self._hints: dict[int, tuple[Segment, int]] | None = None
        self._note_active()

    def _note_active(self) -> None:
        if self._segments:
            self.active = self._segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def base_offsets(self) -> Sequence[int]:
        return self._bases

    def inactive(self) -> list[Segment]:
        return self._segments[:-1]

    def add(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        self._segments.insert(at, segment)
        self._bases.insert(at, segment.base_offset)
        self._note_active()

    def remove(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        if self._segments[at : at + 1] != [segment]:
            raise BrokenInvariantError(
                segment.path(LOG_SUFFIX), "only a segment of the log is taken out of it", segments=self._bases
            )
        del self._segments[at], self._bases[at]
        self._hints = None
        self._note_active()

    def forget_hints(self) -> None:
        """After bytes were cut or replaced."""
        self._hints = None

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that holds `offset` and all behind it."""
        return self._segments[max(0, bisect_right(self._bases, offset) - 1) :]

    def between(self, first_offset: int, upto_offset: int) -> list[Segment]:
        """Return the segments with offsets in [first_offset, upto_offset)."""
        begin = max(0, bisect_right(self._bases, first_offset) - 1)
        return self._segments[begin : max(begin, bisect_left(self._bases, upto_offset))]

    def bytes_between(self, first_offset: int, upto_offset: int) -> int:
        """Return how large the segments that begin in [first_offset, upto_offset) are."""
        begin, end = bisect_left(self._bases, first_offset), bisect_left(self._bases, upto_offset)
        return sum(segment.size for segment in self._segments[begin:end])

    def end_of(self, segment: Segment, log_end_offset: int) -> int:
        """Return the offset at which the next segment begins, or the log's end."""
        at = bisect_right(self._bases, segment.base_offset)
        return self._bases[at] if at < len(self._bases) else log_end_offset

    # --- Reading ------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upto_offset: int, log_end_offset: int, *, min_one_batch: bool
    ) -> LogRange:
        """Return whole batches from the one that holds `offset`, of one segment, all of offsets below `upto_offset`."""
        if offset >= upto_offset:
            return LogRange(None, offset, offset)
        hint = None if self._hints is None else self._hints.get(offset)
        if hint is not None and hint[1] < (limit := hint[0].size):
            segment, start = hint
            first_offset = offset
        else:
            located = self._locate(offset)
            if located is None or located[2].base_offset >= upto_offset:
                return LogRange(None, offset, offset)
            segment, start, header = located
            first_offset, limit = header.base_offset, segment.size
        next_offset = log_end_offset if segment is self.active else self.end_of(segment, log_end_offset)
        if limit - start > max_bytes:
            limit, next_offset = self._fit(segment, start, start + max_bytes, limit, min_one_batch)
        if next_offset > upto_offset:
            # A batch is all below the limit or not given at all, but never held back for an offset inside it.
            stop = segment.locate(upto_offset, from_position=start)
            if stop is not None:
                limit, next_offset = stop[0], max(stop[1].base_offset, offset)
        if limit <= start:
            return LogRange(None, offset, offset)
        self._remember(next_offset, segment, limit)
        return LogRange(FileRange(segment.file, start, limit - start), first_offset, next_offset)

    def bytes_from(self, offset: int, max_bytes: int) -> tuple[int, bytes]:
        """Return at most `max_bytes` of one segment from the batch on that holds `offset`, and where that begins."""
        located = self._locate(offset)
        if located is None:
            return offset, b""
        segment, position, header = located
        return header.base_offset, segment.file.read_at(min(max_bytes, segment.size - position), position)

    def batch_base(self, offset: int) -> int:
        """Return the first offset of the batch that holds `offset`; `offset` where it is in none. Raises as `read`."""
        if offset < self.first.base_offset:
            return offset
        located = self._locate(offset)
        return offset if located is None else min(offset, located[2].base_offset)

    def _locate(self, offset: int) -> tuple[Segment, int, BatchHeader] | None:
        """Find the batch that holds `offset`, or the next one. None: a cut in a gap of compaction left none up to the
        log's end.
        """
        for segment in self.from_offset(offset):
            if segment.size:
                found = segment.locate(offset)
                if found is not None:
                    return segment, *found
        if offset >= self._last_batch_end():
            return None
        # There is one, and it is an index that misleads.
        raise CorruptBatchError(f"no batch from offset {offset} on is found")

    def _last_batch_end(self) -> int:
        for segment in reversed(list(self)):
            if segment.size:
                return segment.next_offset()
        return self.first.base_offset

    @staticmethod
    def _fit(segment: Segment, start: int, limit: int, end: int, min_one_batch: bool) -> tuple[int, int]:
        """Return (end position, next offset) of the batches that fit, or of the first alone where it must be given."""
        stop, next_offset, first_size = segment.end_before(start, limit)
        if stop > start:
            return stop, next_offset
        if not min_one_batch or start + first_size > end:
            return start, -1
        stop, next_offset, _ = segment.end_before(start, start + first_size)
        return stop, next_offset

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._hints
        if hints is None:
            hints = self._hints = {}
        elif len(hints) >= _HINTS_MAX:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    # --- Transactions -------------------------------------------------------------------------------------------------

    def aborted_transactions(self, first_offset: int, upto_offset: int) -> list[AbortedTransaction]:
        """Return every aborted transaction with offsets in [first_offset, upto_offset), in order of their markers (L3).

        Markers stand behind their data, so only the segment of `first_offset` and later ones can name them.
        """
        found: list[AbortedTransaction] = []
        for segment in self.from_offset(first_offset):
            if segment.transactions.exists and segment.transactions.collect(first_offset, upto_offset, found):
                break
        return found

    # --- Timestamps ---------------------------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp_ms: int, log_start_offset: int, opened: Opened = NOTHING_OPENED
    ) -> TimestampOffset | None:
        """Return the first record at or after `timestamp_ms` and at or above `log_start_offset`.

        Raises `LargeBatch` for a batch that is not `opened` yet and is too much work for an event loop.
        """
        for segment in self.from_offset(log_start_offset):
            if segment.max_timestamp[0] < timestamp_ms:
                continue
            begin = max(segment.times.offset_before(timestamp_ms), log_start_offset)
            position = segment.offsets.position_for(begin)
            for at, header in scan_headers(segment.file, position, segment.size):
                if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= log_start_offset:
                    found = _record_at(segment.file, at, header, timestamp_ms, log_start_offset, opened)
                    if found is not None:
                        return found
        return None

    def offset_of_max_timestamp(self, log_start_offset: int, opened: Opened = NOTHING_OPENED) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of the log, or None where no record has one."""
        candidates = [segment for segment in self.from_offset(log_start_offset) if segment.max_timestamp[0] >= 0]
        while candidates:
            segment = max(candidates, key=lambda one: (one.max_timestamp[0], -one.base_offset))
            timestamp_ms, last_offset = segment.max_timestamp
            located = segment.locate(last_offset)
            if located is not None:
                found = _record_at(segment.file, *located, timestamp_ms, log_start_offset, opened)
                if found is not None:
                    return found
            candidates.remove(segment)
        return None


class LargeBatch(Exception):  # noqa: N818  # it is a question, not an error
    """A look-up by time must open a batch that is too much work for an event loop: `open` does it, in any thread."""

    def __init__(
        self, file: StorageFile, position: int, header: BatchHeader, timestamp_ms: int, log_start_offset: int
    ) -> None:
        super().__init__(header.base_offset)
        self.base_offset: int = header.base_offset
        self._where = file, position, header, timestamp_ms, log_start_offset

    def open(self) -> TimestampOffset | None:
        """Return what the batch has to say, for `opened`. Raises `CorruptBatchError`, `OSError`."""
        return _open(*self._where)


def _record_at(
    file: StorageFile, position: int, header: BatchHeader, timestamp_ms: int, log_start_offset: int, opened: Opened
) -> TimestampOffset | None:
    if header.record_count == 0 or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return open_record_at(file, position, header, timestamp_ms, log_start_offset)
    if header.base_offset in opened:
        return opened[header.base_offset]
    if header.size_bytes > (_PLAIN_BYTES_MAX if header.compression is Compression.NONE else _COMPRESSED_BYTES_MAX):
        raise LargeBatch(file, position, header, timestamp_ms, log_start_offset)
    if header.compression is Compression.NONE:
        return _open(file, position, header, timestamp_ms, log_start_offset)
    batch = file.read_at(header.size_bytes, position)
    here = read_header(batch)
    check_crc32c(batch, here)
    try:
        data = decompress_within(
            header.compression, memoryview(batch)[BATCH_OVERHEAD:], memoryview(bytearray(_ROOM_BYTES))
        )
    except CorruptBatchError:
        return _itself(header, log_start_offset)
    if data is None:
        raise LargeBatch(file, position, header, timestamp_ms, log_start_offset)
    return _find(here, data, 0, len(data), timestamp_ms, log_start_offset)


def open_record_at(
    file: StorageFile, position: int, header: BatchHeader, timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    """Return the first record of a batch at or after a time and an offset, None where none is. In any thread.

    Raises `CorruptBatchError` where the batch is damaged, and `OSError`.
    """
    if header.record_count == 0:
        return None
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        offset = max(header.base_offset, log_start_offset)
        return TimestampOffset(header.max_timestamp_ms, offset, header.leader_epoch)
    return _open(file, position, header, timestamp_ms, log_start_offset)


def _open(
    file: StorageFile, position: int, header: BatchHeader, timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    batch = file.read_at(header.size_bytes, position)
    here = read_header(batch)
    check_crc32c(batch, here)
    try:
        data, start, limit = record_bytes(batch, here, check_crc=False)
    except CorruptBatchError:
        return _itself(header, log_start_offset)
    return _find(here, data, start, limit, timestamp_ms, log_start_offset)


def _itself(header: BatchHeader, log_start_offset: int) -> TimestampOffset:
    """A batch with a right checksum that no reader can read: its reader is told what to do about it."""
    return TimestampOffset(header.max_timestamp_ms, max(header.base_offset, log_start_offset), header.leader_epoch)


def _find(
    header: BatchHeader, data: Buffer, start: int, limit: int, timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    found = find_time(header, data, start, limit, timestamp_ms, log_start_offset)
    return None if found is None else TimestampOffset(*found, header.leader_epoch)
