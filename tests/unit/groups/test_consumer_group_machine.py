"""Consumer groups (KIP-848): joining, reconciling, fencing, static members, topics that change, offsets, restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consumer_member import Member, partitions, topics
from group_driver import GroupDriver, commit, compacted, fetch, replayed

from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.membership import consumer_key
from semel.group_coordinator.consumer.reconciliation import next_assignment
from semel.group_coordinator.records.consumer_schemas import current_record, decode_current
from semel.group_coordinator.records.consumer_state import ConsumerGroupState, MemberAssignment, MemberState
from semel.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartition,
)
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

GROUP = "g"
P0 = TopicPartition("orders", 0)
PRODUCER = ProducerIdAndEpoch(71, 0)


def driver_with(**counts: int) -> GroupDriver:
    return GroupDriver(topics=topics(**counts))


def beat(driver: GroupDriver, member: Member) -> ConsumerGroupHeartbeatResponse:
    """One heartbeat whose answer is worked off at once. Raises what it is refused with."""
    ticket = driver.call(member.request())
    member.answered(driver.answers[ticket])
    member.reconcile()
    answer = driver.result(ticket)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def settle(driver: GroupDriver, *members: Member) -> None:
    for _ in range(6):
        for member in members:
            beat(driver, member)


def group_of(driver: GroupDriver) -> ConsumerGroupData:
    group = driver.machine.consumer_group(GROUP)
    assert group is not None
    return group


def refused(driver: GroupDriver, request: object) -> ErrorCode:
    answer = driver.answers[driver.call(request)]
    assert isinstance(answer, SemelError), answer
    return answer.code


def check_replay(driver: GroupDriver) -> None:
    """The log, whole and compacted, gives the state that is live."""
    state = driver.machine.durable_state()
    assert replayed(driver.log, driver.config).durable_state() == state
    assert replayed(compacted(driver.log), driver.config).durable_state() == state
    assert replayed(compacted(driver.log, keep_tombstones=False), driver.config).durable_state() == state


def test_a_single_member_has_everything_with_its_first_answer() -> None:
    driver = driver_with(orders=3)
    member = Member("m-1", GROUP)
    answer = beat(driver, member)
    assert answer == ConsumerGroupHeartbeatResponse("m-1", 1, 5_000, partitions("orders", 0, 1, 2))
    assert group_of(driver).state is ConsumerGroupState.STABLE
    assert beat(driver, member).assignment is None
    check_replay(driver)


def test_a_second_member_gets_a_share_only_after_the_first_gave_it_up() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    beat(driver, first)
    answer = beat(driver, second)
    assert (answer.member_epoch, answer.assignment) == (2, frozenset())
    assert group_of(driver).state is ConsumerGroupState.RECONCILING
    # The first learns of it, but still holds all until it says otherwise.
    told = driver.ask(first.request())
    assert len(told.assignment) == 2
    assert told.member_epoch == 1
    assert beat(driver, second).assignment is None
    first.answered(told)
    first.reconcile()
    assert beat(driver, first).member_epoch == 2
    assert len(beat(driver, second).assignment or ()) == 2
    assert first.held | second.held == partitions("orders", 0, 1, 2, 3)
    assert group_of(driver).state is ConsumerGroupState.STABLE
    check_replay(driver)


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    settle(driver, first, second)
    answer = driver.ask(second.leave_request())
    assert (answer.member_epoch, answer.assignment) == (-1, None)
    assert group_of(driver).state is ConsumerGroupState.ASSIGNING
    settle(driver, first)
    assert len(first.held) == 4
    assert refused(driver, second.leave_request()) is ErrorCode.UNKNOWN_MEMBER_ID
    check_replay(driver)


def test_a_silent_member_is_removed_after_its_session_timeout() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    settle(driver, first, second)
    for _ in range(10):
        driver.advance(5_000)
        beat(driver, first)
    assert list(group_of(driver).details) == ["m-1"]
    with pytest.raises(SemelError) as error:
        beat(driver, second)
    assert error.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    check_replay(driver)


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    beat(driver, first)
    beat(driver, second)
    holding = replace(first.request(), owned=first.held)
    for _ in range(14):
        driver.call(holding)
        driver.advance(5_000)
        beat(driver, second)
    assert list(group_of(driver).details) == ["m-2"]
    settle(driver, second)
    assert len(second.held) == 4


def test_wrong_epochs_are_fenced() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP)
    beat(driver, member)
    request = member.request()
    assert refused(driver, replace(request, member_epoch=7)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(driver, replace(request, member_id="m-2")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(driver, replace(request, group_id="other")) is ErrorCode.UNKNOWN_MEMBER_ID
    # The epoch before the current one is that of a member which missed an answer; it must not hold more than it may.
    assert refused(driver, replace(request, member_epoch=0, member_id="m-9", server_assignor="mine")) is (
        ErrorCode.UNSUPPORTED_ASSIGNOR
    )
    assert "m-9" not in group_of(driver).details


def test_a_lost_answer_is_given_again_to_the_epoch_before() -> None:
    driver = driver_with(orders=4, more=2)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    beat(driver, first)
    beat(driver, second)
    beat(driver, first)  # told to give two up, and did
    driver.call(first.request())  # says so: it is at epoch 2 now, and never hears of it
    first.lost()
    assert first.epoch == 1
    answer = beat(driver, first)
    assert answer.member_epoch == 2
    assert answer.assignment == first.held
    late = replace(first.request(), member_epoch=1, owned=partitions("more", 0))
    assert refused(driver, late) is ErrorCode.FENCED_MEMBER_EPOCH


def test_G2_a_late_heartbeat_with_the_epoch_before_gives_nothing_up() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    late = replace(first.request(), member_epoch=0)
    beat(driver, first)
    settle(driver, first, second)
    held = first.held
    third = Member("m-3", GROUP)
    beat(driver, third)
    # A repeated join says that it holds nothing, but comes from before: what is held stays held.
    driver.call(late)
    assert held <= group_of(driver).currents["m-1"].held
    # It may have moved the epoch on, past what the member knows; then the member begins again.
    first.answered(driver.answers[driver.call(first.request())])
    settle(driver, first, second, third)
    assert first.held | second.held | third.held == partitions("orders", 0, 1, 2, 3)


def told_to_revoke(driver: GroupDriver) -> tuple[Member, Member]:
    """A member at epoch 2 that was told to give a partition up, and has not said so; and the one that waits for it."""
    first, second, third = Member("m-1", GROUP), Member("m-2", GROUP), Member("m-3", GROUP)
    beat(driver, first)
    settle(driver, first, second)
    beat(driver, third)
    first.answered(driver.ask(first.request()))
    current = group_of(driver).currents["m-1"]
    assert (current.state, current.epoch, current.previous_epoch) == (MemberState.UNREVOKED_PARTITIONS, 2, 1)
    assert len(current.to_revoke) == 1
    return first, third


@pytest.mark.parametrize("owned", [None, frozenset()])
def test_G2_only_a_member_of_the_current_epoch_can_say_what_it_gave_up(
    owned: frozenset[TopicIdPartition] | None,
) -> None:
    """A heartbeat from before may be late: what it did not hold then it may hold now."""
    driver = driver_with(orders=6)
    first, third = told_to_revoke(driver)
    held = group_of(driver).currents["m-1"].held
    driver.call(replace(first.request(), member_epoch=1, owned=owned))
    assert group_of(driver).currents["m-1"].held == held
    assert not (beat(driver, third).assignment or frozenset()) & held
    settle(driver, first, third)
    assert len(third.held) >= 1


def test_G2_a_heartbeat_that_says_nothing_of_partitions_gives_nothing_up() -> None:
    driver = driver_with(orders=6)
    first, third = told_to_revoke(driver)
    held = group_of(driver).currents["m-1"].held
    for _ in range(3):
        driver.ask(replace(first.request(), owned=None))
        assert group_of(driver).currents["m-1"].held == held
        assert not (beat(driver, third).assignment or frozenset()) & held


@pytest.mark.parametrize(
    "state", [MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS]
)
@pytest.mark.parametrize("owned", [None, partitions("orders", 0), partitions("orders", 0, 1), frozenset()])
def test_G2_a_partition_is_freed_by_its_members_word_alone(
    state: MemberState, owned: frozenset[TopicIdPartition] | None
) -> None:
    """Partition 0 is to go, and 1 to stay."""
    going, staying = partitions("orders", 0), partitions("orders", 1)
    if state is MemberState.UNREVOKED_PARTITIONS:
        current = MemberAssignment(4, 3, state, staying, going)
    else:
        current = MemberAssignment(4, 3, state, going | staying)
    after = next_assignment(current, 6, staying, lambda partition: True, owned)
    if owned is None or owned & going:
        assert after.held == going | staying
        assert after.epoch < 6
    else:
        assert after == MemberAssignment(6, after.previous_epoch, MemberState.STABLE, staying)


def test_G2_a_release_frees_a_partition_only_where_it_is_the_releasing_members() -> None:
    """The log may bring the new holder's record before the one in which the old holder lets go."""
    group = ConsumerGroupData(GROUP)
    p0 = partitions("orders", 0)
    for member_id, assigned in (("old", p0), ("new", p0), ("old", frozenset[TopicIdPartition]())):
        record = current_record(GROUP, member_id, MemberAssignment(1, 0, MemberState.STABLE, assigned))
        group.apply(consumer_key(record.key), record.value, 0)
    assert [group.holder(partition) for partition in p0] == ["new"]


def test_a_member_may_join_again_under_its_id() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP)
    beat(driver, member)
    member.lose_everything()
    answer = beat(driver, member)
    assert answer.assignment == partitions("orders", 0, 1)
    assert answer.member_epoch == 1


def test_a_group_takes_no_more_than_its_size() -> None:
    driver = GroupDriver(GroupConfig(group_consumer_max_size=1), topics=topics(orders=2))
    beat(driver, Member("m-1", GROUP))
    assert refused(driver, Member("m-2", GROUP).request()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert list(group_of(driver).details) == ["m-1"]


# --- Static members ---------------------------------------------------------------------------------------------------


def test_G4_a_static_member_that_comes_back_has_its_partitions_without_a_new_epoch() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP, instance="i-1"), Member("m-2", GROUP, instance="i-2")
    settle(driver, first, second)
    held, epoch = second.held, group_of(driver).epoch
    assert driver.ask(second.leave_request(will_be_back=True)).member_epoch == -2
    back = Member("m-3", GROUP, instance="i-2")
    assert beat(driver, back).assignment == held
    assert group_of(driver).epoch == epoch
    assert first.held == partitions("orders", 0, 1, 2, 3) - held
    with pytest.raises(SemelError) as error:
        driver.ask(replace(second.request(), member_epoch=epoch))
    assert error.value.code is ErrorCode.FENCED_INSTANCE_ID
    check_replay(driver)


def test_a_static_member_that_comes_back_under_its_own_id_has_its_partitions() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP, instance="i-1")
    settle(driver, member)
    driver.ask(member.leave_request(will_be_back=True))
    answer = beat(driver, member)
    assert (answer.member_epoch, answer.assignment) == (1, partitions("orders", 0, 1))


def test_a_static_member_that_comes_back_with_names_wants_its_expression_no_more() -> None:
    driver = driver_with(a=1, b=1)
    member = Member("m-1", GROUP, names=None, regex=".*", instance="i-1")
    settle(driver, member)
    driver.ask(member.leave_request(will_be_back=True))
    back = Member("m-2", GROUP, names=("a",), instance="i-1")
    settle(driver, back)
    assert back.held == partitions("a", 0)


def test_a_static_member_that_did_not_leave_keeps_its_name_until_its_session_ends() -> None:
    driver = driver_with(orders=2)
    settle(driver, Member("m-1", GROUP, instance="i-1"))
    other = Member("m-2", GROUP, instance="i-1")
    assert refused(driver, other.request()) is ErrorCode.UNRELEASED_INSTANCE_ID
    driver.advance(46_000)
    assert beat(driver, other).assignment == partitions("orders", 0, 1)


def test_a_static_member_that_stays_away_is_removed_after_its_session() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP, instance="i-2")
    settle(driver, first, second)
    driver.ask(second.leave_request(will_be_back=True))
    for _ in range(10):
        driver.advance(5_000)
        beat(driver, first)
    settle(driver, first)
    assert len(first.held) == 4


# --- Topics -----------------------------------------------------------------------------------------------------------


def test_topics_that_come_grow_and_go_are_reassigned() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP, names=("orders", "payments"))
    settle(driver, member)
    driver.topics = topics(orders=3)
    assert beat(driver, member).assignment == partitions("orders", 0, 1, 2)
    driver.topics = topics(orders=3, payments=1)
    settle(driver, member)
    assert member.held == partitions("orders", 0, 1, 2) | partitions("payments", 0)
    driver.topics = topics(payments=1)
    settle(driver, member)
    assert member.held == partitions("payments", 0)
    epoch = group_of(driver).epoch
    driver.topics = topics(payments=1, others=4)
    settle(driver, member)
    assert group_of(driver).epoch == epoch
    check_replay(driver)


def test_a_change_of_topics_while_the_coordinator_was_down_is_noticed() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP)
    settle(driver, member)
    driver.topics = topics(orders=3)
    driver.reload()
    settle(driver, member)
    assert len(member.held) == 3


def test_a_regular_expression_subscribes_to_what_matches_now_and_later() -> None:
    driver = driver_with(logs_a=1, logs_b=1, orders=1)
    member = Member("m-1", GROUP, names=None, regex="logs-.*")
    settle(driver, member)
    assert member.held == partitions("logs-a", 0) | partitions("logs-b", 0)
    driver.topics = topics(logs_a=1, logs_b=1, logs_c=2, orders=1)
    settle(driver, member)
    assert partitions("logs-c", 0, 1) < member.held
    bad = replace(Member("m-2", GROUP).request(), topic_regex="(a")
    assert refused(driver, bad) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_member_changes_its_subscription() -> None:
    driver = driver_with(orders=2, payments=2)
    member = Member("m-1", GROUP)
    settle(driver, member)
    member.names = ("payments",)
    member.lost()
    settle(driver, member)
    assert member.held == partitions("payments", 0, 1)


def test_the_assignor_most_members_ask_for_is_taken() -> None:
    driver = driver_with(a=2, b=2)
    members = [Member(f"m-{number}", GROUP, names=("a", "b"), assignor="range") for number in (1, 2)]
    settle(driver, *members)
    assert members[0].held == partitions("a", 0) | partitions("b", 0)
    description = driver.ask(ConsumerGroupDescribeRequest(GROUP))
    assert (description.assignor, description.state, description.group_epoch) == ("range", "Stable", 2)
    assert [member.member_id for member in description.members] == ["m-1", "m-2"]
    assert [topic.name for topic in description.members[0].assignment] == ["a", "b"]


# --- Offsets ----------------------------------------------------------------------------------------------------------


def test_O4_commits_are_fenced_by_the_member_epoch() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP)
    settle(driver, member)
    good = commit({P0: 5}, group=GROUP, generation=1, member_id="m-1")
    assert driver.ask(good).errors == {P0: ErrorCode.NONE}
    assert refused(driver, replace(good, generation_id=0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert refused(driver, replace(good, member_id="m-9")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(driver, commit({P0: 5}, group=GROUP)) is ErrorCode.UNKNOWN_MEMBER_ID
    in_transaction = commit({P0: 6}, group=GROUP, generation=0, member_id="m-1", producer=PRODUCER)
    assert refused(driver, in_transaction) is ErrorCode.ILLEGAL_GENERATION
    assert driver.ask(replace(in_transaction, generation_id=1)).errors == {P0: ErrorCode.NONE}
    driver.marker(PRODUCER, committed=True)
    assert driver.ask(fetch(P0, group=GROUP)).offsets[P0].offset == 6
    check_replay(driver)


def test_fetches_of_members_are_checked() -> None:
    driver = driver_with(orders=2)
    settle(driver, Member("m-1", GROUP))
    good = OffsetFetchRequest(GROUP, (P0,), True, "m-1", 1)
    assert driver.ask(good).offsets[P0].offset == -1
    assert refused(driver, replace(good, member_epoch=3)) is ErrorCode.STALE_MEMBER_EPOCH
    assert refused(driver, replace(good, member_id="m-9")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_topics_in_use_are_not_deleted_and_a_group_with_members_neither() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP)
    settle(driver, member)
    other = TopicPartition("others", 0)
    driver.ask(commit({P0: 5, other: 6}, group=GROUP, generation=1, member_id="m-1"))
    assert driver.ask(OffsetDeleteRequest(GROUP, (P0, other))).errors == {
        P0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        other: ErrorCode.NONE,
    }
    assert refused(driver, DeleteGroupRequest(GROUP)) is ErrorCode.NON_EMPTY_GROUP
    driver.ask(member.leave_request())
    driver.ask(DeleteGroupRequest(GROUP))
    assert driver.machine.consumer_group(GROUP) is None
    assert driver.ask(ListGroupsRequest()).groups == ()
    check_replay(driver)


def test_an_empty_group_goes_with_its_last_offset() -> None:
    driver = GroupDriver(
        GroupConfig(offsets_retention_minutes=10, offsets_retention_check_interval_ms=60_000), topics=topics(orders=1)
    )
    member = Member("m-1", GROUP)
    settle(driver, member)
    driver.ask(commit({P0: 5}, group=GROUP, generation=1, member_id="m-1"))
    for _ in range(200):
        driver.advance(5_000)
        beat(driver, member)
    assert driver.ask(fetch(P0, group=GROUP)).offsets[P0].offset == 5
    driver.ask(member.leave_request())
    # The retention counts from the end of the last membership, not from the commit.
    driver.advance(9 * 60_000)
    assert driver.ask(fetch(P0, group=GROUP)).offsets[P0].offset == 5
    driver.advance(5 * 60_000)
    assert driver.ask(fetch(P0, group=GROUP)).offsets[P0].offset == -1
    assert driver.machine.consumer_group(GROUP) is None
    check_replay(driver)


def test_groups_are_listed_by_type() -> None:
    driver = driver_with(orders=1)
    settle(driver, Member("m-1", GROUP))
    driver.stable_group(group="old")
    listed = driver.ask(ListGroupsRequest()).groups
    assert [(each.group_id, each.group_type, each.state) for each in listed] == [
        ("g", "consumer", "Stable"),
        ("old", "classic", "Stable"),
    ]
    assert [each.group_id for each in driver.ask(ListGroupsRequest(types=frozenset({"Consumer"}))).groups] == ["g"]


# --- Restarts ---------------------------------------------------------------------------------------------------------


def test_a_reload_in_the_middle_of_a_move_goes_on_where_it_was() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    beat(driver, first)
    beat(driver, second)
    first.answered(driver.ask(first.request()))
    driver.reload()
    assert group_of(driver).currents["m-1"].state is MemberState.UNREVOKED_PARTITIONS
    first.reconcile()
    settle(driver, first, second)
    assert len(first.held) == len(second.held) == 2
    check_replay(driver)


def test_after_a_reload_the_timeouts_of_members_restart() -> None:
    driver = driver_with(orders=4)
    first, second = Member("m-1", GROUP), Member("m-2", GROUP)
    beat(driver, first)
    beat(driver, second)
    beat(driver, first)
    driver.reload(compacted(driver.log))
    driver.advance(46_000)
    assert not group_of(driver).details


def test_a_member_in_a_state_of_a_newer_version_must_start_over() -> None:
    driver = driver_with(orders=2)
    member = Member("m-1", GROUP)
    settle(driver, member)
    newer = current_record(GROUP, "m-1", MemberAssignment(1, 0, MemberState.UNKNOWN, partitions("orders", 0, 1)))
    assert decode_current(newer.value or b"").state is MemberState.UNKNOWN
    driver.machine.replay(newer, driver.next_offset, None, driver.now_ms)
    assert refused(driver, replace(member.request(), owned=member.held)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(driver, member.request()) is ErrorCode.FENCED_MEMBER_EPOCH
