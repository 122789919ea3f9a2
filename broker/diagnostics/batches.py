"""Reading batches of a partition's log for those who look into it, in bounded pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from semel.broker.logs.partition import Partition
from semel.protocol.api.diagnostics import NO_TIME
from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, iter_batches, read_header
from semel.protocol.errors import SemelError

PIECE_BYTES: Final = 256 << 10


def batch_time_ms(partition: Partition, offset: int) -> int:
    """Return the time of the batch that holds an offset; NO_TIME where it can't be read."""
    header = _header_at(partition, offset)
    return NO_TIME if header is None else header.max_timestamp_ms


def holds_markers_alone(partition: Partition, offset: int, end_offset: int) -> bool:
    """Whether there is nothing but transactions' markers from an offset to another; not where it can't be read."""
    while offset < end_offset:
        header = _header_at(partition, offset)
        if header is None or (header.base_offset < end_offset and not header.is_control):
            return False
        offset = header.next_offset
    return True


def _header_at(partition: Partition, offset: int) -> BatchHeader | None:
    """Return the header of the batch that holds an offset, or of the next one."""
    try:
        found = partition.log.read(offset, 1, partition.log_end_offset, True).records
        if found is None:
            return None
        return read_header(memoryview(found.file.read_at(BATCH_OVERHEAD, found.position)))
    except (SemelError, OSError, ValueError, IndexError):
        return None


async def batches_from(
    partition: Partition, offset: int, end_offset: int
) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches from the one with `offset` to `end_offset`, letting others have a turn after each piece.

    Raises `SemelError` where the log can't be read.
    """
    while offset < end_offset:
        piece = memoryview(partition.read_batches(offset, PIECE_BYTES))
        if not len(piece):
            return
        position = 0
        for header in iter_batches(piece):
            batch = piece[position : position + header.size_bytes]
            position += header.size_bytes
            if header.base_offset >= end_offset:
                return
            yield header, batch
            offset = header.next_offset
        await asyncio.sleep(0)
