"""A node that is to stop gives up what it leads first, and stops when the others know."""

from __future__ import annotations

from dataclasses import replace

from three_nodes import ALL, FIRST, after, image_of

from semel.broker.controller.shutdown import StepDown, may_stop, step_down
from semel.broker.metadata.changes import PartitionState
from semel.protocol.ids import NO_LEADER


def test_R4_a_leader_that_stops_leaves_to_another_in_sync_replica() -> None:
    image = image_of(ALL)
    step = step_down(image, 1, default_min_isr=1, stopping={1, 2})
    assert after(image, step.changes) == PartitionState(3, 6, (1, 2, 3), (2, 3), 8)
    assert step.waiting == []


def test_a_follower_that_stops_leaves_the_in_sync_set_so_that_nobody_waits_for_it() -> None:
    image = image_of(ALL)
    assert after(image, step_down(image, 3, default_min_isr=1).changes) == replace(ALL, isr=(1, 2), partition_epoch=8)
    two = image_of(replace(ALL, isr=(1, 2)))
    state = after(two, step_down(two, 2, default_min_isr=1).changes)
    assert state == replace(ALL, isr=(1,), elr=(2,), partition_epoch=8), "it returns with all its records"


def test_R4_a_leader_that_is_alone_in_sync_waits_for_a_replica_that_is_alive() -> None:
    """To elect an eligible one in its place would lose what this one alone acknowledged."""
    image = image_of(replace(ALL, isr=(1,), elr=(2,)))
    assert step_down(image, 1, default_min_isr=1) == StepDown([], [FIRST])
    nobody = image_of(replace(ALL, isr=(1,), elr=(2,)), fenced=(2, 3))
    assert step_down(nobody, 1, default_min_isr=1) == StepDown([], []), "there is nobody to wait for"
    all_stop = image_of(replace(ALL, isr=(1,)))
    assert step_down(all_stop, 1, default_min_isr=1, stopping={2, 3}) == StepDown([], [])


def test_nothing_is_given_up_where_there_is_nobody_to_take_it() -> None:
    only = image_of(PartitionState(1, 0, (1,), (1,)))
    assert step_down(only, 1, default_min_isr=1) == StepDown([], [])
    leaderless = image_of(replace(ALL, leader=NO_LEADER, isr=(3,)))
    assert step_down(leaderless, 3, default_min_isr=1) == StepDown([], [])


def test_a_node_stops_when_all_others_that_are_alive_know_who_leads() -> None:
    image = image_of(ALL, fenced=(3,))
    nothing = StepDown([], [])
    assert may_stop(image, 1, nothing, moved_at=7, seen={2: 7})
    assert not may_stop(image, 1, nothing, moved_at=7, seen={2: 6})
    assert not may_stop(image, 1, nothing, moved_at=7, seen={})
    assert may_stop(image, 1, nothing, moved_at=0, seen={}), "it gave nothing up"
    assert not may_stop(image, 1, StepDown([], [FIRST]), moved_at=0, seen={2: 7})
    assert not may_stop(image, 1, step_down(image, 1, default_min_isr=1), moved_at=0, seen={2: 7})
