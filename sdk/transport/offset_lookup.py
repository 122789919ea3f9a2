"""Where timestamps are in partitions: ListOffsets as clients call it."""

from __future__ import annotations

from collections.abc import Mapping

from semel.protocol.api.topics import IsolationLevel, ListOffset
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import common_pb2, topics_pb2
from semel.sdk.transport.control import LIST_OFFSETS, Control, item_error


async def look_up_offsets(
    control: Control, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, ListOffset | SemelError]:
    """Look up offsets by timestamp (ms since 1970), or by a special one; an offset of -1 says that there is none.

    Returns for each partition what was found, or why nothing was. Raises `SemelError` where the call itself fails.
    """
    if not timestamps:
        return {}
    request = topics_pb2.ListOffsetsRequest(
        items=[
            topics_pb2.ListOffsetsRequest.Item(topic=tp.topic, partition=tp.partition, timestamp_ms=timestamp_ms)
            for tp, timestamp_ms in timestamps.items()
        ],
        isolation=common_pb2.IsolationLevel.Name(isolation.value),
    )
    response = await control.call(LIST_OFFSETS, request)
    found: dict[TopicPartition, ListOffset | SemelError] = {
        tp: RetriableError(f"the node said nothing about {tp}", ErrorCode.UNKNOWN_SERVER_ERROR) for tp in timestamps
    }
    for item in response.items:
        tp = TopicPartition(item.topic, item.partition)
        found[tp] = (
            item_error(item.error, str(tp))
            if item.error.code
            else ListOffset(item.offset, item.timestamp_ms, item.leader_epoch)
        )
    return found


async def list_offsets(
    control: Control, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, ListOffset]:
    """Look up offsets as `look_up_offsets` does. Raises the `SemelError` of the first partition that has one."""
    found = {}
    for tp, place in (await look_up_offsets(control, timestamps, isolation)).items():
        if isinstance(place, SemelError):
            raise place
        found[tp] = place
    return found
