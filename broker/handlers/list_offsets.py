"""ListOffsets: where a partition begins and ends, and which offset is the first at or after a time (L2)."""

from __future__ import annotations

from semel.broker.handlers.partitions import partition_of
from semel.broker.services import Services
from semel.protocol.api.topics import SPECIAL_TIMESTAMPS, IsolationLevel, ListOffset, ListOffsetsRequest
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.ids import NO_LEADER_EPOCH, NO_TIMESTAMP, TopicPartition

UNKNOWN_OFFSET = -1


def list_offsets(node: Services, request: ListOffsetsRequest) -> dict[TopicPartition, ListOffset]:
    """Return an offset for each partition asked, or its error."""
    found: dict[TopicPartition, ListOffset] = {}
    for tp, timestamp_ms in request.timestamps.items():
        leader_epoch = request.leader_epochs.get(tp, NO_LEADER_EPOCH)
        try:
            found[tp] = _list_offset(node, tp, timestamp_ms, request.isolation, leader_epoch)
        except SemelError as error:
            found[tp] = ListOffset(UNKNOWN_OFFSET, NO_TIMESTAMP, error=error.code)
    return found


def _list_offset(
    node: Services, tp: TopicPartition, timestamp_ms: int, isolation: IsolationLevel, leader_epoch: int
) -> ListOffset:
    if timestamp_ms < 0 and timestamp_ms not in SPECIAL_TIMESTAMPS:
        raise UsageError(f"{timestamp_ms} is no time, nor a name of an offset", ErrorCode.UNSUPPORTED_VERSION)
    return partition_of(node, tp, leader_epoch).list_offset(timestamp_ms, isolation)
