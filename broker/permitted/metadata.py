"""Topics by name, by id, or all of them: who may not describe a topic does not hear whether it is there."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers import metadata
from semel.broker.handlers.newest import know_topics
from semel.broker.quotas.client_quotas import UNBOUNDED, Mutations
from semel.broker.services import Services
from semel.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId
from semel.runtime.completion import to_its_end
from semel.runtime.turns import in_turns

_TOPIC: Final = ResourceType.TOPIC


def refused_topic(
    rights: Rights, name: str, operation: AclOperation | None = None, *, topic_id: TopicId | None = None
) -> TopicResult:
    """Return the answer about a topic with which the caller may not do what he asks for."""
    error = rights.refusal(_TOPIC, name, operation)
    return TopicResult(name, error.code, error.message, topic_id=topic_id)


async def all_topics(node: Services, rights: Rights, *, include_internal: bool) -> Sequence[TopicResult]:
    """Return every topic that the caller may describe, by name."""
    found = await metadata.all_topics(node, include_internal=include_internal)
    return await rights.visible(_TOPIC, found, lambda topic: topic.name, AclOperation.DESCRIBE)


async def topics_by_name(
    node: Services,
    rights: Rights,
    names: Sequence[str],
    *,
    allow_auto_create: bool = False,
    mutations: Mutations = UNBOUNDED,
) -> tuple[TopicResult, ...]:
    """Return the topics named, in order, creating those that are missing where caller and node allow it."""
    hidden = await rights.denied(_TOPIC, names, AclOperation.DESCRIBE)
    seen = [name for name in names if name not in hidden]
    not_made: frozenset[str] = frozenset()
    creates = allow_auto_create and node.config.auto_create_topics_enable
    if creates and not rights.are_all:
        await know_topics(node, seen)
        missing = [name async for name in in_turns(seen) if node.metadata.topic(name) is None]
        if missing and not rights.may_with_cluster(AclOperation.CREATE, told=False):
            not_made = await rights.denied(_TOPIC, missing, AclOperation.CREATE)
    asked = [name for name in seen if name not in not_made]
    unknown = [name async for name in in_turns(asked) if node.metadata.topic(name) is None] if creates else []
    finding = metadata.topics_by_name(node, asked, allow_auto_create=allow_auto_create, mutations=mutations)
    found = await (to_its_end(_made(node, rights, unknown, finding)) if unknown else finding)
    if not hidden and not not_made:
        return found
    by_name = {each.name: each for each in found}
    for name in not_made:
        by_name[name] = refused_topic(rights, name, AclOperation.CREATE)
    for name in hidden:
        by_name[name] = refused_topic(rights, name, AclOperation.DESCRIBE)
    return tuple(by_name[name] for name in names)


async def _made(
    node: Services, rights: Rights, unknown: Sequence[str], finding: Coroutine[Any, Any, tuple[TopicResult, ...]]
) -> tuple[TopicResult, ...]:
    """Find topics, some of which are made by that, and tell the audit log of those."""
    found = await finding
    wanted = frozenset(unknown)
    for each in found:
        if each.name in wanted and each.error is ErrorCode.NONE and each.topic is not None:
            count = len(each.topic.partitions)
            node.audit.changed(rights.who, Event.TOPIC_CREATED, topic=each.name, partitions=count, automatically=True)
    return found


async def topics_by_id(node: Services, rights: Rights, topic_ids: Sequence[TopicId]) -> tuple[TopicResult, ...]:
    """Return the topics with these ids, in order. Of one that the caller may not describe, not its name."""
    found = await metadata.topics_by_id(node, topic_ids)
    if rights.are_all:
        return found
    hidden = await rights.denied(_TOPIC, [each.name for each in found if each.topic is not None], AclOperation.DESCRIBE)
    return tuple(_without_name(each) if each.name in hidden and each.topic is not None else each for each in found)


def topic_by_name(node: Services, rights: Rights, name: str) -> TopicResult:
    """Return one topic, or the error that says why there is none."""
    if not rights.may(_TOPIC, name, AclOperation.DESCRIBE):
        return refused_topic(rights, name, AclOperation.DESCRIBE)
    return metadata.topic_by_name(node, name)


def operations_of_cluster(rights: Rights) -> int:
    """Return what the caller may do with the cluster, as the bits of KIP-430: none where he may not describe it."""
    if not rights.may_with_cluster(AclOperation.DESCRIBE):
        return 0
    return rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def _without_name(topic: TopicResult) -> TopicResult:
    message = "the caller may not DESCRIBE the topic with this id: an operator allows it with `semel acl add`"
    return TopicResult("", ErrorCode.TOPIC_AUTHORIZATION_FAILED, message, topic_id=topic.topic_id)
