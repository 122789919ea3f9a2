"""Moves of replicas (KIP-455): who is added, when the others leave, who leads then, and what a cancelled one leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from chained_changes import chained
from three_nodes import FIRST, TOPIC_ID, after, registered

from semel.broker.controller.elections import elect, node_registered, nodes_fenced, nodes_unfenced
from semel.broker.controller.isr import ProposedIsr, decide_isr
from semel.broker.controller.moves import begin_move, cancel_move, completed_moves
from semel.broker.metadata.changes import (
    BrokerFenced,
    Change,
    ConfigsChanged,
    MetadataVersionRaised,
    PartitionChanged,
    PartitionState,
    TopicCreated,
)
from semel.broker.metadata.image import EMPTY_IMAGE
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER, TopicPartition

TWO = PartitionState(leader=1, leader_epoch=5, replicas=(1, 2), isr=(1, 2), partition_epoch=7)


class World:
    """Five nodes with the broker epochs 1 to 5, and a topic with one partition."""

    def __init__(
        self, state: PartitionState, *, min_isr: int = 2, version: int = 2, fenced: Sequence[int] = ()
    ) -> None:
        self.image = EMPTY_IMAGE
        self.apply(
            *(registered(node_id, peer_host="h", peer_port=3, metadata_version=version) for node_id in range(1, 6)),
            *([MetadataVersionRaised(version)] if version > 1 else []),
            TopicCreated("t", TOPIC_ID, (state,), {"min.insync.replicas": str(min_isr)}),
            *(BrokerFenced(node_id, node_id) for node_id in fenced),
        )

    def apply(self, *changes: Change) -> None:
        self.image = self.image.apply_all(chained(changes, self.image.position))

    @property
    def state(self) -> PartitionState:
        return after(self.image, [])

    def move(self, *replicas: int, stopping: Sequence[int] = ()) -> PartitionState:
        self.apply(*begin_move(self.image, FIRST, replicas, default_min_isr=1, stopping=stopping))
        return self.state

    def after_move(self, *replicas: int, in_sync: Sequence[int]) -> PartitionState:
        self.move(*replicas)
        return self.in_sync(*in_sync)

    def cancel(self) -> PartitionState:
        self.apply(*cancel_move(self.image, FIRST, default_min_isr=1))
        return self.state

    def in_sync(self, *isr: int) -> PartitionState:
        """The leader proposes who is in sync."""
        state = self.state
        proposed = ProposedIsr(
            TOPIC_ID, 0, state.leader_epoch, state.partition_epoch,
            {each: self.image.brokers[each].epoch for each in isr},
        )  # fmt: skip
        decision = decide_isr(
            self.image, state.leader, self.image.brokers[state.leader].epoch, [proposed],
            default_min_isr=1,
        )  # fmt: skip
        assert decision.results[0].error is ErrorCode.NONE, decision.results[0].message
        self.apply(*decision.changes)
        assert decision.results[0].state == self.state
        return self.state


def code_of(changes: object, *, says: str = "") -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        changes()  # type: ignore[operator]
    assert says in caught.value.message
    return caught.value.code


def test_R1_R5_replicas_are_added_first_and_the_others_leave_once_all_new_ones_are_in_sync() -> None:
    world = World(TWO)
    moving = world.move(3, 4)
    assert moving == PartitionState(1, 5, (3, 4, 1, 2), (1, 2), 8, adding=(3, 4), removing=(1, 2))
    assert (moving.replicas_before, moving.replicas_after, moving.replication_factor) == ((1, 2), (3, 4), 2)
    assert world.in_sync(1, 2, 3) == replace(moving, isr=(3, 1, 2), partition_epoch=9), "one is still missing"
    assert World(TWO, min_isr=1).after_move(3, 4, in_sync=(1, 2, 3)).is_moving, "also where it would be enough"
    moved = world.in_sync(1, 2, 3, 4)
    assert moved == PartitionState(3, 6, (3, 4), (3, 4), 10), "the leader has left: the first one leads"


def test_R5_a_leader_that_stays_begins_a_new_epoch_where_a_replica_leaves() -> None:
    """Who comes back later, with nothing, must not count by what it fetched before."""
    world = World(TWO)
    world.move(1, 3)
    assert world.in_sync(1, 2, 3) == PartitionState(1, 6, (1, 3), (1, 3), 9)


def test_a_move_to_the_same_replicas_changes_at_most_their_order() -> None:
    world = World(TWO)
    assert begin_move(world.image, FIRST, (1, 2), default_min_isr=1) == []
    assert world.move(2, 1) == replace(TWO, replicas=(2, 1), partition_epoch=8), "who leads stays"


def test_fewer_replicas_are_left_at_once_where_enough_are_in_sync() -> None:
    three = replace(TWO, replicas=(1, 2, 3), isr=(1, 2, 3))
    assert World(three).move(2, 3) == PartitionState(2, 6, (2, 3), (2, 3), 8)
    waits = World(replace(three, isr=(1, 3))).move(1, 2)
    assert (waits.replicas, waits.removing, waits.isr) == ((1, 2, 3), (3,), (1, 3)), "one alone is too few"


def test_R2_no_replica_leaves_before_enough_of_the_others_are_in_sync() -> None:
    """The new one is in sync, but one that stays is away: without the leaving one, fewer than two would be."""
    world = World(replace(TWO, replicas=(1, 2, 3), isr=(1, 2)))
    world.move(2, 3, 4)
    waits = world.in_sync(1, 2, 4)
    assert waits.removing == (), "1 has left: 2 and 4 are enough"
    world = World(replace(TWO, replicas=(1, 2, 3), isr=(1,)), min_isr=2)
    world.move(2, 3, 4)
    assert world.in_sync(1, 4).removing == (1,)
    assert world.in_sync(1, 2, 4) == PartitionState(2, 6, (2, 3, 4), (2, 4), 10)


def test_R2_the_only_replica_needs_no_other_in_sync_while_it_gets_more() -> None:
    """min.insync.replicas counts up to the number of replicas, and those that are added are none yet."""
    world = World(PartitionState(1, 5, (1,), (1,), 7))
    moving = world.move(1, 2, 3)
    assert moving == PartitionState(1, 6, (1, 2, 3), (1,), 8, adding=(2, 3))
    assert moving.replication_factor == 1
    assert world.in_sync(1, 2).elr == ()
    assert world.in_sync(1, 2, 3).replication_factor == 3


def test_R4_a_leader_leaves_only_where_another_can_lead() -> None:
    world = World(TWO)
    world.move(3, 4)
    world.in_sync(1, 2, 3)
    world.apply(*nodes_fenced(world.image, [3], default_min_isr=1))
    assert world.in_sync(1, 2, 4).is_moving, "3 is added, and not in sync"
    world.apply(*nodes_unfenced(world.image, [3], default_min_isr=1))
    assert world.in_sync(1, 2, 3, 4) == PartitionState(3, 6, (3, 4), (3, 4), 12)


def test_R4_a_move_waits_while_the_replicas_that_stay_shut_down() -> None:
    world = World(replace(TWO, replicas=(1, 2, 3), isr=(1, 2, 3)))
    waits = world.move(2, 3, stopping=(2, 3))
    assert (waits.leader, waits.removing) == (1, (1,))
    assert completed_moves(world.image, default_min_isr=1, stopping=(2, 3)) == []
    world.apply(*completed_moves(world.image, default_min_isr=1, stopping=(2,)))
    assert world.state == PartitionState(3, 6, (2, 3), (2, 3), 9), "the next one that can"


def test_a_move_goes_on_when_fewer_in_sync_replicas_are_enough() -> None:
    world = World(replace(TWO, replicas=(1, 2, 3), isr=(1,)), min_isr=2)
    world.move(1, 2)
    assert world.state.is_moving
    world.apply(ConfigsChanged("TOPIC", "t", {"min.insync.replicas": "1"}))
    world.apply(*completed_moves(world.image, default_min_isr=1))
    assert world.state == PartitionState(1, 6, (1, 2), (1,), 9)


def test_a_cancelled_move_leaves_what_was_there_before() -> None:
    world = World(TWO)
    world.move(3, 4)
    world.in_sync(1, 2, 3)
    assert world.cancel() == PartitionState(1, 6, (1, 2), (1, 2), 10)
    assert code_of(world.cancel, says="not being moved") is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_R2_a_cancelled_move_leaves_too_few_in_sync_to_nobody() -> None:
    """2 has dropped out, and 3, which was added, holds the other copy: it stays until 2 is there again."""
    world = World(TWO)
    world.move(3, 4)
    world.in_sync(1, 2, 3)
    world.in_sync(1, 3)
    waits = world.cancel()
    assert (waits.replicas, waits.isr, waits.removing) == ((1, 2, 3, 4), (3, 1), (3, 4))
    assert waits.replicas_before == (1, 2)
    assert world.cancel() == waits, "asked once more"
    assert world.in_sync(1, 2, 3) == PartitionState(1, 6, (1, 2), (1, 2), 12)


def test_R2_while_there_are_to_be_fewer_replicas_as_many_count_as_before() -> None:
    world = World(replace(TWO, replicas=(1, 2, 3), isr=(1,), elr=(2,)))
    moving = world.move(1, 2)
    assert (moving.replication_factor, moving.elr) == (3, (2,))


def test_the_number_of_replicas_stays_where_the_client_asks_for_that() -> None:
    world = World(TWO)
    for replicas in ((3,), (1, 2, 3)):
        with pytest.raises(SemelError, match="has 2 replicas") as caught:
            begin_move(world.image, FIRST, replicas, default_min_isr=1, may_change_factor=False)
        assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert begin_move(world.image, FIRST, (3, 4), default_min_isr=1, may_change_factor=False)


def test_another_move_on_the_way_counts_from_the_replicas_before_the_first() -> None:
    world = World(TWO)
    world.move(3, 4)
    world.in_sync(1, 2, 3)
    again = world.move(4, 5)
    assert (again.replicas, again.adding, again.removing) == ((4, 5, 3, 1, 2), (4, 5, 3), (3, 1, 2))
    assert again.replicas_before == (1, 2)
    assert world.in_sync(1, 2, 3, 4, 5) == PartitionState(4, 6, (4, 5), (4, 5), 11)
    world = World(TWO)
    world.move(3, 4)
    assert world.move(1, 2) == PartitionState(1, 6, (1, 2), (1, 2), 9), "that is a cancelled move, too"


def test_R4_a_move_is_not_cancelled_where_only_an_added_replica_has_all_records() -> None:
    world = World(PartitionState(1, 5, (1,), (1,), 7), min_isr=1)
    world.move(2)
    world.apply(*_changed(replace(world.state, isr=(2,), leader=2, leader_epoch=6, partition_epoch=9)))
    waits = world.cancel()
    assert (waits.leader, waits.isr, waits.removing) == (2, (2,), (2,)), "it leaves once the other one has all, too"
    world.apply(*_changed(replace(waits, leader=NO_LEADER, isr=(), elr=(2,), partition_epoch=11)))
    assert code_of(world.cancel, says="none could lead") is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    world.apply(*_changed(replace(waits, leader=NO_LEADER, isr=(), elr=(1,), partition_epoch=12)))
    world.apply(*nodes_fenced(world.image, [1], default_min_isr=1))
    assert world.cancel().elr == (1,), "nobody who goes has anything that it lacks"


def test_R4_the_only_replica_leads_again_after_a_crash_also_while_others_are_added() -> None:
    """With durability=os it may have lost records. But nobody else has more, as while it was alone."""
    former = registered(1, peer_host="h", peer_port=3, durability="os", metadata_version=2)
    world = World(PartitionState(1, 5, (1,), (1,), 7))
    world.apply(former)
    world.move(1, 2)
    killed = replace(former, incarnation="killed", is_clean=False)
    state = after(world.image, [killed, *node_registered(world.image, killed, default_min_isr=1)])
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 7), "in an epoch that tells what it had before"
    other = replace(killed, directory_id="another")
    state = after(world.image, [other, *node_registered(world.image, other, default_min_isr=1)])
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), ()), "that one has nothing"


def test_R4_of_replicas_that_may_all_lack_records_an_operator_gets_one_from_before_the_move() -> None:
    world = World(replace(TWO, leader=NO_LEADER, isr=(), last_known_elr=()))
    world.move(3, 2)
    assert elect(world.state, world.image, min_isr=2, unclean=True).leader == 2, "3 has only begun to copy it"


def test_a_move_names_nodes_of_the_cluster_each_once() -> None:
    world = World(TWO)
    for replicas in ((), (1, 9), (2, 2)):
        code = code_of(
            lambda replicas=replicas: world.move(*replicas), says="name nodes of the cluster (1, 2, 3, 4, 5)"
        )
        assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    world.apply(registered(5))
    assert code_of(lambda: world.move(1, 5), says="node 5") is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    there_is_none = TopicPartition("t", 1)
    for call in (
        lambda: begin_move(world.image, there_is_none, (1,), default_min_isr=1),
        lambda: cancel_move(world.image, there_is_none, default_min_isr=1),
    ):
        assert code_of(call, says="t-1") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_while_an_older_node_is_in_the_cluster_replicas_are_only_added() -> None:
    """It does not read which of them are being moved."""
    world = World(TWO, version=1)
    code = code_of(lambda: world.move(2, 3), says="node 1 runs a semel that does not know of moves")
    assert code is ErrorCode.UNSUPPORTED_VERSION
    assert world.move(1, 2, 3) == replace(TWO, replicas=(1, 2, 3), partition_epoch=8)


def _changed(state: PartitionState) -> list[Change]:
    return [PartitionChanged("t", TOPIC_ID, 0, state)]
