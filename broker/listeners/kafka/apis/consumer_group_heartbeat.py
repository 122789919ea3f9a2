"""ConsumerGroupHeartbeat, versions 0 to 1 (KIP-848): join, stay in or leave a consumer group, and learn what to read.

From version 1 on clients make their own member ids, and may subscribe by a regular expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from semel.broker.listeners.kafka.apis.coordinator_errors import client_host, coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import consumer_heartbeat
from semel.protocol.api.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    Partitions,
    TopicIdPartition,
)
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values, to_ms

FIRST_VERSION_WITH_REGEX: Final = 1


async def handle_consumer_group_heartbeat(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    names = request.subscribed_topic_names
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=to_ms(request.rebalance_timeout),
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex if version >= FIRST_VERSION_WITH_REGEX else None,
        server_assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
        client_id=context.client_id or "",
        client_host=client_host(context.peer),
        needs_member_id=version < FIRST_VERSION_WITH_REGEX,
    )
    try:
        response = await consumer_heartbeat(context.node, context.rights, heartbeat)
    except SemelError as error:
        return await write_response(
            context,
            error_code=coordinator_code(error),
            error_message=error.message,
        )
    return await write_response(
        context,
        member_id=response.member_id,
        member_epoch=response.member_epoch,
        heartbeat_interval=response.heartbeat_interval_ms,
        assignment=None if response.assignment is None else _assignment(response.assignment),
    )


def _owned(topics: Sequence[Any]) -> Partitions:
    """Return what the member holds; partitions of the reserved id, which no topic has, are none."""
    return frozenset(
        TopicIdPartition(TopicId(topic.topic_id), number)
        for topic in topics
        if topic.topic_id is not None
        for number in topic.partitions
    )


def _assignment(partitions: Partitions) -> Values:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return {
        "topic_partitions": [
            {"topic_id": topic_id.bytes, "partitions": numbers} for topic_id, numbers in by_topic.items()
        ]
    }


CONSUMER_GROUP_HEARTBEAT = Api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, handle_consumer_group_heartbeat, waits_for_others=True
)
