"""Walking over the batches in a segment's file, by headers alone or with their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.runtime.storage import StorageFile

NEAR_BYTES: Final = 8 << 10
"""What a lookup reads at a time: the next batch is rarely farther than `index.interval.bytes`."""

WALK_BYTES: Final = 64 << 10
"""What a walk over the headers of a whole segment reads at a time."""

FAR_BYTES: Final = 1 << 20
"""What a walk over a whole segment reads at a time."""


def scan_headers(
    file: StorageFile, position: int, end: int, *, chunk_bytes: int = NEAR_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch that begins in [position, end). Bytes of large batches are skipped.

    Raises `CorruptBatchError` where there is no batch, or one that reaches beyond `end`.
    """
    chunk = b""
    chunk_at = position
    while position < end:
        at = position - chunk_at
        if at + BATCH_OVERHEAD > len(chunk):
            chunk = file.read_at(min(chunk_bytes, end - position), position)
            chunk_at = position
            at = 0
        header = read_header(chunk, at)
        if header.size_bytes > end - position:
            raise CorruptBatchError(f"the batch at position {position} reaches beyond the {end} bytes of the segment")
        yield position, header
        position += header.size_bytes


def scan_batches(
    file: StorageFile, position: int, end: int, *, chunk_bytes: int = FAR_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of each batch that begins in [position, end). Checksums are the caller's affair.

    Memory is bounded by `chunk_bytes` and the largest batch. Raises `CorruptBatchError` as `scan_headers`.
    """
    chunk = memoryview(b"")
    chunk_at = position
    while position < end:
        at = position - chunk_at
        if at + BATCH_OVERHEAD > len(chunk):
            chunk = memoryview(file.read_at(min(chunk_bytes, end - position), position))
            chunk_at = position
            at = 0
        header = read_header(chunk, at)
        if header.size_bytes > end - position:
            raise CorruptBatchError(f"the batch at position {position} reaches beyond the {end} bytes of the segment")
        if at + header.size_bytes > len(chunk):
            chunk = memoryview(file.read_at(min(max(chunk_bytes, header.size_bytes), end - position), position))
            chunk_at = position
            at = 0
            header = read_header(chunk, at)
            if header.size_bytes > len(chunk):
                raise CorruptBatchError(f"the batch at position {position} could not be read whole")
        yield position, header, chunk[at : at + header.size_bytes]
        position += header.size_bytes
