"""DescribeConfigs and IncrementalAlterConfigs, for topics and for the node.

A topic's setting is its own value, else the node's setting that is its default. The node's own settings are fixed
but for the dynamic ones, whose changes are kept in the metadata and win over flags, environment and file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from semel.broker.config import SETTINGS, TOPIC_DEFAULTS, TOPIC_SETTINGS, value_of
from semel.broker.config_sources import Source, find_setting, with_dynamic
from semel.broker.handlers.topic_rules import check_topic_configs
from semel.broker.metadata.changes import Change, ConfigsChanged
from semel.broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, TopicImage
from semel.broker.services import Services
from semel.broker.settings import Setting
from semel.protocol.api.metadata import AlterConfigsRequest, ConfigEntry, ResourceType
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for

_FIXED_FOR_INTERNAL_TOPICS: Final = frozenset({"cleanup.policy", "message.timestamp.type"})


def describe_configs(
    node: Services, resource_type: ResourceType, resource_name: str, names: Sequence[str] = ()
) -> tuple[ConfigEntry, ...]:
    """Return the settings asked for (all where none is named; unknown names are left out, as in Kafka)."""
    if resource_type is ResourceType.TOPIC:
        topic = _topic(node.metadata.image, resource_name)
        return tuple(_topic_entry(node, topic, setting) for setting in _chosen(TOPIC_SETTINGS, names))
    _check_node(node, resource_name)
    return tuple(_node_entry(node, setting) for setting in _chosen(SETTINGS, names))


def _chosen(settings: Mapping[str, Setting], names: Sequence[str]) -> list[Setting]:
    return [settings[name] for name in names or settings if name in settings]


async def alter_configs(node: Services, request: AlterConfigsRequest) -> None:
    """Change settings, all or none. Raises INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST."""
    both = set(request.values) & set(request.remove)
    if both:
        raise UsageError(f"{', '.join(sorted(both))} can't be set and removed in one request")
    values: dict[str, str | None] = {**request.values, **dict.fromkeys(request.remove)}

    def decide(image: MetadataImage) -> list[Change]:
        if request.resource_type is ResourceType.TOPIC:
            _check_topic_change(node, _topic(image, request.resource_name), values)
            change = ConfigsChanged(TOPIC_RESOURCE, request.resource_name, values)
        else:
            _check_node(node, request.resource_name)
            _check_node_change(node, image, values)
            change = ConfigsChanged(BROKER_RESOURCE, str(node.config.node_id), values)
        return [] if request.validate_only or not values else [change]

    if request.validate_only:
        decide(node.metadata.image)
    else:
        await node.metadata.change(decide)
        await node.caught_up()


def _topic_entry(node: Services, topic: TopicImage, setting: Setting) -> ConfigEntry:
    value = topic.configs.get(setting.name)
    source = Source.DYNAMIC_TOPIC
    if value is None:
        default = TOPIC_DEFAULTS[setting.name]
        value = setting.format(value_of(node.config, default))
        source = node.loaded_config.source(default)
    return ConfigEntry(setting.name, value, source.name, False, False, setting.documentation, setting.type.value)


def _node_entry(node: Services, setting: Setting) -> ConfigEntry:
    value = "" if setting.sensitive else setting.format(value_of(node.config, setting.name))
    return ConfigEntry(
        setting.name,
        value,
        node.loaded_config.source(setting.name).name,
        setting.sensitive,
        not setting.dynamic,
        setting.documentation,
        setting.type.value,
    )


def _topic(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:300]!r}: check its name")
    return topic


def _check_node(node: Services, name: str) -> None:
    if name not in ("", str(node.config.node_id)):
        raise UsageError(f"there is no node {name[:100]!r} here: this is node {node.config.node_id}")


def _check_topic_change(node: Services, topic: TopicImage, values: Mapping[str, str | None]) -> None:
    for name in values:
        find_setting(name, TOPIC_SETTINGS)
        if topic.is_internal and name in _FIXED_FOR_INTERNAL_TOPICS:
            raise UsageError(
                f"{name} of {topic.name} can't be changed: coordinators live on it", ErrorCode.INVALID_CONFIG
            )
    merged = {**topic.configs, **values}
    check_topic_configs(node.config, {name: value for name, value in merged.items() if value is not None})


def _check_node_change(node: Services, image: MetadataImage, values: Mapping[str, str | None]) -> None:
    for name in values:
        if not find_setting(name).dynamic:
            raise UsageError(
                f"{name} can't be changed while the node runs: set it in the file, the environment or a flag, and "
                "start it again",
                ErrorCode.INVALID_CONFIG,
            )
    merged = {**image.broker_configs.get(node.config.node_id, {}), **values}
    try:
        with_dynamic(node.loaded_config, {name: value for name, value in merged.items() if value is not None})
    except SemelError as error:
        raise UsageError(error.message, error.code) from None
