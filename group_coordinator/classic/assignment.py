"""Runs an assignor for a leader that leaves the work to the coordinator (SyncGroupRequest.partition_counts)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from semel.group_coordinator.assignor import cooperative_sticky, round_robin, sticky
from semel.group_coordinator.assignor import range as range_assignor
from semel.group_coordinator.assignor.subscription import Assignor, MemberSubscription
from semel.group_coordinator.classic.state import GroupMember
from semel.protocol.consumer_protocol import (
    NO_GENERATION,
    VERSION_MAX,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    protocol_version,
)
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.schema import Reader

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        range_assignor.NAME: range_assignor.assign,
        round_robin.NAME: round_robin.assign,
        sticky.NAME: sticky.assign,
        cooperative_sticky.NAME: cooperative_sticky.assign,
    }
)
BYTES_PER_ENTRY = 8
"""Of a subscription or an assignment, about so many are read in the time that one partition takes to assign."""
LATEST_GENERATION = 1 << 31
"""Above every generation a client can name: for what the coordinator itself gave."""


def assign_partitions(
    protocol_name: str, members: Iterable[GroupMember], partition_counts: Mapping[str, int]
) -> dict[str, bytes] | SemelError:
    """Return each member's ConsumerProtocolAssignment, or why there is none.

    A member whose subscription cannot be read gets nothing, and does not hold up the others.
    """
    assignor = ASSIGNORS.get(protocol_name)
    if assignor is None:
        return error_for(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the coordinator has no assignor {protocol_name!r}; let the leader assign, or use one of "
            f"{', '.join(ASSIGNORS)}",
        )
    members = list(members)
    subscriptions = [_subscription(member, protocol_name) for member in members]
    assigned = assignor(subscriptions, partition_counts)
    return {
        member.member_id: encode_assignment(
            Assignment(tuple(assigned[member.member_id])), _version(member.metadata(protocol_name))
        )
        for member in members
    }


def is_large(
    protocol_name: str | None, members: Collection[GroupMember], partition_counts: Mapping[str, int], most: int
) -> bool:
    """Whether an assignment would take too long for a turn of the event loop (S3), by what it has to look at."""
    if protocol_name not in ASSIGNORS:
        return False
    size_bytes = sum(len(member.metadata(protocol_name)) + len(member.assignment) for member in members)
    left = most - len(members) - size_bytes // BYTES_PER_ENTRY
    if left < 0:
        return True
    wanted = []
    for member in members:
        with contextlib.suppress(CorruptDataError):
            wanted.append(frozenset(decode_subscription(member.metadata(protocol_name)).topics))
    entries = sum(map(len, wanted))
    count = sum(partition_counts.get(topic, 0) for topic in frozenset().union(*wanted))
    return count + entries > left or (len(set(wanted)) > 1 and count * entries > sticky.EFFORT_AT_ONCE_MAX)


def is_unfinished(protocol_name: str | None, members: Iterable[GroupMember]) -> bool:
    """Say whether a cooperative move stands in its middle: taken from its owner, and given to nobody yet (KIP-429).

    The owner joins again once it has revoked, and so begins the second half. Where it died before that, and comes back
    as a static member or to a coordinator that knows only the log, somebody else must begin it.
    """
    if protocol_name != cooperative_sticky.NAME:
        return False
    members = list(members)
    given = {tp for member in members for tp in _given(member)}
    for member in members:
        try:
            owned = decode_subscription(member.metadata(protocol_name)).owned_partitions
        except CorruptDataError:
            continue
        if not given.issuperset(owned):
            return True
    return False


def _subscription(member: GroupMember, protocol_name: str) -> MemberSubscription:
    try:
        said = decode_subscription(member.metadata(protocol_name))
    except CorruptDataError:
        said = Subscription(())
    owned, generation_id = _owned(member, said, protocol_name)
    return MemberSubscription(member.member_id, frozenset(said.topics), owned, generation_id, member.group_instance_id)


def _owned(member: GroupMember, said: Subscription, protocol_name: str) -> tuple[tuple[TopicPartition, ...], int]:
    """Return what a member holds, or held, and since which generation.

    A member that did not join holds what it was last given. Kafka's eager `sticky` tells its previous assignment in the
    user data, since it has revoked everything when it joins; where nothing is told, what it was last given counts.
    """
    if member.is_absent:
        return _given(member), LATEST_GENERATION
    if protocol_name == sticky.NAME:
        previous = _previous_assignment(said.user_data)
        if previous is not None:
            return previous
        if not said.owned_partitions:
            return _given(member), LATEST_GENERATION
    generation_id = said.generation_id
    if generation_id == NO_GENERATION and protocol_name == cooperative_sticky.NAME:
        generation_id = _generation(said.user_data)
    return said.owned_partitions, generation_id


def _given(member: GroupMember) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(member.assignment).partitions
    except CorruptDataError:
        return ()


def _previous_assignment(user_data: bytes | None) -> tuple[tuple[TopicPartition, ...], int] | None:
    """Read the user data of Kafka's StickyAssignor, version 1 (with a generation) or 0."""
    if not user_data:
        return None
    reader = Reader(user_data)

    def read_topic() -> list[TopicPartition]:
        topic = reader.string()
        return [TopicPartition(topic, partition) for partition in reader.array(reader.int32)]

    try:
        partitions = tuple(partition for topic in reader.array(read_topic) for partition in topic)
        return partitions, reader.int32() if reader.remaining else NO_GENERATION
    except CorruptDataError:
        return None


def _generation(user_data: bytes | None) -> int:
    """Read the user data of Kafka's CooperativeStickyAssignor, for subscriptions too old to have a generation."""
    try:
        return Reader(user_data).int32() if user_data else NO_GENERATION
    except CorruptDataError:
        return NO_GENERATION


def _version(subscription: bytes) -> int:
    """Answer in the version that the member speaks."""
    try:
        return protocol_version(subscription)
    except CorruptDataError:
        return VERSION_MAX
