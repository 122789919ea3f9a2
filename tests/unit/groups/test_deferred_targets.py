"""S3: the assignment of a large consumer group is computed beside the loop, and is written once it is there (KIP-1263).

Meanwhile members keep what they have, and members join, leave and are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from consumer_member import Member, partitions, topics
from group_driver import GroupDriver, assignment, compacted, replayed, subscription
from held_executor import HeldExecutor
from memory_log import MemoryLog
from ready_topic import topic_is_ready

from semel.group_coordinator.assignor import sticky
from semel.group_coordinator.assignor.subscription import MemberSubscription
from semel.group_coordinator.computations import PAUSE_FACTOR, Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.deferred_targets import Targets
from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.topics import Topics
from semel.group_coordinator.coordinator import GroupCoordinator
from semel.group_coordinator.records.consumer_state import ConsumerGroupState
from semel.protocol.api.consumer_groups import NO_PARTITIONS, ConsumerGroupHeartbeatResponse
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupRequest,
)
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from semel.protocol.consumer_protocol import decode_assignment
from semel.protocol.errors import ErrorCode, SemelError
from semel.runtime.clock import ManualClock

GROUP = "g"
COUNT = 8
ALL = partitions("orders", *range(COUNT))
PAUSE_MS = 1_000


def config_with(**changes: Any) -> GroupConfig:
    return replace(GroupConfig(group_assigned_at_once_max=COUNT), **changes)


def driver_with(config: GroupConfig | None = None, **counts: int) -> GroupDriver:
    return GroupDriver(config or config_with(), topics=topics(**(counts or {"orders": COUNT})))


def beat(driver: GroupDriver, member: Member) -> ConsumerGroupHeartbeatResponse:
    """One heartbeat whose answer is worked off at once; what is due by then is done."""
    ticket = driver.call(member.request())
    driver.run_due()
    member.answered(driver.answers[ticket])
    member.reconcile()
    answer = driver.result(ticket)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def assigned_group(*members: Member, config: GroupConfig | None = None, **counts: int) -> GroupDriver:
    """A large group in which everybody has what it is to have, and whose pause is over."""
    driver = driver_with(config, **counts)
    for _ in range(4):
        for member in members:
            beat(driver, member)
        driver.compute_all()
        driver.advance(PAUSE_MS)
    for _ in range(3):
        for member in members:
            beat(driver, member)
    assert group_of(driver).state is ConsumerGroupState.STABLE
    assert not driver.computations
    return driver


def group_of(driver: GroupDriver) -> ConsumerGroupData:
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    return group


def check_replay(driver: GroupDriver) -> None:
    state = driver.machine.durable_state()
    assert replayed(driver.log, driver.config).durable_state() == state
    assert replayed(compacted(driver.log), driver.config).durable_state() == state


# --- When -------------------------------------------------------------------------------------------------------------


def test_S3_a_large_group_is_assigned_beside_the_loop() -> None:
    driver, member = driver_with(), Member("m-1", GROUP)
    # A member is given an epoch above that of a join, so a group begins with an empty target, as in Kafka.
    assert beat(driver, member) == ConsumerGroupHeartbeatResponse("m-1", 1, 5_000, NO_PARTITIONS)
    assert (group_of(driver).epoch, group_of(driver).target_epoch) == (2, 1)
    assert len(driver.computations) == 1
    check_replay(driver)
    driver.compute()
    assert (group_of(driver).epoch, group_of(driver).target_epoch) == (2, 2)
    assert beat(driver, member) == ConsumerGroupHeartbeatResponse("m-1", 2, 5_000, ALL)
    check_replay(driver)


def test_S3_a_small_group_is_assigned_at_once() -> None:
    """Eight count here: a member, a subscription, and six partitions."""
    driver, member = driver_with(orders=6), Member("m-1", GROUP)
    assert beat(driver, member) == ConsumerGroupHeartbeatResponse("m-1", 1, 5_000, partitions("orders", *range(6)))
    assert not driver.computations


def test_S3_topics_that_an_expression_matches_count_for_each_member() -> None:
    """A member, three matches, three partitions; then four of each."""
    driver = driver_with(a=1, b=1, c=1)
    assert beat(driver, Member("m-1", GROUP, None, "[a-d]")).assignment
    assert not driver.computations
    driver = driver_with(a=1, b=1, c=1, d=1)
    beat(driver, Member("m-1", GROUP, None, "[a-d]"))
    assert len(driver.computations) == 1


def test_S3_without_the_setting_every_group_is_assigned_at_once() -> None:
    driver, member = driver_with(config_with(group_consumer_assignor_offload_enable=False)), Member("m-1", GROUP)
    assert beat(driver, member).assignment == ALL
    assert not driver.computations


def test_S3_a_small_group_whose_assignment_takes_too_long_is_assigned_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sticky, "EFFORT_AT_ONCE_MAX", 1)
    driver = driver_with(GroupConfig(), a=4, b=4)
    first, second = Member("m-1", GROUP, ("a", "b")), Member("m-2", GROUP, ("b",))
    assert beat(driver, first).member_epoch == 1
    assert beat(driver, second) == ConsumerGroupHeartbeatResponse("m-2", 1, 5_000, NO_PARTITIONS)
    assert len(driver.computations) == 1
    tried = []
    monkeypatch.setattr(sticky, "assign_at_once", lambda *_: tried.append(1))
    beat(driver, second)
    assert not tried  # what was found to be costly is not tried again while it is computed
    driver.compute()
    for _ in range(3):
        beat(driver, first)
        beat(driver, second)
    assert (len(first.held), len(second.held)) == (4, 4)


def test_S3_the_search_ends_at_its_bound_and_gives_the_same_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [MemberSubscription(f"m{n}", frozenset({"a", "b"} if n % 2 else {"b"})) for n in range(10)]
    counts = {"a": 20, "b": 25}
    assert sticky.assign_at_once(members, counts) == sticky.assign(members, counts)
    for bound in range(1, 200):
        monkeypatch.setattr(sticky, "EFFORT_AT_ONCE_MAX", bound)
        assert sticky.assign_at_once(members, counts) in (None, sticky.assign(members, counts))
    monkeypatch.setattr(sticky, "EFFORT_AT_ONCE_MAX", 1)
    assert sticky.assign_at_once(members, counts) is None


def test_S3_one_assignment_of_a_group_is_computed_at_a_time_and_then_it_pauses() -> None:
    members = [Member(f"m-{number}", GROUP) for number in range(4)]
    driver = driver_with()
    for member in members:
        beat(driver, member)
    assert len(driver.computations) == 1
    driver.compute(took_ms=PAUSE_MS)
    # The epoch moved on meanwhile: what is next is for all of that together.
    assert (group_of(driver).epoch, group_of(driver).target_epoch) == (5, 2)
    for member in members:
        beat(driver, member)
    driver.advance(PAUSE_FACTOR * PAUSE_MS - 1)
    assert not driver.computations
    driver.advance(1)
    assert [each.epoch for each in driver.computations] == [5]
    driver.compute()
    for _ in range(3):
        for member in members:
            beat(driver, member)
    assert {len(member.held) for member in members} == {COUNT // 4}
    # A short one is followed by the interval that is configured.
    driver.call(members[3].leave_request())
    beat(driver, members[0])
    driver.advance(PAUSE_MS - 1)
    assert not driver.computations
    driver.advance(1)
    assert len(driver.computations) == 1


def test_S3_a_computation_that_fails_is_tried_again_after_the_pause() -> None:
    driver, member = driver_with(), Member("m-1", GROUP)
    beat(driver, member)
    driver.compute(fails=True)
    assert group_of(driver).target_epoch == 1
    assert not driver.computations
    driver.advance(PAUSE_MS)
    driver.compute()
    assert beat(driver, member).assignment == ALL


def test_S3_after_a_restart_the_next_heartbeat_has_the_target_computed() -> None:
    driver, member = driver_with(), Member("m-1", GROUP)
    beat(driver, member)
    driver.reload()
    driver.run_due()
    late = driver.computations.pop()
    assert not driver.computations
    assert beat(driver, member).member_epoch == 1
    assert len(driver.computations) == 1
    # What the machine before had computed is none of this one's, even if the epoch is the same.
    driver.ask(Computed(late, late.work()))
    assert group_of(driver).target_epoch == 1
    driver.compute()
    assert beat(driver, member).assignment == ALL


# --- Meanwhile --------------------------------------------------------------------------------------------------------


def test_S3_meanwhile_members_keep_their_epoch_and_what_they_have() -> None:
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    driver = assigned_group(first)
    epoch = first.epoch
    assert beat(driver, second) == ConsumerGroupHeartbeatResponse("m-2", epoch, 5_000, NO_PARTITIONS)
    assert beat(driver, first) == ConsumerGroupHeartbeatResponse("m-1", epoch, 5_000, None)
    assert group_of(driver).state is ConsumerGroupState.ASSIGNING
    driver.compute()
    assert beat(driver, first).assignment == first.held
    assert len(first.held) == COUNT // 2
    beat(driver, first)
    assert beat(driver, second).assignment == ALL - first.held
    assert (first.epoch, second.epoch) == (epoch + 1, epoch + 1)


def test_S3_who_left_meanwhile_has_no_target_and_who_came_waits_for_the_next_one() -> None:
    first, second, third = (Member(f"m-{number}", GROUP) for number in (1, 2, 3))
    driver = assigned_group(first, second)
    driver.topics = topics(orders=COUNT * 2)
    beat(driver, first)
    driver.call(second.leave_request())
    beat(driver, third)
    driver.compute()
    group = group_of(driver)
    assert set(group.targets) <= {"m-1", "m-3"}
    assert len(group.target("m-1")) == COUNT
    assert group.target("m-3") == NO_PARTITIONS
    driver.advance(PAUSE_MS)
    driver.compute()
    assert group.target("m-1") | group.target("m-3") == partitions("orders", *range(COUNT * 2))
    check_replay(driver)


def test_S3_G4_a_static_member_that_returns_meanwhile_has_what_the_one_before_was_to_have() -> None:
    first, other = Member("m-1", GROUP, instance="i-1"), Member("m-2", GROUP)
    driver = assigned_group(first)
    beat(driver, other)
    driver.call(first.leave_request(will_be_back=True))
    again = Member("m-3", GROUP, instance="i-1")
    beat(driver, again)
    driver.compute()
    group = group_of(driver)
    assert group.epoch == group.target_epoch  # nothing else will be computed
    assert group.target("m-3") | group.target("m-2") == ALL
    assert len(group.target("m-3")) == COUNT // 2
    check_replay(driver)


def test_S3_nobody_is_given_topics_that_it_unsubscribed_from_meanwhile() -> None:
    first, second = Member("m-1", GROUP, ("orders", "more")), Member("m-2", GROUP, ("orders", "more"))
    driver = assigned_group(first, orders=4, more=4)
    beat(driver, second)
    computed = driver.computations[0].work().targets["m-2"]
    assert computed == partitions("orders", *range(4))
    second.names = ("more",)
    second.lost()
    beat(driver, second)
    driver.compute()
    assert group_of(driver).target("m-2") == NO_PARTITIONS
    driver.advance(PAUSE_MS)
    driver.compute()
    assert group_of(driver).target("m-2") == partitions("more", *range(4))


def test_S3_a_group_that_became_small_is_assigned_at_once_and_the_late_target_is_dropped() -> None:
    members = [Member(f"m-{number}", GROUP) for number in range(4)]
    driver = assigned_group(*members, orders=4)
    for member in members[1:3]:
        driver.call(member.leave_request())
    driver.topics = topics(orders=5)
    beat(driver, members[0])
    assert len(driver.computations) == 1  # two members, two subscriptions, five partitions
    driver.call(members[3].leave_request())
    beat(driver, members[0])
    group = group_of(driver)
    assert group.target_epoch == group.epoch
    before = group.snapshot()
    driver.compute()
    assert group_of(driver).snapshot() == before
    assert group.target("m-0") == partitions("orders", *range(5))


def test_S3_the_result_for_a_group_that_was_deleted_and_made_again_is_dropped() -> None:
    driver, member = driver_with(), Member("m-1", GROUP)
    beat(driver, member)
    driver.call(member.leave_request())
    driver.ask(DeleteGroupRequest(GROUP))
    driver.compute()  # while there is no such group
    beat(driver, member)
    driver.call(member.leave_request())
    driver.ask(DeleteGroupRequest(GROUP))
    beat(driver, Member("m-2", GROUP))
    late, mine = driver.computations
    assert late.epoch == mine.epoch
    driver.compute()
    assert group_of(driver).target_epoch == 1
    driver.compute()
    assert group_of(driver).target("m-2") == ALL


def test_S3_a_target_that_cannot_be_stored_is_refused_until_the_group_changes() -> None:
    member = Member("m-1", GROUP)
    driver = driver_with(config_with(group_records_max_bytes=1_000), orders=300)
    beat(driver, member)
    driver.compute()
    with pytest.raises(SemelError, match="more than the 1000 that a group may store at once") as caught:
        driver.ask(member.request())
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    driver.advance(PAUSE_MS)
    assert not driver.computations
    driver.topics = topics(orders=COUNT)
    member.lost()
    beat(driver, member)
    driver.compute()
    assert beat(driver, member).assignment == ALL


def test_S3_the_target_is_written_in_one_batch() -> None:
    members = [Member(f"m-{number}", GROUP) for number in range(6)]
    driver = driver_with()
    for member in members:
        beat(driver, member)
    driver.advance(PAUSE_MS)
    driver.compute()
    driver.advance(PAUSE_MS)
    batches = len(driver.batches)
    driver.compute()
    assert driver.batches[batches:] == [len(members) + 1]


def test_S3_classic_members_are_not_told_to_join_again_while_a_target_is_computed() -> None:
    newer = Member("m-1", GROUP)
    driver = assigned_group(newer)
    joined = driver.ask(driver.join_request("m-2", group=GROUP, protocols={"range": subscription("orders")}))
    driver.run_due()
    assert len(driver.computations) == 1
    heartbeat = HeartbeatRequest(GROUP, joined.generation_id, "m-2", None)
    sync = SyncGroupRequest(GROUP, joined.generation_id, "m-2", None, {}, "consumer", "range")
    assert decode_assignment(driver.ask(sync).assignment).partitions == ()
    assert driver.ask(heartbeat) == HeartbeatResponse()
    driver.compute()
    assert driver.refusal(heartbeat) is ErrorCode.REBALANCE_IN_PROGRESS


# Classic groups whose leader leaves the assignment to the coordinator

COUNTS = {"orders": COUNT}


def classic_pair(**changes: Any) -> tuple[GroupDriver, JoinGroupResponse, JoinGroupResponse]:
    """Two members that have joined, the leader first."""
    driver = GroupDriver(config_with(**changes))
    [first] = driver.stable_group()
    _, ticket = driver.begin_join()
    return driver, driver.joined(driver.call(driver.join_request(first.member_id))), driver.joined(ticket)


def test_S3_a_large_classic_group_is_assigned_beside_the_loop() -> None:
    driver, leader, follower = classic_pair()
    tickets = [driver.sync(follower), driver.sync(leader, partition_counts=COUNTS)]
    assert len(driver.computations) == 1
    assert all(driver.is_waiting(ticket) for ticket in tickets)
    # The leader asks again, since its connection was lost: the same assignment is for both calls.
    again = driver.sync(leader, partition_counts=COUNTS)
    assert driver.code(tickets[1]) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(driver.computations) == 1
    driver.compute()
    given = [decode_assignment(driver.synced(ticket)).partitions for ticket in (tickets[0], again)]
    assert sorted(number for each in given for _, number in each) == list(range(COUNT))
    check_replay(driver)


def test_S3_a_small_classic_group_is_assigned_at_once() -> None:
    driver, leader, follower = classic_pair(group_assigned_at_once_max=2_000)
    driver.sync(follower)
    assert decode_assignment(driver.synced(driver.sync(leader, partition_counts=COUNTS))).partitions
    assert not driver.computations


def test_S3_the_assignment_of_a_classic_generation_that_is_over_is_dropped() -> None:
    driver, leader, follower = classic_pair()
    ticket = driver.sync(leader, partition_counts=COUNTS)
    driver.ask(driver.leave(follower.member_id))
    assert driver.code(ticket) is ErrorCode.REBALANCE_IN_PROGRESS
    leader = driver.joined(driver.call(driver.join_request(leader.member_id)))
    driver.compute()  # while the leader has yet to sync
    ticket = driver.sync(leader, partition_counts=COUNTS)
    assert driver.is_waiting(ticket)
    driver.compute()
    assert len(decode_assignment(driver.synced(ticket)).partitions) == COUNT
    check_replay(driver)


def test_S3_what_a_classic_leader_assigns_itself_counts_against_what_is_still_computed() -> None:
    driver, leader, follower = classic_pair()
    driver.sync(leader, partition_counts=COUNTS)
    ticket = driver.sync(leader, {leader.member_id: assignment(3)})
    assert driver.synced(ticket) == assignment(3)
    driver.compute()
    assert driver.synced(driver.sync(follower)) == b""


def test_S3_a_classic_assignment_that_cannot_be_computed_is_refused() -> None:
    driver, leader, _ = classic_pair()
    ticket = driver.sync(leader, partition_counts=COUNTS)
    driver.compute(fails=True)
    assert driver.code(ticket) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = driver.sync(leader, partition_counts=COUNTS)
    driver.compute()
    assert decode_assignment(driver.synced(again)).partitions


# --- The shell --------------------------------------------------------------------------------------------------------


class NoTransactions:
    """A transaction coordinator that nobody asks."""

    async def add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        raise AssertionError(request)

    async def verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        raise AssertionError(request)


class World:
    """The service over a log in memory, with threads that run when the test says so."""

    def __init__(self) -> None:
        self.logs = {number: MemoryLog() for number in range(3)}
        self.executor = HeldExecutor()
        self.topics: Topics = topics(orders=COUNT)
        self.service = GroupCoordinator(
            partition_count=lambda: 3,
            open_log=self.logs.__getitem__,
            topic_ready=topic_is_ready,
            transactions=NoTransactions(),
            clock=ManualClock(),
            config=config_with(group_consumer_assignment_interval_ms=0),
            topics=lambda: self.topics,
            executor=self.executor,
        )

    async def load(self) -> GroupCoordinator:
        for number in self.logs:
            await self.service.load(number, 0)
        return self.service

    async def beat(self, member: Member) -> None:
        member.answered(await self.service.consumer_heartbeat(member.request()))
        member.reconcile()

    async def held(self, count: int) -> None:
        """See that so many computations have been begun, and no more."""
        await settled()
        assert len(self.executor.held) == count


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_S3_the_shell_computes_in_a_thread_and_answers_meanwhile() -> None:
    async def test() -> None:
        world = World()
        await world.load()
        first, second = Member("m-1", GROUP), Member("m-2", GROUP)
        await world.beat(first)
        await world.held(1)
        await world.beat(second)
        await world.beat(first)
        assert not first.held
        await world.held(1)
        world.executor.run()
        await world.held(1)
        await world.beat(first)
        assert first.held == ALL
        world.executor.run()
        await settled()
        for _ in range(3):
            await world.beat(first)
            await world.beat(second)
        assert first.held | second.held == ALL
        assert not first.held & second.held
        world.service.close()

    run(test())


def test_S3_the_assignments_of_all_groups_are_computed_one_after_the_other() -> None:
    async def test() -> None:
        world = World()
        await world.load()
        members = [Member("m-1", f"g-{number}") for number in range(6)]
        await asyncio.gather(*(world.beat(member) for member in members))
        for _ in members:
            await world.held(1)
            world.executor.run()
        await world.held(0)
        await asyncio.gather(*(world.beat(member) for member in members))
        assert all(member.held == ALL for member in members)
        world.service.close()

    run(test())


@pytest.mark.parametrize("comes_back", [False, True])
def test_S3_what_is_computed_for_a_coordinator_that_moved_is_dropped(comes_back: bool) -> None:
    async def test() -> None:
        world = World()
        service = await world.load()
        member = Member("m-1", GROUP)
        await world.beat(member)
        await world.held(1)
        partition = service.offsets_partition(GROUP).partition
        service.unload(partition)
        if comes_back:
            await service.load(partition, 1)
        size = world.logs[partition].log_end_offset
        world.executor.run()
        await settled()
        assert world.logs[partition].log_end_offset == size
        if comes_back:
            await world.beat(member)
            await world.held(1)
            world.executor.run()
            await settled()
            await world.beat(member)
            assert member.held == ALL
        service.close()

    run(test())


def test_S3_an_assignment_that_cannot_be_computed_is_tried_again() -> None:
    async def test() -> None:
        world = World()
        await world.load()
        member = Member("m-1", GROUP)
        await world.beat(member)
        await world.held(1)
        world.executor.drop(MemoryError())
        await world.held(1)
        world.executor.run()
        await settled()
        await world.beat(member)
        assert member.held == ALL
        world.service.close()

    run(test())


def test_S3_a_result_is_taken_as_it_was_computed() -> None:
    """What did not change has no record, and is known for it without being compared again."""
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    driver = assigned_group(first, second)
    driver.topics = topics(orders=COUNT + 1)
    beat(driver, first)
    found = driver.computations[0].work()
    assert isinstance(found, Targets)
    (changed,) = found.records
    (other,) = {"m-1", "m-2"} - {changed}
    assert found.targets[other] is group_of(driver).targets[other]
    batches = len(driver.batches)
    driver.compute()
    assert driver.batches[batches:] == [2]
