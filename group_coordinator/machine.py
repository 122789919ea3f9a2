"""The groups and offsets of one partition of `__consumer_offsets`.

State changes in the `replay` methods; `handle` decides, and besides that keeps what may die with the coordinator: who
is joining, who was heard of, what is waiting. A restart is a replay, and members that were in between join again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from semel.group_coordinator.classic.group import ClassicGroup
from semel.group_coordinator.classic.membership import Membership
from semel.group_coordinator.classic.rebalance import Rebalances
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.computations import Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.group import ConsumerGroup
from semel.group_coordinator.consumer.groups import ConsumerGroups
from semel.group_coordinator.consumer.topics import NO_TOPICS, TopicsSource
from semel.group_coordinator.deletion import Deletions
from semel.group_coordinator.effects import TimerKey, TimerKind, Turn
from semel.group_coordinator.held_bytes import HeldBytes, Room
from semel.group_coordinator.offsets.commits import OffsetCommits
from semel.group_coordinator.offsets.table import OffsetTable
from semel.group_coordinator.records.consumer_schemas import ConsumerGroupKey
from semel.group_coordinator.records.schemas import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetRecord,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from semel.group_coordinator.requests import (
    BeginVerification,
    HeldPartitions,
    TopicsDeleted,
    TopicsLeft,
    VerifiedCommit,
)
from semel.group_coordinator.timers import Timers
from semel.protocol.api.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    GroupDescription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import CoordinatorRecord, Result, Tick, Ticket

TIMERS_PER_TICK_MAX: Final = 1_000

_USES_OF_A_GROUP: Final = (
    JoinGroupRequest,
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    VerifiedCommit,
    OffsetFetchRequest,
    HeldPartitions,
    OffsetDeleteRequest,
)
"""What must not meet a group of which a part is deleted."""


class GroupMachine:
    """The machine of one partition of `__consumer_offsets`; see `runtime.machine.Machine`."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        topics: TopicsSource = lambda: NO_TOPICS,
        held_by_all: Callable[[], HeldBytes] | None = None,
    ) -> None:
        """`held_by_all`: what the machines of all partitions hold together; without it, this one alone counts."""
        self._config = config or GroupConfig()
        self.held = HeldBytes()
        room = Room(self._config, held_by_all or (lambda: self.held))
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = OffsetTable(self.held)
        self._timers: Timers[TimerKey] = Timers()
        self._rebalances = Rebalances(self._config, self._timers, room)
        self._membership = Membership(self._config, self._rebalances, room)
        self._consumers = ConsumerGroups(self._config, self._timers, topics, room, self.held)
        self._commits = OffsetCommits(
            self._config, self._groups, self._membership, self._consumers, self._offsets, room
        )
        self._deletions = Deletions(self._config, self._timers, self._groups, self._consumers, self._offsets)
        self._is_loaded = False
        self._handlers: dict[type, Callable[[Any, Turn], None]] = {
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
            OffsetFetchRequest: self._fetch_offsets,
            OffsetDeleteRequest: self._deletions.delete_offsets,
            ListGroupsRequest: self._list,
            DescribeGroupRequest: self._describe,
            HeldPartitions: self._held_partitions,
            DeleteGroupRequest: self._deletions.delete_group,
            ConsumerGroupHeartbeatRequest: self._consumer_heartbeat,
            ConsumerGroupDescribeRequest: self._consumers.describe,
            Computed: self._computed,
            TopicsDeleted: self._deletions.topics_deleted,
            TopicsLeft: self._deletions.topics_left,
            BeginVerification: self._commits.begin_verification,
        }

    # The machine's contract

    def handle(self, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
        """Decide about one request of protocol/api/groups.py or requests.py, or a tick."""
        turn = Turn(now_ms, ticket)
        if isinstance(request, Tick):
            self._tick(turn)
            return turn.result_of_tick()
        if isinstance(request, _USES_OF_A_GROUP):
            refusal = self._deletions.refuse_for(
                request.request.group_id if isinstance(request, VerifiedCommit) else request.group_id
            )
            if refusal is not None:
                return Result(refusal)
        if isinstance(request, OffsetCommitRequest):
            return self._commits.commit(request, turn)
        if isinstance(request, VerifiedCommit):
            return self._commits.commit_verified(request, turn)
        self._handlers[type(request)](request, turn)
        return turn.result()

    def replay(self, record: CoordinatorRecord, offset: int, producer: ProducerIdAndEpoch | None, now_ms: int) -> None:
        """Apply one record. Kinds of records that this version does not know are passed over."""
        decided = record if isinstance(record, OffsetRecord) else None  # not read from the log
        key = decode_key(record.key) if decided is None else decided.offset_key
        if isinstance(key, OffsetCommitKey):
            if record.value is None:
                self._offsets.replay_delete(key)
                self._forget_if_unused(key.group_id)
            else:
                value = None if decided is None else decided.offset_value
                value = value or decode_offset_value(record.value)
                self._offsets.replay_commit(key, value, offset, producer)
                self._group_of_offsets(key.group_id, now_ms)
                if self._is_loaded and value.expire_timestamp_ms != -1:
                    deadline_ms = now_ms + self._config.offsets_retention_check_interval_ms
                    self._timers.hasten(TimerKey(TimerKind.EXPIRY, key.group_id), deadline_ms)
                if producer is not None:
                    self._commits.void_guard(producer.producer_id)
        elif isinstance(key, ConsumerGroupKey):
            self._replay_consumer_group(key, record, now_ms)
        elif isinstance(key, GroupMetadataKey):
            if record.value is None:
                self._replay_group_deleted(key.group_id, now_ms)
            else:
                known = self._groups.get(key.group_id)
                group = known or self._create(key.group_id, now_ms)
                # A group that was a consumer group begins with its members.
                group.apply(
                    decode_group_value(record.value),
                    loading=not self._is_loaded or known is None,
                    size_bytes=len(record.value),
                )
                if self._is_loaded:
                    self._deletions.check_expiry_at(
                        group.group_id, now_ms + self._config.offsets_retention_check_interval_ms
                    )

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool, now_ms: int) -> Result[None] | None:
        """Publish or drop the producer's pending offsets (O1), and void what was verified before the marker (T8)."""
        self._commits.void_guard(producer.producer_id)
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
            self._deletions.check_expiry_at(group.group_id, now_ms + 1 + spread_ms)
        for consumers in self._consumers.groups.values():
            self._consumers.membership.resume(consumers, turn)
            self._deletions.check_expiry_at(consumers.group_id, now_ms + interval_ms)
        return turn.result_of_tick()

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def closed(self) -> Sequence[Ticket]:
        tickets = list(self._deletions.waiting())
        for group in self._groups.values():
            for member in group.members.values():
                tickets += [ticket for ticket in (member.join_ticket, member.sync_ticket) if ticket is not None]
        return tickets

    # For metrics

    def groups(self) -> Iterator[tuple[str, str, int]]:
        """Yield each group's id, state, and number of members."""
        for classic in list(self._groups.values()):
            yield classic.group_id, classic.state.value, len(classic.members)
        for consumers in list(self._consumers.groups.values()):
            yield consumers.group_id, consumers.state.value, len(consumers.details)

    def committed_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield each group's committed offsets: group, topic, partition, offset."""
        return self._offsets.committed()

    def offsets_of(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """Yield what a group has committed, to look at."""
        return self._offsets.of_group(group_id)

    def expires_ms(self, group_id: str, now_ms: int) -> int | None:
        """Return when an empty group's first offset may be forgotten; None where none ever will."""
        return self._deletions.expires_ms(group_id, now_ms)

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
            self._rebalances.sync(group, request, turn)

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

    def _computed(self, computed: Computed, turn: Turn) -> None:
        """Take what was computed beside the loop, unless it is of a group that is gone."""
        turn.reply(None)
        group = self._groups.get(computed.of.group_id)
        if group is not None:
            self._rebalances.take_assignment(group, computed, turn)
        else:
            self._consumers.target_computed(computed, turn)

    # Offsets

    def _fetch_offsets(self, request: OffsetFetchRequest, turn: Turn) -> None:
        refusal = self._consumers.refuse_fetch(request)
        if refusal is not None:
            turn.reply(refusal)
            return
        offsets = self._offsets.fetch(request.group_id, request.partitions, require_stable=request.require_stable)
        turn.reply(OffsetFetchResponse(offsets))

    def _held_partitions(self, request: HeldPartitions, turn: Turn) -> None:
        turn.reply(self._offsets.numbers(request.group_id, require_stable=request.require_stable))

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
            self._deletions.carry_on(turn)
            return
        if key.kind is TimerKind.EXPIRY and key.group_id in self._consumers.groups:
            self._deletions.expire_consumers(self._consumers.groups[key.group_id], turn)
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
                self._rebalances.join_time_is_up(group, turn)
            case TimerKind.SYNC:
                self._rebalances.sync_time_is_up(group, turn)
            case TimerKind.CONVERTED:
                self._rebalances.begin_converted(group, turn)
            case TimerKind.EXPIRY:
                self._deletions.expire(group, turn)
        self._forget_if_unused(key.group_id)

    # Groups in memory

    def _create(self, group_id: str, now_ms: int) -> ClassicGroup:
        group = self._groups[group_id] = ClassicGroup(group_id, now_ms, self.held)
        return group

    def _group_of_offsets(self, group_id: str, now_ms: int) -> None:
        """Have a group wherever there are offsets: a simple one, if its consumers never joined."""
        if group_id not in self._groups and group_id not in self._consumers.groups:
            self._create(group_id, now_ms)
        if self._is_loaded and TimerKey(TimerKind.EXPIRY, group_id) not in self._timers:
            self._deletions.check_expiry_at(group_id, now_ms + self._config.offsets_retention_ms)

    def _replay_consumer_group(self, key: ConsumerGroupKey, record: CoordinatorRecord, now_ms: int) -> None:
        """Apply a record of a consumer group, which takes the place of the classic group of its id."""
        group_id = key.group_id
        self._consumers.replay(key, record, now_ms)
        if group_id not in self._consumers.groups:
            if self._offsets.has_group(group_id):
                self._group_of_offsets(group_id, now_ms)
            return
        classic = self._groups.get(group_id)
        if classic is not None and record.value is not None and (self._is_loaded or classic.is_unused):
            self._rebalances.forget_timers(classic)
            classic.forget_held()
            del self._groups[group_id]
        if self._is_loaded and TimerKey(TimerKind.EXPIRY, group_id) not in self._timers:
            self._deletions.check_expiry_at(group_id, now_ms + self._config.offsets_retention_check_interval_ms)

    def _replay_group_deleted(self, group_id: str, now_ms: int) -> None:
        group = self._groups.pop(group_id, None)
        if group is None:
            return
        self._rebalances.forget_timers(group)
        group.forget_held()
        if self._is_loaded:
            group.transition_to(GroupState.DEAD, now_ms)
        if self._offsets.has_group(group_id):
            self._group_of_offsets(group_id, now_ms)

    def _forget_if_unused(self, group_id: str) -> None:
        """Forget a group that has nothing in the log and nobody waiting: there is nothing to know about it."""
        group = self._groups.get(group_id)
        if group is not None and group.is_unused and not self._offsets.has_group(group_id):
            self._rebalances.forget_timers(group)
            group.forget_held()
            del self._groups[group_id]


def _unknown_member(group_id: str, member_id: str) -> SemelError:
    return error_for(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"there is no group {group_id} with a member {member_id!r}; join with an empty member id",
    )
