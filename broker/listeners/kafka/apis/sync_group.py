"""SyncGroup, versions 0 to 5: a member gets its assignment, and the leader gives everybody's."""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import sync
from semel.protocol.api.groups import SyncGroupRequest
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values


async def handle_sync_group(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    syncing = SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id if version >= 3 else None,
        assignments={item.member_id: bytes(item.assignment) for item in request.assignments},
        protocol_type=request.protocol_type if version >= 5 else None,
        protocol_name=request.protocol_name if version >= 5 else None,
    )
    try:
        if version >= 5 and (syncing.protocol_type is None or syncing.protocol_name is None):
            # From this version on members say what they believe was settled on (KIP-559).
            raise error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup from version 5 on names the protocol and its type"
            )
        response = await sync(context.node, context.rights, syncing)
        values: Values = {
            "protocol_type": response.protocol_type,
            "protocol_name": response.protocol_name,
            "assignment": response.assignment,
        }
    except SemelError as error:
        values = {"error_code": coordinator_code(error)}
    return await write_response(context, **values)


SYNC_GROUP = Api(ApiKey.SYNC_GROUP, 0, 5, handle_sync_group, waits_for_others=True)
