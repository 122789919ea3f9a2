# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""Walking over the batches in a segment's file, by headers alone or with their bytes.

Compiled with the C types of batch_scan.pxd, because each fetch looks at a header where it ends, or interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, leading_batches, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.runtime.storage import ReadableFile, StorageFile

NEAR_BYTES: Final = 8 << 10
"""What a lookup reads at a time: the next batch is rarely farther than `index.interval.bytes`."""

WALK_BYTES: Final = 64 << 10
"""What a walk over the headers of a whole segment reads at a time."""

FAR_BYTES: Final = 1 << 20
"""What a walk over a whole segment reads at a time."""

_OVERHEAD: Final = BATCH_OVERHEAD


def scan_headers(
    file: StorageFile, position: int, end: int, *, chunk_bytes: int = NEAR_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch that begins in [position, end). Bytes of large batches are skipped.

    Raises `CorruptBatchError` where there is no batch, or one that reaches beyond `end`.
    """
    reader = _HeaderReader(file, end, chunk_bytes)
    while position < end:
        header = reader.read(position)
        yield position, header
        position += header.size_bytes


def whole_batches(file: StorageFile, position: int, end: int, start: int, limit: int) -> tuple[int, int, int]:
    """Walk over the batches from `position` on, up to the last that ends at `limit` or before.

    Returns where that ends, the offset behind it, and the size of the batch at `start` where the walk met it, else 0.
    Without any batch: `position`, and the base offset of the one that does not fit, or -1 where that is at `start`.
    Raises `CorruptBatchError` as `scan_headers`.
    """
    reader = _HeaderReader(file, end, NEAR_BYTES)
    next_offset = -1
    first_size = 0
    while position < end:
        header = reader.read(position)
        size = header.size_bytes
        if position == start:
            first_size = size
        if position + size > limit:
            if next_offset < 0 and position > start:
                next_offset = header.base_offset
            break
        position += size
        next_offset = header.base_offset + header.last_offset_delta + 1
    return position, next_offset, first_size


def scan_batches(
    file: ReadableFile, position: int, end: int, *, chunk_bytes: int = FAR_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of each batch that begins in [position, end). Checksums are the caller's affair.

    Memory is bounded by `chunk_bytes` and the largest batch. Raises `CorruptBatchError` as `scan_headers`.
    """
    reader = _BatchReader(file, end, chunk_bytes)
    while position < end:
        header = reader.read(position)
        yield position, header, reader.chunk[header.position : header.position + header.size_bytes]
        position += header.size_bytes


def scan_runs(
    file: StorageFile, position: int, end: int, *, chunk_bytes: int = FAR_BYTES
) -> Iterator[tuple[int, list[BatchHeader], memoryview, bool]]:
    """Yield (position, headers, bytes, whether they are right) of the batches that begin in [position, end): as many
    right ones as were read at a time, or one that is not right. The headers tell where they are in the bytes, which are
    at `position` in the file.

    Raises `CorruptBatchError` as `scan_headers`.
    """
    reader = _BatchReader(file, end, chunk_bytes)
    while position < end:
        header = reader.read(position)
        right = leading_batches(reader.chunk, header.position)
        headers = right or [header]
        yield reader.chunk_at, headers, reader.chunk, bool(right)
        position = reader.chunk_at + headers[-1].position + headers[-1].size_bytes


class _HeaderReader:
    """Reads headers forward, some thousand bytes at a time."""

    __slots__ = ("_chunk", "_chunk_at", "_chunk_bytes", "_chunk_end", "_end", "_file")

    def __init__(self, file: StorageFile, end: int, chunk_bytes: int) -> None:
        self._file = file
        self._end = end
        self._chunk_bytes = chunk_bytes
        self._chunk = b""
        self._chunk_at = self._chunk_end = 0

    def read(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`."""
        left = self._end - position
        if position + _OVERHEAD > self._chunk_end:
            self._chunk = self._file.read_at(min(self._chunk_bytes, left), position)
            self._chunk_at = position
            self._chunk_end = position + len(self._chunk)
        header = read_header(self._chunk, position - self._chunk_at)
        if header.size_bytes > left:
            raise CorruptBatchError(
                f"the batch at position {position} reaches beyond the {self._end} bytes of the segment"
            )
        return header


class _BatchReader:
    """Reads a file of batches forward, in pieces with whole ones."""

    __slots__ = ("_chunk_bytes", "_end", "_file", "chunk", "chunk_at")

    def __init__(self, file: ReadableFile, end: int, chunk_bytes: int) -> None:
        self._file = file
        self._end = end
        self._chunk_bytes = chunk_bytes
        self.chunk = memoryview(b"")
        self.chunk_at = 0

    def read(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`, which is in `chunk` as a whole."""
        end = self._end
        at = position - self.chunk_at
        if at + BATCH_OVERHEAD > len(self.chunk):
            at = self._load(position, self._chunk_bytes)
        header = read_header(self.chunk, at)
        if header.size_bytes > end - position:
            raise CorruptBatchError(f"the batch at position {position} reaches beyond the {end} bytes of the segment")
        if at + header.size_bytes > len(self.chunk):
            at = self._load(position, max(self._chunk_bytes, header.size_bytes))
            header = read_header(self.chunk, at)
            if header.size_bytes > len(self.chunk):
                raise CorruptBatchError(f"the batch at position {position} could not be read whole")
        return header

    def _load(self, position: int, size: int) -> int:
        self.chunk = memoryview(self._file.read_at(min(size, self._end - position), position))
        self.chunk_at = position
        return 0
