"""Groups, their members and their offsets, for who may read with the group, describe it or delete it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.metadata.image import MetadataImage
from semel.broker.permitted.transactions import commit_readable
from semel.broker.services import Services
from semel.group_coordinator.consumer.viewers import Viewer, with_viewer
from semel.protocol.acls import AclOperation, ResourceType
from semel.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescription,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    FetchedOffset,
    GroupDescription,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_subscription,
    encode_subscription,
    protocol_version,
)
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, UsageError, error_for
from semel.protocol.ids import NO_LEADER_EPOCH
from semel.runtime.completion import done_to_its_end
from semel.runtime.turns import in_turns

_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_OFFSETS_SHOWN: Final = 100
"""Of one topic, in a line of the audit log."""
_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NOT_FETCHED: Final = FetchedOffset(-1, NO_LEADER_EPOCH, "", _DENIED)


async def join(node: Services, rights: Rights, request: JoinGroupRequest) -> JoinGroupResponse:
    """See `GroupCoordinator.join`. A consumer subscribes to those of its topics that it may describe.

    The others are left out of what it says, because the group may be one whose topics the node assigns, or become one.
    """
    rights.check(_GROUP, request.group_id)
    if not rights.are_all and request.protocol_type == CONSUMER_PROTOCOL_TYPE:
        protocols = tuple([await _permitted_protocol(rights, each) for each in request.protocols])
        request = replace(request, protocols=protocols)
    return await node.groups.join(request)


async def _permitted_protocol(rights: Rights, protocol: GroupProtocol) -> GroupProtocol:
    try:
        said = decode_subscription(protocol.metadata)
        version = protocol_version(protocol.metadata)
    except CorruptDataError:
        return protocol  # no node reads a topic in it
    denied = await rights.denied(_TOPIC, said.topics)
    if not denied:
        return protocol
    seen = replace(said, topics=tuple(topic for topic in said.topics if topic not in denied))
    return GroupProtocol(protocol.name, encode_subscription(seen, version))


async def sync(node: Services, rights: Rights, request: SyncGroupRequest) -> SyncGroupResponse:
    """See `GroupCoordinator.sync`."""
    rights.check(_GROUP, request.group_id)
    return await node.groups.sync(request)


async def heartbeat(node: Services, rights: Rights, request: HeartbeatRequest) -> None:
    """See `GroupCoordinator.heartbeat`."""
    rights.check(_GROUP, request.group_id)
    await node.groups.heartbeat(request)


async def leave(node: Services, rights: Rights, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """See `GroupCoordinator.leave`."""
    rights.check(_GROUP, request.group_id)
    return await node.groups.leave(request)


async def commit_offsets(node: Services, rights: Rights, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets of topics that the caller may read; each of the others gets its error."""
    if request.generation_id >= 0:  # else the member's id does not count
        return await commit_readable(node, rights, request)
    return await _set_offsets(node, rights, request)


@done_to_its_end
async def _set_offsets(node: Services, rights: Rights, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets for nobody in the group: as operators do, and programs that choose their partitions themselves."""
    response = await commit_readable(node, rights, request)
    by_topic: dict[str, list[tuple[int, int]]] = {}
    async for tp, error in in_turns(response.errors.items()):
        if error is ErrorCode.NONE:
            by_topic.setdefault(tp.topic, []).append((tp.partition, request.offsets[tp].offset))
    if not by_topic:
        return response
    # A group that has had members was left by them: an operator moves it. One that never had is of a program alone.
    has_had_members = bool((await node.groups.describe(DescribeGroupRequest(request.group_id))).protocol_type)
    async for topic, offsets in in_turns(by_topic.items()):
        shown = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(offsets)[:_OFFSETS_SHOWN])
        node.audit.offsets_set(
            rights.who,
            request.group_id,
            had_members=has_had_members,
            topic=topic,
            partitions=len(offsets),
            offsets=shown,
        )
    return response


async def fetch_offsets(node: Services, rights: Rights, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return offsets of topics that the caller may describe. Of the others: an error where named, else nothing."""
    rights.check(_GROUP, request.group_id)
    if rights.are_all:
        return await node.groups.fetch_offsets(request)
    if request.partitions is None:
        found = (await node.groups.fetch_offsets(request)).offsets
        hidden = await rights.denied(_TOPIC, [tp.topic for tp in found], told=False)
        return OffsetFetchResponse({tp: offset for tp, offset in found.items() if tp.topic not in hidden})
    denied = await rights.denied(_TOPIC, [tp.topic for tp in request.partitions])
    allowed = tuple(tp for tp in request.partitions if tp.topic not in denied)
    found = (await node.groups.fetch_offsets(replace(request, partitions=allowed))).offsets
    return OffsetFetchResponse({**found, **{tp: NOT_FETCHED for tp in request.partitions if tp.topic in denied}})


@done_to_its_end
async def delete_offsets(
    node: Services, rights: Rights, request: OffsetDeleteRequest, *, must_exist: bool = False
) -> OffsetDeleteResponse:
    """Delete offsets of topics that the caller may read; each of the others gets its error.

    must_exist: whether partitions that there are not are refused, as by Kafka
    """
    rights.check(_GROUP, request.group_id)
    denied = await rights.denied(_TOPIC, [tp.topic for tp in request.partitions])
    errors = {tp: _DENIED for tp in request.partitions if tp.topic in denied}
    if must_exist:
        image = node.metadata.image
        for tp in request.partitions:
            if tp not in errors and image.partition(tp) is None:
                errors[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    allowed = tuple(tp for tp in request.partitions if tp not in errors)
    response = await node.groups.delete_offsets(replace(request, partitions=allowed))
    done = Counter([tp.topic async for tp, error in in_turns(response.errors.items()) if error is ErrorCode.NONE])
    for topic, count in done.items():
        node.audit.changed(rights.who, Event.OFFSETS_DELETED, group=request.group_id, topic=topic, partitions=count)
    return OffsetDeleteResponse({**response.errors, **errors})


async def list_groups(
    node: Services, rights: Rights, request: ListGroupsRequest, *, partial: bool = False
) -> ListGroupsResponse:
    """Return all groups to who may describe the cluster, and else those that the caller may describe."""
    found = await node.groups.list(request, partial=partial)
    if rights.may_with_cluster(told=False):
        return found
    return replace(found, groups=tuple(await rights.visible(_GROUP, found.groups, lambda group: group.group_id)))


async def describe(node: Services, rights: Rights, request: DescribeGroupRequest) -> GroupDescription:
    """See `GroupCoordinator.describe`."""
    rights.check(_GROUP, request.group_id)
    return await node.groups.describe(request)


@done_to_its_end
async def delete(node: Services, rights: Rights, request: DeleteGroupRequest) -> None:
    """See `GroupCoordinator.delete`."""
    rights.check(_GROUP, request.group_id)
    await node.groups.delete(request)
    node.audit.changed(rights.who, Event.GROUP_DELETED, group=request.group_id)


async def consumer_heartbeat(
    node: Services, rights: Rights, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Join, stay in, or leave a consumer group, with topics that the caller may describe (KIP-848)."""
    rights.check(_GROUP, request.group_id)
    denied = await rights.denied(_TOPIC, request.topic_names or ())
    if denied:
        raise rights.refusal(_TOPIC, min(denied))
    if request.topic_regex and rights.viewer is not None:
        try:
            request = replace(request, topic_regex=with_viewer(request.topic_regex, Viewer(*rights.viewer)))
        except ValueError as error:
            raise UsageError(str(error)) from None
    return await node.groups.consumer_heartbeat(request)


async def describe_consumers(
    node: Services, rights: Rights, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescription:
    """Describe a consumer group to who may describe it, and all topics that its members have."""
    rights.check(_GROUP, request.group_id)
    found = await node.groups.describe_consumers(request)
    if rights.are_all:
        return found
    topics = {
        topic.name: None
        async for member in in_turns(found.members)
        for topic in (*member.assignment, *member.target)
        if topic.name
    }
    if await rights.denied(_TOPIC, topics, AclOperation.DESCRIBE, told=False):
        raise error_for(_DENIED, "members of the group have topics that the caller may not DESCRIBE")
    return found


class PartitionCounts(Mapping[str, int]):
    """How many partitions each topic has that a caller may describe: a view of the metadata, for assignors."""

    def __init__(self, image: MetadataImage, rights: Rights) -> None:
        self._topics = image.topics
        self._rights = rights

    def __getitem__(self, topic: str) -> int:
        if not self._may(topic):
            raise KeyError(topic)
        return len(self._topics[topic].partitions)

    def __iter__(self) -> Iterator[str]:
        return (topic for topic in self._topics if self._may(topic))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _may(self, topic: str) -> bool:
        return self._rights.may(_TOPIC, topic, told=False)
