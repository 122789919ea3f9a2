"""Settings and what they belong to, in the numbers of the Kafka protocol."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from semel.broker.config.sources import Source
from semel.protocol.api.metadata import ALL_NODES, ConfigEntry, ResourceType
from semel.protocol.errors import UsageError
from semel.runtime.setting import ValueType


class KafkaResourceType(IntEnum):
    """What Kafka configures. Topics and brokers are all that has settings here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_SOURCES: Final[Mapping[str, int]] = {
    Source.DYNAMIC_TOPIC.name: 1,
    Source.DYNAMIC_BROKER.name: 2,
    Source.DYNAMIC_DEFAULT_BROKER.name: 3,
    Source.FLAG.name: 4,
    Source.ENVIRONMENT.name: 4,
    Source.FILE.name: 4,
    Source.DEFAULT.name: 5,
}
_TYPES: Final[Mapping[str, int]] = {
    ValueType.BOOLEAN.value: 1,
    ValueType.STRING.value: 2,
    ValueType.INT.value: 3,
    ValueType.LONG.value: 5,
    ValueType.DOUBLE.value: 6,
    ValueType.LIST.value: 7,
}
_PASSWORD: Final = 9
_INSTEAD: Final[Mapping[int, str]] = {
    KafkaResourceType.BROKER_LOGGER: "log levels are set for the whole node, with log.level when it starts",
    KafkaResourceType.CLIENT_METRICS: "this node takes no metrics from clients",
    KafkaResourceType.GROUP: "groups have no settings of their own, see the node's settings that begin with group.",
}


def config_source(source: str) -> int:
    """Return Kafka's number for where a value came from. Flags, environment and file are all its static source."""
    return _SOURCES[source]


def config_type(entry: ConfigEntry) -> int:
    return _PASSWORD if entry.is_sensitive else _TYPES[entry.type]


def is_known(resource_type: int) -> bool:
    """Return whether Kafka has settings of such resources: then a right is asked for first."""
    return resource_type in set(KafkaResourceType)


def resource_of(resource_type: int, name: str) -> tuple[ResourceType, str]:
    """Return what is meant. Kafka's broker without a name is all of them. Raises `UsageError` (INVALID_REQUEST)."""
    if resource_type == KafkaResourceType.TOPIC:
        return ResourceType.TOPIC, name
    if resource_type == KafkaResourceType.BROKER:
        return ResourceType.BROKER, name or ALL_NODES
    instead = _INSTEAD.get(
        resource_type, f"use topics, {ResourceType.TOPIC.value}, or brokers, {ResourceType.BROKER.value}"
    )
    raise UsageError(f"resources of type {resource_type} have no settings here: {instead}")
