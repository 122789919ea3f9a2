"""Topics are made, deleted and grown, their records deleted and their offsets told, each where the caller may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers.delete_records import TIMEOUT_MS, DeletedRecords, begin_deletion, confirm_deletion
from semel.broker.handlers.list_offsets import UNKNOWN_OFFSET, list_offsets
from semel.broker.handlers.newest import know_topics
from semel.broker.handlers.offset_for_leader_epoch import LeaderEpochEnd, offset_for_leader_epoch
from semel.broker.handlers.topics import changes
from semel.broker.handlers.topics.changes import MorePartitions
from semel.broker.permitted.metadata import refused_topic
from semel.broker.quotas.client_quotas import UNBOUNDED, Mutations
from semel.broker.services import Services
from semel.protocol.acls import AclOperation, ResourceType
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import ListOffset, ListOffsetsRequest, NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_TIMESTAMP, TopicId, TopicPartition
from semel.runtime.completion import done_to_its_end
from semel.runtime.turns import in_turns

_TOPIC: Final = ResourceType.TOPIC
_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NOT_BY_ID: Final = "the caller may not DELETE the topic with this id: an operator allows it with `semel acl add`"


@done_to_its_end
async def create_topics(
    node: Services,
    rights: Rights,
    topics: Sequence[NewTopic],
    *,
    validate_only: bool = False,
    mutations: Mutations = UNBOUNDED,
) -> tuple[TopicResult, ...]:
    """Create topics; answer for each in order. Who may CREATE on the cluster may create every one.

    mutations: counts their partitions
    """
    results = await _create(node, rights, topics, validate_only=validate_only, mutations=mutations)
    if not validate_only:
        async for result in in_turns(results):
            if result.error is ErrorCode.NONE:
                count = 0 if result.topic is None else len(result.topic.partitions)
                node.audit.changed(rights.who, Event.TOPIC_CREATED, topic=result.name, partitions=count)
    return results


async def _create(
    node: Services, rights: Rights, topics: Sequence[NewTopic], *, validate_only: bool, mutations: Mutations
) -> tuple[TopicResult, ...]:
    if rights.are_all or rights.may_with_cluster(AclOperation.CREATE, told=False):
        return await changes.create_topics(node, topics, validate_only=validate_only, mutations=mutations)
    # What is in the request more than once is refused for that in any case.
    times = Counter([topic.name for topic in topics])
    denied = await rights.denied(_TOPIC, [name for name, count in times.items() if count == 1], AclOperation.CREATE)
    wanted = [topic for topic in topics if topic.name not in denied]
    made = iter(await changes.create_topics(node, wanted, validate_only=validate_only, mutations=mutations))
    return tuple(
        refused_topic(rights, topic.name, AclOperation.CREATE) if topic.name in denied else next(made)
        for topic in topics
    )


def may_see_configs(rights: Rights, topic: str) -> bool:
    """Return whether the caller is told the settings of a topic that he has made."""
    return rights.may(_TOPIC, topic, AclOperation.DESCRIBE_CONFIGS, told=False)


@done_to_its_end
async def delete_topics(
    node: Services, rights: Rights, wanted: Sequence[str | TopicId], *, mutations: Mutations = UNBOUNDED
) -> tuple[TopicResult, ...]:
    """Delete topics by name or id; answer in order. Who may DELETE the cluster may delete every one.

    Of a topic that the caller may not describe he hears neither whether it is there nor its name.
    """
    results = await _delete(node, rights, wanted, mutations)
    async for result in in_turns(results):
        if result.error is ErrorCode.NONE:
            node.audit.changed(rights.who, Event.TOPIC_DELETED, topic=result.name)
    return results


async def _delete(
    node: Services, rights: Rights, wanted: Sequence[str | TopicId], mutations: Mutations
) -> tuple[TopicResult, ...]:
    if rights.are_all or rights.may_with_cluster(AclOperation.DELETE, told=False):
        return await changes.delete_topics(node, wanted, mutations=mutations)
    await know_topics(node, [each for each in wanted if isinstance(each, str)])
    refused: dict[str | TopicId, TopicResult] = {}
    async for each in in_turns(wanted):
        refusal = _may_not_delete(node, rights, each)
        if refusal is not None:
            refused[each] = refusal
    allowed = [each for each in wanted if each not in refused]
    deleted = iter(await changes.delete_topics(node, allowed, mutations=mutations))
    return tuple(refused[each] if each in refused else next(deleted) for each in wanted)


def _may_not_delete(node: Services, rights: Rights, wanted: str | TopicId) -> TopicResult | None:
    if isinstance(wanted, str):
        if rights.may(_TOPIC, wanted, AclOperation.DELETE):
            return None
        if node.metadata.topic(wanted) is None and rights.may(_TOPIC, wanted, AclOperation.DESCRIBE, told=False):
            return None  # that it is missing may be told
        return refused_topic(rights, wanted, AclOperation.DELETE)
    topic = node.metadata.topic_by_id(wanted)
    if topic is None or rights.may(_TOPIC, topic.name, AclOperation.DELETE):
        return None
    if rights.may(_TOPIC, topic.name, AclOperation.DESCRIBE, told=False):
        return refused_topic(rights, topic.name, AclOperation.DELETE, topic_id=wanted)
    return TopicResult("", _DENIED, _NOT_BY_ID, topic_id=wanted)


@done_to_its_end
async def create_partitions(
    node: Services,
    rights: Rights,
    name: str,
    total_count: int,
    *,
    validate_only: bool = False,
    mutations: Mutations = UNBOUNDED,
) -> None:
    """Give a topic more partitions. Raises `SemelError`."""
    rights.check(_TOPIC, name)
    await changes.create_partitions(node, name, total_count, validate_only=validate_only, mutations=mutations)
    if not validate_only:
        node.audit.changed(rights.who, Event.PARTITIONS_ADDED, topic=name, partitions=total_count)


@done_to_its_end
async def create_partitions_of_many(
    node: Services,
    rights: Rights,
    wanted: Sequence[MorePartitions],
    *,
    validate_only: bool = False,
    mutations: Mutations = UNBOUNDED,
) -> Sequence[TopicResult]:
    """Give topics more partitions; answer for each in order."""
    times = Counter([each.topic for each in wanted])
    denied = await rights.denied(_TOPIC, [name for name, count in times.items() if count == 1])
    allowed = [each for each in wanted if each.topic not in denied]
    growing = changes.create_partitions_of_many(node, allowed, validate_only=validate_only, mutations=mutations)
    results = await growing
    if not validate_only:
        for each, result in zip(allowed, results, strict=True):
            if result.error is ErrorCode.NONE:
                node.audit.changed(rights.who, Event.PARTITIONS_ADDED, topic=each.topic, partitions=each.total_count)
    grown = iter(results)
    return [refused_topic(rights, each.topic) if each.topic in denied else next(grown) for each in wanted]


async def delete(
    node: Services, rights: Rights, before: Mapping[TopicPartition, int], *, timeout_ms: float = TIMEOUT_MS
) -> dict[TopicPartition, DeletedRecords]:
    """Make everything before the given offsets unreadable; answer for each partition."""
    denied = await rights.denied(_TOPIC, [tp.topic for tp in before])
    allowed = {tp: offset for tp, offset in before.items() if tp.topic not in denied} if denied else before
    deleted = await confirm_deletion(node, await _begin_deletion(node, rights, allowed), timeout_ms=timeout_ms)
    if not denied:
        return deleted
    return {
        tp: DeletedRecords(-1, _DENIED, rights.refusal(_TOPIC, tp.topic).message) if tp.topic in denied else deleted[tp]
        for tp in before
    }


@done_to_its_end
async def _begin_deletion(
    node: Services, rights: Rights, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, DeletedRecords]:
    """The records are gone here then, whatever comes of the other replicas. To wait for these can take long, and ends
    with the client.
    """
    found = await begin_deletion(node, before)
    done = Counter([tp.topic async for tp, result in in_turns(found.items()) if result.error is ErrorCode.NONE])
    for topic, count in done.items():
        node.audit.changed(rights.who, Event.RECORDS_DELETED, topic=topic, partitions=count)
    return found


async def offsets(node: Services, rights: Rights, request: ListOffsetsRequest) -> dict[TopicPartition, ListOffset]:
    """Return an offset for each partition asked, or its error."""
    denied = await rights.denied(_TOPIC, [tp.topic for tp in request.timestamps])
    if not denied:
        return await list_offsets(node, request)
    allowed = {tp: timestamp for tp, timestamp in request.timestamps.items() if tp.topic not in denied}
    found = await list_offsets(node, replace(request, timestamps=allowed))
    refused = ListOffset(UNKNOWN_OFFSET, NO_TIMESTAMP, error=_DENIED)
    return {tp: refused if tp.topic in denied else found[tp] for tp in request.timestamps}


class EpochEnds:
    """Where leaders' epochs ended, for one request."""

    def __init__(self, node: Services, denied: frozenset[str]) -> None:
        self._node = node
        self._denied = denied

    def of(self, tp: TopicPartition, leader_epoch: int, *, current_leader_epoch: int) -> LeaderEpochEnd:
        """Return where `leader_epoch` ended. `current_leader_epoch` is what the caller knows, -1 for nothing."""
        if tp.topic in self._denied:
            return LeaderEpochEnd(error=_DENIED)
        return offset_for_leader_epoch(self._node, tp, leader_epoch, current_leader_epoch=current_leader_epoch)


async def epoch_ends(node: Services, rights: Rights, topics: Iterable[str]) -> EpochEnds:
    """Return what tells where epochs of these topics ended, of those that the caller may describe."""
    if rights.are_all or rights.may_with_cluster(told=False):
        return EpochEnds(node, frozenset())
    return EpochEnds(node, await rights.denied(_TOPIC, topics))
