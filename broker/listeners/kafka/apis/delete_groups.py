"""DeleteGroups, versions 0 to 2 (KIP-229): deletes empty groups with their offsets."""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import delete
from semel.protocol.api.groups import DeleteGroupRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey


async def handle_delete_groups(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    asked = list(dict.fromkeys(request.groups_names))
    codes = await bounded_concurrency(asked, lambda group_id: _delete(context, group_id))
    results = [{"group_id": group_id, "error_code": code} for group_id, code in zip(asked, codes, strict=True)]
    return await write_response(context, results=results)


async def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    try:
        await delete(context.node, context.rights, DeleteGroupRequest(group_id))
    except SemelError as error:
        return coordinator_code(error)
    return ErrorCode.NONE


DELETE_GROUPS = Api(ApiKey.DELETE_GROUPS, 0, 2, handle_delete_groups)
