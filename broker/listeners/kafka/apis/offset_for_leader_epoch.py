"""OffsetForLeaderEpoch, versions 2 to 4 (KIP-320): where a reader's log parts from this one, if it does.

Version 3 says whether a replica asks; here it makes no difference.
"""

from __future__ import annotations

from semel.broker.handlers.offset_for_leader_epoch import offset_for_leader_epoch
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_offset_for_leader_epoch(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, body)
    return build_response(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        version,
        topics=[
            {
                "topic": topic.topic,
                "partitions": [
                    {
                        "partition": item.partition,
                        "error_code": end.error,
                        "leader_epoch": end.leader_epoch,
                        "end_offset": end.end_offset,
                    }
                    for item in topic.partitions
                    for end in (
                        offset_for_leader_epoch(
                            context.node,
                            TopicPartition(topic.topic, item.partition),
                            item.leader_epoch,
                            current_leader_epoch=item.current_leader_epoch,
                        ),
                    )
                ],
            }
            for topic in request.topics
        ],
    )


OFFSET_FOR_LEADER_EPOCH = Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle_offset_for_leader_epoch)
