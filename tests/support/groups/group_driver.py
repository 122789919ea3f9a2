"""Runs a group machine as its shard does, in memory and in time that the test moves; reloads it from its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.computations import Computation, Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.topics import NO_TOPICS, Topics, TopicsSource
from semel.group_coordinator.effects import GroupEvent
from semel.group_coordinator.machine import GroupMachine
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.protocol.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import DEFERRED, TICK, CoordinatorRecord, Result, Ticket

START_MS = 1_700_000_000_000
GROUP = "enrich"


@dataclass(frozen=True)
class LogEntry:
    """A record, or with `record` None a marker."""

    offset: int
    timestamp_ms: int
    record: CoordinatorRecord | None
    producer: ProducerIdAndEpoch | None = None
    committed: bool = False


@dataclass
class GroupDriver:
    config: GroupConfig = field(default_factory=GroupConfig)
    now_ms: int = START_MS
    topics: Topics = NO_TOPICS

    def __post_init__(self) -> None:
        self.log: list[LogEntry] = []
        self.next_offset = 0
        self.answers: dict[Ticket, object] = {}
        self.events: list[GroupEvent] = []
        self.computations: list[Computation] = []
        """What is to be computed beside the loop, and has not been yet."""
        self._late: set[Computation] = set()
        self.batches: list[int] = []
        self._last_ticket = 0
        self._last_member = 0
        self.machine = GroupMachine(self.config, lambda: self.topics)
        self._carry_out(self.machine.loaded(self.now_ms))

    # --- Calls --------------------------------------------------------------------------------------------------------

    def call(self, request: object) -> Ticket:
        """Hand a request in; its answer appears in `answers`, now or later."""
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket)
        result = self.machine.handle(request, self.now_ms, ticket)
        self._carry_out(result)
        if result.response is not DEFERRED:
            self._answer(ticket, result.response)
        return ticket

    def ask(self, request: object) -> Any:
        """Hand a request in that is answered at once. Raises what it is refused with."""
        return self.result(self.call(request))

    def result(self, ticket: Ticket) -> Any:
        answer = self.answers[ticket]
        if isinstance(answer, SemelError):
            raise answer
        return answer

    def refusal(self, request: object) -> ErrorCode:
        """Return the code that a request is refused with at once."""
        answer = self.answers[self.call(request)]
        assert isinstance(answer, SemelError), answer
        return answer.code

    def code(self, ticket: Ticket) -> ErrorCode:
        answer = self.answers[ticket]
        assert isinstance(answer, SemelError), answer
        return answer.code

    def is_waiting(self, ticket: Ticket) -> bool:
        return ticket not in self.answers

    def advance(self, ms: int) -> None:
        """Move time on, with a tick at each deadline on the way."""
        target_ms = self.now_ms + ms
        self.run_due()
        while (deadline_ms := self.machine.next_deadline_ms()) is not None and deadline_ms <= target_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.run_due()
        self.now_ms = target_ms

    def run_due(self) -> None:
        for _ in range(100_000):
            deadline_ms = self.machine.next_deadline_ms()
            if deadline_ms is None or deadline_ms > self.now_ms:
                return
            self._carry_out(self.machine.handle(TICK, self.now_ms, Ticket(0)))
        raise AssertionError("the machine asks for ticks without end")

    def marker(self, producer: ProducerIdAndEpoch, *, committed: bool) -> None:
        self.log.append(LogEntry(self.next_offset, self.now_ms, None, producer, committed))
        self.next_offset += 1
        self.machine.marker_came(producer)
        result = self.machine.replay_marker(producer, committed, self.now_ms)
        if result is not None:
            self._carry_out(result)

    def reload(self, log: Iterable[LogEntry] | None = None) -> None:
        """Build the machine again from its log; who waits is told that the coordinator failed."""
        self._late = set(self.computations)
        for ticket in self.machine.closed():
            self._answer(ticket, SemelError("the coordinator moved", ErrorCode.NOT_COORDINATOR))
        self.machine = replayed(self.log if log is None else log, self.config, lambda: self.topics)
        self._carry_out(self.machine.loaded(self.now_ms))

    def _carry_out(self, result: Result[Any]) -> None:
        if result.records:
            self.batches.append(len(result.records))
        for record in result.records:
            entry = LogEntry(self.next_offset, self.now_ms, record, result.producer)
            self.log.append(entry)
            self.next_offset += 1
            self.machine.replay(record, entry.offset, result.producer, self.now_ms)
        for ticket, answer in result.answers:
            self._answer(ticket, answer)
        for effect in result.effects:
            (self.computations if isinstance(effect, Computation) else self.events).append(effect)
        groups = {group_id for group_id, *_ in self.machine.groups()}
        self._late.update(each for each in self.computations if each.group_id not in groups)

    def _answer(self, ticket: Ticket, answer: object) -> None:
        assert ticket not in self.answers, f"ticket {ticket} is answered twice"
        self.answers[ticket] = answer

    def compute(self, number: int = 0, *, took_ms: int = 0, fails: bool = False) -> None:
        """Carry out a computation, the first one being the one that has waited longest; give the machine its result."""
        computation = self.computations.pop(number)
        assert self.ask(Computed(computation, None if fails else computation.work(), took_ms)) is None
        self.run_due()

    def compute_all(self) -> None:
        while self.computations:
            self.compute()

    @property
    def running_max(self) -> int:
        """The most computations that any group has begun and not ended.

        Those of earlier machines and of groups that were deleted are left out: nobody takes their results.
        """
        running = [each.group_id for each in self.computations if each not in self._late]
        return max(map(running.count, running), default=0)

    # --- What members do ----------------------------------------------------------------------------------------------

    def new_member_id(self) -> str:
        self._last_member += 1
        return f"client-{self._last_member:04d}"

    def join_request(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        known_id: bool = True,
        protocol_type: str = "consumer",
    ) -> JoinGroupRequest:
        offered = {"range": subscription("orders")} if protocols is None else protocols
        return JoinGroupRequest(
            group,
            member_id,
            instance,
            protocol_type,
            tuple(GroupProtocol(name, metadata) for name, metadata in offered.items()),
            session_ms,
            rebalance_ms,
            "client",
            "/127.0.0.1",
            self.new_member_id(),
            known_id,
        )

    def get_member_id(self, **kwargs: Any) -> str:
        """Take the first round of a dynamic member's join (KIP-394)."""
        response = self.ask(self.join_request(**kwargs))
        assert response.error is ErrorCode.MEMBER_ID_REQUIRED
        return str(response.member_id)

    def begin_join(self, member_id: str = "", **kwargs: Any) -> tuple[str, Ticket]:
        """Join up to where the answer waits for others."""
        if not member_id and kwargs.get("instance") is None:
            member_id = self.get_member_id(**kwargs)
        return member_id, self.call(self.join_request(member_id, **kwargs))

    def joined(self, ticket: Ticket) -> JoinGroupResponse:
        response = self.result(ticket)
        assert isinstance(response, JoinGroupResponse)
        return response

    def sync(
        self,
        response: JoinGroupResponse,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        partition_counts: Mapping[str, int] | None = None,
    ) -> Ticket:
        return self.call(
            SyncGroupRequest(
                group,
                response.generation_id,
                response.member_id,
                instance,
                assignments or {},
                response.protocol_type,
                response.protocol_name,
                partition_counts,
            )
        )

    def synced(self, ticket: Ticket) -> bytes:
        response = self.result(ticket)
        assert isinstance(response, SyncGroupResponse)
        return response.assignment

    def stable_group(self, count: int = 1, *, instances: bool = False, **kwargs: Any) -> list[JoinGroupResponse]:
        """Bring up a stable group, each member with the partition of its number; the leader comes first."""
        responses: list[JoinGroupResponse] = []
        for number in range(count):
            ways = [{"instance": f"instance-{index}"} if instances else {} for index in range(number + 1)]
            _, ticket = self.begin_join(**ways[number], **kwargs)
            tickets = [
                self.call(self.join_request(response.member_id, **way, **kwargs))
                for way, response in zip(ways, responses, strict=False)
            ]
            responses = [self.joined(other) for other in (*tickets, ticket)]
            self.settle(responses, group=kwargs.get("group", GROUP))
        return sorted(responses, key=lambda response: response.member_id != response.leader_id)

    def settle(self, responses: list[JoinGroupResponse], *, group: str = GROUP) -> dict[str, bytes]:
        """Sync everybody, the leader first, with one partition each; return the assignments by member id."""
        assignments = {response.member_id: assignment(number) for number, response in enumerate(responses)}
        for response in sorted(responses, key=lambda response: response.member_id != response.leader_id):
            is_leader = response.member_id == response.leader_id
            ticket = self.sync(response, assignments if is_leader else None, group=group)
            assert self.synced(ticket) == assignments[response.member_id]
        return assignments

    def heartbeat(self, response: JoinGroupResponse, **kwargs: Any) -> HeartbeatRequest:
        return HeartbeatRequest(
            kwargs.get("group", GROUP),
            kwargs.get("generation", response.generation_id),
            response.member_id,
            kwargs.get("instance"),
        )

    def leave(self, *member_ids: str, group: str = GROUP) -> LeaveGroupRequest:
        return LeaveGroupRequest(group, tuple(MemberIdentity(member_id) for member_id in member_ids))


def state(driver: GroupDriver, group_id: str = GROUP) -> GroupState | None:
    group = driver.machine.group(group_id)
    return None if group is None else group.state


def replayed(
    log: Iterable[LogEntry], config: GroupConfig | None = None, topics: TopicsSource = lambda: NO_TOPICS
) -> GroupMachine:
    """Return a machine that has read `log`, not yet told that it is loaded."""
    machine = GroupMachine(config, topics)
    for entry in log:
        if entry.record is None:
            assert entry.producer is not None
            machine.replay_marker(entry.producer, entry.committed, entry.timestamp_ms)
        else:
            machine.replay(entry.record, entry.offset, entry.producer, entry.timestamp_ms)
    return machine


def compacted(log: list[LogEntry], *, keep_tombstones: bool = True, upto: int | None = None) -> list[LogEntry]:
    """Return the log as compaction leaves it: below the first open transaction, the last record of each key (D4)."""
    open_since: dict[int, int] = {}
    aborted: set[int] = set()
    records_of: dict[int, list[int]] = {}
    for entry in log:
        if entry.producer is None:
            continue
        if entry.record is not None:
            open_since.setdefault(entry.producer.producer_id, entry.offset)
            records_of.setdefault(entry.producer.producer_id, []).append(entry.offset)
        else:
            offsets = records_of.pop(entry.producer.producer_id, [])
            open_since.pop(entry.producer.producer_id, None)
            if not entry.committed:
                aborted.update(offsets)
    stable_end = min(open_since.values(), default=log[-1].offset + 1 if log else 0)
    end = stable_end if upto is None else min(upto, stable_end)
    last: dict[bytes, int] = {}
    for entry in log:
        if entry.record is not None and entry.offset < end and entry.offset not in aborted:
            last[entry.record.key] = entry.offset
    kept = []
    for entry in log:
        if entry.offset < end and entry.record is not None:
            if last.get(entry.record.key) != entry.offset:
                continue
            if entry.record.value is None and not keep_tombstones:
                continue
        kept.append(entry)
    return kept


def subscription(*topics: str, owned: Iterable[TopicPartition] = (), generation: int = -1) -> bytes:
    return encode_subscription(Subscription(topics, None, tuple(owned), generation))


def assignment(*partitions: int, topic: str = "orders") -> bytes:
    return encode_assignment(Assignment(tuple(TopicPartition(topic, partition) for partition in partitions)))


def commit(
    offsets: Mapping[TopicPartition, int],
    *,
    group: str = GROUP,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
    producer: ProducerIdAndEpoch | None = None,
    metadata: str = "",
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group,
        generation,
        member_id,
        instance,
        {partition: OffsetAndMetadata(offset, metadata=metadata) for partition, offset in offsets.items()},
        None if producer is None else "txn",
        producer,
    )


def fetch(*partitions: TopicPartition, group: str = GROUP, require_stable: bool = True) -> OffsetFetchRequest:
    return OffsetFetchRequest(group, partitions or None, require_stable)
