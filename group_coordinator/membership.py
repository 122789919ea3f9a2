"""Joining, syncing, heartbeats and leaving: how a group comes to its next generation.

    join --> everybody joined, or time is up --> answers with the new generation --> the leader's sync
         --> the group's record is in the log --> answers with the assignments

Exactly Kafka's classic protocol (KIP-345 static members, KIP-394 member ids first, KIP-814 no second assignment).
Where it differs: a duplicate of a waiting call sends the older one away instead of leaving it hanging; an absent static
member is awaited for its session timeout, not a rebalance timeout (G4); and one that returns with other topics than it
had causes a rebalance, which in Kafka it would not.
"""

from __future__ import annotations

from dataclasses import replace

from semel.group_coordinator.assignment import assign_partitions, is_unfinished
from semel.group_coordinator.classic_group import ClassicGroup
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.group_state import GroupMember, GroupState
from semel.group_coordinator.schemas import group_record, record_size_bytes
from semel.group_coordinator.timers import Timers
from semel.group_coordinator.turn import GroupEventKind, TimerKey, TimerKind, Turn
from semel.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
)
from semel.protocol.consumer_protocol import decode_topics
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.machine import Ticket

_SETTLED_OR_SETTLING = frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE})


class Membership:
    """The moves of groups. Holds no state of its own: that is in each group and in the timers."""

    def __init__(self, config: GroupConfig, timers: Timers[TimerKey]) -> None:
        self._config = config
        self._timers = timers

    # Join

    def join(self, group: ClassicGroup, request: JoinGroupRequest, turn: Turn) -> None:
        refusal = self._refuse_join(group, request)
        if refusal is not None:
            turn.reply(refusal)
            if refusal.code is ErrorCode.GROUP_MAX_SIZE_REACHED:
                self._forget(group, request.member_id)
                self._complete_join_if_all(group, turn)
        elif request.member_id:
            self._join_again(group, request, turn)
        elif request.group_instance_id is not None:
            self._join_static(group, request, turn)
        elif request.require_known_member_id:
            self._promise_member_id(group, request, turn)
        else:
            self._add(group, request, request.new_member_id, turn)

    def _refuse_join(self, group: ClassicGroup, request: JoinGroupRequest) -> SemelError | None:
        if not self._has_room(group, request):
            return error_for(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {group.group_id} has its {self._config.group_max_size} members (group.max.size)",
            )
        names = [protocol.name for protocol in request.protocols]
        if len(set(names)) != len(names) or not group.supports(request.protocol_type, names):
            return error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id} has the type {group.protocol_type!r}; a member of type "
                f"{request.protocol_type!r} with the protocols {names} has none in common with all of its members",
            )
        return None

    def _has_room(self, group: ClassicGroup, request: JoinGroupRequest) -> bool:
        """Count those who joined while a rebalance goes on, so that a group above its bound loses the last to join."""
        size_max = self._config.group_max_size
        member = group.members.get(request.member_id)
        if not request.member_id:
            if request.group_instance_id in group.static_members:
                return True
            if len(group.pending_joins) >= size_max:
                return False
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join_ticket is not None) or group.awaiting_join_count < size_max
        return group.state is GroupState.EMPTY or member is not None or len(group.members) < size_max

    def _promise_member_id(self, group: ClassicGroup, request: JoinGroupRequest, turn: Turn) -> None:
        """Have the member come again with its id, so that a lost answer leaves no ghost behind (KIP-394)."""
        member_id = request.new_member_id
        if member_id not in group.members:
            group.pending_joins.add(member_id)
            self._await_heartbeat(group, member_id, request.session_timeout_ms, turn)
        turn.reply(JoinGroupResponse(-1, None, None, "", member_id, error=ErrorCode.MEMBER_ID_REQUIRED))

    def _join_static(self, group: ClassicGroup, request: JoinGroupRequest, turn: Turn) -> None:
        assert request.group_instance_id is not None
        current_id = group.static_members.get(request.group_instance_id)
        if current_id is None:
            self._add(group, request, request.new_member_id, turn)
        else:
            self._replace_static(group, group.members[current_id], request, turn)

    def _join_again(self, group: ClassicGroup, request: JoinGroupRequest, turn: Turn) -> None:
        if request.member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, request, request.member_id, turn)
            return
        refusal = group.check_member(request.member_id, request.group_instance_id)
        if refusal is not None:
            turn.reply(refusal)
            return
        member = group.members[request.member_id]
        changed = member.protocols != request.protocols
        if group.state is GroupState.PREPARING_REBALANCE:
            self._update_and_wait(group, member, request, "member joins", turn)
        elif changed:
            self._update_and_wait(group, member, request, "member changed its metadata", turn)
        elif group.state is GroupState.STABLE and group.leader_id == member.member_id:
            # So a leader asks for a new assignment when topics changed, which no member's metadata shows.
            self._update_and_wait(group, member, request, "leader joins again", turn)
        else:
            # It missed our answer: give it again.
            self._keep_alive(group, member, turn)
            turn.reply(group.join_response(member))

    def _add(self, group: ClassicGroup, request: JoinGroupRequest, member_id: str, turn: Turn) -> None:
        member = GroupMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            _rebalance_timeout_ms(request),
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
            join_ticket=turn.ticket,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        # It cannot send heartbeats before it knows its id, and may be gone before the rebalance ends.
        self._await_heartbeat(group, member_id, self._config.group_new_member_join_timeout_ms, turn)
        self._rebalance_or_complete(group, f"member {member_id} joins ({request.reason or 'no reason given'})", turn)

    def _update_and_wait(
        self, group: ClassicGroup, member: GroupMember, request: JoinGroupRequest, reason: str, turn: Turn
    ) -> None:
        self._update(group, member, request, turn)
        reason = f"{reason}: {member.member_id} ({request.reason or 'no reason given'})"
        self._rebalance_or_complete(group, reason, turn)

    def _update(self, group: ClassicGroup, member: GroupMember, request: JoinGroupRequest, turn: Turn) -> None:
        group.update_protocols(member, request.protocols)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        if member.join_ticket is None:
            group.awaiting_join_count += 1
        else:
            turn.answer(member.join_ticket, group.rebalance_in_progress())
        member.join_ticket = turn.ticket

    def _replace_static(self, group: ClassicGroup, old: GroupMember, request: JoinGroupRequest, turn: Turn) -> None:
        """Let a restarted static member take its own place (KIP-345), without a rebalance where it can be (G4)."""
        assert group.state is not GroupState.EMPTY
        self._send_away(group, old, _fenced(group, old), turn)
        self._timers.cancel(_session_key(group, old.member_id))
        topics_before = _topics(group, old)
        leader_before = group.leader_id
        was_unfinished = is_unfinished(group.protocol_name, group.members.values())
        member = group.replace_static(old, request.new_member_id)
        self._update(group, member, request, turn)
        self._await_heartbeat(group, member.member_id, member.session_timeout_ms, turn)
        turn.note(
            GroupEventKind.MEMBER_REPLACED,
            group.group_id,
            group.generation_id,
            f"instance {request.group_instance_id}: {old.member_id} by {member.member_id}",
        )
        reason = f"static member {request.group_instance_id} came back"
        if group.state is not GroupState.STABLE:
            # The leader may hold the old id, so an assignment under way would miss the new one.
            self._rebalance_or_complete(group, reason, turn)
        elif group.select_protocol() != group.protocol_name or topics_before != _topics(group, member):
            self._rebalance_or_complete(group, f"{reason} with another protocol or other topics", turn)
        elif was_unfinished:
            self._rebalance_or_complete(group, f"{reason}, and partitions that were revoked have no owner yet", turn)
        else:
            assignments = {other.member_id: other.assignment for other in group.members.values()}
            turn.records.append(group_record(group.group_id, group.stored(turn.now_ms, assignments)))
            is_leader = group.leader_id == member.member_id
            self._take_join_ticket(group, member)
            if is_leader and not request.supports_skip_assignment:
                # Named as the leader it would assign, and nobody would hear of that: so it is told of its old self.
                answer = replace(group.join_response(member), leader_id=leader_before or "", members=())
            else:
                answer = group.join_response(member, skip_assignment=is_leader)
            turn.reply(answer)

    # Rebalance

    def rebalance(self, group: ClassicGroup, reason: str, turn: Turn) -> None:
        """Ask every member to join again, for a reason that is shown to operators."""
        for member in group.members.values():
            if member.sync_ticket is not None:
                self._answer_sync(group, member, group.rebalance_in_progress(), turn)
        self._timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
        group.pending_syncs.clear()
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, turn.now_ms)
        turn.note(GroupEventKind.REBALANCING, group.group_id, group.generation_id, reason)
        if is_initial:
            self._wait_for_first_members(group, turn)
        elif group.all_joined:
            self.complete_join(group, turn)
        else:
            self._await_joins(group, group.rebalance_timeout_ms, turn)

    def _wait_for_first_members(self, group: ClassicGroup, turn: Turn) -> None:
        delay_ms = self._config.group_initial_rebalance_delay_ms
        if delay_ms == 0:
            self.complete_join(group, turn)
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
            self.complete_join(group, turn)
            return
        # Members still come in: wait on, but never longer than the rebalance timeout in all.
        delay_ms = min(self._config.group_initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.new_member_added = False
        group.initial_delay_left_ms = max(group.initial_delay_left_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        self._await_joins(group, delay_ms, turn)

    def _rebalance_or_complete(self, group: ClassicGroup, reason: str, turn: Turn) -> None:
        if group.can_rebalance:
            self.rebalance(group, reason, turn)
        else:
            self._complete_join_if_all(group, turn)

    def _complete_join_if_all(self, group: ClassicGroup, turn: Turn) -> None:
        """Complete the join once everybody is there; a first rebalance waits for its delay in any case."""
        waits_for_more = group.previous_state is GroupState.EMPTY and group.members
        if group.state is GroupState.PREPARING_REBALANCE and not waits_for_more and group.all_joined:
            self.complete_join(group, turn)

    def complete_join(self, group: ClassicGroup, turn: Turn) -> None:
        """Begin the next generation with those who joined, and with static members that may yet return."""
        self._timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
        for member in list(group.members.values()):
            if member.join_ticket is None and not member.is_static:
                self._remove(group, member, "did not join within the rebalance timeout", turn)
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
            ticket = self._take_join_ticket(group, member)
            member.is_absent = ticket is None
            if ticket is None:
                continue
            turn.answer(ticket, group.join_response(member))
            member.is_new = False
            group.pending_syncs.add(member.member_id)
            self._keep_alive(group, member, turn)
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
        self._keep_alive(group, member, turn)
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
        """Store the leader's assignment; every sync is answered with it once its record is committed."""
        assignments = request.assignments
        if request.partition_counts is not None:
            assigned = assign_partitions(group.protocol_name or "", group.members.values(), request.partition_counts)
            if isinstance(assigned, SemelError):
                turn.reply(assigned)
                return
            assignments = assigned
        self._has_synced(group, leader)
        if leader.sync_ticket is not None:
            turn.answer(leader.sync_ticket, group.rebalance_in_progress())
        leader.sync_ticket = turn.ticket
        record = group_record(group.group_id, group.stored(turn.now_ms, assignments))
        if record_size_bytes(record) > self._config.group_records_max_bytes:
            self._refuse_assignment(group, record_size_bytes(record), turn)
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
        for member in group.members.values():
            if member.sync_ticket is not None:
                self._answer_sync(group, member, error, turn)
        self.rebalance(group, "the assignment was too large to store", turn)

    def sync_time_is_up(self, group: ClassicGroup, turn: Turn) -> None:
        """Remove the members that got a generation and never asked for their assignment."""
        if group.state not in _SETTLED_OR_SETTLING or not group.pending_syncs:
            return
        for member_id in sorted(group.pending_syncs):
            self._remove(group, group.members[member_id], "did not sync within the rebalance timeout", turn)
        self.rebalance(group, "members did not sync", turn)

    # Heartbeat

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, turn: Turn) -> None:
        refusal = group.check_member(request.member_id, request.group_instance_id) or group.check_generation(
            request.member_id, request.generation_id
        )
        if refusal is not None:
            turn.reply(refusal)
            return
        self._keep_alive(group, group.members[request.member_id], turn)
        rebalancing = group.state is GroupState.PREPARING_REBALANCE
        turn.reply(group.rebalance_in_progress() if rebalancing else HeartbeatResponse())

    def keep_alive(self, group: ClassicGroup, member_id: str, turn: Turn) -> None:
        """Count another call of a member as a heartbeat."""
        member = group.members.get(member_id)
        if member is not None:
            self._keep_alive(group, member, turn)

    def session_expired(self, group: ClassicGroup, member_id: str, turn: Turn) -> None:
        """Remove a member that was not heard of for its session timeout, or a promise that nobody took up."""
        member = group.members.get(member_id)
        if member is None:
            group.remove(member_id)
            self._complete_join_if_all(group, turn)
        elif member.heartbeat_is_excused:
            self._keep_alive(group, member, turn)
        else:
            self._remove(group, member, "was not heard of within its session timeout", turn)
            self._members_were_removed(group, f"member {member_id} was not heard of", turn)

    # Leave

    def leave(self, group: ClassicGroup, request: LeaveGroupRequest, turn: Turn) -> None:
        errors = [self._leave_one(group, identity, turn) for identity in request.members]
        if ErrorCode.NONE in errors:
            self._members_were_removed(group, "members left", turn)
        turn.reply(LeaveGroupResponse(tuple(errors)))

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity, turn: Turn) -> ErrorCode:
        member_id = identity.member_id
        if not member_id:
            # An operator removes a static member without knowing its id.
            member_id = group.static_members.get(identity.group_instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in group.pending_joins:
            self._forget(group, member_id)
            return ErrorCode.NONE
        else:
            refusal = group.check_member(member_id, identity.group_instance_id)
            if refusal is not None:
                return refusal.code
        self._remove(group, group.members[member_id], f"left ({identity.reason or 'no reason given'})", turn)
        return ErrorCode.NONE

    def _members_were_removed(self, group: ClassicGroup, reason: str, turn: Turn) -> None:
        if group.state in _SETTLED_OR_SETTLING:
            self.rebalance(group, reason, turn)
        else:
            self._complete_join_if_all(group, turn)

    # After a restart

    def resume(self, group: ClassicGroup, turn: Turn) -> None:
        """Give every member of a group read from the log a session timeout to be heard of again."""
        for member in group.members.values():
            self._keep_alive(group, member, turn)
        if group.members and group.leader_id is None:
            self.begin_converted(group, turn)
        elif len(group.members) > self._config.group_max_size:
            self.rebalance(group, "the group is larger than group.max.size", turn)
        elif group.state is GroupState.STABLE and is_unfinished(group.protocol_name, group.members.values()):
            self.rebalance(group, "partitions that were revoked have no owner yet", turn)

    def begin_converted(self, group: ClassicGroup, turn: Turn) -> None:
        """Rebalance a group that was a consumer group: it has members, and nobody has led it yet."""
        if group.state is not GroupState.STABLE or group.leader_id is not None:
            return
        group.leader_id = next(iter(group.members))
        for member in group.members.values():
            self._keep_alive(group, member, turn)
        self.rebalance(group, "the group moved to the classic protocol", turn)

    def forget_timers(self, group: ClassicGroup) -> None:
        """Drop what a group that is no more was waiting for."""
        for kind in (TimerKind.JOIN, TimerKind.SYNC, TimerKind.EXPIRY):
            self._timers.cancel(TimerKey(kind, group.group_id))
        for member_id in (*group.members, *group.pending_joins):
            self._timers.cancel(_session_key(group, member_id))

    def send_all_away(self, group: ClassicGroup, turn: Turn) -> None:
        """Have everybody who waits join again: the group becomes a consumer group."""
        for member in group.members.values():
            self._send_away(group, member, group.rebalance_in_progress(), turn)

    # Parts

    def _remove(self, group: ClassicGroup, member: GroupMember, reason: str, turn: Turn) -> None:
        self._send_away(group, member, group.unknown_member(member.member_id), turn)
        self._forget(group, member.member_id)
        detail = f"{member.member_id} {reason}"
        turn.note(GroupEventKind.MEMBER_REMOVED, group.group_id, group.generation_id, detail)

    def _forget(self, group: ClassicGroup, member_id: str) -> None:
        group.remove(member_id)
        self._timers.cancel(_session_key(group, member_id))

    def _send_away(self, group: ClassicGroup, member: GroupMember, error: SemelError, turn: Turn) -> None:
        """Answer what the member waits on: it is no longer one."""
        join_ticket = self._take_join_ticket(group, member)
        if join_ticket is not None:
            turn.answer(join_ticket, error)
        if member.sync_ticket is not None:
            turn.answer(member.sync_ticket, error)
            member.sync_ticket = None

    def _take_join_ticket(self, group: ClassicGroup, member: GroupMember) -> Ticket | None:
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            group.awaiting_join_count -= 1
        return ticket

    def _answer_sync(self, group: ClassicGroup, member: GroupMember, response: object, turn: Turn) -> None:
        assert member.sync_ticket is not None
        turn.answer(member.sync_ticket, response)
        member.sync_ticket = None
        self._keep_alive(group, member, turn)

    def _has_synced(self, group: ClassicGroup, member: GroupMember) -> None:
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))

    def _keep_alive(self, group: ClassicGroup, member: GroupMember, turn: Turn) -> None:
        self._await_heartbeat(group, member.member_id, member.session_timeout_ms, turn)

    def _await_heartbeat(self, group: ClassicGroup, member_id: str, timeout_ms: int, turn: Turn) -> None:
        self._timers.schedule(_session_key(group, member_id), turn.now_ms + timeout_ms)

    def _await_joins(self, group: ClassicGroup, timeout_ms: int, turn: Turn) -> None:
        self._timers.schedule(TimerKey(TimerKind.JOIN, group.group_id), turn.now_ms + timeout_ms)


def _session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 of JoinGroup has no rebalance timeout: the session's counts."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms


def _fenced(group: ClassicGroup, member: GroupMember) -> SemelError:
    return error_for(
        ErrorCode.FENCED_INSTANCE_ID,
        f"another member of group {group.group_id} joined as instance {member.group_instance_id}; this one must stop",
    )


def _topics(group: ClassicGroup, member: GroupMember) -> frozenset[str]:
    """Return the topics of a consumer's subscription, none where there is no telling."""
    if not group.is_consumer_group:
        return frozenset()
    try:
        return frozenset(decode_topics(member.metadata(group.protocol_name)))
    except CorruptDataError:
        return frozenset()


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
