"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for the node.

A topic's setting is its own value, else the node's setting that is its default. The node's own settings are fixed
but for the dynamic ones, whose changes are kept in the metadata and win over flags, environment and file: those for
this node over those for all nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.config.listeners import GRPC, listeners_of
from semel.broker.config.node_config import SETTINGS, TOPIC_DEFAULTS, TOPIC_SETTINGS, value_of
from semel.broker.config.sources import Source, find_setting, with_dynamic
from semel.broker.config.unsupported import INSTEAD
from semel.broker.controller.departure import check_may_cordon
from semel.broker.controller.diskless import with_switches_begun
from semel.broker.controller.elections import configs_changed
from semel.broker.controller.membership import CORDONED_SETTING, MIN_ISR_SETTING
from semel.broker.controller.newer_settings import check_all_know
from semel.broker.handlers.topics.rules import (
    POLICY_SETTING,
    check_all_have_store,
    check_may_switch,
    check_stays_uncompacted,
    check_topic_configs,
    lasting_policy,
    topic_log_config,
)
from semel.broker.metadata.changes import COMPACTED_SWITCHES_VERSION, SWITCHES_VERSION, Change, ConfigsChanged
from semel.broker.metadata.image import (
    ALL_NODES_ID,
    BROKER_RESOURCE,
    DISKLESS_SETTING,
    REMOTE_SETTING,
    TOPIC_RESOURCE,
    MetadataImage,
    TopicImage,
)
from semel.broker.services import Services
from semel.protocol.api.metadata import ALL_NODES, AlterConfigsRequest, ConfigEntry, ConfigSynonym, ResourceType
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError, error_for
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.runtime.setting import Setting, Value, ValueType

_LISTENERS: Final = frozenset({"kafka.listen", "kafka.advertised", "grpc.listen", "grpc.advertised"})
_NEED_STORES: Final = (REMOTE_SETTING, DISKLESS_SETTING)
_FIXED_FOR_INTERNAL_TOPICS: Final = frozenset({"cleanup.policy", "message.timestamp.type", REMOTE_SETTING})


def describe_configs(
    node: Services,
    resource_type: ResourceType,
    resource_name: str,
    names: Sequence[str] = (),
    *,
    listener: str = DEFAULT_LISTENER,
) -> tuple[ConfigEntry, ...]:
    """Return the settings asked for (all where none is named; unknown names are left out, as in Kafka).

    listener: the name of the one that the client came by. Where a node has several, he gets their addresses for him
              as kafka.listen, grpc.advertised and so on: clients look there for the listener of the other protocol

    Of ALL_NODES, those that were given. Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST.
    """
    if resource_type is ResourceType.TOPIC:
        return topic_entries(node, _topic(node.metadata.image, resource_name).configs, names)
    node_id = _node_id(node, resource_name)
    chosen = _chosen(SETTINGS, names)
    if node_id == ALL_NODES_ID:
        given = node.metadata.image.broker_configs.get(ALL_NODES_ID, {})
        return tuple(_all_nodes_entry(setting, given[setting.name]) for setting in chosen if setting.name in given)
    return tuple(_node_entry(node, setting, listener) for setting in chosen)


def topic_entries(node: Services, own: Mapping[str, str], names: Sequence[str] = ()) -> tuple[ConfigEntry, ...]:
    """Return the settings of a topic that has values of its `own` for some."""
    return tuple(_topic_entry(node, own, setting) for setting in _chosen(TOPIC_SETTINGS, names))


def _chosen(settings: Mapping[str, Setting], names: Sequence[str]) -> list[Setting]:
    return [settings[name] for name in names or settings if name in settings]


async def alter_configs(node: Services, request: AlterConfigsRequest) -> None:
    """Change settings, all or none. Raises INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST."""
    asked = Counter((*request.values, *request.remove, *request.append, *request.subtract))
    repeated = sorted(name[:200] for name, times in asked.items() if times > 1)
    if repeated:
        raise UsageError(f"{', '.join(repeated)} can't be changed in two ways in one request")

    def decide(image: MetadataImage) -> list[Change]:
        if request.resource_type is ResourceType.TOPIC:
            topic = _topic(image, request.resource_name)
            values = _changed_values(node, request, topic.configs, TOPIC_SETTINGS)
            if request.replace and DISKLESS_SETTING not in request.values:
                values.pop(DISKLESS_SETTING, None)  # a whole set of settings need not repeat what can't be changed
            _check_topic_change(node, topic, values)
            merged = {**topic.configs, **values}
            if any(_is_true(merged.get(name)) and not _is_true(topic.configs.get(name)) for name in _NEED_STORES):
                check_all_have_store(node.config, image, merged)
            if topic.is_diskless or _is_true(values.get(DISKLESS_SETTING)):
                policy = lasting_policy(node.config, {**topic.configs, **values})
                if policy != topic.configs.get(POLICY_SETTING):
                    values[POLICY_SETTING] = policy
                else:
                    values.pop(POLICY_SETTING, None)
            change = ConfigsChanged(TOPIC_RESOURCE, request.resource_name, values)
            default_min_isr = node.config.min_insync_replicas
        else:
            node_id = _node_id(node, request.resource_name)
            values = _changed_values(node, request, image.broker_configs.get(node_id, {}), SETTINGS)
            default_min_isr = _min_isr_after(node, image, node_id, values)
            change = ConfigsChanged(BROKER_RESOURCE, str(node_id), values)
        check_all_know(image, (name for name, value in values.items() if value is not None))
        switches = change.resource == TOPIC_RESOURCE and _begins_to_switch(image, change)
        if switches and image.version < _version_to_switch(node, image.topics[change.name]):
            raise FatalError(
                f"{change.name} can't become diskless yet: not all nodes run a semel that knows how. Upgrade all nodes "
                "first",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        if request.validate_only or not values:
            return []
        changes = configs_changed(image, change, default_min_isr=default_min_isr)
        return with_switches_begun(image.topics[change.name], changes) if switches else changes

    if request.validate_only:
        decide(node.metadata.image)
    else:
        await node.metadata.change(decide)
        await node.caught_up()


def _version_to_switch(node: Services, topic: TopicImage) -> int:
    """Return the version of the metadata from which on a topic may become diskless."""
    is_compacted = topic_log_config(node.config, topic.configs).is_compacted
    return COMPACTED_SWITCHES_VERSION if is_compacted else SWITCHES_VERSION


def _begins_to_switch(image: MetadataImage, change: ConfigsChanged) -> bool:
    """Say whether the change of a topic's settings makes it diskless."""
    return not image.topics[change.name].is_diskless and _is_true(change.values.get(DISKLESS_SETTING))


def _changed_values(
    node: Services, request: AlterConfigsRequest, own: Mapping[str, str], settings: Mapping[str, Setting]
) -> dict[str, str | None]:
    """Return what the resource's own values become, None for those that go."""
    values: dict[str, str | None] = dict.fromkeys(own) if request.replace else {}
    # Kafka's tools take back settings that they may have set, such as a throttle of copies between directories. What
    # is not here is not set.
    gone = [name for name in request.remove if name in own or name not in INSTEAD]
    values |= {**request.values, **dict.fromkeys(gone)}
    for name, text in (*request.append.items(), *request.subtract.items()):
        setting = find_setting(name, settings)
        if setting.type is not ValueType.LIST:
            raise UsageError(
                f"{name} is no list, so nothing can be appended to it or subtracted: set it", ErrorCode.INVALID_CONFIG
            )
        now = setting.parse(own[name]) if name in own else _default(node, setting)
        words = setting.parse(text)
        assert isinstance(now, tuple)
        assert isinstance(words, tuple)
        if name in request.append:
            values[name] = setting.format((*now, *(word for word in words if word not in now)))
        else:
            values[name] = setting.format(tuple(word for word in now if word not in words))
    return values


def _default(node: Services, setting: Setting) -> Value:
    """Return the value of a topic, or of this node, that has none of its own."""
    name = TOPIC_DEFAULTS.get(setting.name, setting.name)
    return value_of(node.config, name) if name in SETTINGS else setting.default


def _topic_entry(node: Services, own: Mapping[str, str], setting: Setting) -> ConfigEntry:
    default = TOPIC_DEFAULTS.get(setting.name)
    beneath = () if default is None else node.loaded_config.given(default)
    synonyms = tuple(ConfigSynonym(default or "", setting.format(value), source.name) for source, value in beneath)
    if setting.name in own:
        synonyms = (ConfigSynonym(setting.name, own[setting.name], Source.DYNAMIC_TOPIC.name), *synonyms)
    return _entry(setting, synonyms)


def _node_entry(node: Services, setting: Setting, listener: str) -> ConfigEntry:
    synonyms = tuple(
        ConfigSynonym(setting.name, "" if setting.sensitive else setting.format(value), source.name)
        for source, value in node.loaded_config.given(setting.name)
    )
    entry = _entry(setting, synonyms)
    return replace(entry, value=_of_listener(node, entry, listener)) if setting.name in _LISTENERS else entry


def _of_listener(node: Services, entry: ConfigEntry, name: str) -> str:
    """Return where who asks finds a listener: of several that of the name he came by, else the main one.

    For port 0 it has the free one that was taken, which clients ask for.
    """
    protocol, _, what = entry.name.partition(".")
    listeners = listeners_of(node.config, protocol)
    listener = next((each for each in listeners if each.name == name), listeners[0])
    if what == "advertised":
        return listener.advertised
    host, _, port = listener.listen.rpartition(":")
    registered = node.metadata.image.brokers.get(node.config.node_id)
    if port != "0" or registered is None:
        return listener.listen
    told = registered.grpc_beside(listener.name) if protocol == GRPC else registered.kafka_beside(listener.name)
    return f"{host}:{told.port}"


def _all_nodes_entry(setting: Setting, text: str) -> ConfigEntry:
    value = "" if setting.sensitive else text
    return _entry(setting, (ConfigSynonym(setting.name, value, Source.DYNAMIC_DEFAULT_BROKER.name),))


def _entry(setting: Setting, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    return ConfigEntry(
        setting.name,
        synonyms[0].value if synonyms else setting.format(setting.default),
        synonyms[0].source if synonyms else Source.DEFAULT.name,
        setting.sensitive,
        not setting.dynamic,
        setting.documentation,
        setting.type.value,
        synonyms,
    )


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "true"


def _topic(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:300]!r}: check its name")
    return topic


def _node_id(node: Services, name: str) -> int:
    if name == ALL_NODES:
        return ALL_NODES_ID
    if name not in ("", str(node.config.node_id)):
        raise UsageError(f"there is no node {name[:100]!r} here: this is node {node.config.node_id}")
    return node.config.node_id


def _check_topic_change(node: Services, topic: TopicImage, values: Mapping[str, str | None]) -> None:
    for name in values:
        find_setting(name, TOPIC_SETTINGS)
        if topic.is_internal and name in _FIXED_FOR_INTERNAL_TOPICS and values[name] != topic.configs.get(name):
            raise UsageError(
                f"{name} of {topic.name} can't be changed: coordinators live on it", ErrorCode.INVALID_CONFIG
            )
    merged = {**topic.configs, **values}
    if _is_true(topic.configs.get(REMOTE_SETTING)) and not _is_true(merged.get(REMOTE_SETTING)):
        raise UsageError(
            f"{REMOTE_SETTING} of {topic.name} can't be taken back: its oldest records are in the remote storage "
            "alone. To have new ones on the disk, too, raise local.retention.ms; to be rid of it, use another topic",
            ErrorCode.INVALID_CONFIG,
        )
    check_topic_configs(node.config, {name: value for name, value in merged.items() if value is not None})
    check_may_switch(node.config, topic, merged)
    check_stays_uncompacted(node.config, topic, merged)


def _min_isr_after(node: Services, image: MetadataImage, node_id: int, values: Mapping[str, str | None]) -> int:
    """Return the node's min.insync.replicas after the change. Raises `SemelError` for what can't be changed."""
    if MIN_ISR_SETTING in values and node_id != ALL_NODES_ID and node.config.peer_listen:
        raise UsageError(
            f"{MIN_ISR_SETTING} must be the same on all nodes of a cluster: change it for all of them (with no node's "
            "number), or for a topic",
            ErrorCode.INVALID_CONFIG,
        )
    if values.get(CORDONED_SETTING) is not None:
        if node_id == ALL_NODES_ID:
            raise UsageError(f"{CORDONED_SETTING} is of one node: name it", ErrorCode.INVALID_CONFIG)
        check_may_cordon(image)
    for name in values:
        if not find_setting(name).dynamic:
            raise UsageError(
                f"{name} can't be changed while the node runs: set it in the file, the environment or a flag, and "
                "start it again",
                ErrorCode.INVALID_CONFIG,
            )
    dynamic = {**image.broker_configs, node_id: {**image.broker_configs.get(node_id, {}), **values}}
    own, all_nodes = (
        {name: value for name, value in dynamic.get(each, {}).items() if value is not None}
        for each in (node.config.node_id, ALL_NODES_ID)
    )
    try:
        after = with_dynamic(node.loaded_config.started_with or node.loaded_config, own, all_nodes)
    except SemelError as error:
        raise UsageError(error.message, error.code) from None
    return after.config.min_insync_replicas
