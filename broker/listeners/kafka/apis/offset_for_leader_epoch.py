"""OffsetForLeaderEpoch, versions 2 to 4 (KIP-320): where a reader's log parts from this one, if it does.

Version 3 says whether a replica asks; here it makes no difference.
"""

from __future__ import annotations

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.topics import epoch_ends
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_offset_for_leader_epoch(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    ends = await epoch_ends(context.node, context.rights, [topic.topic for topic in request.topics])
    return await write_response(
        context,
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
                    async for item in in_turns(topic.partitions)
                    for end in (
                        ends.of(
                            TopicPartition(topic.topic, item.partition),
                            item.leader_epoch,
                            current_leader_epoch=item.current_leader_epoch,
                        ),
                    )
                ],
            }
            async for topic in in_turns(request.topics)
        ],
    )


OFFSET_FOR_LEADER_EPOCH = Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle_offset_for_leader_epoch)
