"""ListGroups, versions 0 to 5: the groups coordinated here, by state (KIP-518) and type (KIP-848) where asked."""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import list_groups
from semel.protocol.api.groups import ListGroupsRequest
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_list_groups(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    wanted = ListGroupsRequest(
        frozenset(request.states_filter if version >= 4 else ()),
        frozenset(request.types_filter if version >= 5 else ()),
    )
    try:
        response = await list_groups(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, error_code=coordinator_code(error))
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state,
            "group_type": group.group_type,
        }
        async for group in in_turns(response.groups)
    ]
    return await write_response(context, groups=groups)


LIST_GROUPS = Api(ApiKey.LIST_GROUPS, 0, 5, handle_list_groups)
