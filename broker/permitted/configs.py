"""Settings of topics and nodes, told and changed where the caller may: those of nodes are the cluster's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers import configs
from semel.broker.services import Services
from semel.protocol.acls import ResourceType as Protected
from semel.protocol.api.metadata import AlterConfigsRequest, ConfigEntry, ResourceType
from semel.runtime.completion import done_to_its_end

TOPIC: Final = 2
GROUP: Final = 32
"""Kafka's numbers of what has settings, where a right is asked for by name; all else is the cluster's."""


def check(rights: Rights, kind: int, name: str) -> None:
    """Raise where the caller may not do what he asks for with the settings of a resource. `kind`: Kafka's number."""
    if rights.are_all:
        return
    if kind == TOPIC:
        rights.check(Protected.TOPIC, name)
    elif kind == GROUP:
        rights.check(Protected.GROUP, name)
    else:
        rights.check_cluster()


def describe_configs(
    node: Services, rights: Rights, kind: ResourceType, name: str, names: Sequence[str] = (), *, listener: str
) -> Sequence[ConfigEntry]:
    """Return the settings asked for. Raises `SemelError`."""
    check(rights, kind.value, name)
    return configs.describe_configs(node, kind, name, names, listener=listener)


@done_to_its_end
async def alter_configs(node: Services, rights: Rights, request: AlterConfigsRequest) -> None:
    """Change settings, all or none. Raises `SemelError`."""
    check(rights, request.resource_type.value, request.resource_name)
    await configs.alter_configs(node, request)
    if not request.validate_only:
        named = (*request.values, *request.remove, *request.append, *request.subtract)
        node.audit.changed(
            rights.who,
            Event.SETTINGS_CHANGED,
            resource=f"{request.resource_type.name}:{request.resource_name}",
            settings=", ".join(f"{name}={request.values[name]}" if name in request.values else name for name in named),
            others="default" if request.replace else "kept",
        )
