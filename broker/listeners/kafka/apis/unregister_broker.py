"""UnregisterBroker, version 0 (KIP-631): a node that is gone for good is removed from the cluster."""

from __future__ import annotations

from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.cluster import remove
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_unregister_broker(context: RequestContext, body: memoryview) -> bytes:
    request = parse_request(ApiKey.UNREGISTER_BROKER, context.api_version, body)
    try:
        await remove(context.node, context.rights, request.broker_id)
    except SemelError as error:
        return build_response(
            ApiKey.UNREGISTER_BROKER,
            context.api_version,
            throttle_time=context.throttle_ms(),
            error_code=error.code,
            error_message=error.message,
        )
    return build_response(ApiKey.UNREGISTER_BROKER, context.api_version, throttle_time=context.throttle_ms())


UNREGISTER_BROKER = Api(ApiKey.UNREGISTER_BROKER, 0, 0, handle_unregister_broker)
