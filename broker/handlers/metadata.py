"""Metadata: the cluster's nodes, and topics by name or id, created on the way where that is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from semel.broker.handlers.newest import know_topics
from semel.broker.handlers.topics.changes import create_internal_topic, create_topics
from semel.broker.handlers.topics.descriptions import describe_cluster, describe_topic, grpc_client_of, kafka_client_of
from semel.broker.handlers.topics.rules import check_topic_name
from semel.broker.quotas.client_quotas import UNBOUNDED, Mutations
from semel.broker.services import Services
from semel.protocol.api.metadata import ClusterDescription, TopicResult
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, format_topic_id
from semel.runtime.turns import in_turns

CREATED_PER_REQUEST_MAX: Final = 1_000
"""Topics that one request for metadata creates. A client that gets LEADER_NOT_AVAILABLE of others asks again."""


def cluster_of_kafka(node: Services, listener: str) -> ClusterDescription:
    """Return the cluster's id, its controller and its nodes, to a client of the Kafka listeners of this name.

    Nodes that have none of the name are left out, as in Kafka: the client could not connect to them. The controller is
    where clients send changes of topics to. Each node makes these itself, so it is this one.
    """
    return describe_cluster(node.metadata.image, node.config.node_id, kafka_client_of(listener))


def cluster_of_grpc(node: Services, listener: str) -> ClusterDescription:
    """Return the same to a client of the gRPC listeners of this name."""
    return describe_cluster(node.metadata.image, node.config.node_id, grpc_client_of(listener))


def fenced_nodes(node: Services) -> frozenset[int]:
    """Return the nodes that are taken for dead. This one answers, so it is not, whatever the metadata says."""
    brokers = node.metadata.image.brokers
    return frozenset(node_id for node_id, one in brokers.items() if one.is_fenced and node_id != node.config.node_id)


async def all_topics(node: Services, *, include_internal: bool) -> tuple[TopicResult, ...]:
    """Return every topic, by name."""
    topics = node.metadata.image.topics
    return tuple(
        [
            TopicResult(name, topic=describe_topic(topics[name]), topic_id=topics[name].topic_id)
            async for name in in_turns(sorted(topics))
            if include_internal or name not in INTERNAL_TOPICS
        ]
    )


async def topics_by_name(
    node: Services, names: Sequence[str], *, allow_auto_create: bool = False, mutations: Mutations = UNBOUNDED
) -> tuple[TopicResult, ...]:
    """Return the topics named, in order, creating those that are missing where both caller and node allow it."""
    refused: Mapping[str, TopicResult] = {}
    if allow_auto_create and node.config.auto_create_topics_enable:
        refused = await _create_missing(node, names, mutations)
    else:
        await know_topics(node, names)
    return tuple([refused.get(name) or topic_by_name(node, name) async for name in in_turns(names)])


async def topics_by_id(node: Services, topic_ids: Sequence[TopicId]) -> tuple[TopicResult, ...]:
    """Return the topics with these ids, in order."""
    return tuple([_by_id(node, topic_id) async for topic_id in in_turns(topic_ids)])


async def _create_missing(node: Services, names: Sequence[str], mutations: Mutations) -> Mapping[str, TopicResult]:
    """Create the topics that are missing. Returns those that could not be, each with its error."""
    missing = dict.fromkeys([name async for name in in_turns(names) if node.metadata.topic(name) is None])
    try:
        for name in INTERNAL_TOPICS.intersection(missing):
            await create_internal_topic(node, name)
        wanted = [NewTopic(name) for name in missing if name not in INTERNAL_TOPICS]
        results = await create_topics(node, wanted[:CREATED_PER_REQUEST_MAX], mutations=mutations)
        results += tuple([_created_later(topic.name) async for topic in in_turns(wanted[CREATED_PER_REQUEST_MAX:])])
    except SemelError as error:
        # Nothing can be created now, which is no reason to say nothing of the topics that are there.
        results = tuple(TopicResult(name, error.code, error.message) for name in missing)
    # Another request may have been faster.
    return {
        each.name: each for each in results if each.error is not ErrorCode.NONE and not node.metadata.topic(each.name)
    }


def _created_later(name: str) -> TopicResult:
    try:
        check_topic_name(name)
    except UsageError as error:
        return TopicResult(name, error.code, error.message)
    message = (
        f"one request for metadata creates up to {CREATED_PER_REQUEST_MAX} topics: ask again for {name!r}, or create "
        "many topics with CreateTopics"
    )
    return TopicResult(name, ErrorCode.LEADER_NOT_AVAILABLE, message)


def topic_by_name(node: Services, name: str) -> TopicResult:
    """Return one topic, or the error that says why there is none."""
    topic = node.metadata.topic(name)
    if topic is not None:
        return TopicResult(name, topic=describe_topic(topic), topic_id=topic.topic_id)
    try:
        check_topic_name(name)
    except UsageError as error:
        return TopicResult(name, error.code, error.message)
    return TopicResult(
        name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}: create it, or check its name"
    )


def _by_id(node: Services, topic_id: TopicId) -> TopicResult:
    topic = node.metadata.topic_by_id(topic_id)
    if topic is None:
        message = f"there is no topic with the id {format_topic_id(topic_id)}: it may have been deleted"
        return TopicResult("", ErrorCode.UNKNOWN_TOPIC_ID, message, topic_id=topic_id)
    return TopicResult(topic.name, topic=describe_topic(topic), topic_id=topic_id)
