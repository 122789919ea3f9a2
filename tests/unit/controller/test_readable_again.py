"""Replicas that could not be read at a node's start are eligible again once they can be (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chained_changes import chained
from three_nodes import ALL, FIRST, TOPIC_ID, after, image_of, registered

from semel.broker.controller.elections import node_registered
from semel.broker.controller.readable_again import incomplete_until_read, readable_again
from semel.broker.metadata.changes import BrokerRegistered, PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.protocol.ids import NO_LEADER, new_topic_id

KEY = TOPIC_ID, 0
OTHERS = [(TOPIC_ID, 7), (new_topic_id(), 0)]
NOBODY = replace(ALL, leader=NO_LEADER, isr=(), elr=())
AGAIN = registered(1, incarnation="again", durability="disk", is_clean=False)


def on_disk(*states: PartitionState) -> MetadataImage:
    """An image in which node 1 had counted what was on its disk alone."""
    image = image_of(*states)
    return image.apply_all(chained([registered(1, durability="disk")], image.position))


def told(state: PartitionState, registration: BrokerRegistered = AGAIN, **known: object) -> bool:
    keys = {"unreadable": {KEY}, "former": (), "lost": (), **known}
    return incomplete_until_read(on_disk(state), registration, **keys) == {KEY}  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [ALL, replace(ALL, leader=2, isr=(2,), elr=(1, 3))], ids=["in sync", "eligible"])
def test_R4_what_was_complete_and_can_not_be_read_is_waited_for(state: PartitionState) -> None:
    assert told(state)
    assert not told(state, unreadable=()), "it can be read"
    assert not told(state, lost={KEY}), "it has lost some"
    assert not told(state, replace(AGAIN, directory_id="another")), "it has nothing"
    assert not told(state, replace(AGAIN, durability="os")), "a power cut may have taken some"
    assert told(state, replace(AGAIN, durability="os", is_clean=True))


def test_R4_what_was_not_complete_is_not_complete_when_it_can_be_read() -> None:
    assert not told(replace(ALL, leader=2, isr=(2, 3)))
    assert not told(replace(ALL, leader=2, isr=(2,), elr=(3,), last_known_elr=(1,))), "it had lost some before"


def test_R4_the_next_start_waits_for_it_too_while_nobody_has_committed_without_it() -> None:
    waiting = replace(NOBODY, last_known_elr=(1, 2))
    for unreadable in ({KEY}, set()):
        assert told(waiting, unreadable=unreadable, former={KEY})
        assert not told(waiting, unreadable=unreadable, former={KEY}, lost={KEY})
        assert not told(replace(ALL, leader=2, isr=(2, 3)), unreadable=unreadable, former={KEY})
    assert not told(waiting, unreadable={KEY}, former=()), "it had lost some before"


def test_a_node_that_was_not_known_has_read_nothing() -> None:
    assert incomplete_until_read(image_of(ALL), registered(9), unreadable={KEY}, former={KEY}, lost=()) == set()


def test_R4_it_leads_where_nobody_does_and_the_others_are_waited_for() -> None:
    image = image_of(replace(NOBODY, last_known_elr=(1, 2)))
    changes = readable_again(image, 2, 2, [KEY, *OTHERS], default_min_isr=1)
    state = after(image, changes)
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (2, (2,), (), (1,))
    assert (state.leader_epoch, state.partition_epoch) == (NOBODY.leader_epoch + 1, NOBODY.partition_epoch + 1)


@pytest.mark.parametrize("kept", [{"fenced": (2,)}, {"stopping": (2,)}], ids=["fenced", "stopping"])
def test_R4_it_is_eligible_where_it_can_not_lead_now(kept: dict[str, tuple[int, ...]]) -> None:
    image = image_of(replace(NOBODY, last_known_elr=(1, 2)), **kept)  # type: ignore[arg-type]
    state = after(image, readable_again(image, 2, 2, [KEY], default_min_isr=1))
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (NO_LEADER, (), (2,), (1,))


def test_R4_it_is_eligible_beside_a_leader_that_commits_nothing_without_it() -> None:
    image = image_of(replace(ALL, leader=3, isr=(3,), elr=(1,), last_known_elr=(2,)))
    state = after(image, readable_again(image, 2, 2, [KEY], default_min_isr=1))
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (3, (3,), (1, 2), ())
    assert state.leader_epoch == ALL.leader_epoch


@pytest.mark.parametrize(
    "state",
    [ALL, replace(ALL, leader=3, isr=(1, 3)), replace(ALL, leader=3, isr=(3,), elr=(2,)), NOBODY],
    ids=["in sync", "others commit without it", "eligible", "an operator has said that it may be lost"],
)
def test_R4_it_changes_nothing_where_nobody_waits_for_it(state: PartitionState) -> None:
    assert readable_again(image_of(state), 2, 2, [KEY], default_min_isr=1) == []


def test_R4_a_former_start_tells_nothing() -> None:
    image = image_of(replace(NOBODY, last_known_elr=(1, 2)))
    assert readable_again(image, 2, 1, [KEY], default_min_isr=1) == []
    assert readable_again(image, 9, 9, [KEY], default_min_isr=1) == []


def test_R4_after_restarts_of_all_with_disks_that_let_nothing_be_read_the_first_that_can_be_read_leads() -> None:
    image = on_disk(ALL)
    for node_id in (2, 3):
        image = image.apply_all(chained([registered(node_id, durability="disk")], image.position))
    epochs = {}
    for node_id in (2, 3, 1):
        again = registered(node_id, incarnation="again", durability="disk", is_clean=False)
        assert incomplete_until_read(image, again, unreadable={KEY}, former=(), lost=()) == {KEY}
        changes = node_registered(image, again, default_min_isr=1, damaged={FIRST})
        image = image.apply_all(chained([again, *changes], image.position))
        epochs[node_id] = image.brokers[node_id].epoch
    state = image.topics["t"].partitions[0]
    assert (state.leader, state.last_known_elr) == (NO_LEADER, (1, 3)), "the two others went on without node 2"
    assert readable_again(image, 2, epochs[2], [KEY], default_min_isr=1) == []
    state = after(image, readable_again(image, 3, epochs[3], [KEY], default_min_isr=1))
    assert (state.leader, state.isr, state.last_known_elr) == (3, (3,), (1,))
