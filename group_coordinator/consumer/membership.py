"""Heartbeats of consumer groups (KIP-848): joining, leaving, and coming to what one is to read, all by one call.

    heartbeat --> who is it --> what does it want --> new epoch, if that or the topics changed
              --> target assignment of that epoch --> this member's next step towards it --> answer

Each member moves on its own, so nobody waits for a rebalance. Where it differs from Kafka: a heartbeat with the epoch
before the current one, and a repeated join, never count as word that partitions were given up, for they may be late
ones (G2; within an epoch calls are taken to come in order). And a member of a group that is not there is told
UNKNOWN_MEMBER_ID, so that it joins again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from semel.group_coordinator.computations import Computed
from semel.group_coordinator.consumer.deferred_targets import DeferredTargets, Targets, records_of
from semel.group_coordinator.consumer.members import ConsumerGroupData, patterns_of, topics_of_all
from semel.group_coordinator.consumer.reconciliation import away, next_assignment
from semel.group_coordinator.consumer.target_assignment import assign_targets, preferred_assignor
from semel.group_coordinator.consumer.topics import PatternsNeededError, Topics, TopicsSource
from semel.group_coordinator.effects import GroupEventKind, PendingResult, TimerKey, TimerKind
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.held_bytes import details_bytes
from semel.group_coordinator.records.consumer_schemas import (
    ConsumerGroupKey,
    GroupEpochValue,
    assignment_of,
    current_record,
    epoch_record,
    member_record,
    read_consumer_key,
    target_epoch_record,
    target_record,
)
from semel.group_coordinator.records.consumer_state import ConsumerMember, MemberAssignment, MemberDetails, MemberState
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Partitions,
)
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.schema import Reader
from semel.runtime.linear_regex import PatternError
from semel.runtime.machine import CoordinatorRecord


class Draft:
    """A group as it will be once the records of a request are replayed; the group itself changes only by that."""

    __slots__ = ("_is_copy", "group", "original", "pending")

    def __init__(self, group: ConsumerGroupData, pending: PendingResult) -> None:
        self.original = group
        self.group = group
        self.pending = pending
        self._is_copy = False

    def write(self, record: CoordinatorRecord) -> None:
        """Add a record to the pending result, and apply it to the draft."""
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.pending.records.append(record)
        self.group.apply(consumer_key(record.key), record.value, self.pending.now_ms, assignment_of(record))


def consumer_key(key: bytes) -> ConsumerGroupKey:
    reader = Reader(key)
    return read_consumer_key(reader.int16(), reader)


class ConsumerMembership:
    """The moves of consumer groups. Holds no state of its own: each group does, the timers, and `deferred`."""

    def __init__(self, shared: GroupContext, topics: TopicsSource) -> None:
        self._config = shared.config
        self._room = shared.room
        self._timers = shared.timers
        self._topics = topics
        self.deferred = DeferredTargets(shared.config, shared.timers)

    # --- Heartbeat ----------------------------------------------------------------------------------------------------

    def heartbeat(self, draft: Draft, request: ConsumerGroupHeartbeatRequest, pending: PendingResult) -> None:
        """Carry out a heartbeat and answer it. With a refusal nothing was written to the draft by it."""
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            self._leave(draft, request, pending)
            return
        topics = self._topics()
        found = self._refuse_assignor(request) or self._find(draft.group, request)
        if isinstance(found, SemelError):
            pending.reply(found)
            return
        wants_others = found is None or request.topic_names is not None or request.topic_regex is not None
        needed = self.patterns_needed(draft.group, topics, request.topic_regex or "", wants_others=wants_others)
        if needed is not None and found is not None:
            # It was heard of, however long the matching takes.
            self.keep_alive(draft.group, found.member_id, pending)
        refusal = needed or self._refuse_pattern(request, topics)
        if refusal is not None:
            pending.reply(refusal)
            return
        member_id = request.member_id or request.new_member_id
        if found is not None and (found.member_id != member_id or found.current.epoch == LEAVE_STATIC_EPOCH):
            found = self.replace_static(draft, found, member_id)
        details = _details(None if found is None else found.details, request)
        # Only a member that knows its current epoch can say what it gave up: other calls may be late.
        is_current = found is not None and request.member_epoch == found.current.epoch
        owned = request.owned if found is None or is_current else None
        before = None if found is None else found.current
        current = self.advance(draft, member_id, details, owned, topics)
        if isinstance(current, SemelError):
            pending.records.clear()
            draft.original.seen_topics = None
            pending.reply(current)
            return
        self.keep_alive(draft.group, member_id, pending)
        tells_all = request.member_epoch == JOIN_EPOCH or request.says_everything or not is_current
        is_changed = before is None or before.assigned != current.assigned
        pending.reply(
            ConsumerGroupHeartbeatResponse(
                member_id,
                current.epoch,
                self._config.group_consumer_heartbeat_interval_ms,
                current.assigned if tells_all or is_changed else None,
            )
        )

    def _refuse_assignor(self, request: ConsumerGroupHeartbeatRequest) -> SemelError | None:
        if request.server_assignor is not None and request.server_assignor not in self._config.group_consumer_assignors:
            return error_for(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"the coordinator has no assignor {request.server_assignor!r}; use one of "
                f"{', '.join(self._config.group_consumer_assignors)} (group.consumer.assignors)",
            )
        return None

    @staticmethod
    def _refuse_pattern(request: ConsumerGroupHeartbeatRequest, topics: Topics) -> SemelError | None:
        if request.topic_regex:
            try:
                topics.check_pattern(request.topic_regex)
            except PatternError as error:
                return error_for(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"the subscription's regular expression cannot be used: {error} (RE2 syntax, see docs/groups.md)",
                )
        return None

    @staticmethod
    def patterns_needed(
        group: ConsumerGroupData, topics: Topics, new_pattern: str = "", *, wants_others: bool
    ) -> PatternsNeededError | None:
        """Return the refusal of a call that may lead to an assignment while it is not known what expressions match."""
        if not wants_others and group.seen_topics is topics and group.epoch == group.target_epoch:
            return None
        patterns = patterns_of(group.details.values())
        if new_pattern:
            patterns.add(new_pattern)
        unmatched = topics.unmatched(patterns)
        return PatternsNeededError(unmatched) if unmatched else None

    def _find(
        self, group: ConsumerGroupData, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerMember | SemelError | None:
        """Return the member that calls, or whose place it takes; None for a new one."""
        is_join = request.member_epoch == JOIN_EPOCH
        member = group.member(request.member_id)
        if request.instance_id is not None:
            static = group.static_member(request.instance_id)
            if static is not None and is_join and static.member_id != request.member_id:
                # An instance that still runs by this protocol must leave first; a classic one is fenced, as ever.
                is_released = static.is_classic or static.current.epoch == LEAVE_STATIC_EPOCH
                return static if is_released else _unreleased(group, request)
            if not is_join and static is None:
                return group.unknown_member(request.member_id)
            if not is_join and static is not None and static.member_id != request.member_id:
                return _fenced(group, request)
        if is_join:
            return self.refuse_new(group) if member is None else member
        if member is None or member.is_classic:
            return group.unknown_member(request.member_id)
        return _check_epoch(group, member, request) or member

    def refuse_new(self, group: ConsumerGroupData) -> SemelError | None:
        size_max = self._config.group_consumer_max_size
        if len(group.details) < size_max:
            return None
        self._room.refusals.note("group.consumer.max.size")
        return error_for(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"group {group.group_id} has its {size_max} members (group.consumer.max.size): use fewer members, or raise "
            "the setting",
        )

    def replace_static(self, draft: Draft, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give a static member's place, and what it has, to its new instance (KIP-345), without a new epoch (G4)."""
        group_id = draft.group.group_id
        target = draft.group.target(old.member_id)
        new = replace(
            old, member_id=member_id, current=replace(old.current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        )
        self._write_removal(draft, old.member_id)
        self.cancel_timers(group_id, old.member_id)
        draft.write(member_record(group_id, member_id, new.details))
        draft.write(target_record(group_id, member_id, target))
        draft.write(current_record(group_id, member_id, new.current))
        draft.pending.note(
            GroupEventKind.MEMBER_REPLACED,
            group_id,
            draft.group.epoch,
            f"instance {old.details.instance_id}: {old.member_id} by {member_id}",
        )
        return new

    def advance(
        self, draft: Draft, member_id: str, details: MemberDetails, owned: Partitions | None, topics: Topics
    ) -> MemberAssignment | SemelError:
        """Take over what a member wants, see to epoch and target, and take the member one step on."""
        group_id = draft.group.group_id
        before = draft.group.details.get(member_id)
        if before != details:
            more = details_bytes(details) - details_bytes(before)
            refusal = self._room.refuse_member(group_id, draft.group.held_bytes, more)
            if refusal is not None:
                return refusal
            draft.write(member_record(group_id, member_id, details))
        wants_others = (
            before is None
            or set(before.topic_names) != set(details.topic_names)
            or before.topic_regex != details.topic_regex
        )
        self._begin_epoch_if_due(draft, f"member {member_id}", topics, is_due=wants_others)
        refusal = self._assign_if_due(draft, topics)
        if refusal is not None:
            return refusal
        member = draft.group.member(member_id)
        assert member is not None, "its details were written above, if they were new"
        if member.current.state is MemberState.UNKNOWN and (owned is None or owned):
            return _must_abandon(draft.group, member_id)
        current = next_assignment(
            member.current,
            draft.group.target_epoch,
            draft.group.target(member_id),
            lambda partition: draft.group.holder(partition) is not None,
            owned,
        )
        if current != member.current:
            draft.write(current_record(group_id, member_id, current))
            self._time_revocation(draft.group, member_id, current, draft.pending)
        return current

    def _begin_epoch_if_due(self, draft: Draft, reason: str, topics: Topics, *, is_due: bool) -> None:
        """Begin a new epoch where members changed, or the topics that they want did."""
        if not is_due and draft.original.seen_topics is topics:
            return
        group = draft.group
        # Where a member was removed by the clock, nobody waited for what expressions match: the next heartbeat does.
        is_known = not topics.unmatched(patterns_of(group.details.values()))
        wanted = topics_of_all(group.details.values(), topics) if is_known else ()
        metadata_hash = topics.hash_of(wanted) if is_known else group.metadata_hash
        if not is_due and metadata_hash != group.metadata_hash:
            is_due, reason = True, "topics changed"
        if is_due:
            draft.write(epoch_record(group.group_id, GroupEpochValue(group.epoch + 1, metadata_hash)))
            draft.pending.note(GroupEventKind.REBALANCING, group.group_id, draft.group.epoch, reason)
        draft.original.seen_topics = topics if is_known else None

    def _assign_if_due(self, draft: Draft, topics: Topics) -> SemelError | None:
        """Make the target assignment of the current epoch, or have it made (S3). Returns why there is none to come."""
        group = draft.group
        if group.epoch <= group.target_epoch:
            return None
        refusal = self.deferred.refusal(group)
        if refusal is not None:
            return refusal
        may_defer = self._config.group_consumer_assignor_offload_enable
        is_large = may_defer and self.deferred.is_large(group, topics)
        if is_large or not self._assign(draft, topics, at_once=may_defer):
            self._defer(draft, is_costly=not is_large)
        return None

    def _defer(self, draft: Draft, *, is_costly: bool) -> None:
        """Have the target computed beside the loop. Until then members are led to the one before."""
        group = draft.group
        if not group.target_epoch:
            # Members must be given an epoch above that of a join. As in Kafka, a group's first target is an empty one.
            draft.write(target_epoch_record(group.group_id, group.epoch))
            draft.write(epoch_record(group.group_id, GroupEpochValue(group.epoch + 1, group.metadata_hash)))
        self.deferred.schedule(group.group_id, draft.pending.now_ms, is_costly=is_costly)

    def _assign(self, draft: Draft, topics: Topics, *, at_once: bool) -> bool:
        """Make the target assignment; what did not change is not written. Returns False where it takes too long."""
        group = draft.group
        assignor = self.assignor_of(group)
        targets = assign_targets(group.details, group.targets, assignor, topics, topics.matching, at_once=at_once)
        if targets is None:
            return False
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                draft.write(target_record(group.group_id, member_id, target))
        draft.write(target_epoch_record(group.group_id, group.epoch))
        detail = f"{len(targets)} members, assignor {assignor}"
        draft.pending.note(GroupEventKind.ASSIGNED, group.group_id, group.epoch, detail)
        return True

    def begin_computation(self, group: ConsumerGroupData, pending: PendingResult) -> None:
        """Have a target computed whose time has come."""
        self.deferred.begin(group, self.assignor_of(group), self._topics(), pending)

    def take_target(self, group: ConsumerGroupData, computed: Computed, pending: PendingResult) -> None:
        """Write a target that was computed beside the loop, in one batch; and have the next one computed if it is due.

        A target of an epoch that was assigned meanwhile, because the group became a small one, is dropped.
        """
        if not self.deferred.ended(computed, pending.now_ms):
            return
        epoch, found = computed.of.epoch, computed.result
        is_wanted = group.target_epoch < epoch <= group.epoch
        if is_wanted and isinstance(found, Targets):
            pending.records += [
                *records_of(group, found, self._topics()),
                target_epoch_record(group.group_id, epoch),
            ]
            detail = f"{len(found.targets)} members, assignor {found.of.assignor}, in {computed.took_ms} ms"
            pending.note(GroupEventKind.ASSIGNED, group.group_id, epoch, detail)
        if epoch < group.epoch or found is None:
            self.deferred.schedule(group.group_id, pending.now_ms)

    def latest_epoch(self, group: ConsumerGroupData) -> int:
        """Return the epoch that members can reach by now: the target's, while the next target is being computed."""
        return group.target_epoch if self.deferred.is_pending(group.group_id) else group.epoch

    def assignor_of(self, group: ConsumerGroupData) -> str:
        return preferred_assignor(group.details.values(), self._config.group_consumer_assignors)

    # --- Leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, draft: Draft, request: ConsumerGroupHeartbeatRequest, pending: PendingResult) -> None:
        group = draft.group
        member = group.member(request.member_id)
        if request.instance_id is not None:
            member = group.static_member(request.instance_id)
            if member is not None and member.member_id != request.member_id:
                pending.reply(_fenced(group, request))
                return
        if member is None or member.is_classic:
            pending.reply(group.unknown_member(request.member_id))
        elif request.member_epoch == LEAVE_STATIC_EPOCH:
            current = away(member.current, LEAVE_STATIC_EPOCH)
            draft.write(current_record(group.group_id, member.member_id, current))
            self._time_revocation(group, member.member_id, current, pending)
            pending.reply(ConsumerGroupHeartbeatResponse(request.member_id, LEAVE_STATIC_EPOCH, 0))
        else:
            self.remove(draft, [member.member_id], "left")
            pending.reply(ConsumerGroupHeartbeatResponse(request.member_id, LEAVE_EPOCH, 0))

    def remove(self, draft: Draft, member_ids: Sequence[str], reason: str) -> None:
        """Take members out of the group; what they had is free from now on, by a new epoch."""
        for member_id in member_ids:
            self._write_removal(draft, member_id)
            self.cancel_timers(draft.group.group_id, member_id)
            draft.pending.note(
                GroupEventKind.MEMBER_REMOVED, draft.group.group_id, draft.group.epoch, f"{member_id} {reason}"
            )
        self._begin_epoch_if_due(draft, f"{', '.join(member_ids)} {reason}", self._topics(), is_due=True)
        if not draft.group.details:
            draft.pending.note(GroupEventKind.EMPTY, draft.group.group_id, draft.group.epoch, "no members are left")
        self.consider_downgrade(draft.group, draft.pending)

    def _write_removal(self, draft: Draft, member_id: str) -> None:
        for record in removal_records(draft.group.group_id, [member_id]):
            draft.write(record)

    def consider_downgrade(self, group: ConsumerGroupData, pending: PendingResult) -> None:
        """Have a group of nobody but classic members made a classic one, next."""
        if group.details and all(member.is_classic for member in group.members()):
            self._timers.schedule(TimerKey(TimerKind.DOWNGRADE, group.group_id), pending.now_ms)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def keep_alive(self, group: ConsumerGroupData, member_id: str, pending: PendingResult) -> None:
        """Give a member that was heard of another session timeout."""
        classic = group.details[member_id].classic
        timeout_ms = self._config.group_consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self._timers.schedule(_key(TimerKind.MEMBER_SESSION, group, member_id), pending.now_ms + timeout_ms)

    def _time_revocation(
        self, group: ConsumerGroupData, member_id: str, current: MemberAssignment, pending: PendingResult
    ) -> None:
        """Await that a member gives up what it must, for its rebalance timeout from this step on."""
        key = _key(TimerKind.REVOCATION, group, member_id)
        if current.state is MemberState.UNREVOKED_PARTITIONS and current.epoch != LEAVE_STATIC_EPOCH:
            self._timers.schedule(key, pending.now_ms + group.details[member_id].rebalance_timeout_ms)
        else:
            self._timers.cancel(key)

    def time_is_up(self, draft: Draft, key: TimerKey) -> None:
        """Remove a member that did not do in time what it had to."""
        member = draft.group.member(key.member_id)
        if member is None:
            return
        match key.kind:
            case TimerKind.REVOCATION if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
                return
            case TimerKind.REVOCATION:
                reason = "did not give up its partitions within the rebalance timeout"
            case TimerKind.MEMBER_REJOIN:
                reason = "did not join again within the rebalance timeout"
            case TimerKind.MEMBER_SYNC:
                reason = "did not sync within the rebalance timeout"
            case _:
                reason = "was not heard of within its session timeout"
        self.remove(draft, [member.member_id], reason)

    def resume(self, group: ConsumerGroupData, pending: PendingResult) -> None:
        """Give every member of a group read from the log its timeouts again."""
        for member in group.members():
            self.keep_alive(group, member.member_id, pending)
            self._time_revocation(group, member.member_id, member.current, pending)
        self.consider_downgrade(group, pending)

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        for kind in MEMBER_TIMERS:
            self._timers.cancel(TimerKey(kind, group_id, member_id))


MEMBER_TIMERS: Collection[TimerKind] = (
    TimerKind.MEMBER_SESSION,
    TimerKind.REVOCATION,
    TimerKind.MEMBER_REJOIN,
    TimerKind.MEMBER_SYNC,
)


def removal_records(group_id: str, member_ids: Sequence[str]) -> list[CoordinatorRecord]:
    """Return the records that delete members: what they have first, so that no half of one has a claim."""
    return [
        record
        for member_id in member_ids
        for record in (
            current_record(group_id, member_id, None),
            target_record(group_id, member_id, None),
            member_record(group_id, member_id, None),
        )
    ]


def deletion_records(group: ConsumerGroupData) -> list[CoordinatorRecord]:
    """Return the records that delete a group with all of its members."""
    members = list(dict.fromkeys((*group.details, *group.targets, *group.currents)))
    return [
        *removal_records(group.group_id, members),
        target_epoch_record(group.group_id, None),
        epoch_record(group.group_id, None),
    ]


def _details(before: MemberDetails | None, request: ConsumerGroupHeartbeatRequest) -> MemberDetails:
    """Return what a member wants by now: of what it does not say, what it said before holds, unless it joins again."""
    names, regex = request.topic_names, request.topic_regex
    if before is None or request.member_epoch == JOIN_EPOCH:
        before = MemberDetails(None, None, "", "", (), None, -1, None)
    return MemberDetails(
        before.instance_id if request.instance_id is None else request.instance_id,
        before.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        before.topic_names if names is None else tuple(sorted(set(names))),
        before.topic_regex if regex is None else regex or None,
        before.rebalance_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
        before.server_assignor if request.server_assignor is None else request.server_assignor,
    )


def _check_epoch(
    group: ConsumerGroupData, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest
) -> SemelError | None:
    """Fence a member whose epoch is neither the current one nor, its answer lost, the one before."""
    epoch, current = request.member_epoch, member.current
    if epoch == current.epoch:
        return None
    if epoch == current.previous_epoch and request.owned is not None and request.owned <= current.assigned:
        return None
    return error_for(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member {member.member_id} of group {group.group_id} has the epoch {current.epoch}, not {epoch}; "
        "give up all partitions and join again",
    )


def _must_abandon(group: ConsumerGroupData, member_id: str) -> SemelError:
    return error_for(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member {member_id} of group {group.group_id} is in a state of a newer version; "
        "give up all partitions and join again",
    )


def _unreleased(group: ConsumerGroupData, request: ConsumerGroupHeartbeatRequest) -> SemelError:
    return error_for(
        ErrorCode.UNRELEASED_INSTANCE_ID,
        f"instance {request.instance_id} of group {group.group_id} is in use by another member; "
        "stop that one, or wait for its session timeout",
    )


def _fenced(group: ConsumerGroupData, request: ConsumerGroupHeartbeatRequest) -> SemelError:
    return error_for(
        ErrorCode.FENCED_INSTANCE_ID,
        f"instance {request.instance_id} of group {group.group_id} was taken over by another member; "
        f"member {request.member_id} must stop",
    )


def _key(kind: TimerKind, group: ConsumerGroupData, member_id: str) -> TimerKey:
    return TimerKey(kind, group.group_id, member_id)
