"""CreateTopics, DeleteTopics, CreatePartitions.

Every topic of a request succeeds or fails for itself. All that succeed are one entry after the other in the metadata's
log, written together. Behaviour follows Kafka's ReplicationControlManager; replicas are placed on this node alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from semel.broker.config import NodeConfig
from semel.broker.handlers.descriptions import describe_topic
from semel.broker.handlers.replica_placement import placed_as_assigned, placed_here
from semel.broker.handlers.topic_rules import (
    check_topic_configs,
    check_topic_name,
    colliding_name,
    internal_topic,
    unified_names,
)
from semel.broker.metadata.changes import Change, PartitionsAdded, PartitionState, TopicCreated, TopicDeleted
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError, error_for
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, format_topic_id, new_topic_id

TOPICS_PER_REQUEST_MAX: Final = 10_000
"""More would keep the event loop for long. Kafka has the same bound, for the partitions of one request."""


async def create_topics(
    node: Services, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> tuple[TopicResult, ...]:
    """Create topics; answer for each in order. With `validate_only`, only say what would happen."""
    if len(topics) > TOPICS_PER_REQUEST_MAX:
        message = f"{len(topics)} topics in one request are too many: create up to {TOPICS_PER_REQUEST_MAX} at once"
        return tuple(TopicResult(topic.name, ErrorCode.POLICY_VIOLATION, message) for topic in topics)
    repeated = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
    results: list[TopicResult] = []

    def decide(image: MetadataImage) -> list[Change]:
        results.clear()
        changes: list[Change] = []
        unified = unified_names(image.topics)
        for topic in topics:
            try:
                if topic.name in repeated:
                    raise UsageError(f"topic {topic.name} is in the request more than once")
                created = _new_topic(node.config, image, topic, unified)
            except SemelError as error:
                results.append(TopicResult(topic.name, error.code, error.message))
                continue
            image = image.apply(created, image.sequence + 1)
            changes.append(created)
            unified.update(unified_names((topic.name,)))
            results.append(_described(image, topic.name))
        return [] if validate_only else changes

    if validate_only:
        decide(node.metadata.image)
    else:
        await node.metadata.change(decide)
        await node.caught_up()
    return tuple(results)


async def delete_topics(node: Services, wanted: Sequence[str | TopicId]) -> tuple[TopicResult, ...]:
    """Delete topics by name or id, with their records, committed offsets and open transactions; answer in order.

    A topic that is asked for more than once is INVALID_REQUEST and stays.
    """
    results: list[TopicResult] = []

    def decide(image: MetadataImage) -> list[Change]:
        results.clear()
        changes: list[Change] = []
        found = [image.topic(each) if isinstance(each, str) else image.topic_by_id(each) for each in wanted]
        times = Counter(topic.name for topic in found if topic is not None)
        for each, topic in zip(wanted, found, strict=True):
            name = topic.name if topic is not None else each if isinstance(each, str) else ""
            topic_id = topic.topic_id if topic is not None else None if isinstance(each, str) else each
            try:
                _check_deletable(node.config, topic, each)
                if times[name] > 1:
                    raise UsageError(f"topic {name} is in the request more than once")
            except SemelError as error:
                results.append(TopicResult(name, error.code, error.message, topic_id=topic_id))
                continue
            assert topic is not None
            changes.append(TopicDeleted(topic.name, topic.topic_id))
            results.append(TopicResult(topic.name, topic_id=topic.topic_id))
        return changes

    await node.metadata.change(decide)
    await node.caught_up()
    return tuple(results)


async def create_partitions(
    node: Services,
    name: str,
    total_count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Give a topic more partitions, `total_count` in all; `assignments`: the nodes of each new one's replicas.

    Raises `SemelError`.
    """

    def decide(image: MetadataImage) -> list[Change]:
        topic = _existing(image, name)
        now = len(topic.partitions)
        if topic.is_internal:
            raise UsageError(f"{name} is internal: its keys are bound to its {now} partitions")
        if total_count <= now:
            raise FatalError(
                f"topic {name} has {now} partitions: ask for more than that, not {total_count}; none can be taken away",
                ErrorCode.INVALID_PARTITIONS,
            )
        more = total_count - now
        _check_room(node.config, image, more)
        if assignments is None:
            states = placed_here(node.config.node_id, more)
        elif len(assignments) != more:
            raise UsageError(
                f"{len(assignments)} partitions of {name} are assigned, and {more} are to be added",
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            )
        else:
            states = placed_as_assigned(image, name, now, dict(enumerate(assignments, start=now)))
        return [] if validate_only else [PartitionsAdded(name, topic.topic_id, now, states)]

    if validate_only:
        decide(node.metadata.image)
    else:
        await node.metadata.change(decide)
        await node.caught_up()


async def create_internal_topic(node: Services, name: str) -> None:
    """Create `__consumer_offsets` or `__transaction_state` unless it is there."""
    if node.metadata.topic(name) is not None:
        return
    partitions, configs = internal_topic(node.config, name)

    def decide(image: MetadataImage) -> list[Change]:
        if name in image.topics:
            return []
        states = placed_here(node.config.node_id, partitions)
        return [TopicCreated(name, new_topic_id(), states, configs)]

    await node.metadata.change(decide)
    await node.caught_up()


def _new_topic(config: NodeConfig, image: MetadataImage, topic: NewTopic, unified: Mapping[str, str]) -> TopicCreated:
    check_topic_name(topic.name)
    if topic.name in image.topics:
        raise FatalError(f"topic {topic.name} exists already", ErrorCode.TOPIC_ALREADY_EXISTS)
    if topic.name in INTERNAL_TOPICS:
        raise UsageError(
            f"{topic.name} is internal: the node creates it when it first needs it", ErrorCode.INVALID_TOPIC_EXCEPTION
        )
    if (other := colliding_name(topic.name, unified)) is not None:
        raise UsageError(
            f"topic {topic.name} differs from {other} only by '.' and '_', which metrics can't tell apart",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    states = _states(config, image, topic)
    check_topic_configs(config, topic.configs)
    return TopicCreated(topic.name, new_topic_id(), states, dict(topic.configs))


def _states(config: NodeConfig, image: MetadataImage, topic: NewTopic) -> tuple[PartitionState, ...]:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise UsageError(
                f"the replicas of {topic.name} are assigned, so its numbers of partitions and replicas must be -1, not "
                f"{topic.num_partitions} and {topic.replication_factor}"
            )
        _check_room(config, image, len(topic.assignments))
        return placed_as_assigned(image, topic.name, 0, topic.assignments)
    count = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    if count < 1:
        raise UsageError(
            f"topic {topic.name} can't have {count} partitions: ask for 1 or more, or -1 for the node's default",
            ErrorCode.INVALID_PARTITIONS,
        )
    replicas = config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if not 1 <= replicas <= len(image.brokers):
        raise UsageError(
            f"topic {topic.name} can't have {replicas} replicas: the number of nodes is {len(image.brokers)}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    _check_room(config, image, count)
    return placed_here(config.node_id, count)


def _check_room(config: NodeConfig, image: MetadataImage, more: int) -> None:
    if image.partition_count + more > config.max_partitions:
        raise FatalError(
            f"{more} more partitions are too many: the node has {image.partition_count} and max.partitions is "
            f"{config.max_partitions}",
            ErrorCode.INVALID_PARTITIONS,
        )


def _existing(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise _unknown_topic(name)
    return topic


def _unknown_topic(name: str) -> SemelError:
    return error_for(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:300]!r}: create it, or check its name"
    )


def _check_deletable(config: NodeConfig, topic: TopicImage | None, wanted: str | TopicId) -> None:
    if topic is None:
        if isinstance(wanted, str):
            raise _unknown_topic(wanted)
        raise error_for(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"there is no topic with the id {format_topic_id(wanted)}: it may have been deleted already",
        )
    if topic.is_internal:
        raise UsageError(f"{topic.name} is internal: without it, groups or transactions would be forgotten")
    if not config.delete_topic_enable:
        raise FatalError("topics can't be deleted: delete.topic.enable is false", ErrorCode.TOPIC_DELETION_DISABLED)


def _described(image: MetadataImage, name: str) -> TopicResult:
    topic = image.topics[name]
    return TopicResult(name, topic=describe_topic(topic), topic_id=topic.topic_id)
