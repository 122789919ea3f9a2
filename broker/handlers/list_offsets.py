"""ListOffsets: where a partition begins and ends, and which offset is the first at or after a time (L2)."""

from __future__ import annotations

from semel.broker.handlers.partitions import partition_of
from semel.broker.services import Services
from semel.protocol.api.topics import ListOffset, ListOffsetsRequest
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_TIMESTAMP, TopicPartition

UNKNOWN_OFFSET = -1


def list_offsets(node: Services, request: ListOffsetsRequest) -> dict[TopicPartition, ListOffset]:
    """Return an offset for each partition asked, or its error."""
    found: dict[TopicPartition, ListOffset] = {}
    for tp, timestamp_ms in request.timestamps.items():
        try:
            found[tp] = partition_of(node, tp).list_offset(timestamp_ms, request.isolation)
        except SemelError as error:
            found[tp] = ListOffset(UNKNOWN_OFFSET, NO_TIMESTAMP, error=error.code)
    return found
