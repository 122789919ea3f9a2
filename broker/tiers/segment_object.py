"""The object that a segment becomes: its batches as they are, and behind them what finds them again.

    batches · index · aborted transactions · producers · description (JSON) · its size (int32) · b"SEMEL-S1"

One object is whole or not there, so a reader never has the batches of one attempt and the list of another. While it is
written each batch is read and checked: what is damaged on the disk is not copied, and its only good copy not deleted.
The description says again what the row in the database says, for the day on which that is lost.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from semel.broker.log.batch_scan import scan_runs
from semel.broker.log.log_types import AbortedTransaction
from semel.broker.tiers.remote_log import Piece, RemoteSegment
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.crc32c import crc32c
from semel.protocol.ids import NO_TIMESTAMP
from semel.runtime.storage import Buffer, StorageFile

MAGIC: Final = b"SEMEL-S1"
_LENGTH: Final = struct.Struct(">i")
INDEX_ENTRY: Final = struct.Struct(">qqq")
"""Of a batch: its base offset, its position, and the largest timestamp before it."""
ABORTED_ENTRY: Final = struct.Struct(">qqqq")
_INDEX_EVERY_BYTES: Final = 64 << 10
DESCRIPTION_BYTES_MAX: Final = 16 << 20
DESCRIPTION_VERSION: Final = 1


class CorruptObjectError(Exception):
    """What is in an object can't be what was written."""


class SegmentUpload:
    """The bytes of one object, piece by piece. Iterate once, in any thread; then the pieces are known."""

    def __init__(
        self,
        file: StorageFile,
        size_bytes: int,
        base_offset: int,
        end_offset: int,
        aborted: Sequence[AbortedTransaction],
        producers: bytes,
        description: dict[str, Any],
    ) -> None:
        """`file` has `size_bytes` of batches with offsets from `base_offset` to below `end_offset`."""
        self._file = file
        self._size_bytes = size_bytes
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._aborted = aborted
        self._producers = producers
        self._description = description
        self.index = self.aborted = self.producers = Piece(0, 0, 0)
        self.fault: CorruptBatchError | None = None
        """Why the batches on the disk are not copied: they are damaged."""

    def __iter__(self) -> Iterator[Buffer]:
        index = bytearray()
        try:
            yield from self._batches(index)
        except CorruptBatchError as error:
            self.fault = error
            raise
        position = self._size_bytes
        for name, data in (
            ("index", bytes(index)),
            ("aborted", b"".join(ABORTED_ENTRY.pack(*one) for one in self._aborted)),
            ("producers", self._producers),
        ):
            piece = Piece(position, len(data), crc32c(data))
            setattr(self, name, piece)
            self._description[name] = list(piece)
            position += len(data)
            if data:
                yield data
        text = json.dumps(self._description, separators=(",", ":")).encode()
        yield text + _LENGTH.pack(len(text)) + MAGIC

    def _batches(self, index: bytearray) -> Iterator[Buffer]:
        follows, largest_ms, indexed_at = self._base_offset, NO_TIMESTAMP, -_INDEX_EVERY_BYTES
        sent = 0
        for begins, headers, data, is_right in scan_runs(self._file, 0, self._size_bytes):
            if not is_right:
                raise CorruptBatchError(f"the batch at offset {headers[0].base_offset} does not have its checksum")
            for header in headers:
                if header.base_offset < follows or header.next_offset > self._end_offset:
                    raise CorruptBatchError(
                        f"a batch has the offsets {header.base_offset} to {header.last_offset}, where {follows} to "
                        f"{self._end_offset - 1} belong"
                    )
                position = begins + header.position
                if position >= indexed_at + _INDEX_EVERY_BYTES:
                    index += INDEX_ENTRY.pack(header.base_offset, position, largest_ms)
                    indexed_at = position
                largest_ms = max(largest_ms, header.max_timestamp_ms)
                follows = header.next_offset
            first, last = headers[0], headers[-1]
            yield bytes(data[first.position : last.position + last.size_bytes])
            sent = begins + last.position + last.size_bytes
        if sent != self._size_bytes:
            raise CorruptBatchError(f"the batches end at {sent} of {self._size_bytes} bytes")


class SegmentIndex:
    """Where the batches of one segment are, and which of its transactions were aborted."""

    __slots__ = ("_aborted", "_offsets", "_positions", "_times", "size_bytes")

    def __init__(self, segment: RemoteSegment, index: bytes, aborted: bytes) -> None:
        """Raises `CorruptObjectError` where the bytes are not those that were written."""
        for name, piece, data in (("index", segment.index, index), ("aborted", segment.aborted, aborted)):
            if len(data) != piece.size_bytes or crc32c(data) != piece.checksum:
                raise CorruptObjectError(f"the {name} of {segment.key} is damaged")
        numbers = _numbers(index)
        self._offsets, self._positions, self._times = numbers[0::3], numbers[1::3], numbers[2::3]
        numbers = _numbers(aborted)
        self._aborted = numbers[0::4], numbers[1::4], numbers[2::4], numbers[3::4]
        self.size_bytes = len(index) + len(aborted)

    def position_of(self, offset: int) -> int:
        """Return a position at or before the batch that holds an offset."""
        at = bisect_right(self._offsets, offset) - 1
        return self._positions[at] if at >= 0 else 0

    def position_before(self, timestamp_ms: int) -> int:
        """Return a position at or before the first batch that has this timestamp or a later one."""
        at = bisect_left(self._times, timestamp_ms) - 1
        return self._positions[at] if at >= 0 else 0

    def aborted_between(self, first_offset: int, upto_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [first_offset, upto_offset), in order of their markers.

        Once the last stable offset at a marker has passed the range, no transaction decided later reaches into it.
        """
        producer_ids, firsts, lasts, stables = self._aborted
        found: list[AbortedTransaction] = []
        for at in range(bisect_left(lasts, first_offset), len(lasts)):
            if firsts[at] < upto_offset:
                found.append(AbortedTransaction(producer_ids[at], firsts[at], lasts[at], stables[at]))
            if stables[at] >= upto_offset:
                break
        return found


def _numbers(data: bytes) -> array[int]:
    """Return 64-bit numbers that were written in big-endian order."""
    numbers = array("q", data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def description_bytes(tail: bytes) -> int:
    """Return how many bytes the description has, with what says its size, by an object's last bytes.

    Raises `CorruptObjectError`.
    """
    fixed = len(MAGIC) + _LENGTH.size
    if len(tail) < fixed or tail[-len(MAGIC) :] != MAGIC:
        raise CorruptObjectError("it does not end as a segment does")
    (size,) = _LENGTH.unpack_from(tail, len(tail) - fixed)
    return int(size) + fixed


def read_description(tail: bytes) -> dict[str, Any]:
    """Return the description at the end of an object's last bytes. Raises `CorruptObjectError`."""
    try:
        if tail[-len(MAGIC) :] != MAGIC:
            raise CorruptObjectError("it does not end as a segment does")
        ends = len(tail) - len(MAGIC) - _LENGTH.size
        (size,) = _LENGTH.unpack_from(tail, ends)
        found: dict[str, Any] = json.loads(tail[ends - size : ends])
    except (struct.error, ValueError) as error:
        raise CorruptObjectError(f"its description can't be read: {error}") from error
    return found


def first_epochs(epochs: Iterable[tuple[int, int]], start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Return (leader epoch, its first offset) of those with records in [start_offset, end_offset)."""
    found: list[tuple[int, int]] = []
    for epoch, begins in epochs:
        if begins >= end_offset:
            break
        if begins <= start_offset:
            found = [(epoch, start_offset)]
        else:
            found.append((epoch, begins))
    return found
