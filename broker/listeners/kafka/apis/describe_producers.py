"""DescribeProducers, version 0 (KIP-664): producers by partition, and where their open transactions begin."""

from __future__ import annotations

from typing import Any

from semel.broker.handlers.partitions import partition_of
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_describe_producers(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.DESCRIBE_PRODUCERS, version, body)
    # Each partition once: its producers may be many, and the request short.
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return build_response(
        ApiKey.DESCRIBE_PRODUCERS,
        version,
        topics=[
            {
                "name": name,
                "partitions": [
                    {"partition_index": number, **_description(context.node, TopicPartition(name, number))}
                    for number in numbers
                ],
            }
            for name, numbers in asked.items()
        ],
    )


def _description(node: Services, tp: TopicPartition) -> dict[str, Any]:
    try:
        partition = partition_of(node, tp)
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
            for entry in partition.log.producer_state
        ]
    }


DESCRIBE_PRODUCERS = Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle_describe_producers)
