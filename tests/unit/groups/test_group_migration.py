"""Groups that move between the classic protocol and that of consumer groups, empty or at work (KIP-848)."""

from __future__ import annotations

import pytest
from consumer_member import Member, partitions, topics
from group_driver import GroupDriver, assignment, commit, compacted, fetch, replayed, subscription

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from semel.protocol.consumer_protocol import decode_assignment
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import Ticket

GROUP = "enrich"
PARTITIONS = {TopicPartition("orders", number) for number in range(4)}
NAMES = {TopicPartition("orders", number): partitions("orders", number) for number in range(4)}


class Classic:
    """A cooperative consumer of the classic protocol, as it should be."""

    def __init__(
        self, driver: GroupDriver, *, instance: str | None = None, protocol: str = "cooperative-sticky"
    ) -> None:
        self.driver = driver
        self.instance = instance
        self.protocol = protocol
        self.member_id = ""
        self.generation = -1
        self.held: set[TopicPartition] = set()
        self.ticket: Ticket | None = None

    def join(self) -> None:
        if not self.member_id and self.instance is None:
            self.member_id = self.driver.get_member_id(**self._offer())
        request = self.driver.join_request(self.member_id, instance=self.instance, **self._offer())
        self.ticket = self.driver.call(request)

    def _offer(self) -> dict[str, object]:
        said = subscription("orders", owned=self.held, generation=self.generation)
        return {"protocols": {self.protocol: said}}

    def finish(self) -> None:
        """Take the answer of the join, and sync."""
        assert self.ticket is not None
        response = self.driver.result(self.ticket)
        assert isinstance(response, JoinGroupResponse)
        self.member_id, self.generation = response.member_id, response.generation_id
        leads = response.leader_id == self.member_id
        synced = self.driver.ask(
            SyncGroupRequest(
                GROUP,
                self.generation,
                self.member_id,
                self.instance,
                {},
                "consumer",
                self.protocol,
                {"orders": 4} if leads else None,
            )
        )
        given = set(decode_assignment(synced.assignment).partitions)
        lost, self.held = self.held - given, given
        if lost:
            self.round()

    def round(self) -> None:
        self.join()
        self.finish()

    def beat(self) -> None:
        """One heartbeat, and all that follows from its answer."""
        answer = self.driver.answers[self.driver.call(self.heartbeat())]
        if isinstance(answer, SemelError):
            assert answer.code is ErrorCode.REBALANCE_IN_PROGRESS, answer
            self.round()

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance)

    def leave(self) -> LeaveGroupRequest:
        return LeaveGroupRequest(GROUP, (MemberIdentity(self.member_id),))


def beat(driver: GroupDriver, member: Member) -> None:
    member.answered(driver.answers[driver.call(member.request())])
    member.reconcile()


def check_replay(driver: GroupDriver) -> None:
    state = driver.machine.durable_state()
    assert replayed(driver.log, driver.config).durable_state() == state
    assert replayed(compacted(driver.log, keep_tombstones=False), driver.config).durable_state() == state


def ids(held: set[TopicPartition]) -> frozenset[object]:
    return frozenset(partition for name in held for partition in NAMES[name])


def upgraded(**config: object) -> tuple[GroupDriver, Classic, Member]:
    """A group of a classic member and one of the newer protocol."""
    driver = GroupDriver(GroupConfig(**config), topics=topics(orders=4))  # type: ignore[arg-type]
    classic, member = Classic(driver), Member("m-1", GROUP)
    classic.round()
    assert classic.held == PARTITIONS
    for _ in range(4):
        beat(driver, member)
        classic.beat()
    return driver, classic, member


def test_a_classic_group_becomes_a_consumer_group_when_a_newer_member_joins() -> None:
    driver, classic, member = upgraded()
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    assert driver.machine.group(GROUP) is None
    assert len(classic.held) == len(member.held) == 2
    assert ids(classic.held) | member.held == partitions("orders", 0, 1, 2, 3)
    assert group.state.value == "Stable"
    check_replay(driver)


def test_G2_the_newer_member_gets_a_partition_only_once_the_classic_one_gave_it_up() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    classic, member = Classic(driver), Member("m-1", GROUP)
    classic.round()
    beat(driver, member)
    beat(driver, member)
    assert member.held == frozenset()
    with pytest.raises(SemelError) as error:
        driver.ask(classic.heartbeat())
    assert error.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    beat(driver, member)
    assert member.held == frozenset()
    classic.round()
    beat(driver, member)
    assert len(member.held) == 2
    assert not ids(classic.held) & member.held


def test_G2_what_a_member_has_yet_to_give_up_stays_its_own_through_the_move() -> None:
    """The leader took a partition from a member that has not synced, so does not know it, when the group moves up."""
    driver = GroupDriver(topics=topics(orders=4))
    plain = {"cooperative-sticky": subscription("orders")}
    leader, ticket = driver.begin_join(protocols=plain)
    driver.synced(driver.sync(driver.joined(ticket), {leader: assignment()}))
    owning = {"cooperative-sticky": subscription("orders", owned=[TopicPartition("orders", 0)], generation=0)}
    owner, ticket = driver.begin_join(protocols=owning)
    again = driver.call(driver.join_request(leader, protocols=plain))
    given = {leader: assignment(1), owner: assignment(2)}
    driver.synced(driver.sync(driver.joined(again), given))
    assert driver.joined(ticket).generation_id == 2
    # In the order of ids it comes before the others, so that what is free is its own.
    newer = Member("a-1", GROUP)
    beat(driver, newer)
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    assert partitions("orders", 0) <= group.currents[owner].held
    assert newer.held == partitions("orders", 3)


def test_offsets_survive_both_moves() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    classic, member = Classic(driver), Member("m-1", GROUP)
    classic.round()
    first = TopicPartition("orders", 0)
    driver.ask(commit({first: 5}, generation=classic.generation, member_id=classic.member_id))
    for _ in range(4):
        beat(driver, member)
        classic.beat()
    assert driver.ask(fetch(first)).offsets[first].offset == 5
    commit_by = commit({first: 6}, generation=classic.generation, member_id=classic.member_id)
    assert driver.ask(commit_by).errors == {first: ErrorCode.NONE}
    assert driver.refusal(commit({first: 7}, generation=1, member_id=classic.member_id)) is ErrorCode.ILLEGAL_GENERATION
    driver.ask(member.leave_request())
    driver.run_due()
    assert driver.machine.consumer_group(GROUP) is None
    assert driver.ask(fetch(first)).offsets[first].offset == 6
    check_replay(driver)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_consumer_group_becomes_a_classic_one_when_its_last_newer_member_leaves(restarts: bool) -> None:
    driver, classic, member = upgraded()
    driver.ask(member.leave_request())
    if restarts:
        driver.reload()
    driver.run_due()
    if restarts:
        driver.reload(compacted(driver.log, keep_tombstones=False))
    group = driver.machine.group(GROUP)
    assert driver.machine.consumer_group(GROUP) is None
    assert group is not None
    assert group.state is GroupState.PREPARING_REBALANCE
    # It continues in the generation that it knows: one that it does not know would make it a stranger.
    assert driver.refusal(classic.heartbeat()) is ErrorCode.REBALANCE_IN_PROGRESS
    classic.round()
    assert group.state is GroupState.STABLE
    assert classic.held == PARTITIONS
    check_replay(driver)


def test_S2_a_group_that_moves_gives_back_what_it_held_by_the_other_protocol() -> None:
    driver, classic, member = upgraded()
    machine = driver.machine
    newer = machine.consumer_group(GROUP)
    assert newer is not None
    assert machine.held.members == newer.held_bytes == sum(newer.bytes_of(each) for each in newer.details)
    driver.ask(member.leave_request())
    driver.run_due()
    group = machine.group(GROUP)
    assert group is not None
    assert machine.held.members == group.held_bytes
    classic.round()
    driver.ask(classic.leave())
    driver.call(member.request())
    driver.ask(member.leave_request())
    driver.get_member_id()
    group = machine.group(GROUP)
    assert group is not None
    assert machine.held.members == group.held_bytes
    # The log knows nothing of this classic group, so no tombstone ends it.
    driver.ask(member.request())
    newer = machine.consumer_group(GROUP)
    assert newer is not None
    assert machine.held.members == newer.held_bytes


def test_the_last_newer_member_that_falls_silent_moves_the_group_back_too() -> None:
    driver, classic, member = upgraded()
    for _ in range(10):
        driver.advance(5_000)
        answer = driver.answers[driver.call(classic.heartbeat())]
        if isinstance(answer, SemelError):
            break
    assert driver.machine.consumer_group(GROUP) is None
    assert driver.refusal(member.request()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_policy_keeps_groups_where_they_are() -> None:
    driver = GroupDriver(GroupConfig(group_consumer_migration_policy="downgrade"), topics=topics(orders=4))
    classic, member = Classic(driver), Member("m-1", GROUP)
    classic.round()
    assert driver.refusal(member.request()) is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.machine.consumer_group(GROUP) is None
    classic.beat()

    driver, classic, member = upgraded(group_consumer_migration_policy="upgrade")
    driver.ask(member.leave_request())
    driver.run_due()
    assert driver.machine.consumer_group(GROUP) is not None
    for _ in range(3):
        classic.beat()
    assert classic.held == PARTITIONS


def test_a_group_that_is_not_of_consumers_stays_classic() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    driver.stable_group(protocol_type="connect")
    assert driver.refusal(Member("m-1", GROUP).request()) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_refused_join_leaves_the_classic_group_as_it_was() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    classic = Classic(driver)
    classic.round()
    records = len(driver.log)
    refused = Member("m-1", GROUP, assignor="mine").request()
    assert driver.refusal(refused) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert len(driver.log) == records
    classic.beat()


def test_members_that_wait_for_a_rebalance_join_the_consumer_group() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    first, second, member = Classic(driver), Classic(driver), Member("m-1", GROUP)
    first.round()
    second.join()
    assert second.ticket is not None
    assert driver.is_waiting(second.ticket)
    beat(driver, member)
    assert driver.code(second.ticket) is ErrorCode.REBALANCE_IN_PROGRESS
    second.round()
    for _ in range(6):
        beat(driver, member)
        first.beat()
        second.beat()
    assert ids(first.held) | ids(second.held) | member.held == partitions("orders", 0, 1, 2, 3)
    assert len(first.held) + len(second.held) + len(member.held) == 4
    driver.advance(9_000)
    assert len(driver.machine.consumer_group(GROUP).details) == 3  # type: ignore[union-attr]
    check_replay(driver)


def test_an_eager_member_joins_a_consumer_group() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    member, classic = Member("m-1", GROUP), Classic(driver, protocol="range")
    beat(driver, member)
    classic.round()
    for _ in range(4):
        beat(driver, member)
        answer = driver.answers[driver.call(classic.heartbeat())]
        if isinstance(answer, SemelError):
            classic.held.clear()
            classic.round()
    assert len(classic.held) == len(member.held) == 2
    other = Classic(driver, protocol="roundrobin")
    with pytest.raises(SemelError) as error:
        other.join()
    assert error.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_eager_member_that_names_no_generation_is_believed_to_hold_nothing() -> None:
    """librdkafka's eager members never name one: they were told to join again without end."""
    driver = GroupDriver(topics=topics(orders=4))
    member, classic = Member("m-1", GROUP), Classic(driver, protocol="range")
    classic.round()
    for _ in range(4):
        beat(driver, member)
        if isinstance(driver.answers[driver.call(classic.heartbeat())], SemelError):
            classic.held, generation = set(), classic.generation
            classic.generation = -1
            classic.round()
            assert classic.generation >= generation
    assert len(classic.held) == len(member.held) == 2
    classic.beat()


def test_G2_a_late_join_of_an_older_generation_gives_nothing_up() -> None:
    driver, classic, member = upgraded()
    held, epoch = ids(classic.held), classic.generation
    late = driver.join_request(
        classic.member_id, protocols={"cooperative-sticky": subscription("orders", generation=epoch - 1)}
    )
    others = [Member(f"m-{number}", GROUP) for number in (2, 3)]
    for other in others:
        beat(driver, other)
    driver.call(late)
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    assert group.currents[classic.member_id].held == held
    for _ in range(6):
        classic.beat()
        for each in (member, *others):
            beat(driver, each)
    assert len(classic.held) == 1


def test_a_classic_member_of_a_consumer_group_is_removed_when_it_does_not_join_or_sync() -> None:
    driver, classic, _member = upgraded(group_consumer_session_timeout_ms=600_000)
    other = Member("m-2", GROUP)
    beat(driver, other)
    for _ in range(13):
        driver.advance(5_000)
        driver.call(classic.heartbeat())
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    assert classic.member_id not in group.details

    driver, classic, _member = upgraded(group_consumer_session_timeout_ms=600_000)
    beat(driver, Member("m-2", GROUP))
    classic.join()
    response = driver.result(classic.ticket)  # type: ignore[arg-type]
    classic.generation = response.generation_id
    for _ in range(13):
        driver.advance(5_000)
        driver.call(classic.heartbeat())
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    assert classic.member_id not in group.details


def test_G2_a_removed_classic_member_that_still_holds_something_must_lose_it_first() -> None:
    driver, classic, member = upgraded()
    for _ in range(3):
        driver.advance(5_000)
        beat(driver, member)
    assert len(member.held) == 4
    assert classic.held
    with pytest.raises(SemelError) as error:
        classic.round()
    assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    classic.held, classic.generation, classic.member_id = set(), -1, ""
    classic.round()
    assert classic.held == set()


def test_a_classic_member_leaves_a_consumer_group() -> None:
    driver, classic, member = upgraded()
    assert driver.ask(classic.leave()).errors == (ErrorCode.NONE,)
    for _ in range(3):
        beat(driver, member)
    assert len(member.held) == 4
    assert driver.ask(classic.leave()).errors == (ErrorCode.UNKNOWN_MEMBER_ID,)
    by_newer = LeaveGroupRequest(GROUP, (MemberIdentity("m-1"),))
    assert driver.ask(by_newer).errors == (ErrorCode.UNKNOWN_MEMBER_ID,)
    check_replay(driver)


def test_a_static_member_moves_to_the_newer_protocol_with_its_partitions() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    classic = Classic(driver, instance="i-1")
    classic.round()
    other = Member("m-2", GROUP)
    for _ in range(4):
        beat(driver, other)
        classic.beat()
    held = ids(classic.held)
    newer = Member("m-1", GROUP, instance="i-1")
    beat(driver, newer)
    assert newer.held == held
    assert driver.refusal(classic.heartbeat()) is ErrorCode.FENCED_INSTANCE_ID
    check_replay(driver)


def test_a_static_member_takes_the_classic_group_with_it() -> None:
    """The upgrade and the member's replacement are one turn: the old member's timers must not be looked for."""
    driver = GroupDriver(topics=topics(orders=4))
    classic = Classic(driver, instance="i-1")
    classic.round()
    newer = Member("m-1", GROUP, instance="i-1")
    beat(driver, newer)
    assert newer.held == partitions("orders", 0, 1, 2, 3)
    assert driver.refusal(classic.heartbeat()) is ErrorCode.FENCED_INSTANCE_ID
    check_replay(driver)


def test_a_static_member_moves_back_and_takes_the_group_with_it() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    newer = Member("m-1", GROUP, instance="i-1")
    beat(driver, newer)
    driver.call(newer.leave_request(will_be_back=True))
    classic = Classic(driver, instance="i-1")
    classic.round()
    assert classic.held == PARTITIONS
    driver.run_due()
    assert driver.machine.consumer_group(GROUP) is None
    classic.beat()
    assert classic.held == PARTITIONS
    check_replay(driver)


def test_an_empty_group_moves_either_way() -> None:
    driver = GroupDriver(topics=topics(orders=4))
    classic, member = Classic(driver), Member("m-1", GROUP)
    classic.round()
    driver.ask(classic.leave())
    beat(driver, member)
    assert len(member.held) == 4
    check_replay(driver)
    driver.ask(member.leave_request())
    back = Classic(driver)
    back.round()
    assert back.held == PARTITIONS
    assert driver.machine.consumer_group(GROUP) is None
    check_replay(driver)
