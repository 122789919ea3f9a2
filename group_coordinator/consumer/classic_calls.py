"""Members of a consumer group that still speak the classic protocol (KIP-848, online migration).

They join, sync and send heartbeats as ever; the coordinator leads them through the same steps as the others. A join is
answered at once, nobody leads, and the generation is the member's own epoch. REBALANCE_IN_PROGRESS says that there is a
next step: what they hold and what they gave up stands in the subscription with which they join again.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.membership import ConsumerMembership, Draft
from semel.group_coordinator.consumer.topics import TopicsSource
from semel.group_coordinator.effects import PendingResult, TimerKey, TimerKind
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.records.consumer_state import ClassicMetadata, ConsumerMember, MemberDetails, MemberState
from semel.protocol.api.consumer_groups import JOIN_EPOCH, NO_PARTITIONS, Partitions
from semel.protocol.api.groups import (
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NO_GENERATION,
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
    protocol_version,
)
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, SemelError, error_for


class ClassicCalls:
    """The classic protocol's calls to a consumer group."""

    def __init__(
        self,
        shared: GroupContext,
        topics: TopicsSource,
        membership: ConsumerMembership,
    ) -> None:
        self._timers = shared.timers
        self._topics = topics
        self._membership = membership

    # --- Join ---------------------------------------------------------------------------------------------------------

    def join(self, draft: Draft, request: JoinGroupRequest, pending: PendingResult) -> None:
        said = _refuse_protocols(draft.group, request) or _subscription(request)
        if isinstance(said, SemelError):
            pending.reply(said)
            return
        found = self._find(draft.group, request, said)
        if isinstance(found, SemelError):
            pending.reply(found)
            return
        if not request.member_id and request.group_instance_id is None and request.require_known_member_id:
            # Nothing is kept for the id: a client may join with one that the edge made (KIP-394).
            pending.reply(
                JoinGroupResponse(-1, None, None, "", request.new_member_id, error=ErrorCode.MEMBER_ID_REQUIRED)
            )
            return
        topics = self._topics()
        needed = self._membership.patterns_needed(draft.group, topics, wants_others=True)
        if needed is not None:
            pending.reply(needed)
            return
        member_id = request.member_id or request.new_member_id
        if found is not None and found.member_id != member_id:
            self._membership.replace_static(draft, found, member_id)
        details = _details(request, said)
        owned = self._owned(draft.group, member_id, said)
        current = self._membership.advance(draft, member_id, details, owned, topics)
        if isinstance(current, SemelError):
            pending.records.clear()
            pending.reply(current)
            return
        group = draft.group
        self._timers.cancel(_key(TimerKind.MEMBER_REJOIN, group, member_id))
        self._timers.schedule(
            _key(TimerKind.MEMBER_SYNC, group, member_id), pending.now_ms + details.rebalance_timeout_ms
        )
        self._membership.keep_alive(group, member_id, pending)
        self._membership.consider_downgrade(group, pending)
        pending.reply(
            JoinGroupResponse(current.epoch, CONSUMER_PROTOCOL_TYPE, request.protocols[0].name, "", member_id)
        )

    def _owned(self, group: ConsumerGroupData, member_id: str, said: Subscription) -> Partitions | None:
        """Return what a member holds, None where it cannot be told: a join from before the current epoch may be late.

        Members that name no generation are believed (KIP-792): older ones, those that lost everything, and librdkafka's
        eager ones.
        """
        member = group.member(member_id)
        if member is not None and said.generation_id not in (NO_GENERATION, member.current.epoch):
            return None if member.current.epoch != JOIN_EPOCH else NO_PARTITIONS
        return self._topics().with_ids(said.owned_partitions)

    def _find(
        self, group: ConsumerGroupData, request: JoinGroupRequest, said: Subscription
    ) -> ConsumerMember | SemelError | None:
        """Return the member that joins again, or whose place it takes; None for a new one."""
        if request.group_instance_id is not None:
            static = group.static_member(request.group_instance_id)
            if static is not None and request.member_id not in ("", static.member_id):
                return _fenced(group, request.group_instance_id, request.member_id)
            if static is not None:
                return static
        member = group.member(request.member_id)
        if member is not None and not member.is_classic:
            return group.unknown_member(request.member_id)
        if member is None and request.member_id and (request.group_instance_id is not None or said.owned_partitions):
            # One that was removed may hold what others have by now (G2): it is to lose that before it joins again.
            return group.unknown_member(request.member_id)
        return self._membership.refuse_new(group) if member is None else member

    # --- Sync ---------------------------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroupData, request: SyncGroupRequest, pending: PendingResult) -> None:
        member = self._known(group, request.member_id, request.group_instance_id, request.generation_id)
        if isinstance(member, SemelError):
            pending.reply(member)
            return
        refusal = _refuse_settled(group, member, request)
        # A member that is to revoke has joined already: it learns of that by its assignment.
        is_behind = (
            self._membership.latest_epoch(group) > member.current.epoch
            and member.current.state is not MemberState.UNREVOKED_PARTITIONS
        )
        if refusal is not None or is_behind:
            if is_behind:
                self._await_join(group, member, pending)
            pending.reply(refusal or _rebalance_in_progress(group))
            return
        self._timers.cancel(_key(TimerKind.MEMBER_SYNC, group, member.member_id))
        self._membership.keep_alive(group, member.member_id, pending)
        protocol = _protocols(member)[0]
        given = Assignment(tuple(self._topics().with_names(member.current.assigned)))
        assignment = encode_assignment(given, protocol_version(protocol.metadata))
        pending.reply(SyncGroupResponse(assignment, CONSUMER_PROTOCOL_TYPE, protocol.name))

    # --- Heartbeat ----------------------------------------------------------------------------------------------------

    def heartbeat(self, group: ConsumerGroupData, request: HeartbeatRequest, pending: PendingResult) -> None:
        member = self._known(group, request.member_id, request.group_instance_id, request.generation_id)
        if isinstance(member, SemelError):
            pending.reply(member)
            return
        self._membership.keep_alive(group, member.member_id, pending)
        state = member.current.state
        if (
            self._membership.latest_epoch(group) > member.current.epoch
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        ):
            self._await_join(group, member, pending)
            pending.reply(_rebalance_in_progress(group))
        else:
            pending.reply(HeartbeatResponse())

    def keep_alive(self, group: ConsumerGroupData, member_id: str, pending: PendingResult) -> None:
        """Count a commit of a classic member as a heartbeat, as in classic groups."""
        member = group.member(member_id)
        if member is not None and member.is_classic:
            self._membership.keep_alive(group, member_id, pending)

    # --- Leave --------------------------------------------------------------------------------------------------------

    def leave(self, draft: Draft, request: LeaveGroupRequest, pending: PendingResult) -> None:
        leaving: dict[str, None] = {}
        errors = []
        for identity in request.members:
            member = self._leaver(draft.group, identity)
            if isinstance(member, ConsumerMember) and member.member_id not in leaving:
                leaving[member.member_id] = None
                errors.append(ErrorCode.NONE)
            else:
                errors.append(member.code if isinstance(member, SemelError) else ErrorCode.UNKNOWN_MEMBER_ID)
        if leaving:
            self._membership.remove(draft, list(leaving), "left")
        pending.reply(LeaveGroupResponse(tuple(errors)))

    def _leaver(self, group: ConsumerGroupData, identity: MemberIdentity) -> ConsumerMember | SemelError:
        """Return who leaves. An operator may remove a static member of either protocol by its instance id alone."""
        if identity.group_instance_id is not None:
            static = group.static_member(identity.group_instance_id)
            if static is None:
                return group.unknown_member(identity.member_id)
            if not identity.member_id:
                return static
            if static.member_id != identity.member_id:
                return _fenced(group, identity.group_instance_id, identity.member_id)
        member = group.member(identity.member_id)
        return member if member is not None and member.is_classic else group.unknown_member(identity.member_id)

    # --- Parts --------------------------------------------------------------------------------------------------------

    def _known(
        self, group: ConsumerGroupData, member_id: str, instance_id: str | None, generation_id: int
    ) -> ConsumerMember | SemelError:
        if instance_id is not None:
            static = group.static_member(instance_id)
            if static is not None and static.member_id != member_id:
                return _fenced(group, instance_id, member_id)
        member = group.member(member_id)
        if member is None or not member.is_classic:
            return group.unknown_member(member_id)
        if member.current.epoch != generation_id:
            return error_for(
                ErrorCode.ILLEGAL_GENERATION,
                f"member {member_id} of group {group.group_id} is of generation {generation_id}, "
                f"it should be of {member.current.epoch}; join again",
            )
        return member

    def _await_join(self, group: ConsumerGroupData, member: ConsumerMember, pending: PendingResult) -> None:
        """Await that a member joins again, from the first time on that it was told to."""
        key = _key(TimerKind.MEMBER_REJOIN, group, member.member_id)
        if key not in self._timers:
            self._timers.schedule(key, pending.now_ms + member.details.rebalance_timeout_ms)


def _refuse_protocols(group: ConsumerGroupData, request: JoinGroupRequest) -> SemelError | None:
    names = [protocol.name for protocol in request.protocols]
    replaced_id = group.static_ids.get(request.group_instance_id or "", "")
    count, offered = group.classic_protocols(without=(request.member_id, replaced_id))
    is_common = not count or any(offered[name] == count for name in names)
    if request.protocol_type == CONSUMER_PROTOCOL_TYPE and names and len(set(names)) == len(names) and is_common:
        return None
    return error_for(
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        f"group {group.group_id} is a consumer group; a member of type {request.protocol_type!r} with the protocols "
        f"{names} has none in common with all of its classic members",
    )


def _subscription(request: JoinGroupRequest) -> Subscription | SemelError:
    """Return what a member wants and holds. All its protocols say the same, so the first is read."""
    try:
        return decode_subscription(request.protocols[0].metadata)
    except CorruptDataError as error:
        return error_for(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"group {request.group_id} is a consumer group, and the subscription of a joining member cannot be read: "
            f"{error}",
        )


def _details(request: JoinGroupRequest, said: Subscription) -> MemberDetails:
    timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms
    return MemberDetails(
        request.group_instance_id,
        said.rack_id,
        request.client_id,
        request.client_host,
        tuple(sorted(set(said.topics))),
        None,
        timeout_ms,
        None,
        ClassicMetadata(request.session_timeout_ms, request.protocols),
    )


def _refuse_settled(group: ConsumerGroupData, member: ConsumerMember, request: SyncGroupRequest) -> SemelError | None:
    name = _protocols(member)[0].name
    if request.protocol_type in (None, CONSUMER_PROTOCOL_TYPE) and request.protocol_name in (None, name):
        return None
    return error_for(
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        f"member {member.member_id} of group {group.group_id} joined with {name!r} of type "
        f"{CONSUMER_PROTOCOL_TYPE!r}, not {request.protocol_name!r} of {request.protocol_type!r}; join again",
    )


def _protocols(member: ConsumerMember) -> Sequence[GroupProtocol]:
    assert member.details.classic is not None, "asked of classic members alone"
    return member.details.classic.protocols


def _rebalance_in_progress(group: ConsumerGroupData) -> SemelError:
    return error_for(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} is rebalancing; join again")


def _fenced(group: ConsumerGroupData, instance_id: str, member_id: str) -> SemelError:
    return error_for(
        ErrorCode.FENCED_INSTANCE_ID,
        f"instance {instance_id} of group {group.group_id} was taken over by another member; "
        f"member {member_id} must stop",
    )


def _key(kind: TimerKind, group: ConsumerGroupData, member_id: str) -> TimerKey:
    return TimerKey(kind, group.group_id, member_id)
