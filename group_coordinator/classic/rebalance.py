"""How a group comes from one generation to the next.

a rebalance begins --> everybody joined, or time is up --> answers with the new generation --> the leader's sync
     --> the group's record is in the log --> answers with the assignments
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial

from semel.group_coordinator.classic.assignment import assign_partitions, is_large
from semel.group_coordinator.classic.group import ClassicGroup
from semel.group_coordinator.classic.state import GroupMember, GroupState
from semel.group_coordinator.computations import Computation, Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.effects import GroupEventKind, TimerKey, TimerKind, Turn
from semel.group_coordinator.held_bytes import Room
from semel.group_coordinator.records.schemas import group_record, record_size_bytes
from semel.group_coordinator.timers import Timers
from semel.protocol.api.groups import SyncGroupRequest
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.machine import Ticket

_SETTLED_OR_SETTLING = frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE})


class Rebalances:
    """The generations of groups. Holds no state of its own: that is in each group and in the timers."""

    def __init__(self, config: GroupConfig, timers: Timers[TimerKey], room: Room) -> None:
        self._config = config
        self._room = room
        self._timers = timers

    def begin(self, group: ClassicGroup, reason: str, turn: Turn) -> None:
        """Ask every member to join again, for a reason that is shown to operators."""
        for member in group.members.values():
            if member.sync_ticket is not None:
                self._answer_sync(group, member, group.rebalance_in_progress(), turn)
        self._timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
        group.pending_syncs.clear()
        group.assigning = None
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, turn.now_ms)
        turn.note(GroupEventKind.REBALANCING, group.group_id, group.generation_id, reason)
        if is_initial:
            self._wait_for_first_members(group, turn)
        elif group.all_joined:
            self._complete_join(group, turn)
        else:
            self._await_joins(group, group.rebalance_timeout_ms, turn)

    def _wait_for_first_members(self, group: ClassicGroup, turn: Turn) -> None:
        delay_ms = self._config.group_initial_rebalance_delay_ms
        if delay_ms == 0:
            self._complete_join(group, turn)
            return
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._await_joins(group, delay_ms, turn)

    def join_time_is_up(self, group: ClassicGroup, turn: Turn) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        is_initial = group.previous_state is GroupState.EMPTY
        if not (is_initial and group.new_member_added and group.initial_delay_left_ms > 0):
            self._complete_join(group, turn)
            return
        # Members still come in: wait on, but never longer than the rebalance timeout in all.
        delay_ms = min(self._config.group_initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.new_member_added = False
        group.initial_delay_left_ms = max(group.initial_delay_left_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        self._await_joins(group, delay_ms, turn)

    def begin_or_complete(self, group: ClassicGroup, reason: str, turn: Turn) -> None:
        if group.can_rebalance:
            self.begin(group, reason, turn)
        else:
            self.complete_if_all_joined(group, turn)

    def complete_if_all_joined(self, group: ClassicGroup, turn: Turn) -> None:
        """Complete the join once everybody is there; a first rebalance waits for its delay in any case."""
        waits_for_more = group.previous_state is GroupState.EMPTY and group.members
        if group.state is GroupState.PREPARING_REBALANCE and not waits_for_more and group.all_joined:
            self._complete_join(group, turn)

    def _complete_join(self, group: ClassicGroup, turn: Turn) -> None:
        """Begin the next generation with those who joined, and with static members that may yet return."""
        self._timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
        for member in list(group.members.values()):
            if member.join_ticket is None and not member.is_static:
                self.remove(group, member, "did not join within the rebalance timeout", turn)
        if group.members and not group.elect_joined_leader():
            # Only absent static members are left: their session timeouts decide.
            self._await_joins(group, group.rebalance_timeout_ms, turn)
        elif group.members:
            self._begin_generation(group, turn)
        else:
            group.begin_empty_generation()
            turn.records.append(group_record(group.group_id, group.stored(turn.now_ms, {})))
            turn.note(GroupEventKind.EMPTY, group.group_id, group.generation_id, "no members are left")

    def _begin_generation(self, group: ClassicGroup, turn: Turn) -> None:
        group.begin_generation(turn.now_ms)
        for member in group.members.values():
            ticket = self.take_join_ticket(group, member)
            member.is_absent = ticket is None
            if ticket is None:
                continue
            turn.answer(ticket, group.join_response(member))
            member.is_new = False
            group.pending_syncs.add(member.member_id)
            self.keep_alive(group, member, turn)
        deadline_ms = turn.now_ms + group.rebalance_timeout_ms
        self._timers.schedule(TimerKey(TimerKind.SYNC, group.group_id), deadline_ms)
        detail = f"{len(group.members)} members, protocol {group.protocol_name}"
        turn.note(GroupEventKind.GENERATION_STARTED, group.group_id, group.generation_id, detail)

    # Sync

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, turn: Turn) -> None:
        refusal = (
            group.check_member(request.member_id, request.group_instance_id)
            or group.check_generation(request.member_id, request.generation_id)
            or _check_protocol(group, request)
        )
        if refusal is not None:
            turn.reply(refusal)
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            turn.reply(group.rebalance_in_progress())
            return
        self.keep_alive(group, member, turn)
        if group.state is GroupState.STABLE:
            self._has_synced(group, member)
            turn.reply(group.sync_response(member.assignment))
        elif group.leader_id == member.member_id:
            self._settle(group, member, request, turn)
        else:
            self._has_synced(group, member)
            if member.sync_ticket is not None:
                turn.answer(member.sync_ticket, group.rebalance_in_progress())
            member.sync_ticket = turn.ticket

    def _settle(self, group: ClassicGroup, leader: GroupMember, request: SyncGroupRequest, turn: Turn) -> None:
        """Store the leader's assignment, or the one that it has us make."""
        assignments: Mapping[str, bytes] | SemelError = request.assignments
        name, counts = group.protocol_name, request.partition_counts
        most = self._config.group_assigned_at_once_max
        may_defer = counts is not None and self._config.group_consumer_assignor_offload_enable
        if counts is not None and may_defer and is_large(name, group.members.values(), counts, most):
            self._await_assignment(group, leader, turn)
            if group.assigning is None:
                # Copies: the members change meanwhile.
                members = [copy(member) for member in group.members.values()]
                work = partial(assign_partitions, name or "", members, counts)
                group.assigning = Computation(group.group_id, work, group.generation_id)
                turn.effects.append(group.assigning)
            return
        if counts is not None:
            assignments = assign_partitions(name or "", group.members.values(), counts)
        if isinstance(assignments, SemelError):
            turn.reply(assignments)
            return
        self._await_assignment(group, leader, turn)
        self._store(group, leader, assignments, turn)

    def take_assignment(self, group: ClassicGroup, computed: Computed, turn: Turn) -> None:
        """Store an assignment that was computed beside the loop, unless another rebalance has begun meanwhile."""
        if group.assigning is not computed.of or group.state is not GroupState.COMPLETING_REBALANCE:
            return
        group.assigning = None
        leader = group.members[group.leader_id or ""]
        if isinstance(computed.result, dict):
            self._store(group, leader, computed.result, turn)
        elif leader.sync_ticket is not None:
            failed = error_for(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the assignment of group {group.group_id} could not be computed; try again, the node's log says why",
            )
            error = computed.result if isinstance(computed.result, SemelError) else failed
            self._answer_sync(group, leader, error, turn)

    def _await_assignment(self, group: ClassicGroup, leader: GroupMember, turn: Turn) -> None:
        self._has_synced(group, leader)
        if leader.sync_ticket is not None:
            turn.answer(leader.sync_ticket, group.rebalance_in_progress())
        leader.sync_ticket = turn.ticket

    def _store(self, group: ClassicGroup, leader: GroupMember, assignments: Mapping[str, bytes], turn: Turn) -> None:
        """Store an assignment; every sync is answered with it once its record is committed."""
        group.assigning = None
        members = group.members.values()
        record = group_record(group.group_id, group.stored(turn.now_ms, assignments))
        if record_size_bytes(record) > self._config.group_records_max_bytes:
            self._refuse_assignment(group, record_size_bytes(record), turn)
            return
        assigned_bytes = sum(map(len, assignments.values())) - sum(len(each.assignment) for each in members)
        refusal = self._room.refuse_member(group.group_id, group.held_bytes, assigned_bytes)
        if refusal is not None:
            self._fail_syncs(group, refusal, turn)
            return
        turn.records.append(record)
        for member in group.members.values():
            if member.sync_ticket is not None:
                response = group.sync_response(assignments.get(member.member_id, b""))
                self._answer_sync(group, member, response, turn)
        turn.note(GroupEventKind.STABLE, group.group_id, group.generation_id, f"assigned by {leader.member_id}")

    def _refuse_assignment(self, group: ClassicGroup, size_bytes: int, turn: Turn) -> None:
        error = error_for(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the subscriptions and assignments of group {group.group_id} take {size_bytes} bytes, more than the "
            f"{self._config.group_records_max_bytes} that a group may store; use fewer members or shorter metadata",
        )
        self._fail_syncs(group, error, turn)

    def _fail_syncs(self, group: ClassicGroup, error: SemelError, turn: Turn) -> None:
        for member in group.members.values():
            if member.sync_ticket is not None:
                self._answer_sync(group, member, error, turn)
        self.begin(group, "the assignment was too large to store", turn)

    def sync_time_is_up(self, group: ClassicGroup, turn: Turn) -> None:
        """Remove the members that got a generation and never asked for their assignment."""
        if group.state not in _SETTLED_OR_SETTLING or not group.pending_syncs:
            return
        for member_id in sorted(group.pending_syncs):
            self.remove(group, group.members[member_id], "did not sync within the rebalance timeout", turn)
        self.begin(group, "members did not sync", turn)

    def members_were_removed(self, group: ClassicGroup, reason: str, turn: Turn) -> None:
        if group.state in _SETTLED_OR_SETTLING:
            self.begin(group, reason, turn)
        else:
            self.complete_if_all_joined(group, turn)

    def begin_converted(self, group: ClassicGroup, turn: Turn) -> None:
        """Rebalance a group that was a consumer group: it has members, and nobody has led it yet."""
        if group.state is not GroupState.STABLE or group.leader_id is not None:
            return
        group.leader_id = next(iter(group.members))
        for member in group.members.values():
            self.keep_alive(group, member, turn)
        self.begin(group, "the group moved to the classic protocol", turn)

    def forget_timers(self, group: ClassicGroup) -> None:
        """Drop what a group that is no more was waiting for."""
        for kind in (TimerKind.JOIN, TimerKind.SYNC, TimerKind.EXPIRY):
            self._timers.cancel(TimerKey(kind, group.group_id))
        for member_id in (*group.members, *group.pending_joins):
            self._timers.cancel(_session_key(group, member_id))

    # Parts

    def remove(self, group: ClassicGroup, member: GroupMember, reason: str, turn: Turn) -> None:
        self.send_away(group, member, group.unknown_member(member.member_id), turn)
        self.forget(group, member.member_id)
        detail = f"{member.member_id} {reason}"
        turn.note(GroupEventKind.MEMBER_REMOVED, group.group_id, group.generation_id, detail)

    def forget(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self.stop_awaiting(group, member_id)

    def send_away(self, group: ClassicGroup, member: GroupMember, error: SemelError, turn: Turn) -> None:
        """Answer what the member waits on: it is no longer one."""
        join_ticket = self.take_join_ticket(group, member)
        if join_ticket is not None:
            turn.answer(join_ticket, error)
        if member.sync_ticket is not None:
            turn.answer(member.sync_ticket, error)
            member.sync_ticket = None

    def take_join_ticket(self, group: ClassicGroup, member: GroupMember) -> Ticket | None:
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            group.awaiting_join_count -= 1
        return ticket

    def _answer_sync(self, group: ClassicGroup, member: GroupMember, response: object, turn: Turn) -> None:
        assert member.sync_ticket is not None
        turn.answer(member.sync_ticket, response)
        member.sync_ticket = None
        self.keep_alive(group, member, turn)

    def _has_synced(self, group: ClassicGroup, member: GroupMember) -> None:
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))

    def keep_alive(self, group: ClassicGroup, member: GroupMember, turn: Turn) -> None:
        self.await_heartbeat(group, member.member_id, member.session_timeout_ms, turn)

    def await_heartbeat(self, group: ClassicGroup, member_id: str, timeout_ms: int, turn: Turn) -> None:
        self._timers.schedule(_session_key(group, member_id), turn.now_ms + timeout_ms)

    def stop_awaiting(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(_session_key(group, member_id))

    def _await_joins(self, group: ClassicGroup, timeout_ms: int, turn: Turn) -> None:
        self._timers.schedule(TimerKey(TimerKind.JOIN, group.group_id), turn.now_ms + timeout_ms)


def _session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)


def _check_protocol(group: ClassicGroup, request: SyncGroupRequest) -> SemelError | None:
    for given, settled in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if given is not None and given != settled:
            return error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id} settled on {settled!r}, not {given!r}; join again",
            )
    return None
