"""The group coordinator as the rest of the node sees it: one async method for each API.

The shell around the machines: it checks ids and bounds, finds the shard, has transactions verified, decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.computations import Computation, Computing
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.group import GROUP_TYPE
from semel.group_coordinator.consumer.pattern_matches import PatternMatches
from semel.group_coordinator.consumer.topics import NO_TOPICS, PatternsNeededError, TopicsSource
from semel.group_coordinator.effects import GroupEvent, GroupEventKind
from semel.group_coordinator.held_bytes import HeldBytes
from semel.group_coordinator.limits import check_consumer_heartbeat, check_group_id, check_join, check_leave
from semel.group_coordinator.machine import GroupMachine
from semel.group_coordinator.offsets.commits import too_large
from semel.group_coordinator.offsets.table import NOTHING_COMMITTED
from semel.group_coordinator.records.consumer_state import ConsumerGroupState
from semel.group_coordinator.records.schemas import offset_record_size_bytes
from semel.group_coordinator.requests import (
    BeginVerification,
    HeldPartitions,
    TopicsDeleted,
    TopicsLeft,
    VerifiedCommit,
)
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescription,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    DescribeGroupRequest,
    FetchedOffset,
    GroupDescription,
    GroupListing,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError, error_for
from semel.protocol.ids import OFFSETS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.randomness import new_uuid
from semel.protocol.trace_context import TraceContext
from semel.runtime.clock import Clock
from semel.runtime.internal_topic import TopicReady
from semel.runtime.keys import PartitionCount
from semel.runtime.read_barrier import ONE_NODE, ReadBarrier
from semel.runtime.refusals import Refusals
from semel.runtime.shard import ShardLog
from semel.runtime.shard_runtime import ShardRuntime, Submit
from semel.runtime.telemetry.tracing import caller
from semel.runtime.turns import Turns, in_turns, next_turn

_log = logging.getLogger("semel.groups")

REBALANCES_COUNTED_MAX: Final = 1_000
"""Groups whose rebalances are counted; the one that rebalanced longest ago makes room."""
REBALANCE_TIMES_MAX: Final = 32
"""Of so many rebalances of each of them it is remembered when they were."""
MATCHES_PER_REQUEST_MAX: Final = 3
OFFSETS_AT_ONCE_MAX: Final = 500
"""Offsets that are committed or deleted in one turn of the event loop (S3)."""

OFFSETS_OF_A_SMALL_REQUEST: Final = 100
"""A request with more of them waits for its turn: many clients may send one at the same moment (S3)."""

FETCHED_AT_ONCE_MAX: Final = 1_000
"""Partitions whose offsets are fetched in one turn of the event loop (S3)."""

_STATES: Final = frozenset(state.value.casefold() for kind in (GroupState, ConsumerGroupState) for state in kind)
_TYPES: Final = frozenset({GroupListing("", "", "").group_type.casefold(), GROUP_TYPE.casefold()})
_NO_SUCH: Final = frozenset({""})
"""A filter that no group passes."""


class TransactionVerifier(Protocol):
    """The transaction coordinator's word on what is in a transaction (T8); `TransactionCoordinator` is one."""

    async def add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse: ...

    async def verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse: ...


class RebalanceSpans(Protocol):
    """Makes the spans of rebalances of what it is told."""

    def joined(self, group_id: str, caller: TraceContext | None) -> None: ...

    def happened(self, event: GroupEvent) -> None: ...


_PartAnswer: TypeAlias = "tuple[list[TopicPartition], asyncio.Task[Any]]"


class _InParts:
    """Requests of a group of which one is decided in parts: the others wait for their turns, in order."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class GroupCoordinator:
    """The coordinator of the groups whose partitions of `__consumer_offsets` this node leads.

    partition_count: of `__consumer_offsets`; fixed when that topic is made, since it says where each group lives. Asked
                     when it is first needed; raises NOT_COORDINATOR while there is no topic.
    open_log:        gives the log of one of its partitions.
    topic_ready:     makes `__consumer_offsets` where it is missing, and waits until it is read.
    transactions:    is asked before a producer's first offsets of a transaction enter one of them.
    topics:          gives the cluster's topics, which consumer groups assign from (KIP-848).
    patterns:        matches members' expressions, where `topics` finds the results there.
    barrier:         what answers pass that rest on no record of their own (R9).
    spans:           where the node is traced.
    new_id:          makes an id that nobody else has, for members that come without one.
    executor:        for assignments that are too much for the event loop; without it, a thread of its own.
    """

    def __init__(
        self,
        *,
        partition_count: Callable[[], int],
        open_log: Callable[[int], ShardLog],
        topic_ready: TopicReady,
        transactions: TransactionVerifier,
        clock: Clock,
        config: GroupConfig | None = None,
        topics: TopicsSource = lambda: NO_TOPICS,
        patterns: PatternMatches | None = None,
        barrier: ReadBarrier = ONE_NODE,
        spans: RebalanceSpans | None = None,
        new_id: Callable[[], str] = lambda: str(new_uuid()),
        executor: Executor | None = None,
    ) -> None:
        self.config = config or GroupConfig()
        self._partitions = PartitionCount(partition_count)
        self.topic_ready = topic_ready
        self.patterns = patterns
        self._new_id = new_id
        self._topics = topics
        self._transactions = transactions
        self._spans = spans
        self.rebalances: OrderedDict[str, int] = OrderedDict()
        """How often each group rebalanced, for the metrics."""
        self.rebalance_times_ms: dict[str, deque[int]] = {}
        """When the same groups lately rebalanced."""
        self.refusals = Refusals()
        """What was refused for a bound of groups and their offsets."""
        self._clock = clock
        self._runtime = ShardRuntime(
            OFFSETS_TOPIC,
            open_log=open_log,
            make_machine=lambda partition, leader_epoch: GroupMachine(self.config, topics, self.held, self.refusals),
            on_effects=self._on_effects,
            clock=clock,
            barrier=barrier,
        )
        self._deleted: dict[int, set[str]] = {}
        """Topics that were deleted since the loading of each partition began."""
        self._in_parts: dict[str, _InParts] = {}
        self._computing = Computing(self._runtime.submit, clock, executor)

    # --- Leading partitions -------------------------------------------------------------------------------------------

    def load(
        self, partition: int, leader_epoch: int, topics: Callable[[], Awaitable[frozenset[str]]] | None = None
    ) -> asyncio.Future[None]:
        """Take a partition over: read its log. Its members have their session timeouts to be heard of.

        topics: tells the topics that there are. Offsets of others are dropped before anybody is served: they were
            deleted while nobody was here to hear of it, and would count for topics that are made under their names
        """
        if topics is None:
            return self._runtime.load(partition, leader_epoch)
        deleted = self._deleted[partition] = set()

        async def forget(submit: Submit) -> None:
            known = await topics()
            while True:
                count = len(deleted)
                await submit(TopicsLeft(known - deleted))
                if len(deleted) == count:
                    return

        return self._runtime.load(partition, leader_epoch, forget)

    def unload(self, partition: int) -> None:
        """Give a partition up; its callers are told to find the coordinator again."""
        self._runtime.unload(partition)
        self._deleted.pop(partition, None)

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the partition of `__consumer_offsets` whose leader coordinates this group.

        Raises NOT_COORDINATOR while there is no such topic.
        """
        return TopicPartition(OFFSETS_TOPIC, self._partitions.partition_for(group_id))

    async def write_marker(
        self,
        partition: int,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion = TransactionVersion.V1,
        *,
        forged_epoch: int = -1,
    ) -> None:
        """Write a transaction's marker into `__consumer_offsets`: its offsets then count, or are dropped (O1)."""
        await self._runtime.write_marker(
            partition, producer, coordinator_epoch, committed, version, forged_epoch=forged_epoch
        )

    def machines(self) -> list[GroupMachine]:
        """Return the machines of all partitions that are active, to look at."""
        return [machine for machine in self._runtime.machines() if isinstance(machine, GroupMachine)]

    def held(self) -> HeldBytes:
        """Return what the groups of all partitions hold in memory, about."""
        machines = self.machines()
        return HeldBytes(sum(each.held.members for each in machines), sum(each.held.offsets for each in machines))

    def shard_states(self) -> Mapping[str, int]:
        """Return how many partitions are in each state: see `ShardRuntime.state_counts`."""
        return self._runtime.state_counts()

    def partitions_away(self) -> Mapping[int, str]:
        """Return the partitions led here that can't be used: see `ShardRuntime.away`."""
        return self._runtime.away()

    def run_due_timers(self) -> None:
        """For clocks that only a test moves: see `ShardRuntime.run_due_timers`."""
        self._runtime.run_due_timers()

    def close(self) -> None:
        """Give up all partitions; what waits is answered with NOT_COORDINATOR."""
        self._computing.close()
        self._runtime.close()

    # --- Membership ---------------------------------------------------------------------------------------------------

    async def join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        """Join, or join again; a member that has no id is given one. Answered when the rebalance has its members.

        Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL,
        INVALID_SESSION_TIMEOUT, INVALID_GROUP_ID, GROUP_MAX_SIZE_REACHED, REBALANCE_IN_PROGRESS (a later call by the
        same member took this one's place).
        """
        if not request.member_id:
            named_for = request.client_id if request.group_instance_id is None else request.group_instance_id
            request = replace(request, new_member_id=f"{named_for}-{self._new_id()}")
        check_join(request, self.config)
        response: JoinGroupResponse = await self._submit_matched(request)
        if self._spans is not None:
            self._spans.joined(request.group_id, caller())
        return response

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """Get the assignment, and as the leader give it. Answered once it is in the log.

        Raises ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS,
        INCONSISTENT_GROUP_PROTOCOL.
        """
        check_group_id(request.group_id, self.config)
        response: SyncGroupResponse = await self._submit(request.group_id, request)
        return response

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Say that a member lives. Raises REBALANCE_IN_PROGRESS where it is to join again, and as `sync` does."""
        check_group_id(request.group_id, self.config)
        try:
            response: HeartbeatResponse = await self._submit(request.group_id, request)
        except RetriableError as error:
            if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            # Nobody's session runs while the groups are read into memory.
            return HeartbeatResponse()
        return response

    async def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Take members out of a group, with an answer for each."""
        check_leave(request, self.config)
        response: LeaveGroupResponse = await self._submit(request.group_id, request)
        return response

    async def consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Join, stay in, or leave a consumer group, and learn what to read (KIP-848).

        Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID,
        UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_MAX_SIZE_REACHED, INVALID_REQUEST, and
        GROUP_ID_NOT_FOUND for a classic group that cannot become a consumer group.
        """
        if request.needs_member_id and not request.member_id and request.member_epoch == JOIN_EPOCH:
            request = replace(request, new_member_id=self._new_id())
        check_consumer_heartbeat(request, self.config)
        response: ConsumerGroupHeartbeatResponse = await self._submit_matched(request)
        return response

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def commit_offsets(
        self, request: OffsetCommitRequest, *, version: TransactionVersion = TransactionVersion.V2
    ) -> OffsetCommitResponse:
        """Commit offsets; with `request.producer`, inside its transaction (O1). `version` is what its client speaks.

        A client of the newer protocol has the offsets' partition added to its transaction by this call; one of the
        older has added it itself, which is verified (T8). Raises ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS, INVALID_COMMIT_OFFSET_SIZE; for transactions also what the
        transaction coordinator refuses with, and INVALID_PRODUCER_EPOCH.
        """
        check_group_id(request.group_id, self.config, may_be_empty=request.producer is None)
        if request.producer is None:
            return await self._commit(request, lambda part: part)
        if not request.transactional_id:
            raise UsageError("a transactional commit of offsets needs its transactional id")
        guard = await self._submit(request.group_id, BeginVerification(request.producer))
        if guard is not None:
            await self._verify(request, request.transactional_id, request.producer, version)
        return await self._commit(request, lambda part: VerifiedCommit(part, guard))

    async def add_to_transaction(self, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str) -> None:
        """Add the partition where a group's offsets live, for a client of the older protocol (AddOffsetsToTxn).

        Raises INVALID_GROUP_ID, and what the transaction coordinator refuses with.
        """
        if not group_id:
            raise UsageError("offsets are committed for a group: give its id", ErrorCode.INVALID_GROUP_ID)
        await self.topic_ready()
        partition = self.offsets_partition(group_id)
        answer = await self._transactions.add_partitions(
            AddPartitionsToTxnRequest(transactional_id, producer, (partition,), version=TransactionVersion.V1)
        )
        code = answer.errors[partition]
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{partition} could not be added to the transaction of {transactional_id!r}")

    async def fetch_offsets(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Return committed offsets; UNSTABLE_OFFSET_COMMIT where a transaction's outcome is awaited (O2)."""
        check_group_id(request.group_id, self.config, may_be_empty=True)
        asked = request.partitions
        everything = asked is None
        if asked is None:
            asked = await self._held_partitions(request)
        if len(asked) > OFFSETS_OF_A_SMALL_REQUEST:
            await next_turn()
        if len(asked) <= FETCHED_AT_ONCE_MAX:
            response: OffsetFetchResponse = await self._submit(request.group_id, request)
            return response
        # Each partition's offset stands for itself, so they need not be of one moment.
        found: dict[TopicPartition, FetchedOffset] = {}
        turns = Turns()
        for first in range(0, len(asked), FETCHED_AT_ONCE_MAX):
            part: OffsetFetchResponse = await self._submit(
                request.group_id, replace(request, partitions=asked[first : first + FETCHED_AT_ONCE_MAX])
            )
            # Of all offsets, those that were deleted meanwhile are not there.
            found.update(
                (tp, offset) for tp, offset in part.offsets.items() if not everything or offset != NOTHING_COMMITTED
            )
            await turns.give_way()
        return OffsetFetchResponse(found)

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Delete offsets of topics that the group is not subscribed to. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        check_group_id(request.group_id, self.config)
        if len(request.partitions) <= OFFSETS_OF_A_SMALL_REQUEST:
            response: OffsetDeleteResponse = await self._submit(request.group_id, request)
            return response
        partitions = list(request.partitions)
        parts = [tuple(partitions[first:last]) for first, last in _parts(len(partitions))]
        async with self._parts_in_order(request.group_id):
            asked = [(part, replace(request, partitions=part)) for part in parts]
            answers = await self._decide_parts(request.group_id, asked)
        return OffsetDeleteResponse(await _merged(answers))

    async def topics_deleted(self, topics: Iterable[str]) -> None:
        """Drop all groups' offsets of deleted topics, in the partitions that this node leads.

        Each partition for itself; raises the first of the errors once all have answered.
        """
        request = TopicsDeleted(frozenset(topics))
        forgetting: list[asyncio.Task[Any]] = []
        for partition in self._runtime.partitions():
            if self._runtime.is_preparing(partition):
                self._deleted[partition].update(request.topics)
            else:
                forgetting.append(asyncio.ensure_future(self._runtime.submit(partition, request)))
        outcomes = await asyncio.gather(*forgetting, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # --- Groups as a whole --------------------------------------------------------------------------------------------

    async def list(self, request: ListGroupsRequest, *, partial: bool = False) -> ListGroupsResponse:
        """List the groups coordinated here that pass the filters, by id. With `partial`, those that can be read.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any partition loads (a list with holes would mislead), and
        UNKNOWN_SERVER_ERROR where one can't be read.
        """
        if not await self.topic_ready(create=False):
            return ListGroupsResponse(())
        unreadable = self._runtime.unreadable()
        if unreadable and not partial:
            raise FatalError(
                "groups can't be listed, because some of their coordinators' partitions can't be read: "
                f"{'; '.join(error.message for error in unreadable.values())}. The node's log says what to do"
            )
        readable = [partition for partition in self._runtime.partitions() if partition not in unreadable]
        request = ListGroupsRequest(await _known(request.states, _STATES), await _known(request.types, _TYPES))
        parts = [await self._runtime.submit(partition, request) async for partition in in_turns(readable)]
        groups = (listing for part in parts for listing in part.groups)
        return ListGroupsResponse(
            tuple(sorted(groups, key=lambda listing: str(listing.group_id))),
            tuple(error.message for _, error in sorted(unreadable.items())),
        )

    async def describe(self, request: DescribeGroupRequest) -> GroupDescription:
        """Describe a group. One that does not exist has the state Dead, as for Kafka's clients."""
        check_group_id(request.group_id, self.config, may_be_empty=True)
        description: GroupDescription = await self._submit(request.group_id, request)
        return description

    async def describe_consumers(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescription:
        """Describe a consumer group (KIP-848). Raises GROUP_ID_NOT_FOUND, for a classic group too."""
        check_group_id(request.group_id, self.config)
        description: ConsumerGroupDescription = await self._submit(request.group_id, request)
        return description

    async def delete(self, request: DeleteGroupRequest) -> DeleteGroupResponse:
        """Delete an empty group with its offsets. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        check_group_id(request.group_id, self.config, may_be_empty=True)
        await self.topic_ready()
        async with self._parts_in_order(request.group_id):
            await next_turn()
            answer = asyncio.ensure_future(
                self._runtime.submit(self._partitions.partition_for(request.group_id), request)
            )
            try:
                await asyncio.sleep(0)  # it is decided here, before what waits behind it
            except asyncio.CancelledError:
                answer.cancel()
                raise
        response: DeleteGroupResponse = await answer
        return response

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _held_partitions(self, request: OffsetFetchRequest) -> tuple[TopicPartition, ...]:
        """Return the partitions that a fetch of all is about."""
        committed, pending = await self._submit(
            request.group_id, HeldPartitions(request.group_id, request.require_stable)
        )
        held = [TopicPartition(topic, number) async for topic, number in in_turns(_pairs(committed))]
        return tuple(dict.fromkeys((*held, *pending)))

    async def _submit_matched(self, request: JoinGroupRequest | ConsumerGroupHeartbeatRequest) -> Any:
        """Submit a request, with the members' expressions matched that it needs.

        Topics may come meanwhile; a caller that is told to try again for it several times in a row does so later.
        """
        for _ in range(MATCHES_PER_REQUEST_MAX):
            try:
                return await self._submit(request.group_id, request)
            except PatternsNeededError as needed:
                if self.patterns is None:
                    raise
                await self.patterns.match(needed.expressions, self._topics, request.client_host)
        return await self._submit(request.group_id, request)

    async def _commit(
        self, request: OffsetCommitRequest, asked: Callable[[OffsetCommitRequest], object]
    ) -> OffsetCommitResponse:
        """Have offsets committed, many of them in parts: answers are for each partition anyway.

        A part that is refused ends it: the partitions from there on are refused for the same reason.
        """
        if len(request.offsets) <= OFFSETS_OF_A_SMALL_REQUEST:
            response: OffsetCommitResponse = await self._submit(request.group_id, asked(request))
            return response
        async with self._parts_in_order(request.group_id):
            turns = Turns(ends_with_caller=False)
            size_bytes = 0
            for tp, offset in request.offsets.items():
                has_expiry = request.retention_ms is not None
                size_bytes += offset_record_size_bytes(request.group_id, tp, offset.metadata, has_expiry=has_expiry)
                if size_bytes > self.config.group_records_max_bytes:
                    raise too_large(request, self.config)
                await turns.give_way()
            items = list(request.offsets.items())
            parts = (dict(items[first:last]) for first, last in _parts(len(items)))
            commits = ((tuple(part), asked(replace(request, offsets=part))) for part in parts)
            answers = await self._decide_parts(request.group_id, commits)
        return OffsetCommitResponse(await _merged(answers))

    async def _decide_parts(
        self, group_id: str, parts: Iterable[tuple[Sequence[TopicPartition], object]]
    ) -> Sequence[_PartAnswer]:
        """Have the parts of a request decided in turns (S3). The first that is refused stands for those after it.

        Returns the partitions and the answer of each, which may be still to come: it waits for the log.
        """
        await self.topic_ready()
        number = self._partitions.partition_for(group_id)
        answers: deque[_PartAnswer] = deque()
        is_refused = False
        try:
            for partitions, request in parts:
                if is_refused:
                    answers[-1][0].extend(partitions)
                    continue
                await next_turn()
                answer = asyncio.ensure_future(self._runtime.submit(number, request))
                answers.append((list(partitions), answer))
                await asyncio.sleep(0)  # it is decided in a round of the event loop of its own
                is_refused = answer.done() and (answer.cancelled() or answer.exception() is not None)
        except asyncio.CancelledError:
            for _, answer in answers:
                answer.cancel()
            raise
        return answers

    @asynccontextmanager
    async def _parts_in_order(self, group_id: str) -> AsyncIterator[None]:
        """Keep other requests of the group from coming between the parts of one, or before them."""
        held = self._in_parts.setdefault(group_id, _InParts())
        held.users += 1
        try:
            async with held.lock:
                yield
        finally:
            held.users -= 1
            if not held.users:
                del self._in_parts[group_id]

    async def _submit(self, group_id: str, request: object) -> Any:
        await self.topic_ready()
        if group_id in self._in_parts:
            async with self._parts_in_order(group_id):
                pass  # what is decided next, in this same turn, comes before all that waits behind it
        return await self._runtime.submit(self._partitions.partition_for(group_id), request)

    async def _verify(
        self,
        request: OffsetCommitRequest,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
    ) -> None:
        """Have the transaction coordinator's word that the offsets' partition is in the transaction (T8)."""
        partition = self.offsets_partition(request.group_id)
        asked = AddPartitionsToTxnRequest(
            transactional_id, producer, (partition,), verify_only=version < TransactionVersion.V2, version=version
        )
        if version < TransactionVersion.V2:
            answer = await self._transactions.verify(asked)
        else:
            answer = await self._transactions.add_partitions(asked)
        code = answer.errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code is not ErrorCode.NONE:
            raise error_for(
                code,
                f"{partition} is not in the transaction of {transactional_id!r}, so the offsets of group "
                f"{request.group_id} cannot be committed in it",
            )

    def _on_effects(self, partition: int, effects: Sequence[Any]) -> None:
        for event in effects:
            if isinstance(event, Computation):
                self._computing.begin(partition, event)
                continue
            if self._spans is not None:
                self._spans.happened(event)
            if event.kind is GroupEventKind.REBALANCING:
                self._count_rebalance(event.group_id)
            elif event.kind is GroupEventKind.DELETED:
                self.rebalances.pop(event.group_id, None)
                self.rebalance_times_ms.pop(event.group_id, None)
            _log.info(
                "group %s group=%s generation=%s partition=%s detail=%s",
                event.kind.value,
                event.group_id,
                event.generation_id,
                partition,
                event.detail,
            )

    def _count_rebalance(self, group_id: str) -> None:
        self.rebalances[group_id] = self.rebalances.get(group_id, 0) + 1
        self.rebalances.move_to_end(group_id)
        times = self.rebalance_times_ms.setdefault(group_id, deque(maxlen=REBALANCE_TIMES_MAX))
        times.append(self._clock.now_ms())
        if len(self.rebalances) > REBALANCES_COUNTED_MAX:
            del self.rebalance_times_ms[self.rebalances.popitem(last=False)[0]]


def _pairs(numbers: Iterable[tuple[str, Iterable[int]]]) -> Iterator[tuple[str, int]]:
    return ((topic, number) for topic, found in numbers for number in found)


async def _known(asked: frozenset[str], known: frozenset[str]) -> frozenset[str]:
    """Return those of a filter's names that there are, in lower case: clients send as many as they like."""
    longest = max(map(len, known))
    found = {name.casefold() async for name in in_turns(asked) if len(name) <= longest} & known
    return frozenset(found) or (_NO_SUCH if asked else frozenset())


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """Yield where each part of so many items begins and ends."""
    return ((first, first + OFFSETS_AT_ONCE_MAX) for first in range(0, count, OFFSETS_AT_ONCE_MAX))


async def _merged(answers: Sequence[_PartAnswer]) -> dict[TopicPartition, ErrorCode]:
    """Wait for the answers about parts of a request, and make them one. Raises what the first part is refused with.

    Where a later one is refused, its partitions have the error: those before them are done.
    """
    given = await asyncio.gather(*(answer for _, answer in answers), return_exceptions=True)
    errors: dict[TopicPartition, ErrorCode] = {}
    for (partitions, _), answer in zip(answers, given, strict=True):
        if isinstance(answer, SemelError) and errors:
            errors.update(dict.fromkeys(partitions, answer.code))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            errors.update(answer.errors)
    return errors
