"""ListPartitionReassignments, version 0 (KIP-455): the replicas that are being moved, which are none."""

from __future__ import annotations

from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_list_partition_reassignments(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    parse_request(ApiKey.LIST_PARTITION_REASSIGNMENTS, version, body)
    return build_response(ApiKey.LIST_PARTITION_REASSIGNMENTS, version)


LIST_PARTITION_REASSIGNMENTS = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle_list_partition_reassignments)
