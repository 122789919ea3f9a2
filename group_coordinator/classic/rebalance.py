"""How a group comes from one generation to the next.

a rebalance begins --> everybody joined, or time is up --> answers with the new generation --> the leader's sync
     --> the group's record is in the log --> answers with the assignments
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial

from semel.group_coordinator.classic.assignment import assign_partitions, is_large
from semel.group_coordinator.classic.members import ClassicGroupData
from semel.group_coordinator.classic.state import GroupMember, GroupState
from semel.group_coordinator.computations import Computation, Computed
from semel.group_coordinator.effects import GroupEventKind, PendingResult, TimerKey, TimerKind
from semel.group_coordinator.records.schemas import group_record, record_size_bytes
from semel.protocol.api.groups import SyncGroupRequest
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.machine import Ticket

_SETTLED_OR_SETTLING = frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE})


def begin(group: ClassicGroupData, reason: str, pending: PendingResult) -> None:
    """Ask every member to join again, for a reason that is shown to operators."""
    for member in group.members.values():
        if member.sync_ticket is not None:
            _answer_sync(group, member, group.rebalance_in_progress(), pending)
    group.shared.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
    group.pending_syncs.clear()
    group.assigning = None
    is_initial = group.state is GroupState.EMPTY
    group.transition_to(GroupState.PREPARING_REBALANCE, pending.now_ms)
    pending.note(GroupEventKind.REBALANCING, group.group_id, group.generation_id, reason)
    if is_initial:
        _wait_for_first_members(group, pending)
    elif group.all_joined:
        _complete_join(group, pending)
    else:
        _await_joins(group, group.rebalance_timeout_ms, pending)


def _wait_for_first_members(group: ClassicGroupData, pending: PendingResult) -> None:
    delay_ms = group.shared.config.group_initial_rebalance_delay_ms
    if delay_ms == 0:
        _complete_join(group, pending)
        return
    group.new_member_added = False
    group.initial_delay_ms = delay_ms
    group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    _await_joins(group, delay_ms, pending)


def join_time_is_up(group: ClassicGroupData, pending: PendingResult) -> None:
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    is_initial = group.previous_state is GroupState.EMPTY
    if not (is_initial and group.new_member_added and group.initial_delay_left_ms > 0):
        _complete_join(group, pending)
        return
    # Members still come in: wait on, but never longer than the rebalance timeout in all.
    delay_ms = min(group.shared.config.group_initial_rebalance_delay_ms, group.initial_delay_left_ms)
    group.new_member_added = False
    group.initial_delay_left_ms = max(group.initial_delay_left_ms - group.initial_delay_ms, 0)
    group.initial_delay_ms = delay_ms
    _await_joins(group, delay_ms, pending)


def begin_or_complete(group: ClassicGroupData, reason: str, pending: PendingResult) -> None:
    if group.can_rebalance:
        begin(group, reason, pending)
    else:
        complete_if_all_joined(group, pending)


def complete_if_all_joined(group: ClassicGroupData, pending: PendingResult) -> None:
    """Complete the join once everybody is there; a first rebalance waits for its delay in any case."""
    waits_for_more = group.previous_state is GroupState.EMPTY and group.members
    if group.state is GroupState.PREPARING_REBALANCE and not waits_for_more and group.all_joined:
        _complete_join(group, pending)


def _complete_join(group: ClassicGroupData, pending: PendingResult) -> None:
    """Begin the next generation with those who joined, and with static members that may yet return."""
    group.shared.timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
    for member in list(group.members.values()):
        if member.join_ticket is None and not member.is_static:
            remove(group, member, "did not join within the rebalance timeout", pending)
    if group.members and not group.elect_joined_leader():
        # Only absent static members are left: their session timeouts decide.
        _await_joins(group, group.rebalance_timeout_ms, pending)
    elif group.members:
        _begin_generation(group, pending)
    else:
        group.begin_empty_generation()
        pending.records.append(group_record(group.group_id, group.stored(pending.now_ms, {})))
        pending.note(GroupEventKind.EMPTY, group.group_id, group.generation_id, "no members are left")


def _begin_generation(group: ClassicGroupData, pending: PendingResult) -> None:
    group.begin_generation(pending.now_ms)
    for member in group.members.values():
        ticket = take_join_ticket(group, member)
        member.is_absent = ticket is None
        if ticket is None:
            continue
        pending.answer(ticket, group.join_response(member))
        member.is_new = False
        group.pending_syncs.add(member.member_id)
        keep_alive(group, member, pending)
    deadline_ms = pending.now_ms + group.rebalance_timeout_ms
    group.shared.timers.schedule(TimerKey(TimerKind.SYNC, group.group_id), deadline_ms)
    detail = f"{len(group.members)} members, protocol {group.protocol_name}"
    pending.note(GroupEventKind.GENERATION_STARTED, group.group_id, group.generation_id, detail)


# --- Sync -------------------------------------------------------------------------------------------------------------


def sync(group: ClassicGroupData, request: SyncGroupRequest, pending: PendingResult) -> None:
    refusal = (
        group.check_member(request.member_id, request.group_instance_id)
        or group.check_generation(request.member_id, request.generation_id)
        or _check_protocol(group, request)
    )
    if refusal is not None:
        pending.reply(refusal)
        return
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        pending.reply(group.rebalance_in_progress())
        return
    keep_alive(group, member, pending)
    if group.state is GroupState.STABLE:
        _has_synced(group, member)
        pending.reply(group.sync_response(member.assignment))
    elif group.leader_id == member.member_id:
        _settle(group, member, request, pending)
    else:
        _has_synced(group, member)
        if member.sync_ticket is not None:
            pending.answer(member.sync_ticket, group.rebalance_in_progress())
        member.sync_ticket = pending.ticket


def _settle(group: ClassicGroupData, leader: GroupMember, request: SyncGroupRequest, pending: PendingResult) -> None:
    """Store the leader's assignment, or the one that it has us make."""
    assignments: Mapping[str, bytes] | SemelError = request.assignments
    name, counts = group.protocol_name, request.partition_counts
    most = group.shared.config.group_assigned_at_once_max
    may_defer = counts is not None and group.shared.config.group_consumer_assignor_offload_enable
    if counts is not None and may_defer and is_large(name, group.members.values(), counts, most):
        _await_assignment(group, leader, pending)
        if group.assigning is None:
            # Copies: the members change meanwhile.
            members = [copy(member) for member in group.members.values()]
            work = partial(assign_partitions, name or "", members, counts)
            group.assigning = Computation(group.group_id, work, group.generation_id)
            pending.effects.append(group.assigning)
        return
    if counts is not None:
        assignments = assign_partitions(name or "", group.members.values(), counts)
    if isinstance(assignments, SemelError):
        pending.reply(assignments)
        return
    _await_assignment(group, leader, pending)
    _store(group, leader, assignments, pending)


def take_assignment(group: ClassicGroupData, computed: Computed, pending: PendingResult) -> None:
    """Store an assignment that was computed beside the loop, unless another rebalance has begun meanwhile."""
    if group.assigning is not computed.of or group.state is not GroupState.COMPLETING_REBALANCE:
        return
    group.assigning = None
    leader = group.members[group.leader_id or ""]
    if isinstance(computed.result, dict):
        _store(group, leader, computed.result, pending)
    elif leader.sync_ticket is not None:
        failed = error_for(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"the assignment of group {group.group_id} could not be computed; try again, the node's log says why",
        )
        error = computed.result if isinstance(computed.result, SemelError) else failed
        _answer_sync(group, leader, error, pending)


def _await_assignment(group: ClassicGroupData, leader: GroupMember, pending: PendingResult) -> None:
    _has_synced(group, leader)
    if leader.sync_ticket is not None:
        pending.answer(leader.sync_ticket, group.rebalance_in_progress())
    leader.sync_ticket = pending.ticket


def _store(
    group: ClassicGroupData, leader: GroupMember, assignments: Mapping[str, bytes], pending: PendingResult
) -> None:
    """Store an assignment; every sync is answered with it once its record is committed."""
    group.assigning = None
    members = group.members.values()
    record = group_record(group.group_id, group.stored(pending.now_ms, assignments))
    if record_size_bytes(record) > group.shared.config.group_records_max_bytes:
        _refuse_assignment(group, record_size_bytes(record), pending)
        return
    assigned_bytes = sum(map(len, assignments.values())) - sum(len(each.assignment) for each in members)
    refusal = group.shared.room.refuse_member(group.group_id, group.held_bytes, assigned_bytes)
    if refusal is not None:
        _fail_syncs(group, refusal, pending)
        return
    pending.records.append(record)
    for member in group.members.values():
        if member.sync_ticket is not None:
            response = group.sync_response(assignments.get(member.member_id, b""))
            _answer_sync(group, member, response, pending)
    pending.note(GroupEventKind.STABLE, group.group_id, group.generation_id, f"assigned by {leader.member_id}")


def _refuse_assignment(group: ClassicGroupData, size_bytes: int, pending: PendingResult) -> None:
    error = error_for(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"the subscriptions and assignments of group {group.group_id} take {size_bytes} bytes, more than the "
        f"{group.shared.config.group_records_max_bytes} that a group may store; use fewer members or shorter metadata",
    )
    _fail_syncs(group, error, pending)


def _fail_syncs(group: ClassicGroupData, error: SemelError, pending: PendingResult) -> None:
    for member in group.members.values():
        if member.sync_ticket is not None:
            _answer_sync(group, member, error, pending)
    begin(group, "the assignment was too large to store", pending)


def sync_time_is_up(group: ClassicGroupData, pending: PendingResult) -> None:
    """Remove the members that got a generation and never asked for their assignment."""
    if group.state not in _SETTLED_OR_SETTLING or not group.pending_syncs:
        return
    for member_id in sorted(group.pending_syncs):
        remove(group, group.members[member_id], "did not sync within the rebalance timeout", pending)
    begin(group, "members did not sync", pending)


def members_were_removed(group: ClassicGroupData, reason: str, pending: PendingResult) -> None:
    if group.state in _SETTLED_OR_SETTLING:
        begin(group, reason, pending)
    else:
        complete_if_all_joined(group, pending)


def begin_converted(group: ClassicGroupData, pending: PendingResult) -> None:
    """Rebalance a group that was a consumer group: it has members, and nobody has led it yet."""
    if group.state is not GroupState.STABLE or group.leader_id is not None:
        return
    group.leader_id = next(iter(group.members))
    for member in group.members.values():
        keep_alive(group, member, pending)
    begin(group, "the group moved to the classic protocol", pending)


def forget_timers(group: ClassicGroupData) -> None:
    """Drop what a group that is no more was waiting for."""
    for kind in (TimerKind.JOIN, TimerKind.SYNC, TimerKind.EXPIRY):
        group.shared.timers.cancel(TimerKey(kind, group.group_id))
    for member_id in (*group.members, *group.pending_joins):
        group.shared.timers.cancel(_session_key(group, member_id))


# --- Parts ------------------------------------------------------------------------------------------------------------


def remove(group: ClassicGroupData, member: GroupMember, reason: str, pending: PendingResult) -> None:
    send_away(group, member, group.unknown_member(member.member_id), pending)
    forget(group, member.member_id)
    detail = f"{member.member_id} {reason}"
    pending.note(GroupEventKind.MEMBER_REMOVED, group.group_id, group.generation_id, detail)


def forget(group: ClassicGroupData, member_id: str) -> None:
    group.remove(member_id)
    stop_awaiting(group, member_id)


def send_away(group: ClassicGroupData, member: GroupMember, error: SemelError, pending: PendingResult) -> None:
    """Answer what the member waits on: it is no longer one."""
    join_ticket = take_join_ticket(group, member)
    if join_ticket is not None:
        pending.answer(join_ticket, error)
    if member.sync_ticket is not None:
        pending.answer(member.sync_ticket, error)
        member.sync_ticket = None


def take_join_ticket(group: ClassicGroupData, member: GroupMember) -> Ticket | None:
    ticket, member.join_ticket = member.join_ticket, None
    if ticket is not None:
        group.awaiting_join_count -= 1
    return ticket


def _answer_sync(group: ClassicGroupData, member: GroupMember, response: object, pending: PendingResult) -> None:
    assert member.sync_ticket is not None
    pending.answer(member.sync_ticket, response)
    member.sync_ticket = None
    keep_alive(group, member, pending)


def _has_synced(group: ClassicGroupData, member: GroupMember) -> None:
    group.pending_syncs.discard(member.member_id)
    if not group.pending_syncs:
        group.shared.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))


def keep_alive(group: ClassicGroupData, member: GroupMember, pending: PendingResult) -> None:
    await_heartbeat(group, member.member_id, member.session_timeout_ms, pending)


def await_heartbeat(group: ClassicGroupData, member_id: str, timeout_ms: int, pending: PendingResult) -> None:
    group.shared.timers.schedule(_session_key(group, member_id), pending.now_ms + timeout_ms)


def stop_awaiting(group: ClassicGroupData, member_id: str) -> None:
    group.shared.timers.cancel(_session_key(group, member_id))


def _await_joins(group: ClassicGroupData, timeout_ms: int, pending: PendingResult) -> None:
    group.shared.timers.schedule(TimerKey(TimerKind.JOIN, group.group_id), pending.now_ms + timeout_ms)


def _session_key(group: ClassicGroupData, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)


def _check_protocol(group: ClassicGroupData, request: SyncGroupRequest) -> SemelError | None:
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
