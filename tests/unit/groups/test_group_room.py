"""S2: what members and committed offsets hold is counted, bounded in a group and in sum, and given back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from consumer_member import REBALANCE_MS, topics
from group_driver import GROUP, GroupDriver, assignment, commit, subscription

from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.held_bytes import MEMBER_BYTES, HeldBytes, text_bytes
from semel.group_coordinator.machine import GroupMachine
from semel.protocol.api.consumer_groups import JOIN_EPOCH, LEAVE_EPOCH, ConsumerGroupHeartbeatRequest
from semel.protocol.api.groups import GroupProtocol, SyncGroupRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PRODUCER = ProducerIdAndEpoch(7, 0)


def large(size_bytes: int) -> dict[str, bytes]:
    return {"range": subscription("orders").ljust(size_bytes, b"\0")}


def _protocols(size_bytes: int) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name, metadata) for name, metadata in large(size_bytes).items())


def message_of(driver: GroupDriver, request: object) -> str:
    with pytest.raises(SemelError) as caught:
        driver.ask(request)
    assert caught.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    return caught.value.message


def test_S2_members_of_all_groups_together_are_bounded() -> None:
    driver = GroupDriver(GroupConfig(group_members_max_bytes=100_000))
    for number in range(4):
        driver.begin_join(protocols=large(20_000), group=f"g{number}")
    assert 80_000 < driver.machine.held.members < 100_000
    message = message_of(driver, driver.join_request(protocols=large(20_000), group="one more"))
    assert "group.members.max.bytes" in message
    assert driver.machine.group("one more") is None
    driver.begin_join(protocols=large(100), group="a small one")


def test_S2_members_of_one_group_are_bounded() -> None:
    driver = GroupDriver(GroupConfig(group_max_bytes=50_000))
    driver.begin_join(protocols=large(40_000))
    assert "group.max.bytes" in message_of(driver, driver.join_request(protocols=large(20_000)))
    driver.begin_join(protocols=large(20_000), group="another")


def test_S2_promised_members_take_room_too() -> None:
    driver = GroupDriver(GroupConfig(group_members_max_bytes=20_000))
    refused = 0
    for number in range(40):
        request = replace(driver.join_request(group=f"g{number}"), new_member_id=f"{'c' * 1_000}-{number}")
        try:
            assert driver.ask(request).error is ErrorCode.MEMBER_ID_REQUIRED
        except SemelError as error:
            refused += error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused > 20
    assert driver.machine.held.members <= 20_000
    driver.advance(driver.config.group_max_session_timeout_ms)
    assert driver.machine.held.members == 0


def test_S2_the_bound_is_of_all_partitions_of_the_groups_topic() -> None:
    held = HeldBytes()
    driver = GroupDriver(GroupConfig(group_members_max_bytes=100_000))
    driver.machine = GroupMachine(driver.config, held_by_all=lambda: held)
    driver.machine.loaded(driver.now_ms)
    driver.begin_join(protocols=large(1_000))
    held.members = 99_500
    message_of(driver, driver.join_request(protocols=large(1_000), group="other"))


def test_S2_members_give_back_what_they_held_and_existing_members_may_stay() -> None:
    driver = GroupDriver(GroupConfig(group_members_max_bytes=60_000))
    (first, second) = driver.stable_group(2, protocols=large(15_000))
    full = driver.machine.held.members
    assert full > 50_000
    # Again with the same: nobody needs more room. With more than there is, it is refused.
    again = driver.join_request(first.member_id, protocols=large(15_000))
    ticket = driver.call(again)
    assert driver.is_waiting(ticket)
    assert driver.machine.held.members == full
    message_of(driver, replace(again, member_id=second.member_id, protocols=_protocols(40_000)))
    driver.ask(driver.leave(first.member_id))
    driver.advance(driver.config.group_max_session_timeout_ms)
    assert driver.machine.group(GROUP) is None or not driver.machine.group(GROUP).members  # type: ignore[union-attr]
    assert driver.machine.held.members < 1_000


def test_S2_assignments_are_counted_and_bounded() -> None:
    driver = GroupDriver(GroupConfig(group_members_max_bytes=60_000))
    member_id, ticket = driver.begin_join()
    response = driver.joined(ticket)
    given = {member_id: assignment(0).ljust(70_000, b"\0")}
    message_of(driver, SyncGroupRequest(GROUP, response.generation_id, member_id, None, given))
    other_id, ticket = driver.begin_join(group="other")
    before = driver.machine.held.members
    given = {other_id: assignment(0).ljust(20_000, b"\0")}
    driver.ask(SyncGroupRequest("other", driver.joined(ticket).generation_id, other_id, None, given))
    assert driver.machine.held.members >= before + 20_000


def heartbeat(member_id: str, **changes: Any) -> ConsumerGroupHeartbeatRequest:
    request = ConsumerGroupHeartbeatRequest(
        "new", member_id, JOIN_EPOCH, rebalance_timeout_ms=REBALANCE_MS, topic_names=("orders",), owned=frozenset()
    )
    return replace(request, **changes)


def test_S2_subscriptions_of_consumer_groups_are_counted_bounded_and_given_back() -> None:
    driver = GroupDriver(GroupConfig(group_members_max_bytes=100_000), topics=topics(orders=3))
    names = tuple(f"topic-{number:05}" for number in range(500))
    driver.ask(heartbeat("m1", topic_names=names))
    driver.ask(heartbeat("m2", topic_names=names))
    full = driver.machine.held.members
    assert full > 2 * 500 * len(names[0])
    wanted = heartbeat("m3", topic_names=tuple(f"{name}x" for name in names) * 3)
    assert "group.members.max.bytes" in message_of(driver, wanted)
    assert driver.machine.held.members == full
    # Who is in, stays in; and what it wants less is given back.
    driver.ask(heartbeat("m1", topic_names=("orders",)))
    assert driver.machine.held.members < full
    driver.ask(heartbeat("m1", member_epoch=LEAVE_EPOCH))
    driver.ask(heartbeat("m2", member_epoch=LEAVE_EPOCH))
    assert driver.machine.held.members == 0


def test_S2_what_is_held_is_the_same_after_a_restart() -> None:
    driver = GroupDriver(topics=topics(orders=3))
    driver.stable_group(3, protocols=large(2_000))
    driver.ask(heartbeat("m1"))
    driver.ask(heartbeat("m2"))
    driver.ask(commit({P0: 1}, group="simple", metadata="m" * 100))
    before = driver.machine.held
    driver.reload()
    after = driver.machine.held
    assert after.offsets == before.offsets > 0
    # A member keeps the protocols that it offered and that were not chosen, until then.
    assert 0 < after.members <= before.members


def test_S2_committed_offsets_are_bounded_in_sum_and_groups_that_have_theirs_go_on() -> None:
    driver = GroupDriver(GroupConfig(offsets_max_bytes=20_000))
    codes = [_code(driver, commit({P0: 1}, group=f"g{number}")) for number in range(30)]
    assert codes[0] is ErrorCode.NONE
    assert codes[-1] is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert driver.machine.held.offsets <= 20_000
    assert _code(driver, commit({P0: 2}, group="g0")) is ErrorCode.NONE
    assert _code(driver, commit({P0: 3}, group="g0", producer=PRODUCER)) is ErrorCode.NONE
    assert _code(driver, commit({P0: 2}, group="g0", metadata="m" * 4_000)) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert _code(driver, commit({P1: 2}, group="new", producer=PRODUCER)) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    with pytest.raises(SemelError, match=r"offsets\.max\.bytes"):
        driver.ask(commit({P0: 1}, group="g29"))


def test_S2_offsets_are_counted_while_pending_and_when_published_dropped_or_deleted() -> None:
    driver = GroupDriver()
    held = driver.machine.held
    driver.ask(commit({P0: 1}))
    one = held.offsets
    driver.ask(commit({P0: 2}))
    assert held.offsets == one
    driver.ask(commit({P0: 3}, producer=PRODUCER))
    assert held.offsets == 2 * one
    driver.marker(PRODUCER, committed=True)
    assert held.offsets == one
    driver.ask(commit({P0: 4, P1: 4}, producer=PRODUCER))
    driver.marker(PRODUCER, committed=False)
    assert held.offsets == one
    driver.advance(driver.config.offsets_retention_ms + driver.config.offsets_retention_check_interval_ms)
    driver.advance(driver.config.offsets_retention_check_interval_ms)
    assert driver.machine.durable_state()["committed"] == {}
    assert held.offsets == 0


def test_S3_a_commit_of_too_many_offsets_is_refused_when_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.group_coordinator.offsets import commits as offset_commits

    encoded = 0
    known = offset_commits.offset_record

    def counted(*arguments: Any) -> Any:
        nonlocal encoded
        encoded += 1
        return known(*arguments)

    monkeypatch.setattr(offset_commits, "offset_record", counted)
    driver = GroupDriver(GroupConfig(group_records_max_bytes=10_000))
    many = {TopicPartition("orders", number): 1 for number in range(5_000)}
    assert _code(driver, commit(many)) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert encoded < 500
    assert not driver.log


def _code(driver: GroupDriver, request: Any) -> ErrorCode:
    try:
        errors = driver.ask(request).errors
    except SemelError as error:
        return error.code
    (code,) = set(errors.values())
    return code


def test_S2_what_is_counted_is_what_is_there_at_every_step() -> None:
    driver = GroupDriver()

    def check(members: int, promises: int = 0) -> None:
        group = driver.machine.group(GROUP)
        assert group is not None
        assert (len(group.members), len(group.pending_joins)) == (members, promises)
        there = sum(member.held_bytes for member in group.members.values()) + group._stored_bytes
        there += sum(MEMBER_BYTES + text_bytes(member_id) for member_id in group.pending_joins)
        assert group.held_bytes == driver.machine.held.members == there

    member_id = driver.get_member_id()
    check(0, 1)
    _, ticket = driver.begin_join(member_id, protocols=large(3_000))
    check(1)
    driver.settle([driver.joined(ticket)])
    check(1)
    _, ticket = driver.begin_join(member_id, protocols=large(5_000))
    driver.settle([driver.joined(ticket)])
    check(1)
    other_id = driver.get_member_id()
    check(1, 1)
    driver.ask(driver.leave(other_id))
    check(1)
    _, second = driver.begin_join(instance="static")
    check(2)
    _, first = driver.begin_join(member_id, protocols=large(4_000))
    driver.settle([driver.joined(first), driver.joined(second)])
    check(2)
    driver.call(driver.join_request(instance="static", protocols=large(2_000)))
    check(2)
    driver.ask(driver.leave(member_id))
    check(1)
