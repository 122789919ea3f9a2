"""The consumer groups (KIP-848) of one partition of `__consumer_offsets`, beside its classic ones.

What each call finds: a consumer group, which answers it by the protocol of the caller; or none, and then the classic
side answers. The methods for classic calls return whether they did.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.group_coordinator.classic.group import ClassicGroup
from semel.group_coordinator.computations import Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.classic_members import ClassicMembers
from semel.group_coordinator.consumer.group import ConsumerGroup
from semel.group_coordinator.consumer.membership import MEMBER_TIMERS, ConsumerMembership, Draft, deletion_records
from semel.group_coordinator.consumer.migration import downgrade, refuse_downgrade, refuse_upgrade, upgrade
from semel.group_coordinator.consumer.topics import TopicsSource
from semel.group_coordinator.effects import GroupEventKind, TimerKey, TimerKind, Turn
from semel.group_coordinator.held_bytes import HeldBytes, Room
from semel.group_coordinator.records.consumer_schemas import ConsumerGroupKey, assignment_of
from semel.group_coordinator.records.schemas import group_record, record_size_bytes
from semel.group_coordinator.timers import Timers
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from semel.protocol.api.groups import (
    DescribeGroupRequest,
    GroupDescription,
    GroupMemberDescription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from semel.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.machine import CoordinatorRecord


class ConsumerGroups:
    """All consumer groups. `groups` is changed by `replay` alone."""

    def __init__(
        self, config: GroupConfig, timers: Timers[TimerKey], topics: TopicsSource, room: Room, held: HeldBytes
    ) -> None:
        """`held`: where what members hold is counted for all groups together."""
        self.groups: dict[str, ConsumerGroup] = {}
        self.membership = ConsumerMembership(config, timers, topics, room)
        self._held = held
        self._config = config
        self._timers = timers
        self._topics = topics
        self._classic = ClassicMembers(config, timers, topics, self.membership)

    def replay(self, key: ConsumerGroupKey, record: CoordinatorRecord, timestamp_ms: int) -> None:
        """Apply one record. A group begins with its first record, and ends with its last one."""
        value = record.value
        group = self.groups.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id)
        before = group.bytes_of(key.member_id)
        group.apply(key, value, timestamp_ms, assignment_of(record))
        more = group.bytes_of(key.member_id) - before
        group.held_bytes += more
        self._held.members += more
        if not group.has_records:
            self._timers.cancel(TimerKey(TimerKind.DOWNGRADE, key.group_id))
            self.membership.deferred.forget(key.group_id)
            del self.groups[key.group_id]

    # The consumer group protocol

    def heartbeat(self, classic: ClassicGroup | None, request: ConsumerGroupHeartbeatRequest, turn: Turn) -> bool:
        """Carry out a heartbeat. Returns whether `classic`, the classic group of that id, becomes a consumer group."""
        group = self.groups.get(request.group_id)
        if group is not None:
            self.membership.heartbeat(Draft(group, turn), request, turn)
            self._refuse_if_too_large(turn)
            return False
        group = ConsumerGroup(request.group_id)
        if request.member_epoch != JOIN_EPOCH:
            turn.reply(group.unknown_member(request.member_id))
            return False
        draft = Draft(group, turn)
        if classic is not None and classic.members:
            refusal = refuse_upgrade(classic, self._config)
            if refusal is not None:
                turn.reply(refusal)
                return False
            upgrade(classic, draft, self._topics())
            turn.note(GroupEventKind.UPGRADED, group.group_id, classic.generation_id, f"{len(classic.members)} members")
        elif classic is not None and classic.is_stored:
            turn.records.append(group_record(classic.group_id, None))
        self.membership.heartbeat(draft, request, turn)
        self._refuse_if_too_large(turn)
        if turn.is_refused:
            turn.records.clear()
            turn.effects.clear()
            return False
        if classic is not None:
            for member in draft.group.members():
                if member.is_classic:
                    self.membership.keep_alive(draft.group, member.member_id, turn)
        return classic is not None

    def target_computed(self, computed: Computed, turn: Turn) -> None:
        """Take what was computed beside the loop, unless the group is gone or another one by now."""
        group = self.groups.get(computed.of.group_id)
        if group is None:
            return
        self.membership.take_target(group, computed, turn)
        refusal = self._check_size(turn)
        if refusal is not None:
            self.membership.deferred.refuse(group.group_id, computed.of.epoch, refusal)

    def _check_size(self, turn: Turn) -> SemelError | None:
        """Return why one batch of records cannot hold what a turn would write, of which nothing is written then."""
        size_bytes = sum(map(record_size_bytes, turn.records))
        if size_bytes <= self._config.group_records_max_bytes:
            return None
        turn.records.clear()
        turn.effects.clear()
        return error_for(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the members and assignments of the group take {size_bytes} bytes, more than the "
            f"{self._config.group_records_max_bytes} that a group may store at once; use fewer members or "
            "shorter subscriptions",
        )

    def _refuse_if_too_large(self, turn: Turn) -> None:
        refusal = self._check_size(turn)
        if refusal is not None:
            turn.refuse(refusal)

    def describe(self, request: ConsumerGroupDescribeRequest, turn: Turn) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            turn.reply(
                error_for(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} is not a consumer group, or not there"
                )
            )
        else:
            turn.reply(group.description(self.membership.assignor_of(group), self._topics()))

    # The classic protocol

    def join(self, request: JoinGroupRequest, turn: Turn) -> bool:
        group = self.groups.get(request.group_id)
        if group is None:
            return False
        if not group.details and not request.member_id:
            # Nobody is left that speaks the other protocol.
            turn.records += deletion_records(group)
            return False
        self._classic.join(Draft(group, turn), request, turn)
        self._refuse_if_too_large(turn)
        return True

    def sync(self, request: SyncGroupRequest, turn: Turn) -> bool:
        group = self.groups.get(request.group_id)
        if group is not None:
            self._classic.sync(group, request, turn)
        return group is not None

    def classic_heartbeat(self, request: HeartbeatRequest, turn: Turn) -> bool:
        group = self.groups.get(request.group_id)
        if group is not None:
            self._classic.heartbeat(group, request, turn)
        return group is not None

    def leave(self, request: LeaveGroupRequest, turn: Turn) -> bool:
        group = self.groups.get(request.group_id)
        if group is not None:
            self._classic.leave(Draft(group, turn), request, turn)
        return group is not None

    def describe_as_classic(self, request: DescribeGroupRequest, turn: Turn) -> bool:
        """Describe a consumer group in the classic protocol's words, for tools that know no other."""
        group = self.groups.get(request.group_id)
        if group is None:
            return False
        topics = self._topics()
        turn.reply(
            GroupDescription(
                group.group_id,
                group.state.value,
                CONSUMER_PROTOCOL_TYPE,
                self.membership.assignor_of(group),
                group.epoch,
                "",
                tuple(
                    GroupMemberDescription(
                        member.member_id,
                        member.details.instance_id,
                        member.details.client_id,
                        member.details.client_host,
                        encode_subscription(Subscription(member.details.topic_names)),
                        encode_assignment(Assignment(tuple(topics.with_names(member.current.assigned)))),
                    )
                    for member in group.members()
                ),
            )
        )
        return True

    # Offsets

    def committed(self, request: OffsetCommitRequest, turn: Turn) -> None:
        group = self.groups.get(request.group_id)
        if group is not None and request.producer is None:
            self._classic.keep_alive(group, request.member_id, turn)

    def refuse_fetch(self, request: OffsetFetchRequest) -> SemelError | None:
        """Return why a member that names itself may not read offsets, if it may not."""
        group = self.groups.get(request.group_id)
        if group is None or (not request.member_id and request.member_epoch < 0):
            return None
        return group.check_epoch(request.member_id or "", request.member_epoch)

    def subscription_of(self, group_id: str) -> Callable[[str], bool] | None:
        """Return what tells the topics that a group is subscribed to; None where it is no consumer group."""
        group = self.groups.get(group_id)
        if group is None:
            return None
        topics = self._topics()
        return lambda topic: group.is_subscribed_to(topic, topics)

    # Time

    def timer_is_due(self, key: TimerKey, turn: Turn) -> bool:
        """Do what is due, if the timer is one of a consumer group; return whether it is."""
        group = self.groups.get(key.group_id)
        if key.kind is TimerKind.DOWNGRADE:
            if group is not None and refuse_downgrade(group, self._config) is None:
                turn.records += downgrade(group, self._topics(), turn.now_ms)
                turn.note(GroupEventKind.DOWNGRADED, group.group_id, group.epoch, f"{len(group.details)} members")
                for member_id in group.details:
                    self.membership.cancel_timers(group.group_id, member_id)
                self._timers.schedule(TimerKey(TimerKind.CONVERTED, group.group_id), turn.now_ms)
            return True
        if key.kind is TimerKind.ASSIGN:
            if group is not None:
                self.membership.begin_computation(group, turn)
            return True
        if key.kind not in MEMBER_TIMERS:
            return False
        if group is not None:
            self.membership.time_is_up(Draft(group, turn), key)
        return True
