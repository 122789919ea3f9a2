"""DescribeConfigs, versions 1 to 4 (KIP-133, KIP-226, KIP-569): the settings of topics and of this node.

The broker without a name stands for all brokers: the answer has what was given to them by AlterConfigs. Only the node
itself knows its settings, so that for any other node the request is invalid.
"""

from __future__ import annotations

from typing import Any

from semel.broker.handlers.newest import know_topics
from semel.broker.listeners.kafka.apis.config_values import (
    KafkaResourceType,
    config_source,
    config_type,
    is_known,
    resource_of,
)
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted import configs
from semel.protocol.acls import ResourceType
from semel.protocol.api.metadata import ConfigEntry
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_describe_configs(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    topics = [each.resource_name for each in request.resources if each.resource_type == KafkaResourceType.TOPIC]
    denied = await context.rights.denied(ResourceType.TOPIC, topics)
    await know_topics(context.node, [name for name in topics if name not in denied])
    with_documentation = getattr(request, "include_documentation", False)
    return await write_response(
        context,
        results=[
            {
                "resource_type": each.resource_type,
                "resource_name": each.resource_name,
                **_described(context, each, request.include_synonyms, with_documentation),
            }
            async for each in in_turns(request.resources)
        ],
    )


def _described(context: RequestContext, resource: Any, with_synonyms: bool, with_documentation: bool) -> dict[str, Any]:
    try:
        if is_known(resource.resource_type):
            configs.check(context.rights, resource.resource_type, resource.resource_name)
        kind, name = resource_of(resource.resource_type, resource.resource_name)
        entries = configs.describe_configs(context.node, context.rights, kind, name, listener=context.listener_name)
    except SemelError as error:
        return {"error_code": error.code, "error_message": error.message, "configs": ()}
    # Null asks for all, and so does an empty list, as in Kafka.
    wanted = set(resource.configuration_keys or ())
    return {
        "configs": [
            _entry_values(entry, with_synonyms, with_documentation)
            for entry in entries
            if not wanted or entry.name in wanted
        ]
    }


def _entry_values(entry: ConfigEntry, with_synonyms: bool, with_documentation: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "read_only": entry.is_read_only,
        "config_source": config_source(entry.source),
        "is_sensitive": entry.is_sensitive,
        "synonyms": [
            {
                "name": each.name,
                "value": None if entry.is_sensitive else each.value,
                "source": config_source(each.source),
            }
            for each in (entry.synonyms if with_synonyms else ())
        ],
        "config_type": config_type(entry),
        "documentation": entry.documentation if with_documentation else None,
    }


DESCRIBE_CONFIGS = Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle_describe_configs)
