"""DeleteRecords, versions 0 to 2 (KIP-107): moves the start of partitions' logs forward."""

from __future__ import annotations

from semel.broker.handlers.delete_records import delete_records
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_delete_records(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.DELETE_RECORDS, version, body)
    before = {
        TopicPartition(topic.name, item.partition_index): item.offset
        for topic in request.topics
        for item in topic.partitions
    }
    results = delete_records(context.node, before)
    return build_response(
        ApiKey.DELETE_RECORDS,
        version,
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "low_watermark": result.log_start_offset,
                        "error_code": result.error,
                    }
                    for item in topic.partitions
                    for result in (results[TopicPartition(topic.name, item.partition_index)],)
                ],
            }
            for topic in request.topics
        ],
    )


DELETE_RECORDS = Api(ApiKey.DELETE_RECORDS, 0, 2, handle_delete_records)
