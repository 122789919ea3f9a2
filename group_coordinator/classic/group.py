"""A group of the classic protocol, as its machine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.group_coordinator.classic import membership, rebalance
from semel.group_coordinator.classic.members import ClassicGroupData
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.computations import Computed
from semel.group_coordinator.effects import PendingResult, TimerKey, TimerKind
from semel.group_coordinator.group import Expiry, Group
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.records.schemas import GroupMetadataValue, group_record
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
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.machine import CoordinatorRecord, Ticket


class ClassicGroup(Group):
    """`members` has the state; `membership.py` and `rebalance.py` say how it moves."""

    __slots__ = ("members",)

    def __init__(self, group_id: str, now_ms: int, shared: GroupContext) -> None:
        super().__init__(group_id)
        self.members = ClassicGroupData(group_id, now_ms, shared)

    def replay(self, value: GroupMetadataValue, *, loading: bool, size_bytes: int) -> None:
        """Take over a generation from the log."""
        self.members.apply(value, loading=loading, size_bytes=size_bytes)

    # --- Calls --------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, pending: PendingResult) -> None:
        membership.join(self.members, request, pending)

    def sync(self, request: SyncGroupRequest, pending: PendingResult) -> None:
        rebalance.sync(self.members, request, pending)

    def heartbeat(self, request: HeartbeatRequest, pending: PendingResult) -> None:
        membership.heartbeat(self.members, request, pending)

    def leave(self, request: LeaveGroupRequest, pending: PendingResult) -> None:
        membership.leave(self.members, request, pending)

    def send_all_away(self, pending: PendingResult) -> None:
        """Have everybody who waits join again: the group becomes a consumer group."""
        membership.send_all_away(self.members, pending)

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def check_commit(self, request: OffsetCommitRequest) -> SemelError | None:
        """Fence zombies by member, instance and generation, as strictly as Kafka's clients allow.

        Without generation and member a plain commit needs an empty group: it comes from an admin or a consumer that
        assigned itself. A transactional one is let through, since older versions of that API cannot say who they are.
        """
        group = self.members
        generation_id, member_id = request.generation_id, request.member_id
        if generation_id < 0 and self.is_empty:
            return None
        if generation_id >= 0 or member_id or request.group_instance_id is not None:
            refusal = group.check_member(member_id, request.group_instance_id) or group.check_generation(
                member_id, generation_id
            )
            if refusal is not None:
                return refusal
        elif request.producer is None:
            return error_for(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self.group_id} has members, so only they may commit: stop them, or commit as one of them",
            )
        if request.producer is None and group.state is GroupState.COMPLETING_REBALANCE:
            return group.rebalance_in_progress()
        return None

    def committed(self, member_id: str, pending: PendingResult) -> None:
        membership.keep_alive(self.members, member_id, pending)

    def check_fetch(self, request: OffsetFetchRequest) -> SemelError | None:
        return None

    def check_offset_delete(self) -> SemelError | None:
        if self.is_empty or self.members.is_consumer_group:
            return None
        return error_for(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id} has members; stop its consumers first")

    def subscription(self) -> Callable[[str], bool]:
        return self.members.is_subscribed_to

    # --- The group as a whole -----------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        return self.members.state.value

    @property
    def member_count(self) -> int:
        return len(self.members.members)

    @property
    def held_bytes(self) -> int:
        return self.members.held_bytes

    @property
    def generation_id(self) -> int:
        return self.members.generation_id

    @property
    def is_empty(self) -> bool:
        return self.members.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        return self.members.is_unused

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, self.members.protocol_type or "", self.state_name)

    def describe(self) -> GroupDescription:
        """Describe the group; metadata and protocol only while they are settled, as Kafka does."""
        group = self.members
        stable = group.state is GroupState.STABLE
        return GroupDescription(
            group.group_id,
            group.state.value,
            group.protocol_type or "",
            (group.protocol_name or "") if stable else "",
            group.generation_id,
            group.leader_id or "",
            tuple(
                GroupMemberDescription(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(group.protocol_name) if stable else b"",
                    member.assignment,
                )
                for member in group.members.values()
            ),
        )

    def expiry(self) -> Expiry | None:
        group = self.members
        base_timestamp_ms = None
        if group.protocol_type is None:
            pass  # its consumers never joined
        elif self.is_empty:
            base_timestamp_ms = group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None
        elif group.state is not GroupState.STABLE or not group.is_consumer_group or group.subscribed_topics is None:
            # The end of the rebalance makes this check again.
            return None
        return Expiry(
            base_timestamp_ms,
            ends_group=self.is_empty and not group.pending_joins and group.is_stored,
            is_repeated=self.is_empty,
        )

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        return [group_record(self.group_id, None)]

    def forget(self) -> None:
        rebalance.forget_timers(self.members)
        self.members.forget_held()

    # --- What happens to it -------------------------------------------------------------------------------------------

    def resume(self, pending: PendingResult) -> None:
        membership.resume(self.members, pending)

    def timer_is_due(self, key: TimerKey, pending: PendingResult) -> None:
        match key.kind:
            case TimerKind.SESSION:
                membership.session_expired(self.members, key.member_id, pending)
            case TimerKind.JOIN:
                rebalance.join_time_is_up(self.members, pending)
            case TimerKind.SYNC:
                rebalance.sync_time_is_up(self.members, pending)
            case TimerKind.CONVERTED:
                rebalance.begin_converted(self.members, pending)

    def computed(self, computed: Computed, pending: PendingResult) -> None:
        rebalance.take_assignment(self.members, computed, pending)

    def waiting(self) -> Sequence[Ticket]:
        return [
            ticket
            for member in self.members.members.values()
            for ticket in (member.join_ticket, member.sync_ticket)
            if ticket is not None
        ]
