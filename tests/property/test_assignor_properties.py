"""Assignors on any subscriptions: all assigned, even, few moves (against brute force), no partition held twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from semel.group_coordinator.assignor import cooperative_sticky, sticky
from semel.group_coordinator.assignor.subscription import Assignments, MemberSubscription
from semel.group_coordinator.classic.assignment import ASSIGNORS
from semel.protocol.ids import TopicPartition

TOPICS = ("t", "u", "v")
Group = tuple[list[MemberSubscription], dict[str, int]]


@st.composite
def groups(
    draw: st.DrawFn, *, members_max: int = 6, partitions_max: int = 6, equal: bool = False, double_claims: bool = True
) -> Group:
    """Draw members with topics and claims, some stale or doubled, and partition counts; not every topic exists."""
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, partitions_max), max_size=3))
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count + 1)]
    names = [f"m{number}" for number in range(draw(st.integers(1, members_max)))]
    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for partition in partitions:
        claims = draw(st.lists(st.sampled_from(names), max_size=2 if double_claims else 1, unique=True))
        for name in claims:
            owned[name].append(partition)
    wanted = draw(st.sets(st.sampled_from(TOPICS)))
    members = [
        MemberSubscription(
            name,
            frozenset(wanted if equal else draw(st.sets(st.sampled_from(TOPICS)))),
            tuple(owned[name]),
            draw(st.sampled_from((-1, 3, 4))) if double_claims else 4,
            draw(st.one_of(st.none(), st.just(f"i-{name}"))),
        )
        for name in names
    ]
    return members, counts


def assignable(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> set[TopicPartition]:
    wanted = {topic for member in members for topic in member.topics}
    return {TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}


def check_valid(members: Sequence[MemberSubscription], assignments: Assignments) -> list[TopicPartition]:
    topics = {member.member_id: member.topics for member in members}
    assert set(assignments) == set(topics)
    given_out = [partition for partitions in assignments.values() for partition in partitions]
    assert len(given_out) == len(set(given_out)), "a partition has two owners"
    for name, partitions in assignments.items():
        assert all(partition.topic in topics[name] for partition in partitions)
    return given_out


def squares(assignments: Assignments) -> int:
    return sum(len(partitions) ** 2 for partitions in assignments.values())


def homes(members: Sequence[MemberSubscription], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    topics = {member.member_id: member.topics for member in members}
    return {
        partition: owner
        for partition, owner in sticky.previous_owners(members).items()
        if partition in assignable(members, counts) and partition.topic in topics[owner]
    }


def moves(assignments: Assignments, home: Mapping[TopicPartition, str]) -> int:
    return sum(partition not in assignments[owner] for partition, owner in home.items())


@given(groups(), st.sampled_from(["range", "roundrobin", "sticky"]))
def test_G3_every_partition_is_assigned_once_to_a_member_that_wants_it(group: Group, name: str) -> None:
    members, counts = group
    assert set(check_valid(members, ASSIGNORS[name](members, counts))) == assignable(members, counts)


@given(groups(equal=True), st.sampled_from(["roundrobin", "sticky"]))
def test_G3_loads_differ_by_at_most_one_with_equal_subscriptions(group: Group, name: str) -> None:
    members, counts = group
    loads = [len(partitions) for partitions in ASSIGNORS[name](members, counts).values()]
    assert max(loads) - min(loads) <= 1


@given(groups())
def test_G3_range_is_even_within_each_topic(group: Group) -> None:
    members, counts = group
    assignments = ASSIGNORS["range"](members, counts)
    for topic in TOPICS:
        loads = [
            sum(partition.topic == topic for partition in assignments[member.member_id])
            for member in members
            if topic in member.topics
        ]
        assert not loads or max(loads) - min(loads) <= 1


@settings(max_examples=300, deadline=None)
@given(st.one_of(groups(members_max=4, partitions_max=3), groups(members_max=4, partitions_max=3, equal=True)))
def test_G3_sticky_is_as_even_and_moves_as_few_as_brute_force_finds(group: Group) -> None:
    members, counts = group
    partitions = sorted(assignable(members, counts))[:7]
    counts = {topic: sum(partition.topic == topic for partition in partitions) for topic in TOPICS}
    takers = [[member.member_id for member in members if partition.topic in member.topics] for partition in partitions]
    home = homes(members, counts)
    best = min(
        (
            (squares(candidate), moves(candidate, home))
            for chosen in product(*takers)
            for candidate in [_as_assignments(members, partitions, chosen)]
        ),
        default=(0, 0),
    )
    found = sticky.assign(members, counts)
    assert (squares(found), moves(found, home)) == best


def _as_assignments(
    members: Sequence[MemberSubscription], partitions: Sequence[TopicPartition], chosen: Sequence[str]
) -> Assignments:
    assignments: Assignments = {member.member_id: [] for member in members}
    for partition, name in zip(partitions, chosen, strict=True):
        assignments[name].append(partition)
    return assignments


@settings(deadline=None)
@given(groups(members_max=12, partitions_max=40))
def test_G3_sticky_leaves_no_improving_path_in_larger_groups(group: Group) -> None:
    """No chain of members along which one partition each could be handed on to one that has two fewer."""
    members, counts = group
    assignments = sticky.assign(members, counts)
    topics = {member.member_id: member.topics for member in members}
    held = {name: {partition.topic for partition in partitions} for name, partitions in assignments.items()}
    for start in assignments:
        reached, todo = {start}, [start]
        while todo:
            giver = todo.pop()
            for taker in assignments:
                if taker not in reached and held[giver] & topics[taker]:
                    reached.add(taker)
                    todo.append(taker)
        assert all(len(assignments[end]) >= len(assignments[start]) - 1 for end in reached)


@given(groups(equal=True, double_claims=False))
def test_G3_sticky_again_moves_nothing(group: Group) -> None:
    members, counts = group
    first = sticky.assign(members, counts)
    again = [
        MemberSubscription(member.member_id, member.topics, tuple(first[member.member_id]), 5) for member in members
    ]
    assert {name: set(parts) for name, parts in sticky.assign(again, counts).items()} == {
        name: set(parts) for name, parts in first.items()
    }


@given(groups())
def test_G2_cooperative_gives_only_what_nobody_else_holds(group: Group) -> None:
    members, counts = group
    assignments = cooperative_sticky.assign(members, counts)
    check_valid(members, assignments)
    owners = sticky.previous_owners(members)
    for member in members:
        for partition in assignments[member.member_id]:
            others = [other for other in members if other is not member and partition in other.owned]
            assert not others or owners.get(partition) == member.member_id


@given(groups(double_claims=False))
def test_G2_cooperative_settles_in_two_rounds_on_what_sticky_wants(group: Group) -> None:
    """After the first round everybody gives up what it was not assigned; the second gives all the rest out."""
    members, counts = group
    target = sticky.assign(members, counts)
    first = cooperative_sticky.assign(members, counts)
    for member in members:
        kept = set(member.owned) & set(target[member.member_id])
        assert kept <= set(first[member.member_id]), "who loses nothing never stops"
    again = [
        MemberSubscription(member.member_id, member.topics, tuple(first[member.member_id]), 5, member.group_instance_id)
        for member in members
    ]
    second = cooperative_sticky.assign(again, counts)
    assert set(check_valid(members, second)) == assignable(members, counts)
    assert squares(second) == squares(target)
    for member in members:
        assert set(first[member.member_id]) <= set(second[member.member_id])
