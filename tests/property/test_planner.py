"""Plans for any cluster: what must hold always does, nothing gets worse, and a plan that is carried out is the last."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from longer_runs import examples

from semel.protocol.ids import TopicPartition
from semel.sdk.balancing.cost import BYTES_MEAN_MIN, Weights, imbalance
from semel.sdk.balancing.layout import NO_COPY, Layout, Step
from semel.sdk.balancing.model import ClusterModel, NodeModel, PartitionModel
from semel.sdk.balancing.planner import plan
from semel.sdk.balancing.prospects import LeaderChanges, Prospects
from semel.sdk.balancing.results import Plan

MIB = 1 << 20
FORCED = ("racks", "to be emptied")


@st.composite
def node_models(draw: st.DrawFn, *, disks: bool) -> list[NodeModel]:
    """Draw nodes with ids that have gaps, in few racks, most of them able to get more."""
    ids = draw(st.lists(st.integers(0, 30), min_size=1, max_size=7, unique=True))
    racks = draw(st.sampled_from(["", "ab", "abc"]))
    free = st.one_of(st.none(), st.integers(0, 3000 * MIB)) if disks else st.none()
    return [
        NodeModel(
            node_id,
            draw(st.sampled_from(racks)) if racks else "",
            is_alive=draw(st.integers(0, 9)) > 0,
            may_get_more=draw(st.integers(0, 9)) > 0,
            free_bytes=draw(free),
        )
        for node_id in ids
    ]


@st.composite
def clusters(draw: st.DrawFn, *, disks: bool = True) -> ClusterModel:
    """Draw clusters of up to 7 nodes and 40 partitions; a few are being moved, without a leader, or behind."""
    nodes = draw(node_models(disks=disks))
    ids = [each.node_id for each in nodes]
    # Few nodes have the replicas of a topic, as where others have joined since.
    partitions: list[PartitionModel] = []
    for topic in draw(st.lists(st.sampled_from("tuvwx"), max_size=5, unique=True)):
        holders = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=len(ids), unique=True))
        factor = draw(st.integers(1, min(4, len(holders))))
        for number in range(draw(st.integers(1, 8))):
            first = draw(st.integers(0, len(holders) - 1))
            replicas = tuple((holders * 2)[first : first + factor])
            mood = draw(st.integers(0, 15))
            in_sync = frozenset(replicas if mood < 12 else replicas[: mood - 12])
            partitions.append(
                PartitionModel(
                    TopicPartition(topic, number),
                    replicas,
                    next((each for each in replicas if each in in_sync), None),
                    in_sync,
                    draw(st.one_of(st.just(0), st.integers(0, 1000 * MIB))),
                    draw(st.one_of(st.just(0.0), st.floats(0, 1e7))),
                    draw(st.one_of(st.just(0.0), st.floats(0, 1e8))),
                    is_moving=mood == 0,
                )
            )
    return ClusterModel(tuple(nodes), tuple(partitions))


@st.composite
def tasks(draw: st.DrawFn, *, disks: bool = True) -> tuple[ClusterModel, frozenset[int]]:
    """Draw a cluster, and which nodes are to be emptied: mostly none or one."""
    model = draw(clusters(disks=disks))
    ids = [each.node_id for each in model.nodes]
    return model, draw(st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(ids), max_size=2)))


def carried_out(model: ClusterModel, made: Plan) -> ClusterModel:
    return model.moved({move.partition: move.after for move in made.moves})


def racks_of(model: ClusterModel, replicas: tuple[int, ...]) -> int:
    racks = {each.node_id: each.rack for each in model.nodes}
    return len({racks[node_id] for node_id in replicas})


@settings(max_examples=examples(60), deadline=None)
@given(tasks())
def test_what_must_hold_does_for_each_move(task: tuple[ClusterModel, frozenset[int]]) -> None:
    model, empty = task
    made = plan(model, empty=empty)
    partitions = {one.partition: one for one in model.partitions}
    able = {each.node_id for each in model.nodes if each.is_alive and each.may_get_more} - empty
    assert len({move.partition for move in made.moves}) == len(made.moves)
    for move in made.moves:
        one = partitions[move.partition]
        added = set(move.after) - set(move.before)
        assert move.before == one.replicas != move.after
        assert len(move.after) == len(set(move.after)) == len(move.before)
        assert added <= able
        assert move.after[0] == move.before[0] or move.after[0] in able & (one.in_sync | added)
        assert racks_of(model, move.after) >= racks_of(model, move.before)
        assert move.copied_bytes == len(added) * one.size_bytes
        assert one.leader is not None
        assert not one.is_moving
        assert (move.reason == "leader only") == (not added)
        behind = set(one.replicas) - one.in_sync - empty
        assert not behind or move.reason == "leader only" or empty.intersection(move.before)
    assert made.before == model.totals()
    assert made.after == carried_out(model, made).totals()


@settings(max_examples=examples(60), deadline=None)
@given(tasks())
def test_no_disk_gets_more_than_nine_tenths_of_what_is_free(task: tuple[ClusterModel, frozenset[int]]) -> None:
    """Nothing that leaves it counts: it may leave last."""
    model, empty = task
    sizes = {one.partition: one.size_bytes for one in model.partitions}
    got: Counter[int] = Counter()
    for move in plan(model, empty=empty).moves:
        for node_id in set(move.after) - set(move.before):
            got[node_id] += sizes[move.partition]
    for each in model.nodes:
        assert each.free_bytes is None or got[each.node_id] * 10 <= each.free_bytes * 9


@settings(max_examples=examples(60), deadline=None)
@given(tasks())
def test_emptied_nodes_have_nothing_but_what_the_plan_names(task: tuple[ClusterModel, frozenset[int]]) -> None:
    model, empty = task
    made = plan(model, empty=empty)
    fixed = {one.partition for one in model.partitions if one.is_moving or one.leader is None}
    assert fixed <= {each.partition for each in made.left_alone}
    named = fixed | {each.partition for each in made.impossible}
    stayed = {one.partition for one in carried_out(model, made).partitions if empty.intersection(one.replicas)}
    assert stayed <= named
    if stayed:
        event("something stays on a node that is to be emptied")


@settings(max_examples=examples(60), deadline=None)
@given(tasks(disks=False))
def test_partitions_are_in_as_many_racks_as_they_can_be(task: tuple[ClusterModel, frozenset[int]]) -> None:
    model, empty = task
    made = plan(model, empty=empty)
    named = {each.partition for each in (*made.impossible, *made.left_alone)}
    racks = {each.node_id: each.rack for each in model.nodes}
    usable = {each.rack for each in model.nodes if each.is_alive and each.may_get_more and each.node_id not in empty}
    for one in carried_out(model, made).partitions:
        if one.partition not in named:
            possible = usable | {racks[node_id] for node_id in one.replicas}
            assert racks_of(model, one.replicas) == min(len(one.replicas), len(possible))


@settings(max_examples=examples(60), deadline=None)
@given(
    tasks(),
    st.sampled_from(
        [Weights(), Weights(copy=0.0), Weights(topic_replicas=0.0, size_bytes=5.0), Weights(bytes_out=9.0)]
    ),
)
def test_a_cluster_gets_no_more_uneven(task: tuple[ClusterModel, frozenset[int]], weights: Weights) -> None:
    """All that the search does after the moves that have to be is worth what it copies."""
    model, empty = task
    made = plan(model, empty=empty, weights=weights)
    forced = [move for move in made.moves if move.reason.endswith(FORCED)]
    if not forced:
        before, after = (imbalance(each, empty=empty, weights=weights) for each in (model, carried_out(model, made)))
        assert after <= before + 1e-9
        assert not made.moves or after < before
    unsought = carried_out(model, plan(model, empty=empty, weights=weights, steps_max=0))
    sought = carried_out(model, made)
    assert imbalance(sought, empty=empty, weights=weights) <= imbalance(unsought, empty=empty, weights=weights) + 1e-9
    event(f"forced moves: {bool(forced)}, others: {len(made.moves) > len(forced)}")


def now(model: ClusterModel, layout: Layout) -> ClusterModel:
    """Return the cluster as a layout has it, the preferred leader first."""
    replicas = {}
    for one, nodes, leader in zip(layout.partitions, layout.replicas, layout.leaders, strict=True):
        others = [layout.node_ids[node] for node in nodes if node != leader]
        replicas[one.partition] = (layout.node_ids[leader], *others)
    return model.moved(replicas)


def costs(layout: Layout, model: ClusterModel, weights: Weights) -> float:
    """Return what copies and other leaders cost, in a layout whose home is the model, by the weights."""
    able = [each for each in range(len(layout.node_ids)) if layout.is_able[each]]
    replicas = sum(node in able for one in layout.replicas for node in one)
    leaders = sum(leader in able for leader in layout.leaders)
    size_bytes = sum(
        size * (node in able) for size, one in zip(layout.sizes, layout.replicas, strict=True) for node in one
    )
    mean = max(size_bytes / len(able), BYTES_MEAN_MIN)
    # Nodes that may get no more can have all replicas, or lead all partitions.
    per_replica, per_leader = (len(able) / each if each else 0.0 for each in (replicas, leaders))
    total = 0.0
    before = {one.partition: one.replicas for one in model.partitions}
    for one in now(model, layout).partitions:
        copies = len(set(one.replicas) - set(before[one.partition]))
        total += copies * weights.copy / 2 * (one.size_bytes / mean + per_replica)
        total += weights.leader_change * per_leader * (one.replicas[0] != before[one.partition][0])
    return total


@settings(max_examples=examples(80), deadline=None)
@given(
    clusters(disks=False),
    st.sampled_from([Weights(), Weights(bytes_out=50.0), Weights(copy=0.0, leader_change=0.0, bytes_in=0.0)]),
    st.data(),
)
def test_a_step_gains_what_the_cluster_gets_less_uneven_less_what_it_costs(
    model: ClusterModel, weights: Weights, data: st.DataObject
) -> None:
    layout = Layout(model, (), weights)
    layout.weigh()
    taken = 0
    for _ in range(6):
        numbers = range(len(layout.partitions))
        steps = [Step(number, NO_COPY, NO_COPY, node) for number, node, _ in layout.leader_changes(numbers)]
        for number in numbers:
            leader = layout.leaders[number]
            for source in filter(layout.is_able.__getitem__, layout.replicas[number]):
                targets = [node for node in layout.able if node not in layout.replicas[number]]
                steps += [Step(number, source, node, node if source == leader else leader) for node in targets]
        if not steps:
            break
        step = data.draw(st.sampled_from(steps))
        alone = {(number, node): gain for number, node, gain in layout.leader_changes(numbers)}
        gain = layout.gain(step)
        if step.source == NO_COPY:
            assert alone[step.number, step.leader] == pytest.approx(gain, abs=1e-9)
        before = imbalance(now(model, layout), weights=weights) + costs(layout, model, weights)
        layout.take(step)
        after = imbalance(now(model, layout), weights=weights) + costs(layout, model, weights)
        assert before - after == pytest.approx(gain, rel=1e-9, abs=1e-7)
        taken += 1
    event(f"steps: {taken}")


@settings(max_examples=examples(80), deadline=None)
@given(clusters(disks=False), st.data())
def test_leaders_that_change_places_gain_what_each_does_alone_and_together(
    model: ClusterModel, data: st.DataObject
) -> None:
    layout = Layout(model, (), Weights())
    layout.weigh()
    changes = list(layout.leader_changes(range(len(layout.partitions))))
    pairs = [
        (one, other)
        for one in changes
        for other in changes
        if one[0] < other[0] and (layout.leaders[one[0]], one[1]) == (other[1], layout.leaders[other[0]])
    ]
    if not pairs:
        return
    (number, node, alone), (other, to, other_alone) = data.draw(st.sampled_from(pairs))
    layout.take(Step(number, NO_COPY, NO_COPY, node))
    together = alone + layout.leader_gain(other, to)
    assert together == pytest.approx(alone + other_alone + layout.together_gain(number, other), rel=1e-9, abs=1e-9)
    event("two leaders change places")


def any_step(layout: Layout, data: st.DataObject) -> Step | None:
    """Draw a step that may be taken; None where there is none."""
    steps: list[Step] = []
    for number, leader in enumerate(layout.leaders):
        best = layout.best_step(number, -inf, may_copy=True)
        if best is not None:
            steps.append(best)
        if not layout.is_whole(number):
            continue
        for source in filter(layout.is_able.__getitem__, layout.replicas[number]):
            steps += [
                Step(number, source, node, node if source == leader else leader)
                for node in layout.able
                if node not in layout.replicas[number] and layout.has_room(number, node)
            ]
    return data.draw(st.sampled_from(steps)) if steps else None


@settings(max_examples=examples(80), deadline=None)
@given(clusters(), st.data())
def test_a_search_skips_nothing_that_gains(model: ClusterModel, data: st.DataObject) -> None:
    """What is known from the last look says the same as a look at everything."""
    layout = Layout(model, (), Weights(copy=data.draw(st.sampled_from([0.0, 0.1]))))
    layout.weigh()
    numbers = range(len(layout.partitions))
    prospects, changes = Prospects(layout, numbers), LeaderChanges(layout, numbers)
    for _ in range(4):
        gain_min = -4 * layout.gain_min
        all_steps = [step for number in numbers if (step := layout.best_step(number, gain_min, may_copy=True))]
        assert prospects.steps(gain_min) == all_steps
        by_nodes: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for number, node, gain in layout.leader_changes(numbers):
            by_nodes.setdefault((layout.leaders[number], node), []).append((number, gain))
        assert changes.by_nodes() == by_nodes
        for _ in range(data.draw(st.integers(0, 2))):
            step = any_step(layout, data)
            if step is not None:
                layout.take(step)
        if data.draw(st.integers(0, 3)) == 0:
            layout.settle()
        event(f"skipped some: {len(all_steps) < len(numbers)}")


@settings(max_examples=examples(80), deadline=None)
@given(clusters(disks=False))
def test_replicas_that_change_places_gain_what_both_steps_gain_after_each_other(model: ClusterModel) -> None:
    layout = Layout(model, (), Weights())
    layout.weigh()
    for left, right in combinations(layout.able, 2):
        steps: dict[int, list[Step]] = {left: [], right: []}
        for number, (replicas, leader) in enumerate(zip(layout.replicas, layout.leaders, strict=True)):
            for source, target in ((left, right), (right, left)):
                if source in replicas and target not in replicas:
                    steps[source].append(Step(number, source, target, target if source == leader else leader))
        going, coming = ([(step, layout.gain(step)) for step in steps[node]] for node in (left, right))
        best = -inf
        for step, gain in going:
            undo = layout.take(step)
            best = max([best, *(gain + layout.gain(other) for other, _ in coming)])
            layout.take(undo)
        found = layout.best_exchanges(going, coming, -inf)
        assert bool(found) == (best > -inf)
        for step, other in found:
            gain = layout.gain(step)
            undo = layout.take(step)
            assert gain + layout.gain(other) == pytest.approx(best, rel=1e-9, abs=1e-9)
            layout.take(undo)
            event("two replicas change places")


@settings(max_examples=examples(80), deadline=None)
@given(tasks(disks=False), st.sampled_from([Weights(), Weights(copy=0.0, leader_change=0.0)]))
def test_a_plan_that_is_carried_out_leaves_nothing_to_do(
    task: tuple[ClusterModel, frozenset[int]], weights: Weights
) -> None:
    model, empty = task
    made = plan(model, empty=empty, weights=weights)
    again = plan(carried_out(model, made), empty=empty, weights=weights)
    assert again.moves == ()
    assert again.impossible == made.impossible
    assert again.left_alone == made.left_alone


@settings(max_examples=examples(60), deadline=None)
@given(clusters(), st.data())
def test_what_is_hot_makes_no_leader_go_back_and_forth(model: ClusterModel, data: st.DataObject) -> None:
    """Each plan after another is empty or makes the cluster less uneven, also where disks are full."""
    if not model.partitions:
        return
    hot = data.draw(st.sampled_from(model.partitions))
    rate = data.draw(st.sampled_from([1e8, 1e10]))
    others = [one for one in model.partitions if one is not hot]
    model = replace(model, partitions=(*others, replace(hot, bytes_out_per_s=rate)))
    seen = {model}
    for _ in range(4):
        made = plan(model)
        for one in made.hot:
            assert one.bytes_out_per_s > sum(each.bytes_out_per_s for each in made.after) / len(made.after) or not all(
                each.is_alive and each.may_get_more for each in model.nodes
            )
            assert 0.5 <= one.share <= 1.0
        after = carried_out(model, made)
        if not made.moves:
            event(f"hot: {[each.partition for each in made.hot] == [hot.partition]}")
            break
        if not any(move.reason.endswith(FORCED) for move in made.moves):
            assert imbalance(after) < imbalance(model)
        assert after not in seen
        model = after
        seen.add(model)


@settings(max_examples=examples(60), deadline=None)
@given(tasks(), st.randoms(use_true_random=False))
def test_the_order_of_the_description_changes_nothing(
    task: tuple[ClusterModel, frozenset[int]], generator: random.Random
) -> None:
    model, empty = task
    nodes, partitions = list(model.nodes), list(model.partitions)
    generator.shuffle(nodes)
    generator.shuffle(partitions)
    assert plan(ClusterModel(tuple(nodes), tuple(partitions)), empty=sorted(empty)) == plan(model, empty=empty)
