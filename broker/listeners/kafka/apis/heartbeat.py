"""Heartbeat, versions 0 to 4: a member lives; REBALANCE_IN_PROGRESS tells it to join again."""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import heartbeat
from semel.protocol.api.groups import HeartbeatRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_heartbeat(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.HEARTBEAT, version, body)
    group_instance_id = request.group_instance_id if version >= 3 else None
    try:
        await heartbeat(
            context.node,
            context.rights,
            HeartbeatRequest(request.group_id, request.generation_id, request.member_id, group_instance_id),
        )
        code = ErrorCode.NONE
    except SemelError as error:
        code = coordinator_code(error)
    return build_response(ApiKey.HEARTBEAT, version, throttle_time=context.throttle_ms(), error_code=code)


HEARTBEAT = Api(ApiKey.HEARTBEAT, 0, 4, handle_heartbeat)
