"""The classic group protocol on the group machine: states, syncs, heartbeats, leaves, timeouts, restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from group_driver import GROUP, GroupDriver, assignment, commit, state, subscription

from semel.group_coordinator.classic.state import LEGAL_PREDECESSORS, GroupState, state_diagram
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.effects import GroupEventKind
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from semel.protocol.consumer_protocol import decode_assignment
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import CoordinatorRecord

DOCS = Path(__file__).parents[3] / "docs" / "groups.md"


# --- States -----------------------------------------------------------------------------------------------------------


def test_G1_legal_moves_are_kafkas_table() -> None:
    moves = {(before.name, after.name) for after, befores in LEGAL_PREDECESSORS.items() for before in befores}
    assert moves == {
        ("PREPARING_REBALANCE", "EMPTY"),
        ("EMPTY", "PREPARING_REBALANCE"),
        ("STABLE", "PREPARING_REBALANCE"),
        ("COMPLETING_REBALANCE", "PREPARING_REBALANCE"),
        ("PREPARING_REBALANCE", "COMPLETING_REBALANCE"),
        ("COMPLETING_REBALANCE", "STABLE"),
        *((before.name, "DEAD") for before in GroupState if before is not GroupState.DEAD),
    }
    assert set(LEGAL_PREDECESSORS) == set(GroupState)


def test_G1_any_other_move_is_refused() -> None:
    driver = GroupDriver()
    driver.stable_group()
    group = driver.machine.group(GROUP)
    assert group is not None
    for target in (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        with pytest.raises(AssertionError, match="G1"):
            group.transition_to(target, driver.now_ms)


def test_docs_show_the_state_table() -> None:
    assert f"```mermaid\n{state_diagram()}\n```" in DOCS.read_text()


# --- Syncing ----------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, follower_ticket = driver.begin_join()
    leader = driver.joined(driver.call(driver.join_request(first.member_id)))
    follower = driver.joined(follower_ticket)
    waiting = driver.sync(follower)
    assert driver.is_waiting(waiting)
    assert driver.ask(driver.heartbeat(follower)) == HeartbeatResponse()
    driver.sync(leader, {leader.member_id: assignment(0), follower.member_id: assignment(1)})
    assert driver.synced(waiting) == assignment(1)
    assert driver.synced(driver.sync(follower)) == assignment(1), "asked again, it is told again"


def test_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, follower_ticket = driver.begin_join()
    leader = driver.joined(driver.call(driver.join_request(first.member_id)))
    driver.sync(leader, {leader.member_id: assignment(0)})
    assert driver.synced(driver.sync(driver.joined(follower_ticket))) == b""


def test_group_record_is_written_before_a_sync_is_answered() -> None:
    """The answer and the record are of one result, and the runtime answers only what is committed."""
    driver = GroupDriver()
    member_id, ticket = driver.begin_join()
    response = driver.joined(ticket)
    request = SyncGroupRequest(GROUP, response.generation_id, member_id, None, {member_id: assignment(0)})
    result = driver.machine.handle(request, driver.now_ms, ticket)
    assert len(result.records) == 1
    assert result.response.assignment == assignment(0)
    assert state(driver) is GroupState.COMPLETING_REBALANCE, "only replaying the record makes it stable"


def test_sync_is_refused_by_generation_member_protocol_and_rebalance() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2)
    base = SyncGroupRequest(GROUP, leader.generation_id, follower.member_id, None, {})
    assert driver.refusal(replace(base, generation_id=1)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.refusal(replace(base, member_id="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.refusal(replace(base, group_id="other")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.refusal(replace(base, protocol_name="sticky")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.refusal(replace(base, protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    driver.call(driver.join_request(leader.member_id))
    assert driver.refusal(base) is ErrorCode.REBALANCE_IN_PROGRESS


def test_waiting_sync_is_sent_away_when_a_rebalance_begins() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, follower_ticket = driver.begin_join()
    driver.call(driver.join_request(first.member_id))
    waiting = driver.sync(driver.joined(follower_ticket))
    driver.begin_join()
    assert driver.code(waiting) is ErrorCode.REBALANCE_IN_PROGRESS


def test_later_sync_of_a_member_sends_its_waiting_one_away() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, follower_ticket = driver.begin_join()
    leader = driver.joined(driver.call(driver.join_request(first.member_id)))
    follower = driver.joined(follower_ticket)
    one, other = driver.sync(follower), driver.sync(follower)
    assert driver.code(one) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.sync(leader, {follower.member_id: assignment(3)})
    assert driver.synced(other) == assignment(3)


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group(rebalance_ms=20_000, session_ms=1_800_000)
    _, follower_ticket = driver.begin_join(rebalance_ms=20_000, session_ms=1_800_000)
    again = driver.call(driver.join_request(first.member_id, rebalance_ms=20_000, session_ms=1_800_000))
    leader, follower = driver.joined(again), driver.joined(follower_ticket)
    driver.sync(leader, {})
    driver.advance(19_999)
    assert state(driver) is GroupState.STABLE
    driver.advance(1)
    assert state(driver) is GroupState.PREPARING_REBALANCE
    assert driver.refusal(driver.heartbeat(follower)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_whose_leader_never_syncs_elects_another() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group(rebalance_ms=20_000, session_ms=1_800_000)
    follower_id, follower_ticket = driver.begin_join(rebalance_ms=20_000, session_ms=1_800_000)
    driver.call(driver.join_request(first.member_id, rebalance_ms=20_000, session_ms=1_800_000))
    waiting = driver.sync(driver.joined(follower_ticket))
    driver.advance(20_000)
    assert driver.code(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    again = driver.call(driver.join_request(follower_id, rebalance_ms=20_000, session_ms=1_800_000))
    assert driver.joined(again).leader_id == follower_id


def test_coordinator_assigns_when_the_leader_asks() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, follower_ticket = driver.begin_join()
    leader = driver.joined(driver.call(driver.join_request(first.member_id)))
    follower = driver.joined(follower_ticket)
    counts = {"orders": 5, "unrelated": 3}
    got = [driver.sync(follower), driver.sync(leader, partition_counts=counts)]
    partitions = [decode_assignment(driver.synced(ticket)).partitions for ticket in got]
    assert sorted(partition for part in partitions for partition in part) == [
        TopicPartition("orders", number) for number in range(5)
    ]
    assert sorted(len(part) for part in partitions) == [2, 3]


def test_coordinator_refuses_to_assign_by_a_protocol_it_has_not() -> None:
    driver = GroupDriver()
    _, ticket = driver.begin_join(protocols={"mine": subscription("orders")})
    refused = driver.sync(driver.joined(ticket), partition_counts={"orders": 1})
    assert driver.code(refused) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert state(driver) is GroupState.COMPLETING_REBALANCE


def test_member_with_an_unreadable_subscription_does_not_hold_up_the_others() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, follower_ticket = driver.begin_join(protocols={"range": b"\x00"})
    leader = driver.joined(driver.call(driver.join_request(first.member_id)))
    ticket = driver.sync(leader, partition_counts={"orders": 2})
    assert len(decode_assignment(driver.synced(ticket)).partitions) == 2
    assert decode_assignment(driver.synced(driver.sync(driver.joined(follower_ticket)))).partitions == ()


def test_assignment_too_large_to_store_is_refused_and_rebalanced() -> None:
    driver = GroupDriver(GroupConfig(group_records_max_bytes=2_000))
    member_id, ticket = driver.begin_join()
    refused = driver.sync(driver.joined(ticket), {member_id: bytes(3_000)})
    assert driver.code(refused) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not driver.log
    assert state(driver) is GroupState.PREPARING_REBALANCE


# --- Heartbeats and sessions ------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_member_and_silence_removes_it() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group(session_ms=10_000)
    for _ in range(5):
        driver.advance(9_999)
        assert driver.ask(driver.heartbeat(member)) == HeartbeatResponse()
    driver.advance(10_000)
    assert state(driver) is GroupState.EMPTY
    assert driver.refusal(driver.heartbeat(member)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_O4_heartbeats_are_refused_by_generation_and_member() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    assert driver.refusal(driver.heartbeat(member, generation=0)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.refusal(driver.heartbeat(member, generation=2)) is ErrorCode.ILLEGAL_GENERATION
    assert driver.refusal(HeartbeatRequest(GROUP, 1, "nobody", None)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.refusal(HeartbeatRequest("other", 1, member.member_id, None)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_counts_as_a_heartbeat() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group(session_ms=10_000)
    for _ in range(3):
        driver.advance(9_000)
        driver.ask(commit({TopicPartition("orders", 0): 1}, generation=1, member_id=member.member_id))
    assert state(driver) is GroupState.STABLE


def test_member_that_waits_for_others_is_not_timed_out() -> None:
    driver = GroupDriver()
    leader, _ = driver.stable_group(2, session_ms=10_000, rebalance_ms=60_000)
    ticket = driver.call(driver.join_request(leader.member_id, session_ms=10_000))
    driver.advance(10_000)
    assert driver.joined(ticket).generation_id == leader.generation_id + 1, "the silent one was dropped"
    [first] = GroupDriver.stable_group(other := GroupDriver(), 1, session_ms=10_000, rebalance_ms=60_000)
    _, waiting = other.begin_join(session_ms=10_000)
    for _ in range(5):
        other.advance(9_000)
        assert other.refusal(other.heartbeat(first)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert other.is_waiting(waiting)


# --- Leaving ----------------------------------------------------------------------------------------------------------


def test_leave_starts_a_rebalance_and_the_last_one_empties_the_group() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2)
    assert driver.ask(driver.leave(follower.member_id)).errors == (ErrorCode.NONE,)
    assert state(driver) is GroupState.PREPARING_REBALANCE
    driver.ask(driver.leave(leader.member_id))
    assert state(driver) is GroupState.EMPTY
    stored = driver.machine.group(GROUP)
    assert stored is not None
    assert stored.last_stored is not None
    assert (stored.last_stored.members, stored.last_stored.generation) == ((), 3)


def test_leave_answers_for_each_member() -> None:
    driver = GroupDriver()
    members = driver.stable_group(2, instances=True)
    request = LeaveGroupRequest(
        GROUP,
        (
            MemberIdentity("", "instance-0"),
            MemberIdentity("", "nobody"),
            MemberIdentity("nobody"),
            MemberIdentity("not the holder", "instance-1"),
        ),
    )
    assert driver.ask(request).errors == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    )
    group = driver.machine.group(GROUP)
    assert group is not None
    assert list(group.static_members) == ["instance-1"]
    assert len(members) == 2


def test_leave_of_unknown_group_and_of_a_promised_member() -> None:
    driver = GroupDriver()
    assert driver.ask(driver.leave("a", "b")).errors == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2
    member_id = driver.get_member_id()
    assert driver.ask(driver.leave(member_id)).errors == (ErrorCode.NONE,)
    assert state(driver) is None


def test_leave_answers_the_calls_that_the_member_waits_on() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    member_id, waiting = driver.begin_join()
    driver.ask(driver.leave(member_id))
    assert driver.code(waiting) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.call(driver.join_request(first.member_id))).generation_id == 2


def test_reasons_of_any_length_do_not_fill_the_log() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    driver.ask(LeaveGroupRequest(GROUP, (MemberIdentity(member.member_id, reason="tired " * 20_000),)))
    details = [event.detail for event in driver.events if event.kind is GroupEventKind.MEMBER_REMOVED]
    assert len(details) == 1
    assert "tired" in details[0]
    assert len(details[0]) <= 1_024


# --- Restart ----------------------------------------------------------------------------------------------------------


def test_reload_keeps_the_generation_and_gives_members_a_session_to_be_heard_of() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2, session_ms=10_000)
    driver.advance(8_000)
    driver.reload()
    driver.advance(9_999)
    assert driver.ask(driver.heartbeat(leader)) == HeartbeatResponse()
    assert driver.ask(driver.heartbeat(follower)) == HeartbeatResponse()
    driver.advance(10_000)
    assert state(driver) is GroupState.EMPTY


def test_reload_during_a_rebalance_goes_back_to_the_stored_generation() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2)
    waiting = driver.call(driver.join_request(leader.member_id))
    driver.reload()
    assert driver.code(waiting) is ErrorCode.NOT_COORDINATOR
    assert state(driver) is GroupState.STABLE
    assert driver.ask(driver.heartbeat(follower)) == HeartbeatResponse()


def test_closed_names_everybody_who_waits() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group()
    _, joining = driver.begin_join()
    assert list(driver.machine.closed()) == [joining]
    driver.call(driver.join_request(first.member_id))
    syncing = driver.sync(driver.joined(joining))
    assert list(driver.machine.closed()) == [syncing]


def test_records_of_unknown_kinds_are_passed_over() -> None:
    driver = GroupDriver()
    driver.machine.replay(CoordinatorRecord(b"\x00\x63\x00\x01x", b"\x00\x00"), 0, None, driver.now_ms)
    assert driver.ask(ListGroupsRequest()).groups == ()


# --- Groups as a whole ------------------------------------------------------------------------------------------------


def test_list_filters_by_state_and_type() -> None:
    driver = GroupDriver()
    driver.stable_group(group="b")
    driver.ask(commit({TopicPartition("orders", 0): 1}, group="a"))
    assert [(group.group_id, group.state, group.protocol_type) for group in driver.ask(ListGroupsRequest()).groups] == [
        ("a", "Empty", ""),
        ("b", "Stable", "consumer"),
    ]
    by_state = driver.ask(ListGroupsRequest(frozenset({"stable"})))
    assert [group.group_id for group in by_state.groups] == ["b"]
    assert len(driver.ask(ListGroupsRequest(types=frozenset({"Classic"}))).groups) == 2
    assert driver.ask(ListGroupsRequest(types=frozenset({"consumer"}))).groups == ()


def test_describe_shows_members_and_what_is_settled() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2, instances=True)
    stable = driver.ask(DescribeGroupRequest(GROUP))
    assert (stable.state, stable.protocol_type, stable.protocol_name) == ("Stable", "consumer", "range")
    assert (stable.generation_id, stable.leader_id) == (2, leader.member_id)
    assert {(m.member_id, m.group_instance_id, m.assignment) for m in stable.members} == {
        (leader.member_id, "instance-0", assignment(0)),
        (follower.member_id, "instance-1", assignment(1)),
    }
    assert all(member.metadata == subscription("orders") for member in stable.members)
    driver.call(driver.join_request(leader.member_id, instance="instance-0"))
    rebalancing = driver.ask(DescribeGroupRequest(GROUP))
    assert (rebalancing.state, rebalancing.protocol_name) == ("PreparingRebalance", "")
    assert not any(member.metadata for member in rebalancing.members)
    assert driver.ask(DescribeGroupRequest("other")).state == "Dead"


def test_delete_takes_empty_groups_only() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    driver.ask(commit({TopicPartition("orders", 0): 1}, generation=1, member_id=member.member_id))
    assert driver.refusal(DeleteGroupRequest(GROUP)) is ErrorCode.NON_EMPTY_GROUP
    driver.ask(driver.leave(member.member_id))
    driver.ask(DeleteGroupRequest(GROUP))
    assert state(driver) is None
    assert driver.refusal(DeleteGroupRequest(GROUP)) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.reload()
    assert driver.ask(ListGroupsRequest()).groups == ()


def test_events_tell_what_happened() -> None:
    driver = GroupDriver()
    [member] = driver.stable_group()
    driver.ask(driver.leave(member.member_id))
    assert [event.kind for event in driver.events] == [
        GroupEventKind.REBALANCING,
        GroupEventKind.GENERATION_STARTED,
        GroupEventKind.STABLE,
        GroupEventKind.MEMBER_REMOVED,
        GroupEventKind.REBALANCING,
        GroupEventKind.EMPTY,
    ]


# --- Configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_min_session_timeout_ms": 0},
        {"group_min_session_timeout_ms": 2_000_000},
        {"group_max_size": 0},
        {"group_initial_rebalance_delay_ms": -1},
        {"offsets_retention_minutes": 0},
        {"group_id_max_bytes": 8_192},
        {"offset_metadata_max_bytes": 40_000},
    ],
)
def test_wrong_configuration_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", r"\.")):
        GroupConfig(**wrong)
