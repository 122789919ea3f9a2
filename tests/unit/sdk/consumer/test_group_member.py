"""The membership of one consumer against a coordinator that answers as the test says: what timing makes of it."""

# ruff: noqa: ASYNC110 - what is waited for is the state of the member itself

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from semel.protocol.consumer_protocol import Assignment, decode_subscription, encode_assignment
from semel.protocol.errors import ErrorCode, FatalError, FencedError, RetriableError, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import common_pb2, groups_pb2
from semel.runtime.clock import Clock, ManualClock, SystemClock
from semel.sdk.consumer.group_member import AssignmentChange, ChangeKind, GroupMember, GroupOptions, MemberState
from semel.sdk.transport.options import ClientOptions

A, B, C = (TopicPartition("t", number) for number in range(3))


class Coordinator:
    """Stands for a client's `Control` and the coordinator behind it.

    `answers` has for each call what it answers, in order: an error, a set of partitions for a sync, or an event to wait
    for first. Where nothing is left, joins and heartbeats succeed, and syncs give `given`.
    """

    def __init__(self) -> None:
        self.given: frozenset[TopicPartition] = frozenset()
        self.answers: dict[str, deque[Any]] = {}
        self.asked: list[tuple[str, Any]] = []
        self.generation = 0
        self.heard = asyncio.Event()

    def answer(self, name: str, *answers: Any) -> None:
        self.answers.setdefault(name, deque()).extend(answers)

    def count(self, name: str) -> int:
        return sum(asked == name for asked, _ in self.asked)

    def last(self, name: str) -> Any:
        return [request for asked, request in self.asked if asked == name][-1]

    async def call(self, rpc: Any, request: Any, **_: Any) -> Any:
        self.asked.append((rpc.name, request))
        self.heard.set()
        answers = self.answers.get(rpc.name)
        answer = answers.popleft() if answers else None
        while isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = answers.popleft() if answers else None
        await asyncio.sleep(0)
        if isinstance(answer, ErrorCode):
            raise error_for(answer, f"scripted {answer.name}")
        return getattr(self, f"_{rpc.name}")(request, answer)

    def _JoinGroup(self, request: Any, answer: Any) -> Any:
        if not request.member_id and not request.group_instance_id:
            error = common_pb2.Error(code=ErrorCode.MEMBER_ID_REQUIRED, name="MEMBER_ID_REQUIRED")
            return groups_pb2.JoinGroupResponse(member_id=f"m{len(self.asked)}", error=error)
        self.generation += 1
        member_id = request.member_id or f"s{len(self.asked)}"
        return groups_pb2.JoinGroupResponse(
            generation_id=self.generation, member_id=member_id, leader_id=member_id, protocol_type="consumer"
        )

    def _SyncGroup(self, request: Any, answer: Any) -> Any:
        given = self.given if answer is None else answer
        return groups_pb2.SyncGroupResponse(assignment=encode_assignment(Assignment(tuple(sorted(given)))))

    def _Heartbeat(self, request: Any, answer: Any) -> Any:
        return groups_pb2.HeartbeatResponse()

    def _LeaveGroup(self, request: Any, answer: Any) -> Any:
        return groups_pb2.LeaveGroupResponse()


class Core:
    def __init__(self, coordinator: Coordinator, clock: Clock | None) -> None:
        self.control = coordinator
        self.clock = clock or SystemClock()
        self.options = ClientOptions(("localhost:1",), retry_backoff_ms=1, retry_backoff_max_ms=2)


class Member:
    """A `GroupMember` with what a consumer does around it."""

    def __init__(self, clock: Clock | None = None, **options: Any) -> None:
        self.coordinator = Coordinator()
        self.reads: frozenset[TopicPartition] = frozenset()
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []
        settings = GroupOptions(
            **{
                "group": "g",
                "instance_id": None,
                "assignors": ("cooperative-sticky",),
                "session_timeout_ms": 60_000,
                "heartbeat_interval_ms": 1,
                "max_poll_interval_ms": 600_000,
                "rack": "",
                **options,
            }
        )
        core: Any = Core(self.coordinator, clock)
        self.member = GroupMember(
            core,
            settings,
            topics=lambda: frozenset({"t"}),
            on_assigned=self._read,
            on_attention=lambda: self.coordinator.heard.set(),
        )

    def _read(self, partitions: frozenset[TopicPartition]) -> None:
        self.reads = partitions

    async def poll(self) -> None:
        """Go through the steps that are due, as a poll does."""
        while self.member.needs_step:
            change = self.member.step()
            if change is None:
                return
            self.told.append((change.kind.value, change.partitions))

    async def poll_until(self, condition: Callable[[], object]) -> None:
        for _ in range(5_000):
            await self.poll()
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError((self.told, self.member.state, self.coordinator.asked[-5:]))

    async def joined(self, *partitions: TopicPartition) -> None:
        self.coordinator.given = frozenset(partitions)
        await self.poll_until(lambda: self.reads == set(partitions) and not self.member.needs_step)

    def told_of(self, kind: ChangeKind) -> list[frozenset[TopicPartition]]:
        return [partitions for what, partitions in self.told if what == kind.value]


def run(test: Callable[[Member], Awaitable[None]], clock: Clock | None = None, **options: Any) -> None:
    async def main() -> None:
        member = Member(clock, **options)
        try:
            await test(member)
        finally:
            await member.member.close()
        assert len(asyncio.all_tasks()) == 1, "no task is left"

    asyncio.run(main())


def test_a_member_asks_for_its_id_joins_syncs_and_beats() -> None:
    async def test(m: Member) -> None:
        await m.joined(A, B)
        assert m.told == [("assigned", {A, B})]
        assert [name for name, _ in m.coordinator.asked[:3]] == ["JoinGroup", "JoinGroup", "SyncGroup"]
        assert m.coordinator.last("SyncGroup").assign
        await m.poll_until(lambda: m.coordinator.count("Heartbeat") >= 3)
        beat = m.coordinator.last("Heartbeat")
        assert (beat.member_id, beat.generation_id) == (m.member.membership.metadata.member_id, 1)
        assert m.member.membership.assigned == {A, B}

    run(test)


def test_a_heartbeat_that_breaks_is_raised_by_the_next_poll_and_heartbeats_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(m: Member) -> None:
        await m.joined(A)
        beats = m.coordinator.count("Heartbeat")
        heartbeat = m.coordinator._Heartbeat

        def broken(request: Any, answer: Any) -> Any:
            m.coordinator._Heartbeat = heartbeat  # type: ignore[method-assign]
            raise RuntimeError("planted")

        m.coordinator._Heartbeat = broken  # type: ignore[method-assign]
        with pytest.raises(FatalError, match=r"a heartbeat of group 'g' failed: RuntimeError\('planted'\)"):
            await m.poll_until(lambda: False)
        await m.poll_until(lambda: m.coordinator.count("Heartbeat") > beats + 3)
        assert m.told_of(ChangeKind.LOST) == []

    run(test)
    assert "a heartbeat failed group=g" in caplog.messages


def test_G2_what_a_cooperative_member_loses_goes_after_the_listener_and_what_it_gets_is_told_too() -> None:
    async def test(m: Member) -> None:
        await m.joined(A, B)
        m.coordinator.answer("SyncGroup", {A, C})
        m.coordinator.given = frozenset({A, C})
        m.coordinator.answer("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS)
        while (change := m.member.step()) is None or change.kind is not ChangeKind.REVOKED:
            await asyncio.sleep(0)
        assert change == AssignmentChange(ChangeKind.REVOKED, frozenset({B}))
        assert m.reads == {A, B}, "the listener may still commit for it"
        joins = m.coordinator.count("JoinGroup")
        assert m.member.step() == AssignmentChange(ChangeKind.ASSIGNED, frozenset({C}))
        assert m.reads == {A, C}
        await m.poll_until(lambda: m.coordinator.count("JoinGroup") > joins)
        owned = decode_subscription(m.coordinator.last("JoinGroup").protocols[0].metadata)
        assert set(owned.owned_partitions) == {A, C}, "joined again without what was revoked, so that it can move"
        assert owned.generation_id == 2

    run(test)


def test_G2_an_eager_member_gives_everything_up_before_it_joins() -> None:
    async def test(m: Member) -> None:
        await m.joined(A, B)
        m.member.request_rejoin()
        joins = m.coordinator.count("JoinGroup")
        assert m.member.step() == AssignmentChange(ChangeKind.REVOKED, frozenset({A, B}))
        assert m.reads == {A, B}
        assert m.coordinator.count("JoinGroup") == joins
        await m.joined(A)
        assert m.told[-1] == ("assigned", {A})

    run(test, assignors=("range",))


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("call", ["Heartbeat", "JoinGroup", "SyncGroup"])
def test_O4_a_member_that_was_given_up_loses_all_it_had(call: str, code: ErrorCode) -> None:
    """Also while it joins again: others may have had its partitions since, so what it knows of them is void."""

    async def test(m: Member) -> None:
        await m.joined(A, B)
        if call != "Heartbeat":
            m.member.request_rejoin()
        m.coordinator.answer(call, code)
        await m.poll_until(lambda: m.told_of(ChangeKind.LOST))
        assert m.told_of(ChangeKind.LOST) == [{A, B}]
        await m.joined(A, B)
        assert m.told_of(ChangeKind.ASSIGNED) == [{A, B}, {A, B}]

    run(test)


def test_a_sync_that_meets_the_next_rebalance_joins_again_and_keeps_what_it_has() -> None:
    async def test(m: Member) -> None:
        await m.joined(A, B)
        m.member.request_rejoin()
        m.coordinator.answer("SyncGroup", ErrorCode.REBALANCE_IN_PROGRESS)
        m.coordinator.given = frozenset({A, B})
        await m.poll_until(lambda: m.coordinator.count("SyncGroup") == 3 and not m.member.needs_step)
        assert m.told_of(ChangeKind.LOST) == m.told_of(ChangeKind.REVOKED) == []
        assert m.member.membership.metadata.generation_id == 3

    run(test)


def test_a_heartbeat_answer_to_an_older_self_is_no_news() -> None:
    """The answer to a beat of generation 1 arrives when generation 2 is joined."""

    async def test(m: Member) -> None:
        await m.joined(A)
        late = asyncio.Event()
        m.coordinator.answer("Heartbeat", late, ErrorCode.ILLEGAL_GENERATION)
        beats = m.coordinator.count("Heartbeat")
        await m.poll_until(lambda: m.coordinator.count("Heartbeat") > beats)
        m.member.request_rejoin()
        await m.poll_until(lambda: m.member.membership.metadata.generation_id == 2 and not m.member.needs_step)
        late.set()
        await m.poll_until(lambda: m.coordinator.count("Heartbeat") > beats + 2)
        assert m.told_of(ChangeKind.LOST) == []
        assert m.member.state is MemberState.STABLE

    run(test)


def test_trouble_with_the_coordinator_is_waited_out() -> None:
    async def test(m: Member) -> None:
        m.coordinator.answer("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
        m.coordinator.answer("SyncGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await m.joined(A)
        m.coordinator.answer("Heartbeat", *[ErrorCode.NETWORK_EXCEPTION] * 5)
        beats = m.coordinator.count("Heartbeat")
        await m.poll_until(lambda: m.coordinator.count("Heartbeat") > beats + 7)
        assert m.told == [("assigned", {A})]

    run(test)


def test_a_silence_longer_than_the_session_ends_the_membership() -> None:
    async def test(m: Member) -> None:
        await m.joined(A)
        m.coordinator.answer("Heartbeat", *[ErrorCode.NETWORK_EXCEPTION] * 10_000)
        await m.poll_until(lambda: m.told_of(ChangeKind.LOST) == [{A}])

    run(test, session_timeout_ms=30)


class _VirtualSelector(selectors.DefaultSelector):
    """Moves the clock where it would wait."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self._clock.advance(ms=math.ceil(timeout * 1000))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that lives in the time of a clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_VirtualSelector(clock))
        self.time = clock.monotonic  # type: ignore[method-assign]


def run_virtually(test: Callable[[Member, ManualClock], Awaitable[None]]) -> None:
    """Run with the intervals that consumers have by default, in virtual time."""
    clock = ManualClock()

    async def main() -> None:
        settings = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 3_000, "max_poll_interval_ms": 300_000}
        member = Member(clock, **settings)
        await test(member, clock)
        await member.member.close()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(main())


async def lost_at(m: Member, clock: ManualClock, *, polls: bool) -> float:
    """Return how many seconds later the member finds its membership lost."""
    since = clock.monotonic()
    while not m.member.is_lost:
        assert clock.monotonic() - since < 3_600, "it still counts as a member"
        if polls:
            m.member.polled_at = clock.monotonic()
        await asyncio.sleep(1)
    return clock.monotonic() - since


def test_a_session_without_an_answer_ends_by_the_clients_clock() -> None:
    async def test(m: Member, clock: ManualClock) -> None:
        await m.joined(A)
        m.coordinator.answer("Heartbeat", *[ErrorCode.NETWORK_EXCEPTION] * 10_000)
        assert 45 < await lost_at(m, clock, polls=True) <= 45 + 2 * 3

    run_virtually(test)


def test_a_member_that_does_not_poll_gives_up_by_the_clients_clock() -> None:
    async def test(m: Member, clock: ManualClock) -> None:
        await m.joined(A)
        assert 300 < await lost_at(m, clock, polls=False) <= 300 + 2 * 3

    run_virtually(test)


class CountedClock:
    """Counts how often the member looks at the time: once in each round of its heartbeats."""

    def __init__(self) -> None:
        self.looks = 0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        self.looks += 1
        return time.monotonic()

    async def rounds(self, count: int) -> None:
        begin = self.looks
        while self.looks < begin + count:
            await asyncio.sleep(0.001)


def test_a_member_that_does_not_poll_leaves_once_and_joins_when_it_polls() -> None:
    clock = CountedClock()

    async def test(m: Member) -> None:
        await m.joined(A)
        m.member.polled_at -= 1_000
        while not m.coordinator.count("LeaveGroup"):
            m.coordinator.heard.clear()
            await m.coordinator.heard.wait()
        beats = m.coordinator.count("Heartbeat")
        await clock.rounds(10)
        assert m.coordinator.count("LeaveGroup") == 1
        assert m.coordinator.count("Heartbeat") == beats, "who is no member does not beat"
        m.member.polled_at += 1_000
        await m.poll_until(lambda: len(m.told_of(ChangeKind.ASSIGNED)) == 2)
        assert m.told_of(ChangeKind.LOST) == [{A}]

    run(test, clock, max_poll_interval_ms=600_000)


def test_G4_a_static_member_that_does_not_poll_falls_silent_and_closes_without_leaving() -> None:
    async def test(m: Member) -> None:
        await m.joined(A)
        m.member.polled_at -= 1_000
        while m.member.state is MemberState.STABLE:
            await asyncio.sleep(0.001)
        m.member.polled_at += 1_000
        await m.poll_until(lambda: len(m.told_of(ChangeKind.ASSIGNED)) == 2)
        await m.member.close()
        assert m.coordinator.count("LeaveGroup") == 0
        assert {request.group_instance_id for name, request in m.coordinator.asked if name != "LeaveGroup"} == {"i"}

    run(test, instance_id="i")


@pytest.mark.parametrize("call", ["Heartbeat", "JoinGroup", "SyncGroup"])
def test_O4_a_fenced_member_says_so_at_every_poll_and_reads_nothing(call: str) -> None:
    async def test(m: Member) -> None:
        await m.joined(A)
        if call != "Heartbeat":
            m.member.request_rejoin()
        m.coordinator.answer(call, ErrorCode.FENCED_INSTANCE_ID)
        with pytest.raises(FencedError):
            await m.poll_until(lambda: False)
        m.coordinator.answer("JoinGroup", *[ErrorCode.FENCED_INSTANCE_ID] * 3)
        for _ in range(3):
            with pytest.raises(FencedError):
                await m.poll_until(lambda: False)
        assert m.told_of(ChangeKind.LOST) == [{A}]
        assert m.reads == set()
        assert m.member.fenced is not None

    run(test, instance_id="i")


def test_what_the_group_refuses_for_good_is_an_error_and_can_be_tried_again() -> None:
    async def test(m: Member) -> None:
        m.coordinator.answer("JoinGroup", ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(FatalError) as caught:
            await m.poll_until(lambda: False)
        assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        await m.joined(A)

    run(test)


def test_a_heartbeat_that_is_refused_for_good_is_an_error_of_poll() -> None:
    async def test(m: Member) -> None:
        await m.joined(A)
        m.coordinator.answer("Heartbeat", ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(FatalError):
            await m.poll_until(lambda: False)

    run(test)


def test_a_loss_that_comes_while_a_revocation_is_told_is_told_too() -> None:
    async def test(m: Member) -> None:
        await m.joined(A, B)
        m.coordinator.given = frozenset({A})
        m.member.request_rejoin()
        while (change := m.member.step()) is None:
            await asyncio.sleep(0)
        assert change == AssignmentChange(ChangeKind.REVOKED, frozenset({B}))
        m.coordinator.answer("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
        while not m.member.is_lost:
            await asyncio.sleep(0.001)
        assert m.member.step() == AssignmentChange(ChangeKind.LOST, frozenset({A}))
        assert m.reads == {A}
        await m.joined(A)

    run(test)


def test_a_rejoin_asked_for_while_joining_comes_after_it() -> None:
    async def test(m: Member) -> None:
        held = asyncio.Event()
        m.coordinator.answer("SyncGroup", held, {A})
        await m.poll_until(lambda: m.coordinator.count("SyncGroup") == 1)
        m.member.request_rejoin()
        await m.poll()
        m.coordinator.given = frozenset({A, B})
        held.set()
        await m.poll_until(lambda: m.reads == {A, B})
        assert m.told == [("assigned", {A}), ("assigned", {B})]

    run(test)


@pytest.mark.parametrize("held_call", ["JoinGroup", "SyncGroup"])
def test_close_while_joining_leaves_and_ends_all_tasks(held_call: str) -> None:
    async def test(m: Member) -> None:
        if held_call == "JoinGroup":
            m.coordinator.answer("JoinGroup", None)
        m.coordinator.answer(held_call, asyncio.Event())
        await m.poll_until(lambda: m.coordinator.count("JoinGroup") == 2)
        await m.member.close()
        assert m.coordinator.count("LeaveGroup") == 1
        assert m.coordinator.last("LeaveGroup").members[0].member_id

    run(test)


def test_a_coordinator_that_can_not_be_told_does_not_hold_up_the_close() -> None:
    async def test(m: Member) -> None:
        await m.joined(A)
        m.coordinator.answer("LeaveGroup", ErrorCode.NETWORK_EXCEPTION)
        await m.member.close()
        assert m.member.state is MemberState.CLOSED

    run(test)


def test_errors_are_of_the_kind_that_says_what_to_do() -> None:
    kinds: dict[ErrorCode, type[SemelError]] = {
        ErrorCode.REBALANCE_IN_PROGRESS: RetriableError,
        ErrorCode.FENCED_INSTANCE_ID: FencedError,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: FatalError,
    }
    for code, kind in kinds.items():
        assert isinstance(error_for(code, ""), kind)
