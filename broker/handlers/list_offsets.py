"""ListOffsets: where a partition begins and ends, and which offset is the first at or after a time (L2)."""

from __future__ import annotations

import asyncio
from typing import Final

from semel.broker.handlers.newest import know_partitions
from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.log.log_types import TimestampOffset
from semel.broker.log.segments import LargeBatch
from semel.broker.services import Services
from semel.protocol.api.topics import MAX_TIMESTAMP, SPECIAL_TIMESTAMPS, IsolationLevel, ListOffset, ListOffsetsRequest
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for
from semel.protocol.ids import NO_LEADER_EPOCH, NO_TIMESTAMP, TopicPartition
from semel.runtime.threads import Threads
from semel.runtime.turns import in_turns

UNKNOWN_OFFSET = -1
LOOK_UP_THREADS: Final = 2
_BATCHES_MAX: Final = 100
"""Large batches that are opened for one answer. More are needed only where their headers lie about their times."""
_executor = Threads(LOOK_UP_THREADS, "semel-look-up")
"""Threads are made when they are first needed."""


async def list_offsets(node: Services, request: ListOffsetsRequest) -> dict[TopicPartition, ListOffset]:
    """Return an offset for each partition asked, or its error. Large batches are opened in a thread (S3)."""
    found: dict[TopicPartition, ListOffset] = {}
    await know_partitions(node, request.timestamps)
    async for tp, timestamp_ms in in_turns(request.timestamps.items()):
        leader_epoch = request.leader_epochs.get(tp, NO_LEADER_EPOCH)
        try:
            found[tp] = await _list_offset(node, tp, timestamp_ms, request.isolation, leader_epoch)
        except SemelError as error:
            found[tp] = ListOffset(UNKNOWN_OFFSET, NO_TIMESTAMP, error=error.code)
    return found


async def _in_remote_storage(
    node: Services, tp: TopicPartition, timestamp_ms: int, leader_epoch: int
) -> TimestampOffset | None:
    """Return the record for a timestamp where it is in the remote storage; None where it is not, or not asked for."""
    partition = partition_of(node, tp, leader_epoch)
    if partition.tier is None or (timestamp_ms < 0 and timestamp_ms != MAX_TIMESTAMP):
        return None
    partition.check_readable()
    return await partition.tier.record_at(timestamp_ms)


async def _list_offset(
    node: Services, tp: TopicPartition, timestamp_ms: int, isolation: IsolationLevel, leader_epoch: int
) -> ListOffset:
    if timestamp_ms < 0 and timestamp_ms not in SPECIAL_TIMESTAMPS:
        raise UsageError(f"{timestamp_ms} is no time, nor a name of an offset", ErrorCode.UNSUPPORTED_VERSION)
    opened: dict[int, TimestampOffset | None] = {}
    remote = await _in_remote_storage(node, tp, timestamp_ms, leader_epoch)
    while True:
        try:
            return partition_of(node, tp, leader_epoch).list_offset(timestamp_ms, isolation, opened, remote)
        except LargeBatch as batch:
            if len(opened) >= _BATCHES_MAX:
                raise error_for(
                    ErrorCode.CORRUPT_MESSAGE, f"{tp}: {len(opened)} batches have no record of the time they claim"
                ) from None
            look_up = batch
        try:
            opened[look_up.base_offset] = await asyncio.get_running_loop().run_in_executor(_executor, look_up.open)
        except OSError as error:
            raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp}: the log cannot be read: {error}") from error
