"""JoinGroup, versions 0 to 9: become, or stay, a member of a group. Answered when the rebalance has its members.

Clients below version 4 get a member id at once, newer ones are sent away with it first (KIP-394). Below version 9 a
leader cannot be told to skip its assignment (KIP-814).
"""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import client_host, coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import join
from semel.protocol.api.group_offsets import NO_GENERATION
from semel.protocol.api.groups import GroupProtocol, JoinGroupRequest, JoinGroupResponse
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values, to_ms


async def handle_join_group(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    group_instance_id = request.group_instance_id if version >= 5 else None
    joining = JoinGroupRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple(GroupProtocol(offer.name, bytes(offer.metadata)) for offer in request.protocols),
        session_timeout_ms=to_ms(request.session_timeout),
        rebalance_timeout_ms=to_ms(request.rebalance_timeout) if version >= 1 else -1,
        client_id=context.client_id or "",
        client_host=client_host(context.peer),
        require_known_member_id=version >= 4,
        reason=(request.reason if version >= 8 else None) or "",
        supports_skip_assignment=version >= 9,
    )
    try:
        values = _values(await join(context.node, context.rights, joining), version)
    except SemelError as error:
        values = {
            "error_code": coordinator_code(error),
            "generation_id": NO_GENERATION,
            "member_id": joining.member_id,
        }
    return await write_response(context, **values)


def _values(response: JoinGroupResponse, version: int) -> Values:
    return {
        "error_code": response.error,
        "generation_id": response.generation_id,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol_name if version >= 7 else response.protocol_name or "",
        "leader": response.leader_id,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in response.members
        ],
    }


JOIN_GROUP = Api(ApiKey.JOIN_GROUP, 0, 9, handle_join_group, waits_for_others=True)
