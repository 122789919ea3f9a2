"""Moving a group between the protocols while its members work (KIP-848), as records of one batch.

Up: the first member that speaks the consumer group protocol finds a classic group of consumers. Its members become
classic members of a consumer group, which have what they were last given. Down: the last such member is gone. The
others become members of a classic group, which then rebalances.
"""

from __future__ import annotations

from enum import Enum

from semel.group_coordinator.classic.members import ClassicGroupData
from semel.group_coordinator.classic.state import GroupMember
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.membership import Draft, deletion_records
from semel.group_coordinator.consumer.topics import Topics
from semel.group_coordinator.records.consumer_schemas import (
    GroupEpochValue,
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from semel.group_coordinator.records.consumer_state import ClassicMetadata, MemberAssignment, MemberDetails, MemberState
from semel.group_coordinator.records.schemas import GroupMetadataValue, MemberMetadata, group_record
from semel.protocol.api.consumer_groups import Partitions, TopicIdPartition
from semel.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    protocol_version,
)
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.machine import CoordinatorRecord


class MigrationPolicy(Enum):
    """Which way groups with members may move (`group.consumer.migration.policy`). Empty groups always may."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


def refuse_upgrade(group: ClassicGroupData, config: GroupConfig) -> SemelError | None:
    """Return why a classic group with members cannot become a consumer group, if it cannot."""
    if not MigrationPolicy(config.group_consumer_migration_policy).may_upgrade:
        why = f"group.consumer.migration.policy is {config.group_consumer_migration_policy}"
    elif not group.is_consumer_group:
        why = f"its members are of type {group.protocol_type!r}"
    elif len(group.members) >= config.group_consumer_max_size:
        why = f"it has {len(group.members)} members, and group.consumer.max.size is {config.group_consumer_max_size}"
    elif any(_subscription(group, member) is None for member in group.members.values()):
        why = "the subscription of a member cannot be read"
    else:
        return None
    return error_for(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"group {group.group_id} is a classic group and cannot become a consumer group: {why}; stop its classic "
        "members first",
    )


def upgrade(group: ClassicGroupData, draft: Draft, topics: Topics) -> None:
    """Write a consumer group with the members of a classic one, each with what it was last given."""
    group_id, epoch = group.group_id, group.generation_id
    if group.is_stored:
        draft.pending.records.append(group_record(group_id, None))
    draft.write(epoch_record(group_id, GroupEpochValue(epoch)))
    for member_id, held in _holdings(group, topics).items():
        draft.write(member_record(group_id, member_id, _details(group, group.members[member_id])))
        draft.write(target_record(group_id, member_id, held))
        draft.write(current_record(group_id, member_id, MemberAssignment(epoch, epoch, MemberState.STABLE, held)))
    draft.write(target_epoch_record(group_id, epoch))


def _holdings(group: ClassicGroupData, topics: Topics) -> dict[str, Partitions]:
    """Return what each member may still hold, no partition twice (G2).

    That is what it was last given, and what it said to own when it last joined, for it may not know yet that it is to
    give that up. It says what it really has when it joins again, which is the next thing it is told to do.
    """
    taken: set[TopicIdPartition] = set()
    holdings: dict[str, Partitions] = {}
    for member in group.members.values():
        holdings[member.member_id] = _given(member, topics) - taken
        taken |= holdings[member.member_id]
    for member in group.members.values():
        said = _subscription(group, member)
        owned = topics.with_ids(() if said is None else said.owned_partitions) - taken
        holdings[member.member_id] |= owned
        taken |= owned
    return holdings


def _details(group: ClassicGroupData, member: GroupMember) -> MemberDetails:
    said = _subscription(group, member)
    assert said is not None, "refuse_upgrade saw to that"
    # The protocol that the group settled on comes first: it is the one that classic members are answered with.
    protocols = sorted(member.protocols, key=lambda protocol: protocol.name != group.protocol_name)
    return MemberDetails(
        member.group_instance_id,
        said.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(said.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMetadata(member.session_timeout_ms, tuple(protocols)),
    )


def _subscription(group: ClassicGroupData, member: GroupMember) -> Subscription | None:
    """Return what a member wants: under the group's protocol, or before there is one under its own first."""
    metadata = member.metadata(group.protocol_name) or member.protocols[0].metadata
    try:
        return decode_subscription(metadata)
    except CorruptDataError:
        return None


def _given(member: GroupMember, topics: Topics) -> Partitions:
    try:
        return topics.with_ids(decode_assignment(member.assignment).partitions)
    except CorruptDataError:
        return frozenset()


def refuse_downgrade(group: ConsumerGroupData, config: GroupConfig) -> str | None:
    """Return why a consumer group of classic members stays one, if it does. It works as well as before."""
    if not MigrationPolicy(config.group_consumer_migration_policy).may_downgrade:
        return f"group.consumer.migration.policy is {config.group_consumer_migration_policy}"
    if not group.details or not all(member.is_classic for member in group.members()):
        return "it has members of the consumer group protocol, or none"
    if len(group.details) > config.group_max_size:
        return f"it has more members than group.max.size, {config.group_max_size}"
    return None


def downgrade(group: ConsumerGroupData, topics: Topics, now_ms: int) -> list[CoordinatorRecord]:
    """Return the records that make a consumer group of classic members a classic group.

    It has no leader: by that is known, after a crash too, that it has yet to rebalance.
    """
    count, offered = group.classic_protocols()
    first = next(iter(group.members())).details.classic
    assert first is not None, "refuse_downgrade saw to that"
    name = next(protocol.name for protocol in first.protocols if offered[protocol.name] == count)
    members = []
    for member in group.members():
        classic = member.details.classic
        assert classic is not None, "refuse_downgrade saw to that"
        metadata = next(protocol.metadata for protocol in classic.protocols if protocol.name == name)
        given = Assignment(tuple(topics.with_names(member.current.held)))
        members.append(
            MemberMetadata(
                member.member_id,
                member.details.instance_id,
                member.details.client_id,
                member.details.client_host,
                member.details.rebalance_timeout_ms,
                classic.session_timeout_ms,
                metadata,
                encode_assignment(given, protocol_version(metadata)),
            )
        )
    # The latest epoch that a member knows: those that are there continue in it until they are told to join again.
    generation = max(member.current.epoch for member in group.members())
    value = GroupMetadataValue(CONSUMER_PROTOCOL_TYPE, generation, name, None, now_ms, tuple(members))
    return [group_record(group.group_id, value), *deletion_records(group)]
