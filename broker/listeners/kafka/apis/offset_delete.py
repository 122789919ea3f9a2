"""OffsetDelete, version 0 (KIP-496): deletes a group's offsets of topics that it is not subscribed to."""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import delete_offsets
from semel.protocol.api.groups import OffsetDeleteRequest
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey


async def handle_offset_delete(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    asked = [TopicPartition(topic.name, item.partition_index) for topic in request.topics for item in topic.partitions]
    try:
        request_of_known = OffsetDeleteRequest(request.group_id, tuple(dict.fromkeys(asked)))
        errors = (await delete_offsets(context.node, context.rights, request_of_known, must_exist=True)).errors
    except SemelError as error:
        return await write_response(context, error_code=coordinator_code(error))
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": item.partition_index,
                    "error_code": errors[TopicPartition(topic.name, item.partition_index)],
                }
                for item in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return await write_response(context, topics=topics)


OFFSET_DELETE = Api(ApiKey.OFFSET_DELETE, 0, 0, handle_offset_delete)
