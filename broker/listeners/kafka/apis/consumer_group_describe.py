"""ConsumerGroupDescribe, versions 0 to 1 (KIP-848): what a consumer group and its members are up to.

Version 1 says of each member which protocol it speaks (KIP-1099). What one answer describes is bounded: the groups that
do not fit get COORDINATOR_LOAD_IN_PROGRESS, for which Kafka's clients ask again, and for these groups alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import describe_consumers
from semel.protocol.acls import NOT_ASKED_FOR, ResourceType
from semel.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    DescribedTopic,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1

DESCRIBED_MAX: Final = 200_000
"""Members, topics and partitions in one answer, about. The first group is described in any case."""


class _Room:
    """What may still be described in one answer."""

    def __init__(self) -> None:
        self._left = DESCRIBED_MAX

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def take(self, group: ConsumerGroupDescription) -> bool:
        """Return whether the group may be in the answer, and count it if so."""
        if self.is_used_up:
            return False
        self._left -= 1 + sum(_size(member) for member in group.members)
        return True


async def handle_consumer_group_describe(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    # Each group once: a short request could otherwise have the same group written out without end.
    asked = list(dict.fromkeys(request.group_ids))
    room = _Room()
    groups = await bounded_concurrency(asked, lambda group_id: _describe(context, group_id, room, request))
    return await write_response(context, groups=groups)


async def _describe(context: RequestContext, group_id: str, room: _Room, request: Any) -> Values:
    if room.is_used_up:
        return _no_room(group_id)
    try:
        group = await describe_consumers(context.node, context.rights, ConsumerGroupDescribeRequest(group_id))
    except SemelError as error:
        return {"group_id": group_id, "error_code": coordinator_code(error), "error_message": error.message}
    if not room.take(group):
        return _no_room(group_id)
    asks = request.include_authorized_operations
    operations = context.rights.operations(ResourceType.GROUP, group_id) if asks else NOT_ASKED_FOR
    return {"group_id": group_id, "authorized_operations": operations, **_values(group)}


def _no_room(group_id: str) -> Values:
    return {
        "group_id": group_id,
        "error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        "error_message": f"the groups before this one fill the answer, which describes about {DESCRIBED_MAX} members, "
        "topics and partitions: ask again for the groups that have this error",
    }


def _size(member: ConsumerMemberDescription) -> int:
    topics = (*member.assignment, *member.target)
    return 1 + len(member.topic_names) + sum(1 + len(topic.partitions) for topic in topics)


def _values(group: ConsumerGroupDescription) -> Values:
    return {
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack_id,
                "member_epoch": member.member_epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": member.topic_names,
                "subscribed_topic_regex": member.topic_regex,
                "assignment": _assignment(member.assignment),
                "target_assignment": _assignment(member.target),
                "member_type": CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
            }
            for member in group.members
        ],
    }


def _assignment(topics: Sequence[DescribedTopic]) -> Values:
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id.bytes, "topic_name": topic.name, "partitions": topic.partitions}
            for topic in topics
        ]
    }


CONSUMER_GROUP_DESCRIBE = Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, handle_consumer_group_describe)
