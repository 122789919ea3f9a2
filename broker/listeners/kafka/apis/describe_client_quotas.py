"""DescribeClientQuotas, versions 0 and 1 (KIP-546): clients have no quotas, so none matches."""

from __future__ import annotations

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey


async def handle_describe_client_quotas(context: RequestContext, body: memoryview) -> bytes:
    await read_request(context, body)
    try:
        context.rights.check_cluster()
    except SemelError as error:
        return await write_response(context, error_code=error.code, error_message=error.message, entries=None)
    return await write_response(context, entries=())


DESCRIBE_CLIENT_QUOTAS = Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, handle_describe_client_quotas)
