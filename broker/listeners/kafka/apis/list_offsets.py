"""ListOffsets, versions 1 to 11: where partitions begin and end, and offsets by time.

The isolation level came with version 2, the check of the leader's epoch with 4 (KIP-320), and names of offsets one by
one: the largest timestamp with 7 (KIP-734), tiered storage's with 8, 9 and 11. An older version that uses a newer name,
and any that uses an unknown one, is answered UNSUPPORTED_VERSION for that partition. A partition that is asked for
twice is INVALID_REQUEST. How long to wait (version 10) is about tiered storage, which there is none of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from semel.broker.handlers.list_offsets import UNKNOWN_OFFSET
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.topics import offsets
from semel.protocol.api.topics import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    IsolationLevel,
    ListOffset,
    ListOffsetsRequest,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER_EPOCH, NO_TIMESTAMP, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_SINCE_VERSION: Final[Mapping[int, int]] = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


async def handle_list_offsets(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    found = await _answers(context, request)
    return await write_response(
        context,
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": answer.error,
                        "timestamp": answer.timestamp_ms,
                        "offset": answer.offset,
                        "leader_epoch": answer.leader_epoch,
                    }
                    async for item in in_turns(topic.partitions)
                    for answer in (found[TopicPartition(topic.name, item.partition_index)],)
                ],
            }
            async for topic in in_turns(request.topics)
        ],
    )


async def _answers(context: RequestContext, request: Any) -> Mapping[TopicPartition, ListOffset]:
    asked = [
        (TopicPartition(topic.name, item.partition_index), item)
        async for topic in in_turns(request.topics)
        async for item in in_turns(topic.partitions)
    ]
    count = Counter(tp for tp, _ in asked)
    try:
        isolation = IsolationLevel(getattr(request, "isolation_level", IsolationLevel.READ_UNCOMMITTED))
    except ValueError:
        return dict.fromkeys(count, _refused(ErrorCode.INVALID_REQUEST))
    refused: dict[TopicPartition, ListOffset] = {}
    timestamps: dict[TopicPartition, int] = {}
    leader_epochs: dict[TopicPartition, int] = {}
    async for tp, item in in_turns(asked):
        if count[tp] > 1:
            refused[tp] = _refused(ErrorCode.INVALID_REQUEST)
        elif context.api_version < _SINCE_VERSION.get(item.timestamp, 0):
            refused[tp] = _refused(ErrorCode.UNSUPPORTED_VERSION)
        else:
            timestamps[tp] = item.timestamp
            leader_epochs[tp] = getattr(item, "current_leader_epoch", NO_LEADER_EPOCH)
    asked_for = ListOffsetsRequest(timestamps, isolation, leader_epochs)
    return refused | await offsets(context.node, context.rights, asked_for)


def _refused(error: ErrorCode) -> ListOffset:
    return ListOffset(UNKNOWN_OFFSET, NO_TIMESTAMP, error=error)


LIST_OFFSETS = Api(ApiKey.LIST_OFFSETS, 1, 11, handle_list_offsets)
