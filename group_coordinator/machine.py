"""The groups and offsets of one partition of `__consumer_offsets`.

A request is given to its group, which is found once and knows its protocol; what depends on the type of a group is in
the part "From one protocol to the other".

State changes in the `replay` methods; `handle` decides, and besides that keeps what may die with the coordinator: who
is joining, who was heard of, what is waiting. A restart is a replay, and members that were in between join again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from semel.group_coordinator.classic.group import ClassicGroup
from semel.group_coordinator.classic.members import ClassicGroupData
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.computations import Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.group import ConsumerGroup, ConsumerProtocol
from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.topics import NO_TOPICS, TopicsSource
from semel.group_coordinator.deletion import Deletions
from semel.group_coordinator.effects import PendingResult, TimerKey, TimerKind
from semel.group_coordinator.group import Group
from semel.group_coordinator.group_context import GroupContext
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
from semel.runtime.deadlines import Deadlines
from semel.runtime.machine import CoordinatorRecord, Result, Tick, Ticket
from semel.runtime.refusals import Refusals

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


class Largest(NamedTuple):
    """Members of the largest classic and the largest consumer group, and bytes of what holds most."""

    classic: int = 0
    consumer: int = 0
    held: int = 0


class GroupMachine:
    """The machine of one partition of `__consumer_offsets`; see `runtime.machine.Machine`."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        topics: TopicsSource = lambda: NO_TOPICS,
        held_by_all: Callable[[], HeldBytes] | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`held_by_all`: what the machines of all partitions hold together; without it, this one alone counts.

        refusals: where what is refused for a bound is counted
        """
        self._config = config or GroupConfig()
        self.held = HeldBytes()
        self._timers: Deadlines[TimerKey] = Deadlines()
        room = Room(self._config, held_by_all or (lambda: self.held), refusals or Refusals())
        self._shared = GroupContext(self._config, self._timers, room, self.held)
        self._consumer_protocol = ConsumerProtocol(self._shared, topics)
        self._groups: dict[str, Group] = {}
        self._offsets = OffsetTable(self.held)
        self._commits = OffsetCommits(self._shared, self._groups, self._offsets)
        self._deletions = Deletions(self._shared, self._groups, self._offsets)
        self._is_loaded = False
        self._handlers: dict[type, Callable[[Any, PendingResult], None]] = {
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
            ConsumerGroupDescribeRequest: self._describe_consumers,
            Computed: self._computed,
            TopicsDeleted: self._deletions.topics_deleted,
            TopicsLeft: self._deletions.topics_left,
            BeginVerification: self._commits.begin_verification,
        }

    # --- The machine's contract ---------------------------------------------------------------------------------------

    def handle(self, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
        """Decide about one request of protocol/api/groups.py or requests.py, or a tick."""
        pending = PendingResult(now_ms, ticket)
        if isinstance(request, Tick):
            self._tick(pending)
            return pending.result_of_tick()
        if isinstance(request, _USES_OF_A_GROUP):
            refusal = self._deletions.refuse_for(
                request.request.group_id if isinstance(request, VerifiedCommit) else request.group_id
            )
            if refusal is not None:
                return Result(refusal)
        if isinstance(request, OffsetCommitRequest):
            return self._commits.commit(request, pending)
        if isinstance(request, VerifiedCommit):
            return self._commits.commit_verified(request, pending)
        self._handlers[type(request)](request, pending)
        return pending.result()

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
            self._replay_classic_group(key.group_id, record, now_ms)

    def marker_came(self, producer: ProducerIdAndEpoch) -> None:
        """Void what was verified before the marker: a commit that comes later would be in no transaction (T8)."""
        self._commits.void_guard(producer.producer_id)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool, now_ms: int) -> Result[None] | None:
        """Publish or drop the producer's pending offsets (O1)."""
        for group_id in self._offsets.replay_marker(producer.producer_id, committed):
            if self._offsets.has_group(group_id):
                self._group_of_offsets(group_id, now_ms)
            else:
                self._forget_if_unused(group_id)
        return None

    def loaded(self, now_ms: int) -> Result[None]:
        """Give every member a session timeout to be heard of, and spread the checks for expired offsets over time."""
        self._is_loaded = True
        pending = PendingResult(now_ms, Ticket(0))
        interval_ms = self._config.offsets_retention_check_interval_ms
        for group in self._groups.values():
            group.resume(pending)
            spread_ms = zlib.crc32(group.group_id.encode("utf-8", "surrogatepass")) % interval_ms
            self._deletions.check_expiry_at(group.group_id, now_ms + 1 + spread_ms)
        return pending.result_of_tick()

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def closed(self) -> Sequence[Ticket]:
        tickets = list(self._deletions.waiting())
        for group in self._groups.values():
            tickets += group.waiting()
        return tickets

    # --- For metrics --------------------------------------------------------------------------------------------------

    def groups(self) -> Iterator[tuple[str, str, int]]:
        """Yield each group's id, state, and number of members."""
        for group in list(self._groups.values()):
            yield group.group_id, group.state_name, group.member_count

    def largest(self) -> Largest:
        """Return how large the largest of these groups are: members of each protocol, and bytes of members."""
        classic = consumer = held = 0
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                consumer = max(consumer, group.member_count)
            else:
                classic = max(classic, group.member_count)
            held = max(held, group.held_bytes)
        return Largest(classic, consumer, held)

    def committed_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield each group's committed offsets: group, topic, partition, offset."""
        return self._offsets.committed()

    def offsets_of(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """Yield what a group has committed, to look at."""
        return self._offsets.of_group(group_id)

    def expires_ms(self, group_id: str, now_ms: int) -> int | None:
        """Return when an empty group's first offset may be forgotten; None where none ever will."""
        return self._deletions.expires_ms(group_id, now_ms)

    # --- For tests and the simulator ----------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroupData | None:
        """Return a classic group, to look at."""
        group = self._groups.get(group_id)
        return group.members if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroupData | None:
        """Return a group of the consumer group protocol, to look at."""
        group = self._groups.get(group_id)
        return group.members if isinstance(group, ConsumerGroup) else None

    def durable_state(self) -> dict[str, object]:
        """Return all that the log must bring back, as plain values that compare equal after a replay (O1)."""
        return {
            "groups": {
                group_id: group.members.last_stored
                for group_id, group in self._groups.items()
                if isinstance(group, ClassicGroup) and group.members.is_stored
            },
            "consumer groups": {
                group_id: group.members.snapshot()
                for group_id, group in self._groups.items()
                if isinstance(group, ConsumerGroup)
            },
            **self._offsets.snapshot(),
        }

    # --- Membership ---------------------------------------------------------------------------------------------------

    def _join(self, request: JoinGroupRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and group.is_empty and not request.member_id:
            group = self._replace_by_classic(group, pending)
        if group is None:
            if request.member_id:
                pending.reply(_unknown_member(request.group_id, request.member_id))
                return
            group = self._create(request.group_id, pending.now_ms)
        group.join(request, pending)
        self._forget_if_unused(request.group_id)

    def _sync(self, request: SyncGroupRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            pending.reply(_unknown_member(request.group_id, request.member_id))
        else:
            group.sync(request, pending)

    def _heartbeat(self, request: HeartbeatRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            pending.reply(_unknown_member(request.group_id, request.member_id))
        else:
            group.heartbeat(request, pending)

    def _leave(self, request: LeaveGroupRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            pending.reply(LeaveGroupResponse((ErrorCode.UNKNOWN_MEMBER_ID,) * len(request.members)))
        else:
            group.leave(request, pending)
            self._forget_if_unused(request.group_id)

    def _consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            group.consumer_heartbeat(request, pending)
        else:
            assert group is None or isinstance(group, ClassicGroup)
            self._begin_consumer_group(group, request, pending)

    def _computed(self, computed: Computed, pending: PendingResult) -> None:
        """Take what was computed beside the loop, unless it is of a group that is gone."""
        pending.reply(None)
        group = self._groups.get(computed.of.group_id)
        if group is not None:
            group.computed(computed, pending)

    # From one protocol to the other (KIP-848); a consumer group of classic members alone becomes one by a timer

    def _begin_consumer_group(
        self, classic: ClassicGroup | None, request: ConsumerGroupHeartbeatRequest, pending: PendingResult
    ) -> None:
        """Begin a consumer group. It takes the place of the classic group of its id when its records are replayed."""
        group = ConsumerGroup(request.group_id, self._consumer_protocol)
        is_upgraded = group.begin(None if classic is None else classic.members, request, pending)
        if is_upgraded and classic is not None:
            classic.send_all_away(pending)

    def _replace_by_classic(self, group: ConsumerGroup, pending: PendingResult) -> ClassicGroup:
        """Have a classic group in place of a consumer group in which nobody is left that speaks the other protocol.

        At once, because it has to keep who joins. Where the tombstones can't be appended, the machine is thrown away.
        """
        pending.records += group.tombstones()
        return self._create(group.group_id, pending.now_ms)

    def _replay_classic_group(self, group_id: str, record: CoordinatorRecord, now_ms: int) -> None:
        """Apply a record of a classic group, which takes the place of the consumer group of its id."""
        known = self._groups.get(group_id)
        if record.value is None:
            if isinstance(known, ClassicGroup):
                self._drop(known)
                if self._is_loaded:
                    known.members.transition_to(GroupState.DEAD, now_ms)
                if self._offsets.has_group(group_id):
                    self._group_of_offsets(group_id, now_ms)
            return
        group = known if isinstance(known, ClassicGroup) else self._create(group_id, now_ms)
        # A group that was a consumer group begins with its members.
        loading = not self._is_loaded or group is not known
        group.replay(decode_group_value(record.value), loading=loading, size_bytes=len(record.value))
        if self._is_loaded:
            self._deletions.check_expiry_at(group_id, now_ms + self._config.offsets_retention_check_interval_ms)

    def _replay_consumer_group(self, key: ConsumerGroupKey, record: CoordinatorRecord, now_ms: int) -> None:
        """Apply a record of a consumer group, which takes the place of the classic group of its id.

        Its last tombstones find no group any more where it became a classic one.
        """
        group_id = key.group_id
        group = self._groups.get(group_id)
        if record.value is not None and not isinstance(group, ConsumerGroup):
            if group is not None:
                group.forget()
            group = self._groups[group_id] = ConsumerGroup(group_id, self._consumer_protocol)
        if isinstance(group, ConsumerGroup):
            group.replay(key, record, now_ms)
            if group.has_records:
                if self._is_loaded and TimerKey(TimerKind.EXPIRY, group_id) not in self._timers:
                    self._deletions.check_expiry_at(group_id, now_ms + self._config.offsets_retention_check_interval_ms)
                return
            self._drop(group)
        if self._offsets.has_group(group_id):
            self._group_of_offsets(group_id, now_ms)

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def _fetch_offsets(self, request: OffsetFetchRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        refusal = None if group is None else group.check_fetch(request)
        if refusal is not None:
            pending.reply(refusal)
            return
        offsets = self._offsets.fetch(request.group_id, request.partitions, require_stable=request.require_stable)
        pending.reply(OffsetFetchResponse(offsets))

    def _held_partitions(self, request: HeldPartitions, pending: PendingResult) -> None:
        pending.reply(self._offsets.numbers(request.group_id, require_stable=request.require_stable))

    # --- Groups as a whole --------------------------------------------------------------------------------------------

    def _list(self, request: ListGroupsRequest, pending: PendingResult) -> None:
        states = {state.casefold() for state in request.states}
        types = {kind.casefold() for kind in request.types}
        listings = (group.listing() for _, group in sorted(self._groups.items()))
        pending.reply(
            ListGroupsResponse(
                tuple(
                    listing
                    for listing in listings
                    if (not states or listing.state.casefold() in states)
                    and (not types or listing.group_type.casefold() in types)
                )
            )
        )

    def _describe(self, request: DescribeGroupRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if group is None:
            # As Kafka answers for a group that it does not know.
            pending.reply(GroupDescription(request.group_id, GroupState.DEAD.value, "", "", 0, "", ()))
        else:
            pending.reply(group.describe())

    def _describe_consumers(self, request: ConsumerGroupDescribeRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            pending.reply(group.describe_members())
        else:
            pending.reply(
                error_for(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} is not a consumer group, or not there"
                )
            )

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _tick(self, pending: PendingResult) -> None:
        """Do what is due. Once there are records the rest waits for the next tick, which sees them replayed."""
        for _ in range(TIMERS_PER_TICK_MAX):
            key = self._timers.pop_due(pending.now_ms)
            if key is None:
                return
            self._timer_is_due(key, pending)
            if pending.records:
                return

    def _timer_is_due(self, key: TimerKey, pending: PendingResult) -> None:
        if key.kind is TimerKind.CLEANUP:
            self._deletions.carry_on(pending)
            return
        group = self._groups.get(key.group_id)
        if group is None:
            return
        if key.kind is TimerKind.EXPIRY:
            self._deletions.expire(group, pending)
        else:
            group.timer_is_due(key, pending)
        self._forget_if_unused(key.group_id)

    # --- Groups in memory ---------------------------------------------------------------------------------------------

    def _create(self, group_id: str, now_ms: int) -> ClassicGroup:
        """Have a classic group, in place of a consumer group of that id if there is one."""
        before = self._groups.get(group_id)
        if before is not None:
            before.forget()
        group = self._groups[group_id] = ClassicGroup(group_id, now_ms, self._shared)
        return group

    def _group_of_offsets(self, group_id: str, now_ms: int) -> None:
        """Have a group wherever there are offsets: a simple one, if its consumers never joined."""
        if group_id not in self._groups:
            self._create(group_id, now_ms)
        if self._is_loaded and TimerKey(TimerKind.EXPIRY, group_id) not in self._timers:
            self._deletions.check_expiry_at(group_id, now_ms + self._config.offsets_retention_ms)

    def _forget_if_unused(self, group_id: str) -> None:
        """Forget a group that has nothing in the log and nobody waiting: there is nothing to know about it."""
        group = self._groups.get(group_id)
        if group is not None and group.is_unused and not self._offsets.has_group(group_id):
            self._drop(group)

    def _drop(self, group: Group) -> None:
        group.forget()
        del self._groups[group.group_id]


def _unknown_member(group_id: str, member_id: str) -> SemelError:
    return error_for(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"there is no group {group_id} with a member {member_id!r}; join with an empty member id",
    )
