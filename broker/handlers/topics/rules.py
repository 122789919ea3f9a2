"""What a topic may be called and how it may be set up: Kafka's rules, as far as they concern one node."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from semel.broker.config.node_config import TOPIC_DEFAULTS, TOPIC_SETTINGS, NodeConfig, value_of
from semel.broker.config.sources import unknown_setting
from semel.broker.log.config import LogConfig
from semel.broker.metadata.image import DISKLESS_SETTING, MetadataImage, TopicImage
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC

NAME_LENGTH_MAX: Final = 249
"""The folder `<topic>-<partition>` and a suffix for deletion must fit into a file name."""

POLICY_SETTING: Final = "cleanup.policy"
_NAMED_MAX: Final = 10

RESERVED_NAMES: Final = frozenset({"__cluster_metadata"})

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Raise `UsageError` (INVALID_TOPIC_EXCEPTION) for a name that Kafka refuses."""
    shown = repr(name[: NAME_LENGTH_MAX + 1])
    if not name:
        wrong = "it is empty"
    elif name in (".", ".."):
        wrong = f"{shown} means a directory"
    elif len(name) > NAME_LENGTH_MAX:
        wrong = f"it has {len(name)} characters, more than {NAME_LENGTH_MAX}"
    elif not _NAME.fullmatch(name):
        wrong = f"{shown} has characters other than ASCII letters, digits, '.', '_' and '-'"
    elif name in RESERVED_NAMES:
        wrong = f"{shown} is reserved"
    else:
        return
    raise UsageError(f"the topic's name is invalid: {wrong}", ErrorCode.INVALID_TOPIC_EXCEPTION)


def unified_names(existing: Iterable[str]) -> dict[str, str]:
    """Return topics by what names of metrics make of theirs: '.' and '_' can't be told apart there."""
    return {name.replace(".", "_"): name for name in existing}


def collides(name: str, unified: Mapping[str, str]) -> bool:
    """Return whether a topic differs from `name` only by '.' and '_'; `unified` is what `unified_names` returned."""
    return unified.get(name.replace(".", "_"), name) != name


def check_topic_configs(config: NodeConfig, configs: Mapping[str, str]) -> None:
    """Raise `UsageError` (INVALID_CONFIG) for an unknown topic setting, a wrong value, or values that contradict."""
    for name, text in configs.items():
        known = TOPIC_SETTINGS.get(name)
        if known is None:
            raise unknown_setting(name, TOPIC_SETTINGS)
        known.parse(text)
    log_config = topic_log_config(config, configs)
    if log_config.has_remote and not config.remote_storage_url:
        wanted = "diskless" if log_config.diskless_enable else "remote.storage"
        raise UsageError(
            f"{wanted}.enable=true needs a node with remote storage: start all nodes with remote.storage.url, for "
            "example s3://my-bucket/semel",
            ErrorCode.INVALID_CONFIG,
        )


def check_all_have_store(config: NodeConfig, image: MetadataImage, configs: Mapping[str, str | None]) -> None:
    """Raise `UsageError` (INVALID_CONFIG) where a topic is to have remote storage, and nodes have none: any of them may
    have to lead it.
    """
    log_config = topic_log_config(config, {name: value for name, value in configs.items() if value is not None})
    without = sorted(broker.node_id for broker in image.brokers.values() if not broker.has_store)
    if log_config.has_remote and without:
        wanted = "diskless" if log_config.diskless_enable else "remote.storage"
        named = ", ".join(map(str, without[:_NAMED_MAX])) + (", ..." if len(without) > _NAMED_MAX else "")
        raise UsageError(
            f"{wanted}.enable=true needs remote storage on all nodes, and these have none: {named}. Start them with "
            "the remote.storage.url of the others; or remove those that are gone for good: semel node remove ID",
            ErrorCode.INVALID_CONFIG,
        )


def with_storage(config: NodeConfig, topic: NewTopic) -> NewTopic:
    """Return a topic with its setting of where its records are, and one replica where that is on no disk.

    Raises `UsageError` (INVALID_REPLICATION_FACTOR) where it asks for a diskless topic with more replicas.
    """
    said = topic.configs.get(DISKLESS_SETTING)
    is_diskless = config.log_diskless_enable if said is None else said.strip().lower() == "true"
    if not is_diskless:
        return topic
    if said is not None and topic.replication_factor > 1:
        raise UsageError(
            f"topic {topic.name} can't be diskless with replication factor {topic.replication_factor}: its records are "
            "in the remote storage, and any node takes over from the one that leads. Ask for 1, or for none",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    # What is deleted from the disk must not be compacted later: the policy is said once and for all.
    configs = {**topic.configs, DISKLESS_SETTING: "true", POLICY_SETTING: lasting_policy(config, topic.configs)}
    if topic.assignments:
        if any(len(replicas) > 1 for replicas in topic.assignments.values()):
            raise UsageError(
                f"topic {topic.name} is diskless, so each partition is assigned to one node, which leads it first",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        return replace(topic, configs=configs)
    return replace(topic, replication_factor=1, configs=configs)


def lasting_policy(config: NodeConfig, configs: Mapping[str, str | None]) -> str:
    """Return the cleanup.policy that a diskless topic keeps, whatever the default of a node becomes: its own, or else
    the default of now.
    """
    return configs.get(POLICY_SETTING) or ",".join(config.log_cleanup_policy)


def check_stays_uncompacted(config: NodeConfig, topic: TopicImage, configs: Mapping[str, str | None]) -> None:
    """Raise `UsageError` (INVALID_CONFIG) where a diskless topic is to be compacted that was not from the beginning.

    Its oldest records may be in segments that no disk has: compaction would not see them, and drop what deletes them.
    """
    after = {name: value for name, value in configs.items() if value is not None}
    before = topic_log_config(config, topic.configs)
    if topic.is_diskless and topic_log_config(config, after).is_compacted and not before.is_compacted:
        raise UsageError(
            f"cleanup.policy of {topic.name} can't become compact: a topic must be compacted before it becomes "
            "diskless. Create another topic, and copy what is to be kept",
            ErrorCode.INVALID_CONFIG,
        )


def check_may_switch(config: NodeConfig, topic: TopicImage, configs: Mapping[str, str | None]) -> None:
    """Raise `UsageError` (INVALID_CONFIG) where a topic can't become diskless, or is to be taken back to disks.

    configs: those that it is to have
    """
    wanted = configs.get(DISKLESS_SETTING)
    is_wanted = wanted is not None and wanted.strip().lower() == "true"
    if topic.is_diskless and not is_wanted:
        what = "its records are on no disk. Create another topic, and copy what is to be kept"
        if any(state.is_switching for state in topic.partitions):
            what = "the topic is becoming diskless. `semel doctor` says what it waits for"
        raise UsageError(f"{DISKLESS_SETTING} of {topic.name} can't be taken back: {what}", ErrorCode.INVALID_CONFIG)
    before = topic_log_config(config, topic.configs)
    after = topic_log_config(config, {name: value for name, value in configs.items() if value is not None})
    if after.is_compacted == before.is_compacted:
        return
    if before.remote_storage_enable and not topic.is_diskless:
        raise UsageError(
            f"{topic.name} can't be compacted, because its first records have left the disks (remote.storage.enable). "
            "Create another topic, and copy what is to be kept",
            ErrorCode.INVALID_CONFIG,
        )
    if is_wanted and not topic.is_diskless:
        raise UsageError(
            f"{topic.name} can't become diskless and change its cleanup.policy at the same time: change the policy "
            "first, and set diskless.enable=true then",
            ErrorCode.INVALID_CONFIG,
        )
    if any(state.is_switching for state in topic.partitions):
        raise UsageError(
            f"cleanup.policy of {topic.name} can't be changed while the topic becomes diskless: wait until it is "
            f"(semel topic describe {topic.name})",
            ErrorCode.INVALID_CONFIG,
        )


def topic_log_config(config: NodeConfig, configs: Mapping[str, str]) -> LogConfig:
    """Return the settings of a topic's logs: its own over the node's."""
    defaults = node_log_config(config)
    return LogConfig.from_kafka(configs, defaults) if configs else defaults


def partition_log_configs(config: NodeConfig, topic: TopicImage | None) -> Callable[[int], LogConfig]:
    """Return what gives the settings of the log of each of a topic's partitions, by its number: those of the topic.

    While one is being switched to diskless it has remote storage, to which its leader copies it.
    topic: None where it is not known
    """
    if topic is None:
        return lambda number: node_log_config(config)
    whole, states = topic_log_config(config, topic.configs), topic.partitions
    if not (topic.is_diskless and any(state.is_switching for state in states)):
        return lambda number: whole
    # A node without a store can't copy it, and leads it as any other until one does that can.
    has_store = whole.remote_storage_enable or bool(config.remote_storage_url)
    copied = replace(whole, diskless_enable=False, becomes_diskless=True, remote_storage_enable=has_store)
    return lambda number: copied if number < len(states) and states[number].is_switching else whole


@functools.lru_cache(maxsize=4)
def node_log_config(config: NodeConfig) -> LogConfig:
    """Return the settings of the logs of a topic that has none of its own."""
    return LogConfig.from_kafka(
        {
            topic_name: TOPIC_SETTINGS[topic_name].format(value_of(config, name))
            for topic_name, name in TOPIC_DEFAULTS.items()
        }
    )


class InternalTopic(NamedTuple):
    """How an internal topic is created, on as many nodes as there are up to `replication_factor`."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def internal_topic(config: NodeConfig, name: str, nodes: int) -> InternalTopic:
    """Return how an internal topic is created where so many nodes can have replicas."""
    assert name in INTERNAL_TOPICS
    configs = {"cleanup.policy": "compact", "compression.type": "producer", "message.timestamp.type": "CreateTime"}
    if config.log_diskless_enable:
        configs[DISKLESS_SETTING] = "true"
        nodes = 1
    if name == OFFSETS_TOPIC:
        configs["segment.bytes"] = str(config.offsets_topic_segment_bytes)
        factor = min(config.offsets_topic_replication_factor, nodes)
        return InternalTopic(config.offsets_topic_num_partitions, factor, configs)
    configs["segment.bytes"] = str(config.transaction_state_log_segment_bytes)
    factor = min(config.transaction_state_log_replication_factor, nodes)
    if factor > 1:
        configs["min.insync.replicas"] = str(min(config.transaction_state_log_min_isr, factor))
    return InternalTopic(config.transaction_state_log_num_partitions, factor, configs)
