"""Appends to a new log what was committed before it was there, as the remote storage has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

from semel.broker.log.config import AppendOrigin
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer
from semel.runtime.turns import Turns

_AT_ONCE_BYTES: Final = 512 << 10


class NotFilledError(Exception):
    """What a log was to begin with could not be had, and why. The log is closed, and has a part of it."""

    def __init__(self, reason: SemelError | OSError) -> None:
        super().__init__()
        self.reason = reason


async def fill(log: PartitionLog, batches: AsyncIterator[Buffer | int], end_offset: int | None, clock: Clock) -> None:
    """Append batches to a log. Raises `NotFilledError`.

    batches: whole ones; an offset begins a new segment there
    end_offset: where they have to end; None where that is not known
    """
    turns, boundary = Turns(ends_with_caller=False), None
    try:
        async for piece in batches:
            if isinstance(piece, int):
                boundary = piece
                continue
            if boundary is not None and log.segments.active.size:
                log.roll(clock.now_ms(), boundary)
            boundary = None
            for part in _parts_of(piece):
                log.append(part, 0, clock.now_ms(), AppendOrigin.REPLICATION)
                await turns.give_way()
        if end_offset is not None and log.log_end_offset != end_offset:
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"what was read of {log.tp} ends at offset {log.log_end_offset}, and it was committed up to "
                f"{end_offset}",
            )
    except (SemelError, OSError) as error:
        log.release_files()
        raise NotFilledError(error) from error


def _parts_of(batches: Buffer) -> Iterator[memoryview]:
    """Yield whole batches, not many at a time: others have their turns in between (S3)."""
    view, begins, ends = memoryview(batches), 0, 0
    for header in iter_batches(view):
        if ends - begins >= _AT_ONCE_BYTES:
            yield view[begins:ends]
            begins = ends
        ends = header.position + header.size_bytes
    if ends > begins:
        yield view[begins:ends]
