"""Metadata, versions 0 to 13: the nodes, and topics by name or id (KIP-516), created on the way (KIP-204).

All topics are asked for by an empty list in version 0 and by null from 1 on. Up to version 3 a client can't forbid the
creation. Ids are taken from 12 on (10 and 11 only answer them); where a request has any, its names don't count, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.broker.acls.rights import Rights
from semel.broker.handlers import metadata
from semel.broker.listeners.kafka.apis.topic_values import ToldBy, told_topic
from semel.broker.listeners.kafka.large_messages import LARGE_ENTRIES, beside_if, let_go, read_request
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.metadata import all_topics, operations_of_cluster, topics_by_id, topics_by_name
from semel.broker.quotas.client_quotas import Mutations
from semel.broker.services import Services
from semel.protocol.acls import NOT_ASKED_FOR, ResourceType
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId
from semel.protocol.kafka.api import ApiKey, NodeEndpoint
from semel.protocol.kafka.metadata import METADATA_MAX_VERSION, MetadataResponse
from semel.runtime.turns import in_turns

_FIRST_VERSION_WITH_IDS = 12
_LISTENERS_MIN_VERSION = 6
"""Clients of older versions do not know the error of a leader that has no listener of the name."""


async def handle_metadata(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    node = context.node
    rights = context.rights
    # Also topics that are made on the way count, but none is refused for that: old versions have no code for it.
    mutations = context.mutations(strict=False)
    topics = list(await _topics(node, rights, version, request, mutations))
    cluster, fenced = metadata.cluster_of_kafka(node, context.listener_name), metadata.fenced_nodes(node)
    asks_of_topics = getattr(request, "include_topic_authorized_operations", False)
    asks_of_cluster = getattr(request, "include_cluster_authorized_operations", False)
    told_by = ToldBy(
        context.listener_name,
        ErrorCode.LISTENER_NOT_FOUND if version >= _LISTENERS_MIN_VERSION else ErrorCode.LEADER_NOT_AVAILABLE,
    )
    told = [
        told_topic(
            node,
            each,
            each.topic.partitions if each.topic else (),
            told_by,
            rights.operations(ResourceType.TOPIC, each.name) if asks_of_topics and each.topic else NOT_ASKED_FOR,
        )
        async for each in in_turns(topics)
    ]
    response = MetadataResponse(
        [
            NodeEndpoint(each.node_id, each.kafka_host, each.kafka_port, each.rack or None)
            for each in cluster.nodes
            if each.node_id not in fenced
        ],
        cluster.cluster_id,
        cluster.controller_id,
        told,
        operations_of_cluster(rights) if asks_of_cluster else NOT_ASKED_FOR,
        context.throttle_ms(),
    )
    entries = sum([1 + len(topic.partitions) async for topic in in_turns(told)])
    answer = await beside_if(entries > LARGE_ENTRIES, response.build, version)
    await let_go(told)
    await let_go(topics)
    return answer


async def _topics(
    node: Services, rights: Rights, version: int, request: Any, mutations: Mutations
) -> Sequence[TopicResult]:
    if request.topics is None or (version == 0 and not request.topics):
        return await all_topics(node, rights, include_internal=True)
    ids: dict[TopicId, None] = {}
    names: dict[str, None] = {}
    nameless = False
    async for each in in_turns(request.topics):
        if getattr(each, "topic_id", None) is not None:
            ids[TopicId(each.topic_id)] = None
        if each.name is None:
            nameless = True
        else:
            names[each.name] = None
    if (nameless and not ids) or (ids and version < _FIRST_VERSION_WITH_IDS):
        # Each gets the error, under its name.
        return [TopicResult(each.name or "", ErrorCode.INVALID_REQUEST) for each in request.topics]
    if ids:
        return await topics_by_id(node, rights, list(ids))
    allowed = getattr(request, "allow_auto_topic_creation", True)
    return await topics_by_name(node, rights, list(names), allow_auto_create=allowed, mutations=mutations)


METADATA = Api(ApiKey.METADATA, 0, METADATA_MAX_VERSION, handle_metadata)
