"""LeaveGroup, versions 0 to 5: members leave, from version 3 on several at once and by instance id (KIP-345, 800)."""

from __future__ import annotations

from typing import Any, Final

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import leave
from semel.protocol.api.groups import LeaveGroupRequest, MemberIdentity
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey

FIRST_BATCHED_VERSION: Final = 3


async def handle_leave_group(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    leaving = _leaving(request, version)
    try:
        errors = (await leave(context.node, context.rights, LeaveGroupRequest(request.group_id, leaving))).errors
    except SemelError as error:
        return await write_response(context, error_code=coordinator_code(error))
    if version < FIRST_BATCHED_VERSION:
        return await write_response(context, error_code=errors[0])
    members = [
        {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error}
        for member, error in zip(leaving, errors, strict=True)
    ]
    return await write_response(context, members=members)


def _leaving(request: Any, version: int) -> tuple[MemberIdentity, ...]:
    if version < FIRST_BATCHED_VERSION:
        return (MemberIdentity(request.member_id),)
    return tuple(
        MemberIdentity(member.member_id, member.group_instance_id, (member.reason if version >= 5 else None) or "")
        for member in request.members
    )


LEAVE_GROUP = Api(ApiKey.LEAVE_GROUP, 0, 5, handle_leave_group)
