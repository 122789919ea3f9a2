"""Metadata, versions 0 to 13: the nodes, and topics by name or id (KIP-516), created on the way (KIP-204).

All topics are asked for by an empty list in version 0 and by null from 1 on. Up to version 3 a client can't forbid the
creation. Ids are taken from 12 on (10 and 11 only answer them); where a request has any, its names don't count, as in
Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.broker.handlers import metadata
from semel.broker.listeners.kafka.apis.topic_values import partition_values, topic_values
from semel.broker.listeners.kafka.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR, TOPIC_OPERATIONS
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request

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
    return build_response(
        ApiKey.METADATA,
        version,
        brokers=[
            {"node_id": each.node_id, "host": each.kafka_host, "port": each.kafka_port, "rack": each.rack or None}
            for each in cluster.nodes
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        cluster_authorized_operations=CLUSTER_OPERATIONS if asks_of_cluster else NOT_ASKED_FOR,
        topics=[_topic(node, each, operations) for each in topics],
    )


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


def _topic(node: Services, result: TopicResult, operations: int) -> dict[str, Any]:
    partitions = () if result.topic is None else result.topic.partitions
    values = topic_values(result, operations)
    values["partitions"] = [partition_values(node, result.name, each) for each in partitions]
    return values


METADATA = Api(ApiKey.METADATA, 0, 13, handle_metadata)
