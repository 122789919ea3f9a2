"""A cluster is read for a plan, and a plan carried out on it: here on one that is made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from semel.protocol.api.cluster import NodeState, Reassignment
from semel.protocol.api.topics import PartitionDescription, TopicDescription
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import NO_LEADER, TopicPartition, new_topic_id
from semel.sdk.admin.api import Admin
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes
from semel.sdk.balancing.carrying_out import Progress, carry_out, read_cluster
from semel.sdk.balancing.results import Move

T = [TopicPartition("t", number) for number in range(6)]


class MadeUp:
    """Four nodes. A move takes two looks."""

    def __init__(self, replicas: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        self.replicas_of = dict(replicas)
        self.moving: dict[TopicPartition, tuple[tuple[int, ...], int]] = {}
        self.refused: dict[TopicPartition, SemelError] = {}
        self.cancelled: set[TopicPartition] = set()
        self.most_at_once = 0
        self.elected: list[TopicPartition] = []
        self.election: dict[TopicPartition, SemelError | None] = {}
        self.sizes = {1: dict.fromkeys(T, 100), 2: dict.fromkeys(T, 90), 3: {}}
        self.fetched: dict[int, dict[TopicPartition, int]] = {}
        self.away: set[int] = {4}
        self.leaderless: set[TopicPartition] = set()

    def reassign_partitions(
        self, wanted: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, SemelError | None]:
        for tp, nodes in wanted.items():
            if tp not in self.refused:
                looks = 0 if set(nodes) == set(self.replicas_of[tp]) else 2
                self.moving[tp] = tuple(nodes), looks
        self.most_at_once = max(self.most_at_once, sum(looks > 0 for _, looks in self.moving.values()))
        return {tp: self.refused.get(tp) for tp in wanted}

    def reassignments(self) -> list[Reassignment]:
        for tp, (nodes, looks) in list(self.moving.items()):
            if tp in self.cancelled:
                del self.moving[tp]
            elif not looks:
                self.replicas_of[tp] = nodes
                del self.moving[tp]
            else:
                self.moving[tp] = nodes, looks - 1
        return [Reassignment(tp, nodes, nodes, ()) for tp, (nodes, _) in self.moving.items()]

    def topics(self, *, include_internal: bool) -> list[TopicDescription]:
        assert include_internal, "the coordinators' topics are moved as well"
        partitions = tuple(
            PartitionDescription(tp.partition, NO_LEADER if tp in self.leaderless else nodes[0], 0, nodes, nodes)
            for tp, nodes in self.replicas_of.items()
        )
        return [TopicDescription("t", new_topic_id(), False, partitions)]

    def nodes(self) -> list[NodeState]:
        return [
            NodeState(1, "a", True, False, False, False),
            NodeState(2, "", True, False, True, False),
            NodeState(3, "", True, True, False, False),
            NodeState(4, "", False, False, False, False),
            NodeState(5, "", True, False, False, True),
            NodeState(6, "", True, False, False, False),
        ]

    def replicas(self) -> ReplicasOfNodes:
        nodes = {
            node_id: NodeReplicas(
                node_id,
                dict(sizes),
                *((-1, -1) if node_id == 2 else (1_000, 500)),
                fetched_bytes=dict(self.fetched.get(node_id, {})),
            )
            for node_id, sizes in self.sizes.items()
            if node_id not in self.away
        }
        return ReplicasOfNodes(nodes, dict.fromkeys(self.away, "no connection"))

    def elect_leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, SemelError | None]:
        self.elected = list(partitions)
        return {tp: self.election.get(tp) for tp in self.elected}


def move(tp: TopicPartition, *after: int, size: int = 10) -> Move:
    return Move(tp, (1, 2), after, size * len(set(after) - {1, 2}), "balance")


def carried(made: MadeUp, moves: Sequence[Move], at_once: int = 2, **more: Any) -> Progress:
    return carry_out(cast(Admin, made), moves, at_once=at_once, sleep=lambda _: None, **more)


def test_so_many_are_moved_at_once_and_then_the_preferred_replicas_lead() -> None:
    made = MadeUp(dict.fromkeys(T, (1, 2)))
    told: list[tuple[int, int]] = []
    moves = [*(move(tp, 3, 2) for tp in T[:5]), move(T[5], 2, 1)]
    done = carried(made, moves, tell=lambda progress: told.append((progress.done, progress.done_bytes)))
    assert made.most_at_once == 2
    assert made.replicas_of == {**dict.fromkeys(T[:5], (3, 2)), T[5]: (2, 1)}
    assert (done.done, done.done_bytes, done.total, done.total_bytes) == (6, 50, 6, 50)
    assert (done.failed, done.not_led, done.moving) == ({}, {}, {})
    assert told[0] == (1, 0), "what copies nothing comes first"
    assert told == sorted(told)
    assert sorted(made.elected) == T, "each has another preferred leader"


def test_what_is_refused_or_changed_by_others_is_told_and_the_rest_is_moved() -> None:
    made = MadeUp(dict.fromkeys(T, (1, 2)))
    refused = FatalError("no such node", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    made.refused[T[0]] = refused
    made.cancelled.add(T[1])
    del made.replicas_of[T[5]]
    done = carried(made, [move(tp, 1, 3) for tp in T[:4]])
    assert done.failed[T[0]] is refused
    assert "somebody else changed it meanwhile, and its replicas are [1, 2]" in done.failed[T[1]].message
    assert (done.done, made.replicas_of[T[3]]) == (2, (1, 3))
    assert made.elected == [], "the leader stays"


def test_who_does_not_lead_though_preferred_is_told() -> None:
    made = MadeUp(dict.fromkeys(T, (1, 2)))
    away = FatalError("it is not in sync", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    made.election = {T[0]: away, T[1]: FatalError("it leads", ErrorCode.ELECTION_NOT_NEEDED)}
    done = carried(made, [move(tp, 2, 1) for tp in T[:3]])
    assert (done.done, done.not_led) == (3, {T[0]: away})


def test_nothing_is_asked_of_a_cluster_where_nothing_is_to_be_moved() -> None:
    made = MadeUp({})
    assert carried(made, []).total == 0


def test_a_cluster_is_read_with_who_may_get_more_and_the_largest_size() -> None:
    made = MadeUp(dict.fromkeys(T, (1, 2)))
    made.leaderless.add(T[1])
    made.moving[T[2]] = (1, 2), 9
    read = read_cluster(cast(Admin, made), without=[6])
    assert [(one.node_id, one.may_get_more, one.free_bytes) for one in read.nodes] == [
        (1, True, 500),
        (2, False, None),
        (3, False, 500),
        (4, False, None),
        (5, False, None),
        (6, False, None),
    ]
    assert read.nodes[0].rack == "a"
    assert {one.size_bytes for one in read.partitions} == {100}, "a replica that is still copied has less"
    assert [one.leader for one in read.partitions[:3]] == [1, None, 1]
    assert [one.is_moving for one in read.partitions[:3]] == [False, False, True]
    assert {one.bytes_in_per_s for one in read.partitions} == {0.0}
    assert {one.bytes_out_per_s for one in read.partitions} == {0.0}


def test_what_comes_in_is_measured() -> None:
    made = MadeUp(dict.fromkeys(T[:2], (1, 2)))

    def sleep(seconds: float) -> None:
        assert seconds == 5
        made.sizes[1] = {T[0]: 600, T[1]: 40}

    read = read_cluster(cast(Admin, made), measure_s=5, sleep=sleep)
    assert [one.bytes_in_per_s for one in read.partitions] == [100.0, 0.0], "retention took more than came in"


def test_what_consumers_read_is_measured() -> None:
    made = MadeUp(dict.fromkeys(T[:4], (1, 2)))
    made.fetched = {1: {T[0]: 1000, T[1]: 700, T[2]: 50}, 2: {T[0]: 10_000, T[1]: 0}, 3: {}}

    def sleep(seconds: float) -> None:
        assert seconds == 5
        made.fetched = {1: {T[0]: 2000, T[1]: 60, T[2]: 50}, 2: {T[0]: 10_500, T[1]: 40}, 3: {T[3]: 25}}

    read = read_cluster(cast(Admin, made), measure_s=5, sleep=sleep)
    assert [one.bytes_out_per_s for one in read.partitions] == [
        300.0,  # 1000 from node 1, and 500 from node 2
        20.0,  # node 1 started again and has sent 60 since, node 2 40
        0.0,
        5.0,  # the replica came to node 3 meanwhile
    ]
    made.fetched = {1: {T[0]: 9_000}}
    assert {one.bytes_out_per_s for one in read_cluster(cast(Admin, made)).partitions} == {0.0}, "it is not measured"


def test_a_node_that_could_be_asked_only_once_counts_for_nothing() -> None:
    """Its count may be of days, and would be taken for what consumers read in five seconds."""
    made = MadeUp(dict.fromkeys(T[:2], (1, 2)))
    made.fetched = {1: {T[0]: 1000}, 2: {T[0]: 1 << 40}}
    made.away = {2}

    def sleep(_: float) -> None:
        made.fetched[1] = {T[0]: 1500}
        made.away = set()

    read = read_cluster(cast(Admin, made), measure_s=5, sleep=sleep)
    assert [one.bytes_out_per_s for one in read.partitions] == [100.0, 0.0]


@pytest.mark.parametrize("at_once", [1, 3])
def test_partitions_that_are_gone_are_told(at_once: int) -> None:
    made = MadeUp(dict.fromkeys(T, (1, 2)))
    made.cancelled.add(T[0])
    topics = made.topics

    def without_the_first(*, include_internal: bool) -> list[TopicDescription]:
        (topic,) = topics(include_internal=include_internal)
        return [TopicDescription(topic.name, topic.topic_id, False, topic.partitions[1:])]

    made.topics = without_the_first  # type: ignore[method-assign]
    done = carried(made, [move(tp, 1, 3) for tp in T[:2]], at_once)
    assert "it is not there any more" in done.failed[T[0]].message
    assert done.done == 1


def test_a_partition_that_was_changed_since_the_plan_was_made_stays_as_it_is() -> None:
    """Carried out blindly, the plan took away the third replica that somebody had added."""
    made = MadeUp({**dict.fromkeys(T[:3], (1, 2)), T[1]: (1, 2, 4)})
    done = carried(made, [move(tp, 1, 3) for tp in T[:4]])
    assert made.replicas_of[T[1]] == (1, 2, 4)
    assert "somebody else changed it meanwhile, and its replicas are [1, 2, 4]" in done.failed[T[1]].message
    assert "it is not there any more" in done.failed[T[3]].message
    assert (done.done, made.replicas_of[T[0]]) == (2, (1, 3))


def test_orders_that_wait_hold_up_no_copies() -> None:
    """More of them than are copied at once: a replica of each is not in sync yet."""
    made = MadeUp(dict.fromkeys(T, (1, 2)))
    orders = [move(tp, 2, 1) for tp in T[:4]]
    begin = made.reassign_partitions

    def slowly(wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, SemelError | None]:
        outcomes = begin(wanted)
        made.moving.update({tp: (tuple(nodes), 9) for tp, nodes in wanted.items() if tp in T[:4]})
        return outcomes

    made.reassign_partitions = slowly  # type: ignore[method-assign]
    seen: list[int] = []
    done = carried(made, [*orders, *(move(tp, 1, 3) for tp in T[4:])], 1, tell=lambda told: seen.append(told.done))
    assert (done.done, done.failed) == (6, {})
    assert 1 in seen, "a copy was complete before the orders were"


def test_a_cluster_that_changes_while_it_is_read_is_to_be_read_again() -> None:
    made = MadeUp({T[0]: (1, 77)})
    with pytest.raises(RetriableError, match="the cluster changed while it was read"):
        read_cluster(cast(Admin, made))


def test_a_node_that_knows_later_than_others_where_a_partition_is_changes_nothing() -> None:
    """It is asked for the topics just after another one said that the move is complete."""

    class Behind(MadeUp):
        looks = 0

        def topics(self, *, include_internal: bool) -> list[TopicDescription]:
            known = super().topics(include_internal=include_internal)
            self.looks += 1
            return [TopicDescription("t", known[0].topic_id, False, self.older)] if 1 < self.looks < 6 else known

        older = tuple(PartitionDescription(tp.partition, 1, 0, (1, 3, 2), (1, 3, 2)) for tp in T[:1])

    made = Behind({T[0]: (1, 2)})
    done = carried(made, [move(T[0], 1, 3)])
    assert (done.done, done.failed, made.looks) == (1, {}, 6)


def test_a_move_that_was_begun_after_the_plan_was_made_is_carried_on() -> None:
    """Two commands that want the same: the second one's plan may be from before the first one began."""
    made = MadeUp({T[0]: (1, 2), T[1]: (1, 2)})
    made.moving = {T[0]: ((1, 3), 9), T[1]: ((1, 4), 9)}
    made.replicas_of = dict.fromkeys(T[:2], (1, 3, 4, 2))
    done = carried(made, [move(T[0], 1, 3), move(T[1], 1, 3)])
    assert (done.done, made.replicas_of[T[0]]) == (1, (1, 3))
    assert "somebody else changed it meanwhile" in done.failed[T[1]].message
