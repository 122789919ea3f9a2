"""Metadata, versions 0 to 13: the nodes, and topics by name or id (KIP-516), created on the way (KIP-204).

All topics are asked for by an empty list in version 0 and by null from 1 on. Up to version 3 a client can't forbid the
creation. Ids are taken from 12 on (10 and 11 only answer them); where a request has any, its names don't count, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.broker.handlers import metadata
from semel.broker.listeners.kafka.apis.topic_values import told_topic
from semel.broker.listeners.kafka.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR, TOPIC_OPERATIONS
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId
from semel.protocol.kafka.api import ApiKey, NodeEndpoint
from semel.protocol.kafka.messages import parse_request
from semel.protocol.kafka.metadata import METADATA_MAX_VERSION, MetadataResponse

_FIRST_VERSION_WITH_IDS = 12


async def handle_metadata(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.METADATA, version, body)
    node = context.node
    topics = await _topics(node, version, request)
    cluster = metadata.cluster(node)
    asks_of_topics = getattr(request, "include_topic_authorized_operations", False)
    asks_of_cluster = getattr(request, "include_cluster_authorized_operations", False)
    operations = TOPIC_OPERATIONS if asks_of_topics else NOT_ASKED_FOR
    return MetadataResponse(
        [NodeEndpoint(each.node_id, each.kafka_host, each.kafka_port, each.rack or None) for each in cluster.nodes],
        cluster.cluster_id,
        cluster.controller_id,
        [told_topic(node, each, each.topic.partitions if each.topic else (), operations) for each in topics],
        CLUSTER_OPERATIONS if asks_of_cluster else NOT_ASKED_FOR,
    ).build(version)


async def _topics(node: Services, version: int, request: Any) -> Sequence[TopicResult]:
    if request.topics is None or (version == 0 and not request.topics):
        return metadata.all_topics(node, include_internal=True)
    ids = {TopicId(each.topic_id): None for each in request.topics if getattr(each, "topic_id", None) is not None}
    nameless = any(each.name is None for each in request.topics) and not ids
    if nameless or (ids and version < _FIRST_VERSION_WITH_IDS):
        # Each gets the error, under its name.
        return [TopicResult(each.name or "", ErrorCode.INVALID_REQUEST) for each in request.topics]
    if ids:
        return metadata.topics_by_id(node, list(ids))
    names = list(dict.fromkeys(each.name for each in request.topics))
    allowed = getattr(request, "allow_auto_topic_creation", True)
    return await metadata.topics_by_name(node, names, allow_auto_create=allowed)


METADATA = Api(ApiKey.METADATA, 0, METADATA_MAX_VERSION, handle_metadata)
