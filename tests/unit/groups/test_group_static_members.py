"""Static members (KIP-345) on the group machine: they return without a rebalance, and are replaced."""

from __future__ import annotations

from dataclasses import replace

from group_driver import GROUP, GroupDriver, assignment, state, subscription

from semel.group_coordinator.classic.state import GroupState
from semel.protocol.api.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import Ticket


def test_G4_static_member_returns_without_a_rebalance() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2, instances=True)
    for old, instance, partition in ((follower, "instance-1", 1), (leader, "instance-0", 0)):
        driver.advance(9_000)
        for other, name in ((leader, "instance-0"), (follower, "instance-1")):
            if other is not old:
                group = driver.machine.group(GROUP)
                assert group is not None
                current = replace(other, member_id=group.static_members[name])
                driver.ask(driver.heartbeat(current, instance=name))
        returned = driver.ask(driver.join_request(instance=instance))
        assert returned.generation_id == leader.generation_id
        assert returned.member_id != old.member_id
        assert returned.skip_assignment is (old is leader)
        assert driver.synced(driver.sync(returned, instance=instance)) == assignment(partition)
        assert state(driver) is GroupState.STABLE
        assert driver.refusal(driver.heartbeat(old, instance=instance)) is ErrorCode.FENCED_INSTANCE_ID
        assert driver.ask(driver.heartbeat(returned, instance=instance)) == HeartbeatResponse()


def test_G4_a_returned_leader_that_cannot_skip_its_assignment_is_told_of_another_leader() -> None:
    driver = GroupDriver()
    leader, _ = driver.stable_group(2, instances=True)
    request = replace(driver.join_request(instance="instance-0"), supports_skip_assignment=False)
    returned = driver.ask(request)
    assert (returned.leader_id, returned.members) == (leader.member_id, ())
    assert not returned.skip_assignment
    assert returned.member_id != leader.member_id
    assert returned.generation_id == leader.generation_id
    assert driver.synced(driver.sync(returned, instance="instance-0")) == assignment(0)


def test_G4_assignment_survives_the_coordinator_in_between() -> None:
    driver = GroupDriver()
    _, follower = driver.stable_group(2, instances=True)
    driver.reload()
    returned = driver.ask(driver.join_request(instance="instance-1"))
    driver.reload()
    assert driver.synced(driver.sync(returned, instance="instance-1")) == assignment(1)
    assert driver.refusal(driver.heartbeat(follower, instance="instance-1")) is ErrorCode.FENCED_INSTANCE_ID


def half_moved_group() -> tuple[GroupDriver, JoinGroupResponse, JoinGroupResponse]:
    """Two static members between the halves of a cooperative move: taken from the first, given to nobody yet."""
    driver = GroupDriver()

    def join(instance: str, member_id: str = "", *owned: int) -> Ticket:
        metadata = subscription("orders", owned=[TopicPartition("orders", number) for number in owned])
        protocols = {"cooperative-sticky": metadata}
        return driver.call(driver.join_request(member_id, instance=instance, protocols=protocols))

    first = driver.joined(join("a"))
    driver.synced(driver.sync(first, instance="a", partition_counts={"orders": 2}))
    waiting = join("b")
    first = driver.joined(join("a", first.member_id, 0, 1))
    second = driver.joined(waiting)
    assert driver.synced(driver.sync(first, instance="a", partition_counts={"orders": 2})) == assignment(0)
    assert driver.synced(driver.sync(second, instance="b")) == assignment()
    assert state(driver) is GroupState.STABLE
    return driver, first, second


def test_G4_static_member_that_died_before_it_gave_up_partitions_comes_back_to_a_rebalance() -> None:
    driver, _, second = half_moved_group()
    metadata = {"cooperative-sticky": subscription("orders")}
    returned = driver.call(driver.join_request(instance="a", protocols=metadata))
    assert driver.refusal(driver.heartbeat(second, instance="b")) is ErrorCode.REBALANCE_IN_PROGRESS
    other = driver.call(driver.join_request(second.member_id, instance="b", protocols=metadata))
    members = {"a": driver.joined(returned), "b": driver.joined(other)}
    leader, follower = sorted(members, key=lambda name: members[name].member_id != members[name].leader_id)
    given = [driver.synced(driver.sync(members[leader], instance=leader, partition_counts={"orders": 2}))]
    given.append(driver.synced(driver.sync(members[follower], instance=follower)))
    assert sorted(given) == [assignment(0), assignment(1)], "a revoked partition was left without an owner"


def test_G3_a_coordinator_that_knows_only_the_log_finishes_a_cooperative_move() -> None:
    driver, first, second = half_moved_group()
    driver.reload()
    for member, instance in ((first, "a"), (second, "b")):
        assert driver.refusal(driver.heartbeat(member, instance=instance)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_static_member_is_replaced_with_its_waiting_calls() -> None:
    driver = GroupDriver()
    [first] = driver.stable_group(instances=True)
    _, ticket = driver.begin_join(instance="other")
    again = driver.call(driver.join_request(instance="other"))
    assert driver.code(ticket) is ErrorCode.FENCED_INSTANCE_ID
    driver.call(driver.join_request(first.member_id, instance="instance-0"))
    follower = driver.joined(again)
    waiting = driver.sync(follower, instance="other")
    replacement = driver.call(driver.join_request(instance="other"))
    assert driver.code(waiting) is ErrorCode.FENCED_INSTANCE_ID
    assert state(driver) is GroupState.PREPARING_REBALANCE, "the leader knows the old id only"
    driver.call(driver.join_request(first.member_id, instance="instance-0"))
    assert driver.joined(replacement).generation_id == 3


def test_static_member_with_other_topics_or_protocol_causes_a_rebalance() -> None:
    for protocols in ({"range": subscription("returns")}, {"sticky": subscription("orders")}):
        driver = GroupDriver()
        both = {"range": subscription("orders"), "sticky": subscription("orders")}
        leader, _ = driver.stable_group(2, instances=True, protocols=both)
        ticket = driver.call(driver.join_request(instance="instance-1", protocols=protocols))
        assert state(driver) is GroupState.PREPARING_REBALANCE
        driver.call(driver.join_request(leader.member_id, instance="instance-0", protocols=both))
        assert driver.joined(ticket).generation_id == leader.generation_id + 1


def test_static_member_is_removed_only_by_its_session_timeout() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable_group(2, instances=True, session_ms=120_000, rebalance_ms=20_000)
    ways = {"session_ms": 120_000, "rebalance_ms": 20_000}
    ticket = driver.call(driver.join_request(leader.member_id, instance="instance-0", **ways))  # type: ignore[arg-type]
    driver.advance(20_000)
    response = driver.joined(ticket)
    assert {member.group_instance_id for member in response.members} == {"instance-0", "instance-1"}
    driver.sync(response, {follower.member_id: assignment(1)}, instance="instance-0")
    driver.advance(30_000)
    driver.ask(driver.heartbeat(response, instance="instance-0"))
    returned = driver.ask(driver.join_request(instance="instance-1", **ways))  # type: ignore[arg-type]
    assert driver.synced(driver.sync(returned, instance="instance-1")) == assignment(1)
    driver.advance(119_000)
    driver.ask(driver.heartbeat(response, instance="instance-0"))
    driver.advance(1_000)
    assert driver.refusal(driver.heartbeat(returned, instance="instance-1")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_with_only_absent_static_members_waits_for_their_sessions() -> None:
    driver = GroupDriver()
    leader, _ = driver.stable_group(2, instances=True, session_ms=50_000, rebalance_ms=20_000)
    driver.call(driver.join_request(leader.member_id, instance="instance-0", session_ms=50_000, rebalance_ms=20_000))
    driver.ask(driver.leave(leader.member_id))
    assert state(driver) is GroupState.PREPARING_REBALANCE
    driver.advance(20_000)
    assert state(driver) is GroupState.PREPARING_REBALANCE
    driver.advance(30_000)
    assert state(driver) is GroupState.EMPTY


def test_promised_member_id_cannot_be_taken_up_as_an_instance() -> None:
    driver = GroupDriver()
    member_id = driver.get_member_id()
    assert driver.refusal(driver.join_request(member_id, instance="x")) is ErrorCode.UNKNOWN_MEMBER_ID
