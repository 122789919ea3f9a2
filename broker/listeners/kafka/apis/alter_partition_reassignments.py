"""AlterPartitionReassignments, versions 0 and 1 (KIP-455): replicas stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.broker.handlers.leadership import check_reassignment
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_alter_partition_reassignments(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    return await write_response(
        context,
        allow_replication_factor_change=getattr(request, "allow_replication_factor_change", True),
        responses=[
            {
                "name": topic.name,
                "partitions": [
                    _reassigned(context.node, TopicPartition(topic.name, each.partition_index), each.replicas)
                    async for each in in_turns(topic.partitions)
                ],
            }
            async for topic in in_turns(request.topics)
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
