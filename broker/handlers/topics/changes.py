"""CreateTopics, DeleteTopics, CreatePartitions.

Every topic of a request succeeds or fails for itself. Those that succeed are one entry after the other in the
metadata's log, a hundred written together. Behaviour follows Kafka's ReplicationControlManager.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from semel.broker.config.node_config import NodeConfig
from semel.broker.controller.membership import alive_nodes, cordoned_nodes, stopping_nodes
from semel.broker.controller.metadata_loss import first_leader_epoch
from semel.broker.controller.newer_settings import check_all_know
from semel.broker.handlers.topics.descriptions import describe_topic
from semel.broker.handlers.topics.replica_placement import placed_as_assigned, placed_by_rule
from semel.broker.handlers.topics.rules import (
    check_all_have_store,
    check_topic_configs,
    check_topic_name,
    collides,
    internal_topic,
    unified_names,
    with_storage,
)
from semel.broker.logs.offline import OfflineLog
from semel.broker.metadata.changes import Change, PartitionsAdded, PartitionState, TopicCreated, TopicDeleted
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.broker.quotas.client_quotas import UNBOUNDED, Mutations
from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError, error_for
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, format_topic_id, new_topic_id
from semel.protocol.wording import counted
from semel.runtime.turns import in_turns

TOPICS_PER_REQUEST_MAX: Final = 10_000
"""Kafka has the same bound, for the partitions of one request."""

TOPICS_PER_CHANGE_MAX: Final = 100
"""Topics that are decided on, and written, together: deciding on more would hold the event loop (S3)."""


class MorePartitions(NamedTuple):
    """A topic that is to have `total_count` partitions; `assignments`: the nodes of each new one's replicas."""

    topic: str
    total_count: int
    assignments: Sequence[Sequence[int]] | None = None


_NAMED_MAX: Final = 5


async def create_topics(
    node: Services, topics: Sequence[NewTopic], *, validate_only: bool = False, mutations: Mutations = UNBOUNDED
) -> tuple[TopicResult, ...]:
    """Create topics; answer for each in order. With `validate_only`, only say what would happen.

    mutations: counts their partitions for the caller's quota, also with `validate_only`
    """
    if len(topics) > TOPICS_PER_REQUEST_MAX:
        message = f"{len(topics)} topics in one request are too many: create up to {TOPICS_PER_REQUEST_MAX} at once"
        return tuple(TopicResult(topic.name, ErrorCode.POLICY_VIOLATION, message) for topic in topics)
    repeated = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
    if not validate_only:
        results: list[TopicResult] = []
        for first in range(0, len(topics), TOPICS_PER_CHANGE_MAX):
            results += await _create_together(node, topics[first : first + TOPICS_PER_CHANGE_MAX], repeated, mutations)
        return tuple(results)
    decision = _Creation(node.config, node.metadata.image, repeated, mutations)
    async for topic in in_turns(topics):
        decision.add(topic)
    return tuple(decision.results)


async def _create_together(
    node: Services, topics: Sequence[NewTopic], repeated: Container[str], mutations: Mutations
) -> list[TopicResult]:
    """Create topics by one change of the metadata, and wait until their logs are there."""
    decision: _Creation

    def decide(image: MetadataImage) -> Sequence[Change]:
        nonlocal decision
        decision = _Creation(node.config, image, repeated, mutations)
        for topic in topics:
            decision.add(topic)
        return decision.changes

    await node.metadata.change(decide)
    await node.caught_up()
    _note_refused(node, decision.without_room)
    return _unless_offline(node, decision.results)


class _Creation:
    """Decides about new topics one after the other, each as if those before it were there."""

    def __init__(
        self, config: NodeConfig, image: MetadataImage, repeated: Container[str], mutations: Mutations
    ) -> None:
        """`repeated`: names that the request has more than once."""
        self.changes: list[TopicCreated] = []
        self.results: list[TopicResult] = []
        self.without_room = 0
        self._config = config
        self._image = image
        self._repeated = repeated
        self._mutations = mutations
        self._unified = unified_names(image.topics)
        self._partition_count = image.partition_count

    def add(self, topic: NewTopic) -> None:
        try:
            if topic.name in self._repeated:
                raise UsageError(f"topic {topic.name} is in the request more than once")
            created = self._new_topic(topic)
        except SemelError as error:
            self.without_room += isinstance(error, _NoRoomError)
            self.results.append(TopicResult(topic.name, error.code, error.message))
            return
        self.changes.append(created)
        self._unified.update(unified_names((created.name,)))
        self._partition_count += len(created.partitions)
        made = TopicImage(created.name, created.topic_id, created.partitions, created.configs)
        self.results.append(TopicResult(made.name, topic=describe_topic(made), topic_id=made.topic_id))

    def _new_topic(self, topic: NewTopic) -> TopicCreated:
        check_topic_name(topic.name)
        if topic.name in self._image.topics:
            raise FatalError(f"topic {topic.name} already exists", ErrorCode.TOPIC_ALREADY_EXISTS)
        if topic.name in INTERNAL_TOPICS:
            raise UsageError(
                f"{topic.name} is internal: the node creates it when it first needs it",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        if collides(topic.name, self._unified):
            raise UsageError(  # without the other one's name: who may create this one need not know of that
                f"topic {topic.name} differs from one that exists only by '.' and '_', which metrics can't tell apart: "
                "take another name",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        topic = with_storage(self._config, topic)
        states = _states(self._config, self._image, topic, self._partition_count)
        check_topic_configs(self._config, topic.configs)
        check_all_have_store(self._config, self._image, topic.configs)
        check_all_know(self._image, topic.configs)
        self._mutations.take(topic.name, len(states))
        return TopicCreated(topic.name, new_topic_id(), states, dict(topic.configs))


async def delete_topics(
    node: Services, wanted: Sequence[str | TopicId], *, mutations: Mutations = UNBOUNDED
) -> tuple[TopicResult, ...]:
    """Delete topics by name or id, with their records, committed offsets and open transactions; answer in order.

    A topic that is asked for more than once is INVALID_REQUEST and stays.
    """
    image = node.metadata.image
    times: Counter[str] = Counter()
    async for each in in_turns(wanted):
        topic = _found(image, each)
        if topic is not None:
            times[topic.name] += 1
    results: list[TopicResult] = []
    for first in range(0, len(wanted), TOPICS_PER_CHANGE_MAX):
        results += await _delete_together(node, wanted[first : first + TOPICS_PER_CHANGE_MAX], times, mutations)
    return tuple(results)


async def _delete_together(
    node: Services, wanted: Sequence[str | TopicId], times: Mapping[str, int], mutations: Mutations
) -> list[TopicResult]:
    """Delete topics by one change of the metadata. `times`: how often the request has each."""
    results: list[TopicResult] = []

    def decide(image: MetadataImage) -> list[Change]:
        results.clear()
        changes: list[Change] = []
        here: set[str] = set()
        for each in wanted:
            topic = _found(image, each)
            name = topic.name if topic is not None else each if isinstance(each, str) else ""
            topic_id = topic.topic_id if topic is not None else None if isinstance(each, str) else each
            try:
                _check_deletable(node.config, topic, each)
                if times.get(name, 0) > 1 or name in here:
                    raise UsageError(f"topic {name} is in the request more than once")
                if topic is not None:
                    mutations.take(name, len(topic.partitions))
            except SemelError as error:
                results.append(TopicResult(name, error.code, error.message, topic_id=topic_id))
                continue
            assert topic is not None
            here.add(name)
            changes.append(TopicDeleted(topic.name, topic.topic_id))
            results.append(TopicResult(topic.name, topic_id=topic.topic_id))
        return changes

    await node.metadata.change(decide)
    await node.caught_up()
    return results


def _found(image: MetadataImage, wanted: str | TopicId) -> TopicImage | None:
    return image.topic(wanted) if isinstance(wanted, str) else image.topic_by_id(wanted)


async def create_partitions(
    node: Services, name: str, total_count: int, *, validate_only: bool = False, mutations: Mutations = UNBOUNDED
) -> None:
    """Give a topic more partitions, `total_count` in all. Raises `SemelError`."""
    wanted = MorePartitions(name, total_count)

    def decide(image: MetadataImage) -> list[Change]:
        added = _added(node.config, image, wanted, image.partition_count)
        mutations.take(name, len(added.partitions))
        return [] if validate_only else [added]

    if validate_only:
        decide(node.metadata.image)
    else:
        try:
            await node.metadata.change(decide)
        except _NoRoomError:
            _note_refused(node, 1)
            raise
        await node.caught_up()
        (told,) = _unless_offline(node, [TopicResult(name)])
        if told.error is not ErrorCode.NONE:
            raise error_for(told.error, told.message)


async def create_partitions_of_many(
    node: Services, wanted: Sequence[MorePartitions], *, validate_only: bool = False, mutations: Mutations = UNBOUNDED
) -> tuple[TopicResult, ...]:
    """Give topics more partitions; answer for each in order. A topic that is asked for more than once is refused."""
    times = Counter(each.topic for each in wanted)
    results: list[TopicResult] = []
    for first in range(0, len(wanted), TOPICS_PER_CHANGE_MAX):
        together = wanted[first : first + TOPICS_PER_CHANGE_MAX]
        results += await _grow_together(node, together, times, validate_only, mutations)
    return tuple(results)


async def _grow_together(
    node: Services,
    wanted: Sequence[MorePartitions],
    times: Mapping[str, int],
    validate_only: bool,
    mutations: Mutations,
) -> list[TopicResult]:
    results: list[TopicResult] = []
    without_room = 0

    def decide(image: MetadataImage) -> list[Change]:
        nonlocal without_room
        results.clear()
        without_room = 0
        changes: list[Change] = []
        partition_count = image.partition_count
        for each in wanted:
            try:
                if times[each.topic] > 1:
                    raise UsageError(f"topic {each.topic} is in the request more than once")
                added = _added(node.config, image, each, partition_count)
                mutations.take(each.topic, len(added.partitions))
            except SemelError as error:
                without_room += isinstance(error, _NoRoomError)
                results.append(TopicResult(each.topic, error.code, error.message))
                continue
            partition_count += len(added.partitions)
            changes.append(added)
            results.append(TopicResult(each.topic))
        return [] if validate_only else changes

    if validate_only:
        decide(node.metadata.image)
        await asyncio.sleep(0)
    else:
        await node.metadata.change(decide)
        await node.caught_up()
        _note_refused(node, without_room)
    return results if validate_only else _unless_offline(node, results)


def _added(config: NodeConfig, image: MetadataImage, wanted: MorePartitions, partition_count: int) -> PartitionsAdded:
    name, total_count, assignments = wanted.topic, wanted.total_count, wanted.assignments
    topic = _existing(image, name)
    now = len(topic.partitions)
    if topic.is_internal:
        raise UsageError(f"{name} is internal: its keys are bound to its {now} partitions")
    if total_count <= now:
        raise FatalError(
            f"topic {name} has {now} partitions: ask for more than that, not {total_count}; none can be taken away",
            ErrorCode.INVALID_PARTITIONS,
        )
    more, beside = total_count - now, topic.partitions
    _check_room(config, partition_count, more)
    if topic.is_diskless:
        # Those that are not diskless yet have more replicas than the new ones.
        beside = tuple(replace(one, replicas=one.replicas_after[:1], adding=(), removing=()) for one in beside)
    if assignments is None:
        factor = len(beside[0].replicas_after)
        states = placed_by_rule(image, _nodes(config, image), name, more, factor, beside)
    elif len(assignments) != more:
        raise UsageError(
            f"{len(assignments)} partitions of {name} are assigned, and {more} are to be added",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    else:
        states = placed_as_assigned(image, name, now, dict(enumerate(assignments, start=now)), beside)
    # Partitions of the same numbers may have been lost with the metadata that added them, and be on disks still.
    epoch = first_leader_epoch(topic)
    return PartitionsAdded(name, topic.topic_id, now, tuple(replace(one, leader_epoch=epoch) for one in states))


async def create_internal_topic(node: Services, name: str) -> None:
    """Create `__consumer_offsets` or `__transaction_state` unless it is there, on nodes that are alive.

    Raises COORDINATOR_NOT_AVAILABLE where that can't be done now.
    """
    if node.metadata.topic(name) is not None:
        return

    def decide(image: MetadataImage) -> list[Change]:
        if name in image.topics:
            return []
        nodes = alive_nodes(image).difference(stopping_nodes(image)).intersection(_nodes(node.config, image))
        if not nodes:
            raise RetriableError("no node is alive by the metadata")
        made = internal_topic(node.config, name, len(nodes))
        check_all_know(image, made.configs)
        check_all_have_store(node.config, image, made.configs)
        states = placed_by_rule(image, nodes, name, made.partitions, made.replication_factor)
        return [TopicCreated(name, new_topic_id(), states, made.configs)]

    try:
        await node.metadata.change(decide)
    except (RetriableError, UsageError, FatalError) as error:
        raise RetriableError(
            f"{name} can't be created now: {error.message}", ErrorCode.COORDINATOR_NOT_AVAILABLE
        ) from error
    await node.caught_up()


def _states(
    config: NodeConfig, image: MetadataImage, topic: NewTopic, partition_count: int
) -> tuple[PartitionState, ...]:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise UsageError(
                f"the replicas of {topic.name} are assigned, so its numbers of partitions and replicas must be -1, not "
                f"{topic.num_partitions} and {topic.replication_factor}"
            )
        _check_room(config, partition_count, len(topic.assignments))
        return placed_as_assigned(image, topic.name, 0, topic.assignments)
    count = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    if count < 1:
        raise UsageError(
            f"topic {topic.name} can't have {count} partitions: ask for 1 or more, or -1 for the node's default",
            ErrorCode.INVALID_PARTITIONS,
        )
    replicas = config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    _check_room(config, partition_count, count)
    return placed_by_rule(image, _nodes(config, image), topic.name, count, replicas)


def _nodes(config: NodeConfig, image: MetadataImage) -> tuple[int, ...]:
    """Return where new replicas may be. Where this node runs alone, what else is registered is a former id of it."""
    brokers = [one.node_id for one in image.brokers.values() if one.peer_port]
    cordoned = cordoned_nodes(image)
    return tuple(each for each in (brokers if config.peer_listen else [config.node_id]) if each not in cordoned)


class _NoRoomError(FatalError):
    """There are as many partitions as there may be."""


def _check_room(config: NodeConfig, partition_count: int, more: int) -> None:
    if partition_count + more > config.max_partitions:
        raise _NoRoomError(
            f"{more} more partitions are too many: there are {partition_count} and max.partitions is "
            f"{config.max_partitions}. Delete topics that are not used any more, or raise the setting",
            ErrorCode.INVALID_PARTITIONS,
        )


def _note_refused(node: Services, count: int) -> None:
    node.metadata.refusals.note("max.partitions", count)


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


def _unless_offline(node: Services, results: Sequence[TopicResult]) -> list[TopicResult]:
    """Return the answers about topics that were made; where files of one could not be made, what became of it."""
    offline: dict[str, list[OfflineLog]] = {}
    for one in node.logs.offline:
        offline.setdefault(one.tp.topic, []).append(one)
    return [
        _offline(result, offline[result.name]) if result.error is ErrorCode.NONE and result.name in offline else result
        for result in results
    ]


def _offline(result: TopicResult, offline: Sequence[OfflineLog]) -> TopicResult:
    named = ", ".join(str(one.tp) for one in offline[:_NAMED_MAX])
    return TopicResult(
        result.name,
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"topic {result.name} is there now, but {counted(len(offline), 'partition')} of it can't be used ({named}"
        f"{', ...' if len(offline) > _NAMED_MAX else ''}), because {offline[0].reason}. Do not create it again: "
        "`semel doctor` says which are retried, and what is to be done",
        topic_id=result.topic_id,
    )
