"""DescribeGroups, versions 0 to 6: state and members of classic groups.

A group that does not exist is Dead without an error below version 6, and GROUP_ID_NOT_FOUND from there on (KIP-1043).
"""

from __future__ import annotations

from typing import Final

from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import describe
from semel.group_coordinator.classic.state import GroupState
from semel.protocol.acls import NOT_ASKED_FOR, ResourceType
from semel.protocol.api.groups import DescribeGroupRequest, GroupDescription
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values

FIRST_VERSION_WITH_NOT_FOUND: Final = 6


async def handle_describe_groups(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    with_operations = version >= 3 and request.include_authorized_operations
    asked = list(dict.fromkeys(request.groups))
    groups = await bounded_concurrency(asked, lambda group_id: _describe(context, group_id, with_operations))
    return await write_response(context, groups=groups)


async def _describe(context: RequestContext, group_id: str, with_operations: bool) -> Values:
    try:
        group = await describe(context.node, context.rights, DescribeGroupRequest(group_id))
    except SemelError as error:
        return {"group_id": group_id, "error_code": coordinator_code(error), "error_message": error.message}
    if group.state == GroupState.DEAD.value and context.api_version >= FIRST_VERSION_WITH_NOT_FOUND:
        return {
            "group_id": group_id,
            "group_state": group.state,
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"there is no group {group_id!r}",
        }
    operations = context.rights.operations(ResourceType.GROUP, group_id) if with_operations else NOT_ASKED_FOR
    return {"group_id": group_id, "authorized_operations": operations, **_values(group)}


def _values(group: GroupDescription) -> Values:
    return {
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


DESCRIBE_GROUPS = Api(ApiKey.DESCRIBE_GROUPS, 0, 6, handle_describe_groups)
