"""What a plan does for the clusters that people have: a node joins, a node goes, racks, full disks, hot topics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from semel.protocol.ids import TopicPartition
from semel.sdk.balancing.cost import Weights, imbalance
from semel.sdk.balancing.model import ClusterModel, NodeModel, NodeTotals, PartitionModel
from semel.sdk.balancing.planner import plan
from semel.sdk.balancing.results import Impossible, LeftAlone, Move, Plan

GIB = 1 << 30


def node(node_id: int, rack: str = "", *, may_get_more: bool = True, free_bytes: int | None = None) -> NodeModel:
    return NodeModel(node_id, rack, is_alive=True, may_get_more=may_get_more, free_bytes=free_bytes)


def partition(
    name: str, *replicas: int, size_bytes: int = GIB, bytes_in_per_s: float = 0.0, bytes_out_per_s: float = 0.0
) -> PartitionModel:
    topic, _, number = name.rpartition("-")
    return PartitionModel(
        TopicPartition(topic, int(number)),
        replicas,
        replicas[0],
        frozenset(replicas),
        size_bytes,
        bytes_in_per_s,
        bytes_out_per_s,
    )


def topic(
    name: str, count: int, factor: int, nodes: Sequence[int], *, size_bytes: int = GIB, bytes_in_per_s: float = 0.0
) -> list[PartitionModel]:
    """Partitions that are spread over nodes as a new topic's are: each begins on the next node."""
    return [
        partition(
            f"{name}-{number}",
            *(nodes[(number + place) % len(nodes)] for place in range(factor)),
            size_bytes=size_bytes,
            bytes_in_per_s=bytes_in_per_s,
        )
        for number in range(count)
    ]


def cluster(nodes: Sequence[NodeModel], *partitions: PartitionModel) -> ClusterModel:
    return ClusterModel(tuple(nodes), partitions)


def carried_out(model: ClusterModel, made: Plan) -> ClusterModel:
    return model.moved({move.partition: move.after for move in made.moves})


def checked(model: ClusterModel, *, empty: Collection[int] = ()) -> Plan:
    """Make a plan, and check what always holds: it begins with what is there, says what it leads to, and is final."""
    made = plan(model, empty=empty)
    before = {one.partition: one.replicas for one in model.partitions}
    assert all(before[move.partition] == move.before for move in made.moves)
    after = carried_out(model, made)
    assert made.before == model.totals()
    assert made.after == after.totals()
    assert made.is_complete
    assert plan(after, empty=empty).moves == ()
    return made


def spread(numbers: Sequence[int]) -> int:
    return max(numbers) - min(numbers)


def reasons(made: Plan) -> Counter[str]:
    return Counter(move.reason for move in made.moves)


def test_a_balanced_cluster_stays_as_it_is() -> None:
    model = cluster([node(1), node(2), node(3)], *topic("t", 12, 2, (1, 2, 3)))
    made = checked(model)
    assert made.moves == ()
    assert made.before == made.after
    assert imbalance(model) == 0.0


def test_a_cluster_without_anything_has_no_moves() -> None:
    assert checked(cluster([])).moves == ()
    assert checked(cluster([node(1), node(2)])).moves == ()
    assert checked(cluster([node(1, may_get_more=False)], partition("t-0", 1))).moves == ()


def test_a_fourth_node_gets_its_share_and_about_a_quarter_is_copied() -> None:
    topics = [each for name in "abc" for each in topic(name, 12, 2, (1, 2, 3))]
    model = cluster([node(1), node(2), node(3), node(4)], *topics)
    made = checked(model)
    assert [each.replicas for each in made.after] == [18, 18, 18, 18]
    assert [each.leaders for each in made.after] == [9, 9, 9, 9]
    assert made.copied_bytes == 18 * GIB, "only what the new node gets"
    for move in made.moves:
        assert set(move.after) - set(move.before) in ({4}, set())
    after = carried_out(model, made)
    for name in "abc":
        of_topic = Counter(
            node_id for one in after.partitions if one.partition.topic == name for node_id in one.replicas
        )
        assert spread([of_topic[node_id] for node_id in (1, 2, 3, 4)]) <= 1


def test_one_of_four_nodes_is_emptied_and_the_others_share_what_it_had() -> None:
    nodes = (1, 2, 3, 4)
    made = checked(cluster([node(each) for each in nodes], *topic("t", 24, 3, nodes)), empty={2})
    assert made.after[1] == NodeTotals(2, 0, 0, 0, 0.0, 0.0)
    assert [each.replicas for each in made.after] == [24, 0, 24, 24]
    assert spread([each.leaders for each in made.after if each.node_id != 2]) <= 1
    assert made.copied_bytes == 18 * GIB, "only what the emptied node had"
    assert made.impossible == ()
    assert reasons(made)["node 2 is to be emptied"] == 18
    assert [move.reason for move in made.moves[:18]] == ["node 2 is to be emptied"] * 18


def test_two_nodes_are_emptied_at_once() -> None:
    nodes = (1, 2, 3, 4, 5)
    made = checked(cluster([node(each) for each in nodes], *topic("t", 10, 2, nodes)), empty=[5, 2])
    assert [each.replicas for each in made.after if each.node_id in (2, 5)] == [0, 0]
    assert spread([each.replicas for each in made.after if each.node_id not in (2, 5)]) <= 1
    assert reasons(made)["node 2 is to be emptied"]
    few = checked(cluster([node(each) for each in (1, 2, 3, 4)], partition("t-0", 2, 3)), empty=[3, 2])
    assert few.moves == (Move(TopicPartition("t", 0), (2, 3), (1, 4), 2 * GIB, "nodes 2 and 3 are to be emptied"),), (
        "those that stay and those that come keep the order of their ids"
    )


def test_emptying_one_of_three_nodes_with_three_replicas_is_impossible_and_the_rest_is_done() -> None:
    partitions = [*topic("t", 3, 3, (1, 2, 3)), partition("u-0", 2, 1)]
    made = checked(cluster([node(1), node(2), node(3)], *partitions), empty={2})
    assert made.impossible == tuple(
        Impossible(TopicPartition("t", number), "3 replicas need 3 nodes, and 2 are left") for number in range(3)
    )
    assert [(move.partition, set(move.after)) for move in made.moves] == [(TopicPartition("u", 0), {1, 3})]
    assert made.after[1].replicas == 3
    alone = checked(cluster([node(1)], partition("t-0", 1)), empty={1})
    assert [each.reason for each in alone.impossible] == ["1 replica needs 1 node, and 0 are left"]


def test_nodes_that_lead_equally_many_get_equally_many_replicas() -> None:
    partitions = [partition(f"a{number}-0", *(1, 2) if number % 2 else (2, 1), size_bytes=0) for number in range(6)]
    partitions += [partition(f"b{number}-0", 3, size_bytes=0) for number in range(3)]
    made = checked(cluster([node(1), node(2), node(3)], *partitions))
    assert [each.replicas for each in made.before] == [6, 6, 3]
    assert [each.replicas for each in made.after] == [5, 5, 5]


def test_a_cordoned_or_dead_node_gets_nothing_and_keeps_what_it_has() -> None:
    for away in (node(4, may_get_more=False), replace(node(4), is_alive=False)):
        partitions = [*topic("t", 12, 2, (1, 2)), partition("u-0", 4, 1)]
        made = checked(cluster([node(1), node(2), node(3), away], *partitions))
        assert made.after[3] == made.before[3]
        assert all(4 not in set(move.after) - set(move.before) for move in made.moves)
        assert spread([each.replicas for each in made.after[:3]]) <= 1


# --- Racks ------------------------------------------------------------------------------------------------------------


def in_racks(racks: str) -> list[NodeModel]:
    return [node(node_id, rack) for node_id, rack in enumerate(racks, start=1)]


def test_replicas_in_one_rack_are_spread_over_those_that_there_are() -> None:
    model = cluster(in_racks("aabb"), *topic("t", 8, 2, (1, 2)))
    made = checked(model)
    assert {move.reason for move in made.moves} == {"racks"}
    for one in carried_out(model, made).partitions:
        assert len({node_id <= 2 for node_id in one.replicas}) == 2
    assert [each.replicas for each in made.after] == [4, 4, 4, 4]
    assert made.copied_bytes == 8 * GIB, "one replica of each was in the right rack"


def test_three_replicas_in_one_rack_go_to_three() -> None:
    made = checked(cluster(in_racks("aaabc"), partition("t-0", 1, 2, 3)))
    assert [(len(move.after), {4, 5} < set(move.after), move.reason) for move in made.moves] == [(3, True, "racks")]
    assert made.copied_bytes == 2 * GIB


def test_racks_wait_until_all_replicas_are_in_sync() -> None:
    behind = replace(partition("t-0", 1, 2), in_sync=frozenset({1}))
    made = checked(cluster(in_racks("aab"), behind))
    assert made.moves == ()
    assert [each.partition for each in made.left_alone] == [behind.partition]


def test_the_balance_and_an_emptied_node_leave_no_rack() -> None:
    racks = dict(enumerate("aabc", start=1))
    partitions = [partition(f"t-{number}", *((1, 3), (2, 3))[number % 2]) for number in range(12)]
    model = cluster(in_racks("aabc"), *partitions)
    for empty in ((), {1}, {2}):
        after = carried_out(model, checked(model, empty=empty))
        assert all(len({racks[node_id] for node_id in one.replicas}) == 2 for one in after.partitions)


def test_the_last_node_of_a_rack_is_not_emptied_where_another_rack_would_be_lost() -> None:
    made = checked(cluster(in_racks("aab"), partition("t-0", 1, 3)), empty={3})
    assert made.moves == ()
    assert made.impossible == (
        Impossible(
            TopicPartition("t", 0),
            "its replicas are in 2 racks, and would be in 1: no node of another rack may get a replica and has room "
            "for it",
        ),
    )


def test_a_rack_whose_disks_are_full_is_told() -> None:
    nodes = [node(1, "a"), node(2, "a"), node(3, "b", free_bytes=GIB)]
    made = checked(cluster(nodes, partition("t-0", 1, 2)))
    assert made.moves == ()
    assert [each.reason for each in made.impossible] == [
        "its replicas are in 1 rack and could be in 2, but no node of another rack has room for 1.0 GiB"
    ]


def test_a_cordoned_rack_is_none_that_is_missing() -> None:
    made = checked(cluster([node(1, "a"), node(2, "a"), node(3, "b", may_get_more=False)], partition("t-0", 1, 2)))
    assert (made.moves, made.impossible) == ((), ())


# --- Leaders ----------------------------------------------------------------------------------------------------------


def test_leaders_are_balanced_without_a_copy() -> None:
    model = cluster([node(1), node(2), node(3)], *(partition(f"t-{number}", 1, 2, 3) for number in range(9)))
    made = checked(model)
    assert [each.leaders for each in made.after] == [3, 3, 3]
    assert made.copied_bytes == 0
    assert reasons(made) == {"leader only": 6}
    assert {move.after for move in made.moves} == {(2, 1, 3), (3, 2, 1)}, "the others keep their places"


def test_leaders_are_passed_on_over_a_node_in_between() -> None:
    """Nodes 1 and 3 share no partition, and no two that share one differ by more than one."""
    pairs = [(1, 2)] * 3 + [(2, 1)] * 2 + [(1, 4)] * 3 + [(4, 1)] * 2
    pairs += [(2, 3)] * 3 + [(3, 2)] * 2 + [(4, 3)] * 3 + [(3, 4)] * 2
    partitions = [partition(f"t{number}-0", *pair) for number, pair in enumerate(pairs)]
    made = checked(cluster([node(1), node(2), node(3), node(4)], *partitions))
    assert [each.leaders for each in made.before] == [6, 5, 4, 5]
    assert [each.leaders for each in made.after] == [5, 5, 5, 5]
    assert reasons(made) == {"leader only": 2}


def test_a_replica_that_is_behind_is_not_made_the_preferred_leader() -> None:
    behind = [replace(partition(f"t-{number}", 1, 2, 3), in_sync=frozenset({1, 3})) for number in range(6)]
    made = checked(cluster([node(1), node(2), node(3)], *behind))
    assert [each.leaders for each in made.after] == [3, 0, 3]


def test_what_is_not_in_sync_is_moved_off_a_node_that_is_emptied_and_nowhere_else() -> None:
    partitions = [replace(each, in_sync=frozenset({1})) for each in topic("t", 4, 2, (1, 2))]
    partitions = [replace(each, leader=1) for each in partitions]
    model = cluster([node(1), node(2), node(3), node(4)], *partitions)
    made = checked(model)
    assert all(move.reason == "leader only" for move in made.moves)
    assert {each.reason for each in made.left_alone} == {
        "not all of its replicas are in sync: plan again when they are"
    }
    assert len(made.left_alone) == 4
    emptied = checked(model, empty={2})
    assert sorted(each.replicas for each in emptied.after) == [0, 2, 3, 3]
    assert emptied.after[1].replicas == 0
    assert emptied.left_alone == ()


def test_a_topic_that_one_node_leads_is_spread_though_all_nodes_lead_equally_many() -> None:
    hot = [partition(f"hot-{number}", 1, 2, 3) for number in range(6)]
    others = [partition(f"other-{number}", *(2, 3, 1) if number % 2 else (3, 2, 1)) for number in range(12)]
    model = cluster([node(1), node(2), node(3)], *hot, *others)
    assert [each.leaders for each in model.totals()] == [6, 6, 6]
    made = checked(model)
    assert [each.leaders for each in made.after] == [6, 6, 6]
    after = carried_out(model, made)
    for name, share in (("hot", 2), ("other", 4)):
        leaders = Counter(one.replicas[0] for one in after.partitions if one.partition.topic == name)
        assert leaders == {1: share, 2: share, 3: share}
    assert made.copied_bytes == 0


# --- Bytes ------------------------------------------------------------------------------------------------------------


def test_a_big_partition_is_not_moved_for_nothing() -> None:
    """Node 2 is as uneven with it as node 1 was: small ones go in its place, if any do."""
    big = partition("big-0", 1, size_bytes=1000 * GIB)
    small = topic("t", 3, 1, (2, 1), size_bytes=GIB)
    made = checked(cluster([node(1), node(2)], big, *small))
    assert all(move.partition.topic != "big" for move in made.moves)
    assert made.copied_bytes <= GIB


def test_little_more_on_a_node_is_not_worth_a_copy() -> None:
    big = topic("t", 200, 1, (1, 2), size_bytes=100 * GIB)
    extra = [partition("u-0", 1, size_bytes=100 * GIB), partition("v-0", 1, size_bytes=100 * GIB)]
    assert checked(cluster([node(1), node(2)], *big, *extra)).moves == ()
    made = plan(cluster([node(1), node(2)], *big, *extra), weights=Weights(copy=0.0, leader_change=0.0))
    assert len(made.moves) == 1, "free of cost, it is"


def test_few_replicas_more_are_not_worth_a_move_though_they_are_empty() -> None:
    partitions = [partition(f"t{number}-0", 1 if number < 202 else 2, size_bytes=0) for number in range(401)]
    model = cluster([node(1), node(2)], *partitions)
    assert checked(model).moves == ()
    assert [each.replicas for each in plan(model, weights=Weights(copy=0.0)).after] == [201, 200]


def test_small_partitions_are_copied_rather_than_large_ones() -> None:
    partitions = [partition(f"a{number}-0", 1, size_bytes=10 * GIB) for number in range(2)]
    partitions += [partition(f"b{number}-0", 1, size_bytes=GIB) for number in range(2)]
    made = plan(cluster([node(1), node(2)], *partitions), weights=Weights(size_bytes=0.0))
    assert [move.partition.topic for move in made.moves] == ["b0", "b1"]


def test_nodes_with_equally_many_replicas_exchange_large_ones_for_small_ones() -> None:
    """Either move alone would make it worse: one node would have three of the four."""
    partitions = [partition(f"a{number}-0", 1, size_bytes=40 * GIB) for number in range(2)]
    partitions += [partition(f"b{number}-0", 2, size_bytes=20 * GIB) for number in range(2)]
    made = checked(cluster([node(1), node(2)], *partitions))
    assert [each.replicas for each in made.after] == [2, 2]
    assert [each.size_bytes for each in made.after] == [60 * GIB, 60 * GIB]
    assert reasons(made) == {"balance": 2}


def test_partitions_that_are_written_much_are_spread() -> None:
    """Each is a topic of its own, so that it is not for the topic that they are spread."""
    partitions = [partition(f"hot{number}-0", 1, bytes_in_per_s=50e6) for number in range(4)]
    partitions += [partition(f"cold{number}-0", 2, bytes_in_per_s=1e3) for number in range(4)]
    made = checked(cluster([node(1), node(2)], *partitions))
    assert spread([round(each.bytes_in_per_s) for each in made.after]) == 0
    assert [each.replicas for each in made.after] == [4, 4]


def test_a_leader_sends_to_consumers_and_to_each_follower() -> None:
    partitions = [
        partition("a-0", 1, 2, 3, bytes_in_per_s=10.0, bytes_out_per_s=100.0),
        partition("b-0", 1, bytes_in_per_s=7.0, bytes_out_per_s=1.0),
        partition("c-0", 2, 1, bytes_in_per_s=5.0),
    ]
    totals = cluster([node(1), node(2), node(3)], *partitions).totals()
    assert [each.bytes_in_per_s for each in totals] == [22.0, 15.0, 10.0]
    assert [each.bytes_out_per_s for each in totals] == [121.0, 5.0, 0.0]


def test_what_one_node_leads_of_all_that_is_read_is_spread_without_a_copy() -> None:
    """Each node leads equally many, and each partition is a topic of its own: it is for what is read alone."""
    nodes = [node(1), node(2), node(3)]
    hot = [partition(f"hot{number}-0", 1, 2, 3, bytes_out_per_s=20e6) for number in range(6)]
    cold = [partition(f"cold{number}-0", *((2, 3, 1), (3, 1, 2))[number % 2]) for number in range(12)]
    made = checked(cluster(nodes, *hot, *cold))
    assert [each.leaders for each in made.before] == [6, 6, 6]
    assert [each.bytes_out_per_s for each in made.before] == [120e6, 0.0, 0.0]
    assert [each.bytes_out_per_s for each in made.after] == [40e6, 40e6, 40e6]
    assert [each.leaders for each in made.after] == [6, 6, 6]
    assert reasons(made) == {"leader only": len(made.moves)}
    assert made.copied_bytes == 0
    assert plan(cluster(nodes, *hot, *cold), weights=Weights(bytes_out=0.0)).moves == ()


def test_what_followers_are_sent_is_spread_too() -> None:
    """Nobody reads, and all nodes get the same: but one of them sends everything to the other two."""
    written = [partition(f"a{number}-0", 1, 2, 3, bytes_in_per_s=20e6) for number in range(3)]
    idle = [partition(f"b{number}-0", *((2, 3, 1), (3, 1, 2))[number % 2]) for number in range(6)]
    made = checked(cluster([node(1), node(2), node(3)], *written, *idle))
    assert [each.bytes_in_per_s for each in made.before] == [60e6, 60e6, 60e6]
    assert [each.bytes_out_per_s for each in made.before] == [120e6, 0.0, 0.0]
    assert [each.bytes_out_per_s for each in made.after] == [40e6, 40e6, 40e6]
    assert made.copied_bytes == 0


def test_leaders_change_places_where_one_change_alone_gains_nothing() -> None:
    """Each node leads two. One of them more would be as bad as what is read of it is good."""
    rates = {(1, 2): (100e6, 50e6), (2, 1): (25e6, 25e6)}
    partitions = [
        partition(f"t{place}{replicas[0]}-0", *replicas, bytes_out_per_s=rate)
        for replicas, of_node in rates.items()
        for place, rate in enumerate(of_node)
    ]
    made = checked(cluster([node(1), node(2)], *partitions))
    assert [each.bytes_out_per_s for each in made.before] == [150e6, 50e6]
    assert [each.bytes_out_per_s for each in made.after] == [125e6, 75e6]
    assert [each.leaders for each in made.after] == [2, 2]
    assert reasons(made) == {"leader only": 2}


def test_little_that_is_read_is_not_worth_another_leader() -> None:
    """A few kilobytes a second more on one node trouble nobody."""
    read = [partition(f"a{number}-0", 1, 2, bytes_out_per_s=1e3) for number in range(4)]
    idle = [partition(f"b{number}-0", 2, 1) for number in range(4)]
    assert checked(cluster([node(1), node(2)], *read, *idle)).moves == ()


def test_what_only_one_node_has_is_copied_so_that_others_send_some_of_it() -> None:
    hot = [partition(f"hot{number}-0", 1, bytes_out_per_s=50e6, size_bytes=GIB) for number in range(4)]
    cold = [partition(f"cold{number}-0", 2, size_bytes=GIB) for number in range(4)]
    made = checked(cluster([node(1), node(2)], *hot, *cold))
    assert [each.bytes_out_per_s for each in made.after] == [100e6, 100e6]
    assert [each.replicas for each in made.after] == [4, 4]


def test_what_one_partition_alone_makes_hot_is_told_and_nothing_is_moved_for_it() -> None:
    others = [partition(f"t-{number}", *((1, 2, 3) * 2)[number % 3 :][:3], bytes_out_per_s=1e4) for number in range(11)]
    hot = partition("orders-3", 3, 1, 2, bytes_out_per_s=9e7, bytes_in_per_s=5e6)
    model = cluster([node(1), node(2), node(3)], *others, hot)
    made = checked(model)
    assert made.moves == ()
    (told,) = made.hot
    assert (told.partition, told.node_id, told.bytes_out_per_s) == (TopicPartition("orders", 3), 3, 1e8)
    assert told.share == pytest.approx(1e8 / (1e8 + 3e4))


def test_what_can_be_spread_or_is_little_or_was_not_measured_is_not_hot() -> None:
    nodes = [node(1), node(2)]
    evened = checked(cluster(nodes, *(partition(f"t-{number}", 1, 2, bytes_out_per_s=1e8) for number in range(4))))
    assert [each.bytes_out_per_s for each in evened.after] == [2e8, 2e8]
    assert evened.hot == ()
    assert checked(cluster(nodes, partition("t-0", 1, 2, bytes_out_per_s=5e4), partition("t-1", 2, 1))).hot == ()
    assert checked(cluster(nodes, partition("t-0", 1, 2), partition("t-1", 2, 1))).hot == ()


def test_what_is_hot_is_told_for_nodes_that_may_get_more_alone_and_the_hottest_first() -> None:
    nodes = [node(1), node(2), node(3), node(4), node(5, may_get_more=False)]
    rates = {1: 2e8, 2: 3e8, 5: 9e9}
    model = cluster(
        nodes, *(partition(f"t-{each}", each, bytes_out_per_s=rates.get(each, 0.0)) for each in range(1, 6))
    )
    assert [(each.partition.partition, each.node_id, each.share) for each in checked(model).hot] == [
        (2, 2, 1.0),
        (1, 1, 1.0),
    ]


def test_leaders_that_leave_a_hot_node_do_not_come_back() -> None:
    generator = random.Random(5)
    others = [
        partition(f"t-{each}", *generator.sample((1, 2, 3, 4), 2), bytes_out_per_s=generator.uniform(0, 1e6))
        for each in range(60)
    ]
    model = cluster([node(each) for each in (1, 2, 3, 4)], *others, partition("hot-0", 1, 2, bytes_out_per_s=1e9))
    made = checked(model)
    assert made.moves
    after = carried_out(model, made)
    assert imbalance(after) < imbalance(model)
    assert [each.partition.topic for each in plan(after).hot] == ["hot"]
    assert plan(after).hot == made.hot


def test_a_full_disk_is_not_chosen_and_a_tenth_stays_free() -> None:
    partitions = topic("t", 12, 1, (1, 2))
    nodes = [node(1), node(2), node(3, free_bytes=0), node(4, free_bytes=2 * GIB)]
    made = plan(cluster(nodes, *partitions))
    assert [each.replicas for each in made.after[2:]] == [0, 1], "two would leave nothing"
    roomy = plan(cluster([*nodes[:3], node(4, free_bytes=5 * GIB)], *partitions))
    assert [each.replicas for each in roomy.after] == [4, 4, 0, 4]
    nodes = [node(1), node(2, free_bytes=GIB), node(3, free_bytes=GIB)]
    stuck = checked(cluster(nodes, partition("t-0", 1)), empty={1})
    assert [each.reason for each in stuck.impossible] == [
        "1 replica of 1.0 GiB needs another node, and 0 of the 2 nodes without one have room for it"
    ]


# --- What is left alone, and how it is told ---------------------------------------------------------------------------


def test_what_is_being_moved_or_has_no_leader_is_left_alone_and_told() -> None:
    partitions = topic("t", 6, 2, (1, 2))
    partitions[0] = replace(partitions[0], is_moving=True)
    partitions[1] = replace(partitions[1], leader=None, in_sync=frozenset())
    made = checked(cluster([node(1), node(2), node(3), node(4)], *partitions), empty={1})
    assert made.left_alone == (
        LeftAlone(
            TopicPartition("t", 0), "its replicas are being moved already: plan again when they are where they go"
        ),
        LeftAlone(
            TopicPartition("t", 1),
            "it has no leader to copy from: elect one that may lack records, by `semel partition elect --unclean`",
        ),
    )
    assert {move.partition.partition for move in made.moves} == {2, 3, 4, 5}
    assert made.after[0].replicas == 2, "what was left alone is still there"


@pytest.mark.parametrize(
    ("name", "replicas", "says"),
    [
        ("t-0", (2,), "start node 2 again, with --accept-data-loss if its directory is lost, or delete the topic"),
        ("t-0", (3, 2), "start nodes 2, 3 again, with --accept-data-loss if their directories are lost, or delete"),
        ("__transaction_state-0", (2,), "start node 2 again, with --accept-data-loss if its directory is lost"),
        ("t-0", (2, 1), "start node 2 again, or elect one that may lack records, by `semel partition elect --unclean`"),
    ],
)
def test_a_partition_that_nobody_leads_is_told_with_the_ways_out(
    name: str, replicas: tuple[int, ...], says: str
) -> None:
    """The commands sent the operator of a dead node from one to the next, and round again."""
    dead = [replace(node(number, may_get_more=False), is_alive=False) for number in (2, 3)]
    lost = replace(partition(name, *replicas), leader=None)
    (left,) = checked(cluster([node(1), *dead, node(4)], lost), empty={2}).left_alone
    assert says in left.reason
    assert ("delete the topic" in left.reason) == ("delete" in says), "the coordinators' topics can't be deleted"


def test_moves_come_in_the_order_in_which_they_are_best_done() -> None:
    partitions = [partition("a-0", 5, 6), partition("b-0", 3, 4)]
    partitions += [partition(f"c-{number}", 1, 2, 3, 4, 5) for number in range(10)]
    partitions += topic("d", 6, 2, (1, 2), size_bytes=3 * GIB)
    nodes = [node(1, "x"), node(2, "y"), node(3, "x"), node(4, "x"), node(5, "x"), node(6, "y")]
    made = checked(cluster(nodes, *partitions), empty={6})
    ranks = ["node 6 is to be emptied", "racks", "leader only", "balance"]
    found = [ranks.index(move.reason) for move in made.moves]
    assert found == sorted(found)
    assert set(found) == {0, 1, 2, 3}
    assert all(move.copied_bytes == 0 for move in made.moves if move.reason == "leader only")


def test_replicas_that_stay_keep_their_places() -> None:
    nodes = (1, 2, 3, 4)
    made = checked(cluster([node(each) for each in nodes], *topic("t", 24, 3, nodes)), empty={2})
    for move in made.moves:
        if move.after[0] == move.before[0]:
            assert all(was == now or was == 2 for was, now in zip(move.before, move.after, strict=True))


def test_the_same_cluster_gives_the_same_plan_in_whatever_order_it_is_described() -> None:
    generator = random.Random(7)
    partitions = [
        partition(f"t{number % 5}-{number}", *generator.sample(range(1, 6), 3), size_bytes=generator.randrange(GIB))
        for number in range(60)
    ]
    nodes = [node(each, rack) for each, rack in enumerate("aabbcc", start=1)]
    first = checked(cluster(nodes, *partitions), empty={2})
    for _ in range(3):
        generator.shuffle(partitions)
        generator.shuffle(nodes)
        assert plan(cluster(nodes, *partitions), empty=[2]) == first


def test_a_search_that_is_cut_off_says_so_and_the_next_plan_continues() -> None:
    model = cluster([node(1), node(2), node(3)], *topic("t", 12, 1, (1,)))
    none = plan(model, steps_max=0)
    assert (none.moves, none.is_complete) == ((), False)
    made = plan(model, steps_max=3)
    assert len(made.moves) == 3
    assert not made.is_complete
    assert imbalance(carried_out(model, made)) < imbalance(model)
    whole = carried_out(carried_out(model, made), plan(carried_out(model, made)))
    assert [each.replicas for each in whole.totals()] == [4, 4, 4]


# --- Input that can't be ----------------------------------------------------------------------------------------------


def test_input_that_can_not_be_is_refused_in_words() -> None:
    good = partition("t-0", 1, 2)
    for nodes, partitions, says in (
        ([node(1), node(1)], [], "node 1 is in the model twice"),
        ([node(1, free_bytes=-1)], [], "node 1 can't have -1 bytes free"),
        ([node(1), node(2)], [good, good], "t-0 is in the model twice"),
        ([node(1)], [good], r"t-0 has replicas on \[1, 2\], of which the model does not have all nodes"),
        ([node(1), node(2)], [replace(good, replicas=())], "t-0 has no replica"),
        ([node(1), node(2)], [replace(good, replicas=(1, 1))], "t-0 has two replicas on one node"),
        ([node(1), node(2)], [replace(good, leader=3)], "t-0 is led by node 3, which is none of its replicas"),
        ([node(1), node(2)], [replace(good, in_sync=frozenset({3}))], r"t-0 has in-sync replicas \[3\]"),
        ([node(1), node(2)], [replace(good, size_bytes=-1)], "t-0 can't have -1 bytes"),
        ([node(1), node(2)], [replace(good, bytes_in_per_s=float("nan"))], "t-0 can't get nan bytes a second"),
        ([node(1), node(2)], [replace(good, bytes_out_per_s=-1.0)], "t-0 can't be read at -1.0 bytes a second"),
        ([node(1), node(2)], [replace(good, bytes_out_per_s=float("inf"))], "t-0 can't be read at inf bytes a second"),
    ):
        with pytest.raises(ValueError, match=says):
            cluster(nodes, *partitions)
    with pytest.raises(ValueError, match="node 9 can't be emptied: it is not in the cluster"):
        plan(cluster([node(1)]), empty=[9])
    with pytest.raises(ValueError, match="steps_max can't be -1"):
        plan(cluster([node(1)]), steps_max=-1)
    with pytest.raises(ValueError, match=r"the weight copy can't be -0\.1"):
        Weights(copy=-0.1)
    with pytest.raises(ValueError, match="node 2 can't have -1 bytes free"):
        cluster([node(1), node(2, free_bytes=GIB - 1)], partition("t-0", 1)).moved({TopicPartition("t", 0): (2,)})
