"""DeleteRecords, versions 0 to 2 (KIP-107): moves the start of partitions' logs forward."""

from __future__ import annotations

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.topics import delete
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import to_ms
from semel.runtime.turns import in_turns


async def handle_delete_records(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    before = {
        TopicPartition(topic.name, item.partition_index): item.offset
        async for topic in in_turns(request.topics)
        async for item in in_turns(topic.partitions)
    }
    results = await delete(context.node, context.rights, before, timeout_ms=to_ms(request.timeout))
    return await write_response(
        context,
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "low_watermark": result.log_start_offset,
                        "error_code": result.error,
                    }
                    async for item in in_turns(topic.partitions)
                    for result in (results[TopicPartition(topic.name, item.partition_index)],)
                ],
            }
            async for topic in in_turns(request.topics)
        ],
    )


DELETE_RECORDS = Api(ApiKey.DELETE_RECORDS, 0, 2, handle_delete_records)
