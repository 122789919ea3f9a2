"""ListPartitionReassignments, version 0 (KIP-455): the replicas that are being moved."""

from __future__ import annotations

from typing import Any

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.cluster import moves
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_list_partition_reassignments(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted: list[TopicPartition] | None = None
    if request.topics is not None:
        wanted = []
        async for topic in in_turns(request.topics):
            wanted += [TopicPartition(topic.name, number) for number in topic.partition_indexes]
    try:
        found = await moves(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, error_code=error.code, error_message=error.message)
    topics: dict[str, list[dict[str, Any]]] = {}
    async for move in in_turns(found):
        topics.setdefault(move.partition.topic, []).append(
            {
                "partition_index": move.partition.partition,
                "replicas": move.replicas,
                "adding_replicas": move.adding,
                "removing_replicas": move.removing,
            }
        )
    return await write_response(
        context, topics=[{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    )


LIST_PARTITION_REASSIGNMENTS = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle_list_partition_reassignments)
