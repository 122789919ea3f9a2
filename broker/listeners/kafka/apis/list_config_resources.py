"""ListConfigResources, versions 0 and 1 (KIP-1142): what has settings. Version 0 asks for clients' metrics alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from semel.broker.listeners.kafka.apis.config_values import KafkaResourceType
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_ALL: Final = tuple(KafkaResourceType)


async def handle_list_config_resources(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    wanted: Iterable[int] = (KafkaResourceType.CLIENT_METRICS,) if version == 0 else request.resource_types or _ALL
    wanted = dict.fromkeys(wanted)
    try:
        context.rights.check_cluster()
    except SemelError as error:
        return await write_response(context, error_code=error.code, config_resources=())
    known = all(kind in set(KafkaResourceType) for kind in wanted)
    return await write_response(
        context,
        error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
        config_resources=[
            {"resource_name": name, "resource_type": kind}
            for kind in wanted
            if known
            async for name in in_turns(_names(context.node, kind))
        ],
    )


def _names(node: Services, kind: int) -> Iterable[str]:
    """Kinds that have no settings here have no names."""
    if kind == KafkaResourceType.TOPIC:
        return sorted(node.metadata.image.topics)
    if kind == KafkaResourceType.BROKER:
        return map(str, sorted(node.metadata.image.brokers))
    return ()


LIST_CONFIG_RESOURCES = Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, handle_list_config_resources)
