"""ListPartitionReassignments, version 0 (KIP-455): the replicas that are being moved, which are none."""

from __future__ import annotations

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.kafka.api import ApiKey


async def handle_list_partition_reassignments(context: RequestContext, body: memoryview) -> bytes:
    await read_request(context, body)
    return await write_response(context)


LIST_PARTITION_REASSIGNMENTS = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle_list_partition_reassignments)
