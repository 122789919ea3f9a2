"""Range, round-robin, sticky and cooperative-sticky on examples, and how members' words become their input."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from semel.group_coordinator.assignor import cooperative_sticky, round_robin, sticky
from semel.group_coordinator.assignor import range as range_assignor
from semel.group_coordinator.assignor.subscription import Assignments, MemberSubscription
from semel.group_coordinator.classic.assignment import ASSIGNORS, assign_partitions
from semel.group_coordinator.classic.state import GroupMember
from semel.protocol.api.groups import GroupProtocol
from semel.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition


def tp(text: str) -> TopicPartition:
    return TopicPartition(text[0], int(text[1:]))


def tps(text: str) -> list[TopicPartition]:
    return [tp(part) for part in text.split()]


def member(
    name: str, topics: str = "t", owned: str = "", generation: int = 1, instance: str | None = None
) -> MemberSubscription:
    return MemberSubscription(name, frozenset(topics.split()), tuple(tps(owned)), generation, instance)


def texts(assignments: Assignments) -> dict[str, str]:
    return {name: " ".join(f"{p.topic}{p.partition}" for p in partitions) for name, partitions in assignments.items()}


def moved(members: Iterable[MemberSubscription], assignments: Assignments) -> int:
    return sum(partition not in assignments[one.member_id] for one in members for partition in one.owned)


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_nobody_and_nothing(name: str) -> None:
    assign = ASSIGNORS[name]
    assert assign([], {"t": 3}) == {}
    assert assign([member("a", "")], {"t": 3}) == {"a": []}
    assert assign([member("a", "u"), member("b", "t")], {"t": 1}) == {"a": [], "b": tps("t0")}
    assert assign([member("a")], {"t": 0}) == {"a": []}


def test_range_cuts_each_topic_into_runs() -> None:
    members = [member("b", "t u"), member("a", "t u"), member("c", "u")]
    assert texts(range_assignor.assign(members, {"t": 3, "u": 7})) == {
        "a": "t0 t1 u0 u1 u2",
        "b": "t2 u3 u4",
        "c": "u5 u6",
    }


def test_range_puts_static_members_first_in_order_of_their_instances() -> None:
    members = [member("a"), member("z", instance="1"), member("y", instance="2")]
    assert texts(range_assignor.assign(members, {"t": 3})) == {"z": "t0", "y": "t1", "a": "t2"}


def test_round_robin_deals_in_turn() -> None:
    members = [member("a", "t u"), member("b", "t u")]
    assert texts(round_robin.assign(members, {"t": 3, "u": 3})) == {"a": "t0 t2 u1", "b": "t1 u0 u2"}


def test_round_robin_with_unequal_subscriptions_is_kafkas_example() -> None:
    members = [member("a", "t"), member("b", "t u"), member("c", "t u v")]
    assert texts(round_robin.assign(members, {"t": 1, "u": 2, "v": 3})) == {"a": "t0", "b": "u0", "c": "u1 v0 v1 v2"}


def test_G3_sticky_with_unequal_subscriptions_is_as_even_as_can_be() -> None:
    members = [member("a", "t"), member("b", "t u"), member("c", "t u v")]
    assert texts(sticky.assign(members, {"t": 1, "u": 2, "v": 3})) == {"a": "t0", "b": "u0 u1", "c": "v0 v1 v2"}


def test_G3_sticky_keeps_what_it_can_when_a_member_joins() -> None:
    members = [member("a", owned="t0 t1 t2"), member("b", owned="t3 t4 t5"), member("c")]
    assignments = sticky.assign(members, {"t": 6})
    assert sorted(map(len, assignments.values())) == [2, 2, 2]
    assert moved(members, assignments) == 2


def test_G3_sticky_moves_nothing_when_a_member_leaves() -> None:
    members = [member("a", owned="t0 t1"), member("c", owned="t4 t5")]
    assignments = sticky.assign(members, {"t": 6})
    assert moved(members, assignments) == 0
    assert sorted(map(len, assignments.values())) == [3, 3]


def test_G3_sticky_leaves_the_larger_shares_where_they_are() -> None:
    members = [member("a", owned="t0"), member("b", owned="t1 t2"), member("c", owned="t3 t4")]
    assert moved(members, sticky.assign(members, {"t": 5})) == 0


def test_G3_sticky_hands_on_over_others_where_it_must() -> None:
    members = [member("a", "t", "t0 t1 t2"), member("b", "t u", "u0 u1"), member("c", "u")]
    assignments = sticky.assign(members, {"t": 3, "u": 2})
    assert sorted(map(len, assignments.values())) == [1, 2, 2]
    assert moved(members, assignments) == 2


def test_sticky_takes_the_latest_claim_and_no_double_one() -> None:
    members = [member("a", owned="t0 t1", generation=3), member("b", owned="t0 t2", generation=4)]
    assert sticky.previous_owners(members) == {tp("t0"): "b", tp("t1"): "a", tp("t2"): "b"}
    members = [member("a", owned="t0", generation=4), member("b", owned="t0", generation=4)]
    assert sticky.previous_owners(members) == {}
    assert sticky.previous_owners([member("a", owned="t0 t0")]) == {tp("t0"): "a"}


def test_sticky_ignores_partitions_that_are_gone_and_topics_no_longer_wanted() -> None:
    members = [member("a", "t", "t0 t9 u0"), member("b", "u", "")]
    assert texts(sticky.assign(members, {"t": 2, "u": 1})) == {"a": "t0 t1", "b": "u0"}


def test_G2_cooperative_first_takes_then_gives() -> None:
    first = [member("a", owned="t0 t1 t2"), member("b")]
    phase_one = cooperative_sticky.assign(first, {"t": 3})
    assert texts(phase_one) == {"a": "t0 t1", "b": ""}
    second = [member("a", owned="t0 t1", generation=2), member("b", generation=2)]
    assert texts(cooperative_sticky.assign(second, {"t": 3})) == {"a": "t0 t1", "b": "t2"}


def test_G2_partition_that_two_claim_by_the_same_right_is_given_to_neither() -> None:
    members = [member("a", owned="t0"), member("b", owned="t0")]
    assert texts(cooperative_sticky.assign(members, {"t": 1})) == {"a": "", "b": ""}


def test_G2_stale_claim_does_not_stop_the_owner_but_stops_everybody_else() -> None:
    members = [member("a", owned="t0", generation=5), member("b", owned="t0 t1", generation=2)]
    assert texts(cooperative_sticky.assign(members, {"t": 2})) == {"a": "t0", "b": "t1"}
    members = [member("a", generation=5), member("b", "u", owned="t0", generation=2)]
    assert texts(cooperative_sticky.assign(members, {"t": 1, "u": 1})) == {"a": "", "b": "u0"}


def test_order_of_members_does_not_matter() -> None:
    members = [
        member(name, topics, owned) for name, topics, owned in (("a", "t u", "t0"), ("b", "t", ""), ("c", "u", ""))
    ]
    for assign in ASSIGNORS.values():
        expected = assign(members, {"t": 5, "u": 4})
        for seed in range(5):
            shuffled = random.Random(seed).sample(members, 3)
            assert assign(shuffled, {"t": 5, "u": 4}) == expected


def test_large_groups_with_unequal_subscriptions_are_assigned_within_the_effort() -> None:
    """All of 2,000 partitions at one member, 100 members with their own pairs of 20 topics."""
    counts = {f"t{number}": 100 for number in range(20)}
    everything = tuple(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))
    members = [MemberSubscription("member-000", frozenset(counts), everything, 1)]
    members += [
        MemberSubscription(f"member-{number:03d}", frozenset({f"t{number % 20}", f"t{(number * 7 + 1) % 20}"}))
        for number in range(1, 101)
    ]
    assignments = sticky.assign(members, counts)
    loads = [len(partitions) for partitions in assignments.values()]
    assert sum(loads) == 2_000
    assert max(loads) - min(loads) <= 1
    assert len(assignments["member-000"]) == max(loads)


# --- From what members say to what assignors are given ----------------------------------------------------------------


def joined(name: str, protocol: str, said: Subscription, *, given: str = "", version: int = 3) -> GroupMember:
    return GroupMember(
        name,
        None,
        "client",
        "host",
        1,
        1,
        (GroupProtocol(protocol, encode_subscription(said, version)),),
        encode_assignment(Assignment(tuple(tps(given)))) if given else b"",
    )


def given(result: dict[str, bytes] | SemelError) -> dict[str, str]:
    assert isinstance(result, dict)
    return texts({name: list(decode_assignment(data).partitions) for name, data in result.items()})


def test_eager_sticky_member_that_says_nothing_is_remembered() -> None:
    members = [
        joined("a", "sticky", Subscription(("t",)), given="t2 t3"),
        joined("b", "sticky", Subscription(("t",)), given="t0 t1"),
    ]
    assert given(assign_partitions("sticky", members, {"t": 4})) == {"a": "t2 t3", "b": "t0 t1"}


def test_eager_sticky_member_is_believed_by_its_user_data() -> None:
    user_data = b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x05"
    members = [
        joined("a", "sticky", Subscription(("t",), user_data)),
        joined("b", "sticky", Subscription(("t",), None, tuple(tps("t0")), 5)),
    ]
    assert given(assign_partitions("sticky", members, {"t": 2})) == {"a": "t1", "b": "t0"}


def test_G2_absent_static_member_counts_as_holding_what_it_was_given() -> None:
    away = joined("a", "cooperative-sticky", Subscription(("t",)), given="t0 t1")
    away.is_absent = True
    members = [away, joined("b", "cooperative-sticky", Subscription(("t",)))]
    assert given(assign_partitions("cooperative-sticky", members, {"t": 2})) == {"a": "t0", "b": ""}


def test_generation_of_old_cooperative_members_is_in_the_user_data() -> None:
    old = Subscription(("t",), b"\x00\x00\x00\x07", tuple(tps("t0")))
    members = [
        joined("a", "cooperative-sticky", old, version=1),
        joined("b", "cooperative-sticky", Subscription(("t",), None, tuple(tps("t0")), 6)),
    ]
    assert given(assign_partitions("cooperative-sticky", members, {"t": 1})) == {"a": "t0", "b": ""}


def test_answer_is_in_the_version_that_the_member_speaks() -> None:
    members = [joined("a", "range", Subscription(("t",)), version=0), joined("b", "range", Subscription(("t",)))]
    result = assign_partitions("range", members, {"t": 2})
    assert isinstance(result, dict)
    assert (result["a"][:2], result["b"][:2]) == (b"\x00\x00", b"\x00\x03")


def test_unknown_assignor_is_named_with_those_there_are() -> None:
    refused = assign_partitions("mine", [], {})
    assert isinstance(refused, SemelError)
    assert refused.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "cooperative-sticky" in refused.message
