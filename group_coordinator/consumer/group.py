"""A group of the consumer group protocol (KIP-848), as its machine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.group_coordinator.classic.members import ClassicGroupData
from semel.group_coordinator.computations import Computed
from semel.group_coordinator.consumer.classic_calls import ClassicCalls
from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.membership import MEMBER_TIMERS, ConsumerMembership, Draft, deletion_records
from semel.group_coordinator.consumer.migration import downgrade, refuse_downgrade, refuse_upgrade, upgrade
from semel.group_coordinator.consumer.topics import TopicsSource
from semel.group_coordinator.consumer.viewers import without_viewer
from semel.group_coordinator.effects import GroupEventKind, PendingResult, TimerKey, TimerKind
from semel.group_coordinator.group import Expiry, Group
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.records.consumer_schemas import ConsumerGroupKey, assignment_of
from semel.group_coordinator.records.schemas import group_record, record_size_bytes
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerGroupHeartbeatRequest,
    ConsumerMemberDescription,
)
from semel.protocol.api.groups import (
    GroupDescription,
    GroupListing,
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
from semel.runtime.machine import CoordinatorRecord, Ticket

GROUP_TYPE = "consumer"


class ConsumerProtocol:
    """What the consumer groups of a machine share: how members move, and the topics they are assigned from."""

    def __init__(self, shared: GroupContext, topics: TopicsSource) -> None:
        self.shared = shared
        self.topics = topics
        self.membership = ConsumerMembership(shared, topics)
        self.classic_calls = ClassicCalls(shared, topics, self.membership)


class ConsumerGroup(Group):
    """`members` has the state; `membership.py` and `classic_calls.py` say how it moves."""

    __slots__ = ("_classic_calls", "_membership", "_protocol", "_shared", "members")

    def __init__(self, group_id: str, protocol: ConsumerProtocol) -> None:
        super().__init__(group_id)
        self.members = ConsumerGroupData(group_id)
        self._protocol = protocol
        self._shared = protocol.shared
        self._membership = protocol.membership
        self._classic_calls = protocol.classic_calls

    def replay(self, key: ConsumerGroupKey, record: CoordinatorRecord, timestamp_ms: int) -> None:
        """Apply one record. A group begins with its first record, and ends with its last one: see `has_records`."""
        group = self.members
        before = group.bytes_of(key.member_id)
        group.apply(key, record.value, timestamp_ms, assignment_of(record))
        self._count(group.bytes_of(key.member_id) - before)

    @property
    def has_records(self) -> bool:
        return self.members.has_records

    def _count(self, more_bytes: int) -> None:
        self.members.held_bytes += more_bytes
        self._shared.held.members += more_bytes

    # --- The consumer group protocol ----------------------------------------------------------------------------------

    def consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, pending: PendingResult) -> None:
        self._membership.heartbeat(Draft(self.members, pending), request, pending)
        self._refuse_if_too_large(pending)

    def begin(
        self, classic: ClassicGroupData | None, request: ConsumerGroupHeartbeatRequest, pending: PendingResult
    ) -> bool:
        """Carry out the first heartbeat of a group, which is nowhere known before its records are replayed.

        Returns whether `classic`, the classic group of that id, becomes this one.
        """
        if request.member_epoch != JOIN_EPOCH:
            pending.reply(self.members.unknown_member(request.member_id))
            return False
        draft = Draft(self.members, pending)
        if classic is not None and classic.members:
            refusal = refuse_upgrade(classic, self._shared.config)
            if refusal is not None:
                pending.reply(refusal)
                return False
            upgrade(classic, draft, self._protocol.topics())
            pending.note(
                GroupEventKind.UPGRADED, self.group_id, classic.generation_id, f"{len(classic.members)} members"
            )
        elif classic is not None and classic.is_stored:
            pending.records.append(group_record(self.group_id, None))
        self._membership.heartbeat(draft, request, pending)
        self._refuse_if_too_large(pending)
        if pending.is_refused:
            pending.records.clear()
            pending.effects.clear()
            return False
        if classic is not None:
            for member in draft.group.members():
                if member.is_classic:
                    self._membership.keep_alive(draft.group, member.member_id, pending)
        return classic is not None

    def _check_size(self, pending: PendingResult) -> SemelError | None:
        """Return why one batch of records cannot hold what a request would write, of which nothing is written then."""
        size_bytes = sum(map(record_size_bytes, pending.records))
        if size_bytes <= self._shared.config.group_records_max_bytes:
            return None
        pending.records.clear()
        pending.effects.clear()
        return error_for(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the members and assignments of the group take {size_bytes} bytes, more than the "
            f"{self._shared.config.group_records_max_bytes} that a group may store at once; use fewer members or "
            "shorter subscriptions",
        )

    def _refuse_if_too_large(self, pending: PendingResult) -> None:
        refusal = self._check_size(pending)
        if refusal is not None:
            pending.refuse(refusal)

    def describe_members(self) -> ConsumerGroupDescription:
        """Return what ConsumerGroupDescribe says."""
        group, topics = self.members, self._protocol.topics()
        return ConsumerGroupDescription(
            self.group_id,
            group.state.value,
            group.epoch,
            group.target_epoch,
            self._membership.assignor_of(group),
            tuple(
                ConsumerMemberDescription(
                    member.member_id,
                    member.details.instance_id,
                    member.details.rack_id,
                    member.current.epoch,
                    member.details.client_id,
                    member.details.client_host,
                    member.details.topic_names,
                    without_viewer(member.details.topic_regex),
                    topics.described(member.current.assigned),
                    topics.described(group.target(member.member_id)),
                    member.is_classic,
                )
                for member in group.members()
            ),
        )

    # --- Calls of the classic protocol --------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, pending: PendingResult) -> None:
        self._classic_calls.join(Draft(self.members, pending), request, pending)
        self._refuse_if_too_large(pending)

    def sync(self, request: SyncGroupRequest, pending: PendingResult) -> None:
        self._classic_calls.sync(self.members, request, pending)

    def heartbeat(self, request: HeartbeatRequest, pending: PendingResult) -> None:
        self._classic_calls.heartbeat(self.members, request, pending)

    def leave(self, request: LeaveGroupRequest, pending: PendingResult) -> None:
        self._classic_calls.leave(Draft(self.members, pending), request, pending)

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def check_commit(self, request: OffsetCommitRequest) -> SemelError | None:
        """Fence zombies by member, instance and epoch. The epoch of a classic member is its generation."""
        group = self.members
        member_id, epoch, is_transactional = request.member_id, request.generation_id, request.producer is not None
        instance_id = request.group_instance_id
        if epoch < 0 and self.is_empty:
            return None
        if is_transactional and epoch < 0 and not member_id and instance_id is None:
            return None
        if not member_id and epoch < 0:
            return error_for(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self.group_id} has members, so only they may commit: stop them, or commit as one of them",
            )
        if instance_id is not None and group.static_ids.get(instance_id, member_id) != member_id:
            return error_for(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance {instance_id} of group {self.group_id} was taken over by another member; "
                f"member {member_id} must stop",
            )
        return group.check_epoch(member_id, epoch, transactional=is_transactional)

    def committed(self, member_id: str, pending: PendingResult) -> None:
        self._classic_calls.keep_alive(self.members, member_id, pending)

    def check_fetch(self, request: OffsetFetchRequest) -> SemelError | None:
        """Return why a member that names itself may not read offsets, if it may not."""
        if not request.member_id and request.member_epoch < 0:
            return None
        return self.members.check_epoch(request.member_id or "", request.member_epoch)

    def check_offset_delete(self) -> SemelError | None:
        return None

    def subscription(self) -> Callable[[str], bool]:
        group, topics = self.members, self._protocol.topics()
        return lambda topic: group.is_subscribed_to(topic, topics)

    # --- The group as a whole -----------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        return self.members.state.value

    @property
    def member_count(self) -> int:
        return len(self.members.details)

    @property
    def held_bytes(self) -> int:
        return self.members.held_bytes

    @property
    def generation_id(self) -> int:
        return self.members.epoch

    @property
    def is_empty(self) -> bool:
        return not self.members.details

    @property
    def is_unused(self) -> bool:
        return False

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, CONSUMER_PROTOCOL_TYPE, self.state_name, GROUP_TYPE)

    def describe(self) -> GroupDescription:
        """Describe the group for tools that know no other protocol than the classic one."""
        group, topics = self.members, self._protocol.topics()
        return GroupDescription(
            self.group_id,
            group.state.value,
            CONSUMER_PROTOCOL_TYPE,
            self._membership.assignor_of(group),
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

    def expiry(self) -> Expiry:
        """Its last epoch began when it became empty."""
        base_timestamp_ms = self.members.epoch_timestamp_ms if self.is_empty else None
        return Expiry(base_timestamp_ms, ends_group=self.is_empty, is_repeated=True)

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        return deletion_records(self.members)

    def forget(self) -> None:
        self._shared.timers.cancel(TimerKey(TimerKind.DOWNGRADE, self.group_id))
        for member_id in self.members.details:
            self._membership.cancel_timers(self.group_id, member_id)
        self._membership.deferred.forget(self.group_id)
        self._count(-self.members.held_bytes)

    # --- What happens to it -------------------------------------------------------------------------------------------

    def resume(self, pending: PendingResult) -> None:
        self._membership.resume(self.members, pending)

    def timer_is_due(self, key: TimerKey, pending: PendingResult) -> None:
        if key.kind is TimerKind.DOWNGRADE:
            self._downgrade(pending)
        elif key.kind is TimerKind.ASSIGN:
            self._membership.begin_computation(self.members, pending)
        elif key.kind in MEMBER_TIMERS:
            self._membership.time_is_up(Draft(self.members, pending), key)

    def _downgrade(self, pending: PendingResult) -> None:
        """Become a classic group, which then rebalances, if nobody is left that speaks the newer protocol."""
        group = self.members
        if refuse_downgrade(group, self._shared.config) is None:
            pending.records += downgrade(group, self._protocol.topics(), pending.now_ms)
            pending.note(GroupEventKind.DOWNGRADED, self.group_id, group.epoch, f"{len(group.details)} members")
            self._shared.timers.schedule(TimerKey(TimerKind.CONVERTED, self.group_id), pending.now_ms)

    def computed(self, computed: Computed, pending: PendingResult) -> None:
        self._membership.take_target(self.members, computed, pending)
        refusal = self._check_size(pending)
        if refusal is not None:
            self._membership.deferred.refuse(self.group_id, computed.of.epoch, refusal)

    def waiting(self) -> Sequence[Ticket]:
        return ()
