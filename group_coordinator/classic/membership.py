"""Who is in a group: joining, heartbeats and leaving. What follows for the generation is in `rebalance.py`.

Exactly Kafka's classic protocol (KIP-345 static members, KIP-394 member ids first, KIP-814 no second assignment).
Where it differs: a duplicate of a waiting call sends the older one away instead of leaving it hanging; an absent static
member is awaited for its session timeout, not a rebalance timeout (G4); and one that returns with other topics than it
had causes a rebalance, which in Kafka it would not.
"""

from __future__ import annotations

from dataclasses import replace

from semel.group_coordinator.classic import rebalance
from semel.group_coordinator.classic.assignment import is_unfinished
from semel.group_coordinator.classic.members import ClassicGroupData
from semel.group_coordinator.classic.state import GroupMember, GroupState
from semel.group_coordinator.effects import GroupEventKind, PendingResult
from semel.group_coordinator.held_bytes import MEMBER_BYTES, protocol_bytes, text_bytes
from semel.group_coordinator.records.schemas import group_record
from semel.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from semel.protocol.consumer_protocol import decode_topics
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, SemelError, error_for

# --- Join -------------------------------------------------------------------------------------------------------------


def join(group: ClassicGroupData, request: JoinGroupRequest, pending: PendingResult) -> None:
    refusal = _refuse_join(group, request)
    if refusal is not None:
        pending.reply(refusal)
        if refusal.code is ErrorCode.GROUP_MAX_SIZE_REACHED:
            rebalance.forget(group, request.member_id)
            rebalance.complete_if_all_joined(group, pending)
    elif request.member_id:
        _join_again(group, request, pending)
    elif request.group_instance_id is not None:
        _join_static(group, request, pending)
    elif request.require_known_member_id:
        _promise_member_id(group, request, pending)
    else:
        _add(group, request, request.new_member_id, pending)


def _refuse_join(group: ClassicGroupData, request: JoinGroupRequest) -> SemelError | None:
    if not _has_room(group, request):
        group.shared.room.refusals.note("group.max.size")
        return error_for(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"group {group.group_id} has its {group.shared.config.group_max_size} members (group.max.size): use fewer "
            "members, or raise the setting",
        )
    names = [protocol.name for protocol in request.protocols]
    if len(set(names)) != len(names) or not group.supports(request.protocol_type, names):
        return error_for(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"group {group.group_id} has the type {group.protocol_type!r}; a member of type "
            f"{request.protocol_type!r} with the protocols {names} has none in common with all of its members",
        )
    return group.shared.room.refuse_member(group.group_id, group.held_bytes, _more_bytes(group, request))


def _has_room(group: ClassicGroupData, request: JoinGroupRequest) -> bool:
    """Count those who joined while a rebalance goes on, so that a group above its bound loses the last to join."""
    size_max = group.shared.config.group_max_size
    member = group.members.get(request.member_id)
    if not request.member_id:
        if request.group_instance_id in group.static_members:
            return True
        if len(group.pending_joins) >= size_max:
            return False
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.join_ticket is not None) or group.awaiting_join_count < size_max
    return group.state is GroupState.EMPTY or member is not None or len(group.members) < size_max


def _promise_member_id(group: ClassicGroupData, request: JoinGroupRequest, pending: PendingResult) -> None:
    """Have the member join again with its id, so that a lost answer leaves no ghost behind (KIP-394)."""
    member_id = request.new_member_id
    if member_id not in group.members:
        group.promise(member_id)
        rebalance.await_heartbeat(group, member_id, request.session_timeout_ms, pending)
    pending.reply(JoinGroupResponse(-1, None, None, "", member_id, error=ErrorCode.MEMBER_ID_REQUIRED))


def _join_static(group: ClassicGroupData, request: JoinGroupRequest, pending: PendingResult) -> None:
    assert request.group_instance_id is not None
    current_id = group.static_members.get(request.group_instance_id)
    if current_id is None:
        _add(group, request, request.new_member_id, pending)
    else:
        _replace_static(group, group.members[current_id], request, pending)


def _join_again(group: ClassicGroupData, request: JoinGroupRequest, pending: PendingResult) -> None:
    if request.member_id in group.pending_joins and request.group_instance_id is None:
        _add(group, request, request.member_id, pending)
        return
    refusal = group.check_member(request.member_id, request.group_instance_id)
    if refusal is not None:
        pending.reply(refusal)
        return
    member = group.members[request.member_id]
    changed = member.protocols != request.protocols
    if group.state is GroupState.PREPARING_REBALANCE:
        _update_and_wait(group, member, request, "member joins", pending)
    elif changed:
        _update_and_wait(group, member, request, "member changed its metadata", pending)
    elif group.state is GroupState.STABLE and group.leader_id == member.member_id:
        # So a leader asks for a new assignment when topics changed, which no member's metadata shows.
        _update_and_wait(group, member, request, "leader joins again", pending)
    else:
        # It missed our answer: give it again.
        rebalance.keep_alive(group, member, pending)
        pending.reply(group.join_response(member))


def _add(group: ClassicGroupData, request: JoinGroupRequest, member_id: str, pending: PendingResult) -> None:
    member = GroupMember(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        _rebalance_timeout_ms(request),
        request.session_timeout_ms,
        request.protocols,
        is_new=True,
        join_ticket=pending.ticket,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    # It cannot send heartbeats before it knows its id, and may be gone before the rebalance ends.
    rebalance.await_heartbeat(group, member_id, group.shared.config.group_new_member_join_timeout_ms, pending)
    rebalance.begin_or_complete(group, f"member {member_id} joins ({request.reason or 'no reason given'})", pending)


def _update_and_wait(
    group: ClassicGroupData, member: GroupMember, request: JoinGroupRequest, reason: str, pending: PendingResult
) -> None:
    _update(group, member, request, pending)
    reason = f"{reason}: {member.member_id} ({request.reason or 'no reason given'})"
    rebalance.begin_or_complete(group, reason, pending)


def _update(group: ClassicGroupData, member: GroupMember, request: JoinGroupRequest, pending: PendingResult) -> None:
    group.update_member(member, request.protocols, request.client_id, request.client_host)
    member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
    member.session_timeout_ms = request.session_timeout_ms
    if member.join_ticket is None:
        group.awaiting_join_count += 1
    else:
        pending.answer(member.join_ticket, group.rebalance_in_progress())
    member.join_ticket = pending.ticket


def _replace_static(
    group: ClassicGroupData, old: GroupMember, request: JoinGroupRequest, pending: PendingResult
) -> None:
    """Let a restarted static member take its own place (KIP-345), without a rebalance where it can be (G4)."""
    assert group.state is not GroupState.EMPTY
    rebalance.send_away(group, old, _fenced(group, old), pending)
    rebalance.stop_awaiting(group, old.member_id)
    topics_before = _topics(group, old)
    leader_before = group.leader_id
    was_unfinished = is_unfinished(group.protocol_name, group.members.values())
    member = group.replace_static(old, request.new_member_id)
    _update(group, member, request, pending)
    rebalance.await_heartbeat(group, member.member_id, member.session_timeout_ms, pending)
    pending.note(
        GroupEventKind.MEMBER_REPLACED,
        group.group_id,
        group.generation_id,
        f"instance {request.group_instance_id}: {old.member_id} by {member.member_id}",
    )
    reason = f"static member {request.group_instance_id} came back"
    if group.state is not GroupState.STABLE:
        # The leader may hold the old id, so an assignment under way would miss the new one.
        rebalance.begin_or_complete(group, reason, pending)
    elif group.select_protocol() != group.protocol_name or topics_before != _topics(group, member):
        rebalance.begin_or_complete(group, f"{reason} with another protocol or other topics", pending)
    elif was_unfinished:
        rebalance.begin_or_complete(group, f"{reason}, and partitions that were revoked have no owner yet", pending)
    else:
        assignments = {other.member_id: other.assignment for other in group.members.values()}
        pending.records.append(group_record(group.group_id, group.stored(pending.now_ms, assignments)))
        is_leader = group.leader_id == member.member_id
        rebalance.take_join_ticket(group, member)
        if is_leader and not request.supports_skip_assignment:
            # Named as the leader it would assign, and nobody would read that: so the answer names its old member id.
            answer = replace(group.join_response(member), leader_id=leader_before or "", members=())
        else:
            answer = group.join_response(member, skip_assignment=is_leader)
        pending.reply(answer)


# --- Heartbeat --------------------------------------------------------------------------------------------------------


def heartbeat(group: ClassicGroupData, request: HeartbeatRequest, pending: PendingResult) -> None:
    refusal = group.check_member(request.member_id, request.group_instance_id) or group.check_generation(
        request.member_id, request.generation_id
    )
    if refusal is not None:
        pending.reply(refusal)
        return
    rebalance.keep_alive(group, group.members[request.member_id], pending)
    rebalancing = group.state is GroupState.PREPARING_REBALANCE
    pending.reply(group.rebalance_in_progress() if rebalancing else HeartbeatResponse())


def keep_alive(group: ClassicGroupData, member_id: str, pending: PendingResult) -> None:
    """Count another call of a member as a heartbeat."""
    member = group.members.get(member_id)
    if member is not None:
        rebalance.keep_alive(group, member, pending)


def session_expired(group: ClassicGroupData, member_id: str, pending: PendingResult) -> None:
    """Remove a member that was not heard of for its session timeout, or a promised member id that nobody used."""
    member = group.members.get(member_id)
    if member is None:
        group.remove(member_id)
        rebalance.complete_if_all_joined(group, pending)
    elif member.heartbeat_is_excused:
        rebalance.keep_alive(group, member, pending)
    else:
        rebalance.remove(group, member, "was not heard of within its session timeout", pending)
        rebalance.members_were_removed(group, f"member {member_id} was not heard of", pending)


# --- Leave ------------------------------------------------------------------------------------------------------------


def leave(group: ClassicGroupData, request: LeaveGroupRequest, pending: PendingResult) -> None:
    errors = [_leave_one(group, identity, pending) for identity in request.members]
    if ErrorCode.NONE in errors:
        rebalance.members_were_removed(group, "members left", pending)
    pending.reply(LeaveGroupResponse(tuple(errors)))


def _leave_one(group: ClassicGroupData, identity: MemberIdentity, pending: PendingResult) -> ErrorCode:
    member_id = identity.member_id
    if not member_id:
        # An operator removes a static member without knowing its id.
        member_id = group.static_members.get(identity.group_instance_id or "", "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending_joins:
        rebalance.forget(group, member_id)
        return ErrorCode.NONE
    else:
        refusal = group.check_member(member_id, identity.group_instance_id)
        if refusal is not None:
            return refusal.code
    rebalance.remove(group, group.members[member_id], f"left ({identity.reason or 'no reason given'})", pending)
    return ErrorCode.NONE


# --- After a restart --------------------------------------------------------------------------------------------------


def resume(group: ClassicGroupData, pending: PendingResult) -> None:
    """Give every member of a group read from the log a session timeout to be heard of again."""
    for member in group.members.values():
        rebalance.keep_alive(group, member, pending)
    if group.members and group.leader_id is None:
        rebalance.begin_converted(group, pending)
    elif len(group.members) > group.shared.config.group_max_size:
        rebalance.begin(group, "the group is larger than group.max.size", pending)
    elif group.state is GroupState.STABLE and is_unfinished(group.protocol_name, group.members.values()):
        rebalance.begin(group, "partitions that were revoked have no owner yet", pending)


def send_all_away(group: ClassicGroupData, pending: PendingResult) -> None:
    """Have everybody who waits join again: the group becomes a consumer group."""
    for member in group.members.values():
        rebalance.send_away(group, member, group.rebalance_in_progress(), pending)


def _more_bytes(group: ClassicGroupData, request: JoinGroupRequest) -> int:
    """Return what the group will hold beyond what it holds now, if this member joins."""
    said = text_bytes(request.member_id or request.new_member_id, request.group_instance_id, request.client_id)
    joining = MEMBER_BYTES + said + text_bytes(request.client_host) + protocol_bytes(request.protocols)
    known_id = request.member_id or group.static_members.get(request.group_instance_id or "", "")
    member = group.members.get(known_id)
    return joining if member is None else joining - member.held_bytes


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 of JoinGroup has no rebalance timeout: the session's counts."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms


def _fenced(group: ClassicGroupData, member: GroupMember) -> SemelError:
    return error_for(
        ErrorCode.FENCED_INSTANCE_ID,
        f"another member of group {group.group_id} joined as instance {member.group_instance_id}; this one must stop",
    )


def _topics(group: ClassicGroupData, member: GroupMember) -> frozenset[str]:
    """Return the topics of a consumer's subscription, none where there is no telling."""
    if not group.is_consumer_group:
        return frozenset()
    try:
        return frozenset(decode_topics(member.metadata(group.protocol_name)))
    except CorruptDataError:
        return frozenset()
