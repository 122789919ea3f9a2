"""AlterPartitionReassignments, versions 0 and 1 (KIP-455): replicas stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.broker.handlers.leadership import check_reassignment
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_alter_partition_reassignments(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, body)
    return build_response(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        version,
        allow_replication_factor_change=getattr(request, "allow_replication_factor_change", True),
        responses=[
            {
                "name": topic.name,
                "partitions": [
                    _reassigned(context.node, TopicPartition(topic.name, each.partition_index), each.replicas)
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    )


def _reassigned(node: Services, tp: TopicPartition, replicas: Sequence[int] | None) -> dict[str, Any]:
    values = {"partition_index": tp.partition}
    try:
        check_reassignment(node, tp, replicas)
    except SemelError as error:
        return {**values, "error_code": error.code, "error_message": error.message}
    return values


ALTER_PARTITION_REASSIGNMENTS = Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, handle_alter_partition_reassignments)
