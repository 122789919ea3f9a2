"""The groups and offsets of one partition of `__consumer_offsets`.

State changes in the `replay` methods; `handle` decides, and besides that keeps what may die with the coordinator: who
is joining, who was heard of, what is waiting. A restart is a replay, and members that were in between join again.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.group_coordinator.classic_group import ClassicGroup
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer_group import ConsumerGroup
from semel.group_coordinator.consumer_groups import ConsumerGroups
from semel.group_coordinator.consumer_membership import deletion_records
from semel.group_coordinator.consumer_schemas import ConsumerGroupKey
from semel.group_coordinator.group_state import GroupState
from semel.group_coordinator.membership import Membership
from semel.group_coordinator.offsets import OffsetTable
from semel.group_coordinator.requests import BeginVerification, TopicsDeleted, TopicsLeft, VerifiedCommit
from semel.group_coordinator.schemas import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    group_record,
    offset_record,
    record_size_bytes,
)
from semel.group_coordinator.timers import Timers
from semel.group_coordinator.topics import NO_TOPICS, TopicsSource
from semel.group_coordinator.turn import GroupEventKind, TimerKey, TimerKind, Turn
from semel.protocol.api.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    DescribeGroupRequest,
    GroupDescription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import DEFERRED, CoordinatorRecord, Result, Tick, Ticket

TOPIC_NAME_CHARACTERS_MAX: Final = 249
TIMERS_PER_TICK_MAX: Final = 1_000
GUARDS_MAX: Final = 10_000
"""Verifications under way at once; beyond that the oldest is void, and its commit is to be tried again."""


@dataclass(slots=True)
class _Cleanup:
    """Deletions that take more than one batch: of a whole group, or of what is left of a list."""

    ticket: Ticket
    group_id: str | None
    partitions: deque[tuple[str, TopicPartition]]


class GroupMachine:
    """The machine of one partition of `__consumer_offsets`; see `runtime.machine.Machine`."""

    def __init__(self, config: GroupConfig | None = None, topics: TopicsSource = lambda: NO_TOPICS) -> None:
        self._config = config or GroupConfig()
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = OffsetTable()
        self._timers: Timers[TimerKey] = Timers()
        self._membership = Membership(self._config, self._timers)
        self._consumers = ConsumerGroups(self._config, self._timers, topics)
        self._is_loaded = False
        self._cleanups: deque[_Cleanup] = deque()
        self._guards: dict[int, int] = {}
        self._last_guard = 0
        self._handlers: dict[type, Callable[[Any, Turn], None]] = {
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
            OffsetFetchRequest: self._fetch_offsets,
            OffsetDeleteRequest: self._delete_offsets,
            ListGroupsRequest: self._list,
            DescribeGroupRequest: self._describe,
            DeleteGroupRequest: self._delete_group,
            ConsumerGroupHeartbeatRequest: self._consumer_heartbeat,
            ConsumerGroupDescribeRequest: self._consumers.describe,
            TopicsDeleted: self._topics_deleted,
            TopicsLeft: self._topics_left,
            BeginVerification: self._begin_verification,
        }

    # The machine's contract

    def handle(self, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
        """Decide about one request of protocol/api/groups.py or requests.py, or a tick."""
        turn = Turn(now_ms, ticket)
        if isinstance(request, Tick):
            self._tick(turn)
            return turn.result_of_tick()
        if isinstance(request, OffsetCommitRequest):
            return self._commit_offsets(request, turn)
        if isinstance(request, VerifiedCommit):
            return self._commit_verified(request, turn)
        self._handlers[type(request)](request, turn)
        return turn.result()

    def replay(self, record: CoordinatorRecord, offset: int, producer: ProducerIdAndEpoch | None, now_ms: int) -> None:
        """Apply one record. Kinds of records that this version does not know are passed over."""
        key = decode_key(record.key)
        if isinstance(key, OffsetCommitKey):
            if record.value is None:
                self._offsets.replay_delete(key)
                self._forget_if_unused(key.group_id)
            else:
                value = decode_offset_value(record.value)
                self._offsets.replay_commit(key, value, offset, producer)
                self._group_of_offsets(key.group_id, now_ms)
                if self._is_loaded and value.expire_timestamp_ms != -1:
                    deadline_ms = now_ms + self._config.offsets_retention_check_interval_ms
                    self._timers.hasten(TimerKey(TimerKind.EXPIRY, key.group_id), deadline_ms)
                if producer is not None:
                    self._guards.pop(producer.producer_id, None)
        elif isinstance(key, ConsumerGroupKey):
            self._replay_consumer_group(key, record.value, now_ms)
        elif isinstance(key, GroupMetadataKey):
            if record.value is None:
                self._replay_group_deleted(key.group_id, now_ms)
            else:
                known = self._groups.get(key.group_id)
                group = known or self._create(key.group_id, now_ms)
                # A group that was a consumer group begins with its members.
                group.apply(decode_group_value(record.value), loading=not self._is_loaded or known is None)
                if self._is_loaded:
                    self._check_expiry_at(group.group_id, now_ms + self._config.offsets_retention_check_interval_ms)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool, now_ms: int) -> Result[None] | None:
        """Publish or drop the producer's pending offsets (O1), and void what was verified before the marker (T8)."""
        self._guards.pop(producer.producer_id, None)
        for group_id in self._offsets.replay_marker(producer.producer_id, committed):
            if self._offsets.has_group(group_id):
                self._group_of_offsets(group_id, now_ms)
            else:
                self._forget_if_unused(group_id)
        return None

    def loaded(self, now_ms: int) -> Result[None]:
        """Give every member a session timeout to be heard of, and spread the checks for expired offsets over time."""
        self._is_loaded = True
        turn = Turn(now_ms, Ticket(0))
        interval_ms = self._config.offsets_retention_check_interval_ms
        for group in self._groups.values():
            self._membership.resume(group, turn)
            spread_ms = zlib.crc32(group.group_id.encode("utf-8", "surrogatepass")) % interval_ms
            self._check_expiry_at(group.group_id, now_ms + 1 + spread_ms)
        for consumers in self._consumers.groups.values():
            self._consumers.membership.resume(consumers, turn)
            self._check_expiry_at(consumers.group_id, now_ms + interval_ms)
        return turn.result_of_tick()

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def closed(self) -> Sequence[Ticket]:
        tickets = [cleanup.ticket for cleanup in self._cleanups]
        for group in self._groups.values():
            for member in group.members.values():
                tickets += [ticket for ticket in (member.join_ticket, member.sync_ticket) if ticket is not None]
        return tickets

    # For tests and the simulator

    def group(self, group_id: str) -> ClassicGroup | None:
        """Return a group, to look at."""
        return self._groups.get(group_id)

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the consumer group protocol, to look at."""
        return self._consumers.groups.get(group_id)

    def durable_state(self) -> dict[str, object]:
        """Return all that the log must bring back, as plain values that compare equal after a replay (O1)."""
        return {
            "groups": {
                group_id: group.last_stored for group_id, group in self._groups.items() if group.last_stored is not None
            },
            "consumer groups": {group_id: group.snapshot() for group_id, group in self._consumers.groups.items()},
            **self._offsets.snapshot(),
        }

    # Membership

    def _consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, turn: Turn) -> None:
        classic = self._groups.get(request.group_id)
        if self._consumers.heartbeat(classic, request, turn) and classic is not None:
            self._membership.send_all_away(classic, turn)

    def _join(self, request: JoinGroupRequest, turn: Turn) -> None:
        if self._consumers.join(request, turn):
            return
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                turn.reply(_unknown_member(request.group_id, request.member_id))
                return
            group = self._create(request.group_id, turn.now_ms)
        self._membership.join(group, request, turn)
        self._forget_if_unused(request.group_id)

    def _sync(self, request: SyncGroupRequest, turn: Turn) -> None:
        if self._consumers.sync(request, turn):
            return
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(_unknown_member(request.group_id, request.member_id))
        else:
            self._membership.sync(group, request, turn)

    def _heartbeat(self, request: HeartbeatRequest, turn: Turn) -> None:
        if self._consumers.classic_heartbeat(request, turn):
            return
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(_unknown_member(request.group_id, request.member_id))
        else:
            self._membership.heartbeat(group, request, turn)

    def _leave(self, request: LeaveGroupRequest, turn: Turn) -> None:
        if self._consumers.leave(request, turn):
            return
        group = self._groups.get(request.group_id)
        if group is None:
            turn.reply(LeaveGroupResponse((ErrorCode.UNKNOWN_MEMBER_ID,) * len(request.members)))
        else:
            self._membership.leave(group, request, turn)
            self._forget_if_unused(request.group_id)

    # Offsets

    def _commit_offsets(self, request: OffsetCommitRequest, turn: Turn) -> Result[Any]:
        refusal = self._refuse_commit(request)
        if refusal is not None:
            return Result(refusal)
        errors: dict[TopicPartition, ErrorCode] = {}
        size_bytes = 0
        for partition, offset in request.offsets.items():
            errors[partition] = self._check_offset(partition, offset)
            if errors[partition] is not ErrorCode.NONE:
                continue
            timestamp_ms = turn.now_ms if offset.commit_timestamp_ms == -1 else offset.commit_timestamp_ms
            expiry_ms = -1 if request.retention_ms is None else turn.now_ms + request.retention_ms
            value = OffsetCommitValue(offset.offset, offset.leader_epoch, offset.metadata, timestamp_ms, expiry_ms)
            record = offset_record(request.group_id, partition, value)
            turn.records.append(record)
            size_bytes += record_size_bytes(record)
        if size_bytes > self._config.group_records_max_bytes:
            return Result(
                error_for(
                    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
                    f"a commit of {len(request.offsets)} offsets takes {size_bytes} bytes, more than the "
                    f"{self._config.group_records_max_bytes} that one may have; commit fewer at a time",
                )
            )
        group = self._groups.get(request.group_id)
        if group is not None and request.producer is None:
            self._membership.keep_alive(group, request.member_id, turn)
        self._consumers.committed(request, turn)
        turn.reply(OffsetCommitResponse(errors))
        return turn.result(request.producer if turn.records else None)

    def _refuse_commit(self, request: OffsetCommitRequest) -> SemelError | None:
        """Fence zombies by member, instance and generation (O4, KIP-447), as strictly as Kafka's clients allow.

        Without generation and member a plain commit needs an empty group: it comes from an admin or a consumer that
        assigned itself. A transactional one is let through, since older versions of that API cannot say who they are.
        """
        consumers = self._consumers.groups.get(request.group_id)
        if consumers is not None:
            return consumers.check_commit(
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                transactional=request.producer is not None,
            )
        group = self._groups.get(request.group_id)
        generation_id, member_id = request.generation_id, request.member_id
        if group is None:
            return None if generation_id < 0 else _no_generation(request.group_id, member_id, generation_id)
        if generation_id < 0 and group.state is GroupState.EMPTY:
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
                f"group {request.group_id} has members, so only they may commit: stop them, or commit as one of them",
            )
        if request.producer is None and group.state is GroupState.COMPLETING_REBALANCE:
            return group.rebalance_in_progress()
        return None

    def _check_offset(self, partition: TopicPartition, offset: OffsetAndMetadata) -> ErrorCode:
        if not 0 < len(partition.topic) <= TOPIC_NAME_CHARACTERS_MAX:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if partition.partition < 0:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if offset.offset < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if len(offset.metadata.encode("utf-8", "surrogatepass")) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _begin_verification(self, request: BeginVerification, turn: Turn) -> None:
        producer_id = request.producer.producer_id
        if self._offsets.is_in_transaction(request.producer):
            turn.reply(None)
            return
        guard = self._guards.get(producer_id)
        if guard is None:
            self._last_guard += 1
            guard = self._guards[producer_id] = self._last_guard
            if len(self._guards) > GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
        turn.reply(guard)

    def _commit_verified(self, verified: VerifiedCommit, turn: Turn) -> Result[Any]:
        producer = verified.request.producer
        assert producer is not None, "only transactional commits are verified"
        holds = self._offsets.is_in_transaction(producer) or (
            verified.guard is not None and self._guards.get(producer.producer_id) == verified.guard
        )
        if not holds:
            return Result(
                error_for(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"a transaction of producer id {producer.producer_id} ended while a commit was verified; try again",
                )
            )
        return self._commit_offsets(verified.request, turn)

    def _fetch_offsets(self, request: OffsetFetchRequest, turn: Turn) -> None:
        refusal = self._consumers.refuse_fetch(request)
        if refusal is not None:
            turn.reply(refusal)
            return
        offsets = self._offsets.fetch(request.group_id, request.partitions, require_stable=request.require_stable)
        turn.reply(OffsetFetchResponse(offsets))

    def _delete_offsets(self, request: OffsetDeleteRequest, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        is_subscribed_to = self._consumers.subscription_of(request.group_id)
        if is_subscribed_to is None and group is not None:
            is_subscribed_to = group.is_subscribed_to
        if is_subscribed_to is None:
            turn.reply(_no_group(request.group_id))
        elif group is not None and group.state is not GroupState.EMPTY and not group.is_consumer_group:
            turn.reply(_not_empty(request.group_id))
        else:
            errors = dict.fromkeys(request.partitions, ErrorCode.NONE)
            records: list[CoordinatorRecord] = []
            for partition in errors:
                if is_subscribed_to(partition.topic):
                    errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._has_offset(request.group_id, partition):
                    records.append(offset_record(request.group_id, partition, None))
            if sum(map(record_size_bytes, records)) > self._config.group_records_max_bytes:
                turn.reply(UsageError(f"{len(records)} offsets are too many to delete at once; delete fewer at a time"))
                return
            turn.records += records
            turn.reply(OffsetDeleteResponse(errors))

    def _has_offset(self, group_id: str, partition: TopicPartition) -> bool:
        return self._offsets.get(group_id, partition) is not None or self._offsets.is_pending(group_id, partition)

    # Groups as a whole

    def _list(self, request: ListGroupsRequest, turn: Turn) -> None:
        states = {state.casefold() for state in request.states}
        types = {kind.casefold() for kind in request.types}
        groups: dict[str, ClassicGroup | ConsumerGroup] = {**self._groups, **self._consumers.groups}
        listings = (group.listing() for _, group in sorted(groups.items()))
        turn.reply(
            ListGroupsResponse(
                tuple(
                    listing
                    for listing in listings
                    if (not states or listing.state.casefold() in states)
                    and (not types or listing.group_type.casefold() in types)
                )
            )
        )

    def _describe(self, request: DescribeGroupRequest, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        if self._consumers.describe_as_classic(request, turn):
            return
        if group is None:
            # As Kafka answers for a group that it does not know.
            turn.reply(GroupDescription(request.group_id, GroupState.DEAD.value, "", "", 0, "", ()))
        else:
            turn.reply(group.description())

    def _delete_group(self, request: DeleteGroupRequest, turn: Turn) -> None:
        self._cleanups.append(_Cleanup(turn.ticket, request.group_id, deque()))
        if len(self._cleanups) == 1:
            self._clean_up(turn)
        self._go_on_cleaning(turn)

    def _topics_deleted(self, request: TopicsDeleted, turn: Turn) -> None:
        self._cleanups.append(_Cleanup(turn.ticket, None, deque(self._offsets.of_topics(request.topics))))
        if len(self._cleanups) == 1:
            self._clean_up(turn)
        self._go_on_cleaning(turn)

    def _topics_left(self, request: TopicsLeft, turn: Turn) -> None:
        self._topics_deleted(TopicsDeleted(frozenset(self._offsets.topics() - request.topics)), turn)

    def _clean_up(self, turn: Turn) -> None:
        """Take the first cleanup one batch further, and answer its caller if that was the last."""
        cleanup = self._cleanups[0]
        if cleanup.group_id is None:
            answer = self._clean_up_list(cleanup.partitions, turn)
        else:
            answer = self._clean_up_group(cleanup.group_id, turn)
        if answer is not DEFERRED:
            self._cleanups.popleft()
            turn.answer(cleanup.ticket, answer)

    def _clean_up_list(self, partitions: deque[tuple[str, TopicPartition]], turn: Turn) -> object:
        while partitions:
            group_id, partition = partitions[0]
            if not self._room_for_deletion(group_id, partition, turn):
                return DEFERRED
            partitions.popleft()
            if self._has_offset(group_id, partition):
                turn.records.append(offset_record(group_id, partition, None))
        return None

    def _clean_up_group(self, group_id: str, turn: Turn) -> object:
        """Delete a part of a group's offsets, or with the last of them the group."""
        group = self._groups.get(group_id)
        consumers = self._consumers.groups.get(group_id)
        if group is None and consumers is None:
            return _no_group(group_id)
        if (group is not None and group.state is not GroupState.EMPTY) or (consumers is not None and consumers.details):
            return _not_empty(group_id)
        for partition in self._offsets.partitions(group_id):
            if not self._room_for_deletion(group_id, partition, turn):
                return DEFERRED
            turn.records.append(offset_record(group_id, partition, None))
        if consumers is not None:
            turn.records += deletion_records(consumers)
        if group is not None:
            turn.records.append(group_record(group_id, None))
        turn.note(GroupEventKind.DELETED, group_id, -1 if group is None else group.generation_id, "deleted on request")
        return DeleteGroupResponse()

    def _go_on_cleaning(self, turn: Turn) -> None:
        if self._cleanups:
            self._timers.schedule(TimerKey(TimerKind.CLEANUP), turn.now_ms)

    def _room_for_deletion(self, group_id: str, partition: TopicPartition, turn: Turn) -> bool:
        """Return whether one batch takes another deletion, and the group's own after it."""
        size_bytes = 4 * (len(group_id) + len(partition.topic)) + 64
        used_bytes = len(turn.records) * size_bytes
        return not turn.records or used_bytes + size_bytes + 4 * len(group_id) <= self._config.group_records_max_bytes

    # Time

    def _tick(self, turn: Turn) -> None:
        """Do what is due. Once there are records the rest waits for the next tick, which sees them replayed."""
        for _ in range(TIMERS_PER_TICK_MAX):
            key = self._timers.pop_due(turn.now_ms)
            if key is None:
                return
            self._timer_is_due(key, turn)
            if turn.records:
                return

    def _timer_is_due(self, key: TimerKey, turn: Turn) -> None:
        if key.kind is TimerKind.CLEANUP:
            self._clean_up(turn)
            self._go_on_cleaning(turn)
            return
        if key.kind is TimerKind.EXPIRY and key.group_id in self._consumers.groups:
            self._expire_consumers(self._consumers.groups[key.group_id], turn)
            return
        if self._consumers.timer_is_due(key, turn):
            return
        group = self._groups.get(key.group_id)
        if group is None:
            return
        match key.kind:
            case TimerKind.SESSION:
                self._membership.session_expired(group, key.member_id, turn)
            case TimerKind.JOIN:
                self._membership.join_time_is_up(group, turn)
            case TimerKind.SYNC:
                self._membership.sync_time_is_up(group, turn)
            case TimerKind.CONVERTED:
                self._membership.begin_converted(group, turn)
            case TimerKind.EXPIRY:
                self._expire(group, turn)
        self._forget_if_unused(key.group_id)

    def _expire(self, group: ClassicGroup, turn: Turn) -> None:
        """Delete what has expired of a group's offsets, and an empty group with its last one (KIP-211, O3)."""
        is_empty = group.state is GroupState.EMPTY
        if group.protocol_type is None:
            base_timestamp_ms = None
        elif is_empty:
            base_timestamp_ms = group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None
        elif group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
            base_timestamp_ms = None
        else:
            # The end of the rebalance makes this check again.
            return
        nothing_left = self._expire_offsets(
            group.group_id, group.is_subscribed_to, base_timestamp_ms, group.generation_id, turn
        )
        if not nothing_left or not is_empty:
            return
        if group.pending_joins or self._offsets.has_open_transaction(group.group_id):
            self._check_expiry_at(group.group_id, turn.now_ms + self._config.offsets_retention_check_interval_ms)
        elif group.is_stored:
            turn.records.append(group_record(group.group_id, None))
            turn.note(GroupEventKind.DELETED, group.group_id, group.generation_id, "empty, and no offsets are left")

    def _expire_consumers(self, group: ConsumerGroup, turn: Turn) -> None:
        """The same for a consumer group, whose last epoch began when it became empty."""
        is_empty = not group.details
        is_subscribed_to = self._consumers.subscription_of(group.group_id)
        assert is_subscribed_to is not None, "the group was found just now"
        base_timestamp_ms = group.epoch_timestamp_ms if is_empty else None
        if not self._expire_offsets(group.group_id, is_subscribed_to, base_timestamp_ms, group.epoch, turn):
            return
        if not is_empty or self._offsets.has_open_transaction(group.group_id):
            self._check_expiry_at(group.group_id, turn.now_ms + self._config.offsets_retention_check_interval_ms)
        else:
            turn.records += deletion_records(group)
            turn.note(GroupEventKind.DELETED, group.group_id, group.epoch, "empty, and no offsets are left")

    def _expire_offsets(
        self,
        group_id: str,
        is_subscribed_to: Callable[[str], bool],
        base_timestamp_ms: int | None,
        generation_id: int,
        turn: Turn,
    ) -> bool:
        """Delete expired offsets; return whether there are none left that will, otherwise see to the next check."""
        expired, next_ms = self._offsets.expired(
            group_id, is_subscribed_to, base_timestamp_ms, self._config.offsets_retention_ms, turn.now_ms
        )
        count = 0
        for partition in expired:
            if not self._room_for_deletion(group_id, partition, turn):
                break
            turn.records.append(offset_record(group_id, partition, None))
            count += 1
        if count:
            turn.note(GroupEventKind.OFFSETS_EXPIRED, group_id, generation_id, f"{count} offsets")
        if count < len(expired):
            self._check_expiry_at(group_id, turn.now_ms)
            return False
        if next_ms is not None:
            interval_ms = self._config.offsets_retention_check_interval_ms
            self._check_expiry_at(group_id, max(next_ms, turn.now_ms + interval_ms))
        return next_ms is None

    def _check_expiry_at(self, group_id: str, deadline_ms: int) -> None:
        self._timers.schedule(TimerKey(TimerKind.EXPIRY, group_id), deadline_ms)

    # Groups in memory

    def _create(self, group_id: str, now_ms: int) -> ClassicGroup:
        group = self._groups[group_id] = ClassicGroup(group_id, now_ms)
        return group

    def _group_of_offsets(self, group_id: str, now_ms: int) -> None:
        """Have a group wherever there are offsets: a simple one, if its consumers never joined."""
        if group_id not in self._groups and group_id not in self._consumers.groups:
            self._create(group_id, now_ms)
        if self._is_loaded and TimerKey(TimerKind.EXPIRY, group_id) not in self._timers:
            self._check_expiry_at(group_id, now_ms + self._config.offsets_retention_ms)

    def _replay_consumer_group(self, key: ConsumerGroupKey, value: bytes | None, now_ms: int) -> None:
        """Apply a record of a consumer group, which takes the place of the classic group of its id."""
        group_id = key.group_id
        self._consumers.replay(key, value, now_ms)
        if group_id not in self._consumers.groups:
            if self._offsets.has_group(group_id):
                self._group_of_offsets(group_id, now_ms)
            return
        classic = self._groups.get(group_id)
        if classic is not None and value is not None and (self._is_loaded or classic.is_unused):
            self._membership.forget_timers(classic)
            del self._groups[group_id]
        if self._is_loaded and TimerKey(TimerKind.EXPIRY, group_id) not in self._timers:
            self._check_expiry_at(group_id, now_ms + self._config.offsets_retention_check_interval_ms)

    def _replay_group_deleted(self, group_id: str, now_ms: int) -> None:
        group = self._groups.pop(group_id, None)
        if group is None:
            return
        self._membership.forget_timers(group)
        if self._is_loaded:
            group.transition_to(GroupState.DEAD, now_ms)
        if self._offsets.has_group(group_id):
            self._group_of_offsets(group_id, now_ms)

    def _forget_if_unused(self, group_id: str) -> None:
        """Forget a group that has nothing in the log and nobody waiting: there is nothing to know about it."""
        group = self._groups.get(group_id)
        if group is not None and group.is_unused and not self._offsets.has_group(group_id):
            self._membership.forget_timers(group)
            del self._groups[group_id]


def _unknown_member(group_id: str, member_id: str) -> SemelError:
    return error_for(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"there is no group {group_id} with a member {member_id!r}; join with an empty member id",
    )


def _no_generation(group_id: str, member_id: str, generation_id: int) -> SemelError:
    return error_for(
        ErrorCode.ILLEGAL_GENERATION,
        f"there is no group {group_id}, so member {member_id!r} of generation {generation_id} is not in it; join again",
    )


def _no_group(group_id: str) -> SemelError:
    return error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _not_empty(group_id: str) -> SemelError:
    return error_for(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop its consumers first")
