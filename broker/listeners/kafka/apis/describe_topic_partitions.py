"""DescribeTopicPartitions, version 0 (KIP-966): topics by name in pages, for clusters with many partitions.

Topics come in the order of their names. A page ends after so many partitions as the client asks for, up to
max.request.partition.size.limit, and its cursor says where the next begins; where the cursor's topic has been deleted
since, that is the topic after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from semel.broker.acls.rights import Rights
from semel.broker.listeners.kafka.apis.topic_values import ToldBy, told_topic
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.metadata import topic_by_name
from semel.broker.services import Services
from semel.protocol.acls import NOT_ASKED_FOR, ResourceType
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.metadata import MetadataTopic
from semel.runtime.turns import in_turns


class _Cursor(NamedTuple):
    """Where a page begins."""

    topic_name: str
    partition_index: int


async def handle_describe_topic_partitions(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    names = sorted({each.name for each in request.topics})
    cursor = request.cursor
    begin = _Cursor("", 0) if cursor is None else _Cursor(cursor.topic_name, cursor.partition_index)
    following: _Cursor | None = None
    told_by = ToldBy(context.listener_name, ErrorCode.LEADER_NOT_AVAILABLE)  # this API has no errors of leaders
    if begin.partition_index < 0:
        refused = [TopicResult(name, ErrorCode.INVALID_REQUEST) for name in names]
        topics = [told_topic(context.node, each, (), told_by, NOT_ASKED_FOR) for each in refused]
    else:
        if not names:
            everything = sorted(context.node.metadata.image.topics)
            hidden = await context.rights.denied(ResourceType.TOPIC, everything, told=False)
            names = [name for name in everything if name not in hidden]
        limit = max(1, min(request.response_partition_limit, context.node.config.max_request_partition_size_limit))
        names = names[bisect_left(names, begin.topic_name) :]
        topics, following = await _page(context.node, context.rights, names, begin, limit, told_by)
    return await write_response(
        context,
        topics=[_topic_values(context.node, each) async for each in in_turns(topics)],
        next_cursor=None if following is None else following._asdict(),
    )


async def _page(
    node: Services, rights: Rights, names: Sequence[str], begin: _Cursor, limit: int, told_by: ToldBy
) -> tuple[list[MetadataTopic], _Cursor | None]:
    topics: list[MetadataTopic] = []
    async for name in in_turns(names):
        if limit == 0:
            return topics, _Cursor(name, 0)
        result = topic_by_name(node, rights, name)
        first = begin.partition_index if name == begin.topic_name else 0
        partitions = () if result.topic is None else result.topic.partitions
        taken = partitions[first : first + limit]
        denied = result.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        operations = NOT_ASKED_FOR if denied else rights.operations(ResourceType.TOPIC, name)
        topics.append(told_topic(node, result, taken, told_by, operations))
        if first + len(taken) < len(partitions):
            return topics, _Cursor(name, first + len(taken))
        limit -= len(taken)
    return topics, None


def _topic_values(node: Services, topic: MetadataTopic) -> dict[str, Any]:
    image = node.metadata.topic(topic.name) if topic.name else None
    states = () if image is None else image.partitions
    return {
        "error_code": topic.error,
        "name": topic.name,
        "topic_id": topic.topic_id.bytes,
        "is_internal": topic.is_internal,
        "topic_authorized_operations": topic.authorized_operations,
        "partitions": [
            {
                "error_code": ErrorCode.NONE,  # that it has no leader is no error here
                "partition_index": each.partition,
                "leader_id": each.leader_id,
                "leader_epoch": each.leader_epoch,
                "replica_nodes": each.replicas,
                "isr_nodes": each.isr,
                "offline_replicas": each.offline_replicas,
                "eligible_leader_replicas": states[each.partition].elr if each.partition < len(states) else (),
                "last_known_elr": states[each.partition].last_known_elr if each.partition < len(states) else (),
            }
            for each in topic.partitions
        ],
    }


DESCRIBE_TOPIC_PARTITIONS = Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, handle_describe_topic_partitions)
