"""DescribeAcls, CreateAcls and DeleteAcls, versions 1 to 3: SECURITY_DISABLED, as in Kafka without an authorizer."""

from __future__ import annotations

from typing import Any, Final

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request

_DISABLED: Final[dict[str, Any]] = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "there is no authorizer on this node: everybody may do everything, and ACLs would change nothing",
}


async def handle_describe_acls(context: RequestContext, body: memoryview) -> bytes:
    parse_request(ApiKey.DESCRIBE_ACLS, context.api_version, body)
    return build_response(ApiKey.DESCRIBE_ACLS, context.api_version, **_DISABLED)


async def handle_create_acls(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    return await write_response(context, results=[_DISABLED] * len(request.creations))


async def handle_delete_acls(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    return await write_response(context, filter_results=[_DISABLED] * len(request.filters))


DESCRIBE_ACLS = Api(ApiKey.DESCRIBE_ACLS, 1, 3, handle_describe_acls)
CREATE_ACLS = Api(ApiKey.CREATE_ACLS, 1, 3, handle_create_acls)
DELETE_ACLS = Api(ApiKey.DELETE_ACLS, 1, 3, handle_delete_acls)
