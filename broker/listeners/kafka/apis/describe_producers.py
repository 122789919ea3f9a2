"""DescribeProducers, version 0 (KIP-664): producers by partition, and where their open transactions begin."""

from __future__ import annotations

from typing import Any

from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.acls import ResourceType
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_describe_producers(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    # Each partition once: its producers may be many, and the request short.
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return await write_response(
        context,
        topics=[
            {
                "name": name,
                "partitions": [
                    {"partition_index": number, **await _description(context, TopicPartition(name, number))}
                    async for number in in_turns(numbers)
                ],
            }
            async for name, numbers in in_turns(asked.items())
        ],
    )


async def _description(context: RequestContext, tp: TopicPartition) -> dict[str, Any]:
    try:
        context.rights.check(ResourceType.TOPIC, tp.topic)
        partition = partition_of(context.node, tp)
    except SemelError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {
        "active_producers": [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.last_timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.transaction_first_offset,
            }
            # Listed first, for producers come and go between the turns.
            async for entry in in_turns(list(partition.log.producer_state))
        ]
    }


DESCRIBE_PRODUCERS = Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle_describe_producers)
