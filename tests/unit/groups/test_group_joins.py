"""Joins in the classic group protocol: who is let in, when a rebalance begins, which protocol is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_driver import GROUP, GroupDriver, assignment, state, subscription

from semel.group_coordinator.classic.members import GENERATION_MAX
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.protocol.errors import ErrorCode


def test_dynamic_member_gets_its_id_first() -> None:
    driver = GroupDriver()
    response = driver.ask(driver.join_request())
    assert response.error is ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id
    assert state(driver) is GroupState.EMPTY
    assert not driver.log


def test_old_client_joins_without_the_first_round() -> None:
    driver = GroupDriver()
    response = driver.joined(driver.call(driver.join_request(known_id=False)))
    assert response.leader_id == response.member_id
    assert response.generation_id == 1


def test_first_member_leads_and_is_stable_after_its_sync() -> None:
    driver = GroupDriver()
    member_id, ticket = driver.begin_join()
    response = driver.joined(ticket)
    assert (response.generation_id, response.leader_id, response.member_id) == (1, member_id, member_id)
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert [member.member_id for member in response.members] == [member_id]
    assert state(driver) is GroupState.COMPLETING_REBALANCE
    assert not driver.log, "nothing is stored before there is an assignment"
    assert driver.synced(driver.sync(response, {member_id: assignment(0, 1)})) == assignment(0, 1)
    assert state(driver) is GroupState.STABLE
    assert len(driver.log) == 1


def test_promised_member_id_that_nobody_takes_up_is_forgotten_with_its_group() -> None:
    driver = GroupDriver()
    member_id = driver.get_member_id(session_ms=10_000)
    driver.advance(10_000)
    assert state(driver) is None
    assert driver.refusal(driver.join_request(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_member_holds_up_a_rebalance_until_its_session_ends() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    driver.get_member_id(session_ms=10_000)
    again = driver.call(driver.join_request(first.member_id))
    assert driver.is_waiting(again)
    driver.advance(10_000)
    assert driver.joined(again).generation_id == 2


def test_second_member_starts_a_rebalance() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    second, second_ticket = driver.begin_join()
    assert state(driver) is GroupState.PREPARING_REBALANCE
    assert driver.refusal(driver.heartbeat(first)) is ErrorCode.REBALANCE_IN_PROGRESS
    first_ticket = driver.call(driver.join_request(first.member_id))
    follower, leader = driver.joined(second_ticket), driver.joined(first_ticket)
    assert leader.generation_id == follower.generation_id == 2
    assert leader.leader_id == follower.leader_id == first.member_id
    assert {member.member_id for member in leader.members} == {first.member_id, second}
    assert follower.members == ()


def test_rebalance_removes_members_that_do_not_join_in_time() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2, rebalance_ms=20_000, session_ms=1_800_000)
    _, ticket = driver.begin_join(rebalance_ms=20_000, session_ms=1_800_000)
    again = driver.call(driver.join_request(follower.member_id, rebalance_ms=20_000, session_ms=1_800_000))
    driver.advance(19_999)
    assert driver.is_waiting(ticket)
    driver.advance(1)
    assert driver.joined(ticket).generation_id == leader.generation_id + 1
    assert driver.joined(again).leader_id != leader.member_id
    assert driver.refusal(driver.heartbeat(leader)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_initial_rebalance_waits_for_more_members() -> None:
    driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    _, first = driver.begin_join()
    driver.advance(2_000)
    _, second = driver.begin_join()
    driver.advance(1_000)
    assert driver.is_waiting(first), "a member that came in meanwhile extends the wait"
    driver.advance(3_000)
    assert driver.joined(first).generation_id == driver.joined(second).generation_id == 1


def test_initial_rebalance_never_waits_longer_than_the_rebalance_timeout() -> None:
    driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    _, first = driver.begin_join(rebalance_ms=8_000)
    for _ in range(3):
        driver.advance(2_500)
        driver.begin_join(rebalance_ms=8_000)
    driver.advance(500)
    assert driver.joined(first).generation_id == 1


def test_new_member_that_vanished_while_it_waited_is_dropped_after_five_minutes() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group(rebalance_ms=1_800_000, session_ms=1_800_000)
    _, ticket = driver.begin_join(rebalance_ms=1_800_000, session_ms=1_800_000)
    driver.advance(299_999)
    assert driver.is_waiting(ticket)
    driver.advance(1)
    assert driver.code(ticket) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.call(driver.join_request(first.member_id))).generation_id == 2


def test_protocol_with_most_votes_among_common_ones_is_chosen() -> None:
    driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=1_000))
    data = subscription("orders")
    tickets = [
        driver.begin_join(protocols=dict.fromkeys(names, data))[1]
        for names in (("range", "sticky", "roundrobin"), ("sticky", "range"), ("roundrobin", "sticky", "range"))
    ]
    driver.advance(2_000)
    chosen = {driver.joined(ticket).protocol_name for ticket in tickets}
    assert chosen == {"sticky"}, "not all offer roundrobin, so its voter's next choice counts"


@pytest.mark.parametrize(
    "kwargs",
    [
        {"protocols": {"roundrobin": b""}},
        {"protocol_type": "connect"},
        {"protocols": {}},
    ],
)
def test_member_with_nothing_in_common_is_refused(kwargs: dict[str, object]) -> None:
    driver = GroupDriver()
    driver.stable_group()
    assert driver.refusal(driver.join_request(**kwargs)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_protocol_named_twice_is_refused() -> None:
    driver = GroupDriver()
    request = driver.join_request()
    request = replace(request, protocols=request.protocols * 2)
    assert driver.refusal(request) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert state(driver) is None


def test_empty_group_takes_another_protocol_type() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    driver.ask(driver.leave(member.member_id))
    assert state(driver) is GroupState.EMPTY
    _, ticket = driver.begin_join(protocol_type="connect", protocols={"default": b"x"})
    assert driver.joined(ticket).protocol_type == "connect"


def test_unknown_member_id_is_refused() -> None:
    driver = GroupDriver()
    driver.stable_group()
    assert driver.refusal(driver.join_request("nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.refusal(driver.join_request("nobody", group="other")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_follower_that_joins_again_unchanged_gets_the_same_generation() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2)
    again = driver.ask(driver.join_request(follower.member_id))
    assert again.generation_id == leader.generation_id
    assert state(driver) is GroupState.STABLE


def test_leader_that_joins_again_forces_a_rebalance() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2)
    ticket = driver.call(driver.join_request(leader.member_id))
    assert state(driver) is GroupState.PREPARING_REBALANCE
    driver.call(driver.join_request(follower.member_id))
    assert driver.joined(ticket).generation_id == leader.generation_id + 1


def test_member_that_changes_its_metadata_forces_a_rebalance() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2)
    changed = {"range": subscription("orders", "returns")}
    ticket = driver.call(driver.join_request(follower.member_id, protocols=changed))
    response = driver.joined(driver.call(driver.join_request(leader.member_id)))
    assert driver.joined(ticket).generation_id == leader.generation_id + 1
    metadata = {member.member_id: member.metadata for member in response.members}
    assert metadata[follower.member_id] == changed["range"]


def test_lost_join_answer_is_given_again_while_the_assignment_is_awaited() -> None:
    driver = GroupDriver()
    member_id, ticket = driver.begin_join()
    assert driver.joined(driver.call(driver.join_request(member_id))) == driver.joined(ticket)


def test_later_join_of_a_member_sends_its_waiting_one_away() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    member_id, ticket = driver.begin_join()
    again = driver.call(driver.join_request(member_id))
    assert driver.code(ticket) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.call(driver.join_request(first.member_id))
    assert driver.joined(again).generation_id == 2


def test_group_max_size_bounds_members_and_promises() -> None:
    driver = GroupDriver(GroupConfig(group_max_size=2))
    driver.stable_group(2)
    assert driver.refusal(driver.join_request()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver = GroupDriver(GroupConfig(group_max_size=2))
    driver.get_member_id()
    driver.get_member_id()
    assert driver.refusal(driver.join_request()) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_group_above_a_lowered_bound_loses_the_last_to_join_again() -> None:
    driver = GroupDriver()
    members = driver.stable_group(3)
    driver.config = GroupConfig(group_max_size=2)
    driver.reload()
    assert state(driver) is GroupState.PREPARING_REBALANCE
    tickets = [driver.call(driver.join_request(member.member_id)) for member in members]
    assert driver.code(tickets[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.joined(tickets[0]).generation_id == members[0].generation_id + 1
    assert driver.joined(tickets[1]).generation_id == members[0].generation_id + 1


def test_generation_begins_again_after_the_largest_number() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    group = driver.machine.group(GROUP)
    assert group is not None
    group.generation_id = GENERATION_MAX
    assert driver.joined(driver.call(driver.join_request(member.member_id))).generation_id == 1
