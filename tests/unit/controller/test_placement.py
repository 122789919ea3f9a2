"""Where replicas of new partitions go: over racks first, then evenly over nodes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from chained_changes import chained
from hypothesis import given
from hypothesis import strategies as st
from three_nodes import registered

from semel.broker.controller.placement import place_replicas
from semel.broker.handlers.topics.replica_placement import placed_as_assigned, placed_by_rule
from semel.broker.metadata.changes import BrokerFenced, PartitionState
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.randomness import draw_from


def cluster(racks: Sequence[str], fenced: Sequence[int] = ()) -> MetadataImage:
    """Nodes 1 and following, in these racks."""
    nodes = [registered(node_id, rack=rack) for node_id, rack in enumerate(racks, start=1)]
    return EMPTY_IMAGE.apply_all(chained([*nodes, *(BrokerFenced(node_id, node_id) for node_id in fenced)]))


def placed(image: MetadataImage, count: int, factor: int, start: int = 0, **more: object) -> tuple[PartitionState, ...]:
    return place_replicas(image, "t", count, factor, nodes=image.brokers, start=start, **more)  # type: ignore[arg-type]


def spread(counts: Counter[int], image: MetadataImage) -> int:
    """The difference between the node that has most and the one that has least."""
    numbers = [counts[node_id] for node_id in image.brokers]
    return max(numbers) - min(numbers)


@given(st.integers(1, 9), st.integers(1, 300), st.integers(1, 9), st.integers(0, 100))
def test_replicas_and_leaders_are_spread_evenly_over_nodes(nodes: int, count: int, factor: int, start: int) -> None:
    image = cluster([""] * nodes)
    factor = min(factor, nodes)
    states = placed(image, count, factor, start)
    assert len(states) == count
    assert all(len(set(state.replicas)) == factor for state in states)
    assert all(state == PartitionState(state.replicas[0], 0, state.replicas, state.replicas) for state in states)
    assert spread(Counter(state.leader for state in states), image) <= 1
    assert spread(Counter(each for state in states for each in state.replicas), image) <= 1


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=7), st.integers(1, 80), st.integers(1, 7), st.integers(0, 9)
)
def test_each_partition_is_in_as_many_racks_as_it_can_be(racks: list[str], count: int, factor: int, start: int) -> None:
    image = cluster(racks)
    factor = min(factor, len(racks))
    states = placed(image, count, factor, start)
    for state in states:
        assert len(set(state.replicas)) == factor
        inside = Counter(racks[node_id - 1] for node_id in state.replicas)
        assert len(inside) == min(factor, len(set(racks)))
    assert spread(Counter(state.leader for state in states), image) <= 1


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 200), st.integers(1, 9), st.integers(0, 9))
def test_nodes_of_equal_racks_have_equally_much(each: int, racks: int, count: int, factor: int, start: int) -> None:
    image = cluster([f"rack-{number % racks}" for number in range(each * racks)])
    states = placed(image, count, min(factor, each * racks), start)
    assert spread(Counter(node_id for state in states for node_id in state.replicas), image) <= 1


def test_when_a_node_fails_several_others_share_what_it_led() -> None:
    states = placed(cluster([""] * 5), 20, 2)
    for node_id in range(1, 6):
        assert len({state.replicas[1] for state in states if state.leader == node_id}) >= 3


def test_partitions_that_are_added_fill_up_nodes_that_have_less() -> None:
    image = cluster(["", "", ""])
    existing = [PartitionState(1, 0, (1, 2), (1, 2)), PartitionState(1, 0, (1, 2), (1, 2))]
    added = placed(image, 4, 2, existing=existing)
    together = Counter(each for state in (*existing, *added) for each in state.replicas)
    assert together == {1: 4, 2: 4, 3: 4}
    assert Counter(state.leader for state in (*existing, *added)) == {1: 2, 2: 2, 3: 2}


def test_a_node_that_is_not_alive_leads_nothing_and_has_replicas_only_where_others_are_too_few() -> None:
    image = cluster(["", "", ""], fenced=[2])
    assert {each for state in placed(image, 6, 2) for each in state.replicas} == {1, 3}
    assert {each for state in placed(image, 6, 1, stopping={1}) for each in state.replicas} == {3}
    for state in placed(image, 6, 3):
        assert sorted(state.replicas) == [1, 2, 3]
        assert state.leader in (1, 3)
        assert sorted(state.isr) == [1, 3]
        assert state.replicas[-1] == 2


@pytest.mark.parametrize(
    ("factor", "fenced", "says"),
    [
        (
            3,
            (),
            r"topic t asks for replication factor 3, but only 2 nodes may get replicas \(1, 2\): ask for 2, or start",
        ),
        (0, (), r"topic t can't have 0 replicas"),
        (-2, (), r"topic t can't have -2 replicas"),
        (1, (1, 2), r"of the nodes 1, 2 none is alive"),
    ],
)
def test_a_replication_factor_that_can_not_be_is_refused_in_words(
    factor: int, fenced: tuple[int, ...], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        placed(cluster(["", ""], fenced), 1, factor)
    assert raised.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_only_the_nodes_that_may_have_replicas_have_some() -> None:
    image = cluster(["", "", ""])
    states = place_replicas(image, "t", 10_000, 1, nodes=(2,), start=0)
    assert set(states) == {PartitionState(2, 0, (2,), (2,))}
    assert len(set(map(id, states))) == 1, "a wide topic's partitions share their state"
    with pytest.raises(UsageError, match=r"but only 1 node may get replicas \(2\)"):
        place_replicas(image, "t", 1, 2, nodes=(2,), start=0)


def test_topics_begin_on_nodes_that_are_drawn() -> None:
    image = cluster(["", "", ""])
    draw_from(random.Random(1))
    leaders = Counter(placed_by_rule(image, image.brokers.keys(), "t", 1, 1)[0].leader for _ in range(60))
    assert set(leaders) == {1, 2, 3}


def test_an_assignment_to_nodes_that_are_not_alive_is_refused_and_one_to_some_has_these_in_sync() -> None:
    image = cluster(["", "", ""], fenced=[1])
    assert placed_as_assigned(image, "t", 0, {0: [1, 3, 2]}) == (PartitionState(3, 0, (1, 3, 2), (3, 2)),)
    with pytest.raises(UsageError, match="t-0 can't be on 1 alone") as raised:
        placed_as_assigned(image, "t", 0, {0: [1]})
    assert raised.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
