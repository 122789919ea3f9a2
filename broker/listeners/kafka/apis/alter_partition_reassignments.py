"""AlterPartitionReassignments, versions 0 and 1 (KIP-455): replicas are moved to other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.cluster import move_replicas
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_alter_partition_reassignments(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted: dict[TopicPartition, Sequence[int] | None] = {}
    async for topic in in_turns(request.topics):
        wanted.update((TopicPartition(topic.name, each.partition_index), each.replicas) for each in topic.partitions)
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    refusal: dict[str, Any] = {}
    try:
        outcomes = await move_replicas(context.node, context.rights, wanted, may_change_factor=may_change_factor)
    except SemelError as error:
        outcomes = dict.fromkeys(wanted, error)
        refusal = {"error_code": error.code, "error_message": error.message}
    results: dict[str, list[dict[str, Any]]] = {}
    async for tp in in_turns(list(wanted)):
        results.setdefault(tp.topic, []).append(_result(tp.partition, outcomes[tp]))
    return await write_response(
        context,
        **refusal,
        allow_replication_factor_change=may_change_factor,
        responses=[{"name": name, "partitions": partitions} for name, partitions in results.items()],
    )


def _result(partition: int, error: SemelError | None) -> dict[str, Any]:
    values = {"partition_index": partition}
    return values if error is None else {**values, "error_code": error.code, "error_message": error.message}


ALTER_PARTITION_REASSIGNMENTS = Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, handle_alter_partition_reassignments)
