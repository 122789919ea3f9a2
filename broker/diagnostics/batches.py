"""Reading batches of a partition's log for those who look into it, in bounded pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from semel.broker.partition import Partition
from semel.protocol.api.diagnostics import NO_TIME
from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, read_header
from semel.protocol.errors import SemelError
from semel.protocol.record_batch import iter_batches

PIECE_BYTES: Final = 256 << 10


def batch_time_ms(partition: Partition, offset: int) -> int:
    """Return the time of the batch that holds an offset; NO_TIME where it can't be read."""
    try:
        found = partition.log.read(offset, 1, partition.log_end_offset, True)
        if found.file is None:
            return NO_TIME
        return read_header(memoryview(found.file.read_at(BATCH_OVERHEAD, found.position))).max_timestamp_ms
    except (SemelError, OSError, ValueError, IndexError):
        return NO_TIME


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
