"""How far copies are, from what nodes say they have; and whether they come closer to their end."""

from __future__ import annotations

from semel.protocol.api.cluster import Reassignment
from semel.protocol.ids import TopicPartition
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes
from semel.sdk.balancing.copies import Copy, CopyWatch, copies_of

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


def test_each_new_replica_is_a_copy_of_the_largest_one() -> None:
    nodes = {
        number: NodeReplicas(number, sizes, -1, -1, {})
        for number, sizes in {1: {A: 90, B: 5}, 2: {A: 100}, 3: {A: 40}}.items()
    }
    moving = [Reassignment(A, (2, 3, 4, 1), (3, 4), (1,)), Reassignment(B, (2, 1), (2,), (1,))]
    assert copies_of(moving, ReplicasOfNodes(nodes, {4: "away"})) == [
        Copy(A, 3, 40, 100),
        Copy(A, 4, None, 100),
        Copy(B, 2, 0, 5),
    ]


def test_copies_stall_when_none_comes_closer() -> None:
    watch = CopyWatch()
    assert watch.stalled_s([Copy(A, 1, 10, 100), Copy(B, 1, 10, 100)], 0.0) == 0.0
    assert watch.stalled_s([Copy(A, 1, 10, 100), Copy(B, 1, 11, 100)], 5.0) == 0.0, "one does"
    # As much comes in as is copied: it grows, and comes no closer.
    assert watch.stalled_s([Copy(A, 1, 20, 110), Copy(B, 1, 21, 110)], 15.0) == 10.0
    assert watch.stalled_s([Copy(A, 1, 20, 110), Copy(B, 1, 21, 120)], 25.0) == 20.0
    assert watch.stalled_s([Copy(A, 1, 40, 120), Copy(B, 1, 21, 120)], 26.0) == 0.0
    assert watch.stalled_s([Copy(A, 1, 40, 120)], 27.0) == 1.0, "the other one is complete"


def test_what_waits_for_something_else_does_not_stall() -> None:
    watch = CopyWatch()
    for now in (0.0, 100.0):
        assert watch.stalled_s([Copy(A, 1, 100, 100), Copy(B, 2, None, 100)], now) == 0.0
        assert watch.stalled_s([], now) == 0.0
