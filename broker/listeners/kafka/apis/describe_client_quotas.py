"""DescribeClientQuotas, versions 0 and 1 (KIP-546): clients have no quotas, so none matches."""

from __future__ import annotations

from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request


async def handle_describe_client_quotas(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    parse_request(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, body)
    return build_response(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, entries=())


DESCRIBE_CLIENT_QUOTAS = Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, handle_describe_client_quotas)
