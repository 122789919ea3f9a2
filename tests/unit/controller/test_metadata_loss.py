"""What becomes of leaders and leader epochs where a loss of metadata is accepted (R3, R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chained_changes import chained
from three_nodes import ALL, TOPIC_ID, after, image_of

from semel.broker.controller.metadata_loss import (
    EPOCHS_STEP,
    ReplicaEnd,
    beyond_lost_epochs,
    first_leader_epoch,
    most_complete,
    raised_epochs,
    waits_for_ends,
)
from semel.broker.metadata.changes import PartitionState, TopicCreated
from semel.broker.metadata.image import MetadataImage, decode_image, encode_image
from semel.protocol.ids import NO_LEADER, new_topic_id
from semel.protocol.int_bounds import INT32_MAX

RAISED = 3 * EPOCHS_STEP
LEADERLESS = replace(ALL, leader=NO_LEADER, leader_epoch=RAISED, isr=(), partition_epoch=8)


def elected(
    state: PartitionState,
    ends: dict[int, tuple[int, int]],
    *,
    epoch: int = RAISED,
    broker_epoch: int = 0,
    **image: object,
) -> PartitionState:
    """Return the state after an election; a node's broker epoch is its number."""
    made = image_of(state, **image)  # type: ignore[arg-type]
    told = {node_id: ReplicaEnd(broker_epoch or node_id, *end) for node_id, end in ends.items()}
    found = {(TOPIC_ID, 0, epoch): told}
    return after(made, most_complete(made, found, default_min_isr=2))


def test_R3_epochs_go_on_behind_all_that_may_have_been_given() -> None:
    for highest in (0, 5, EPOCHS_STEP - 1, EPOCHS_STEP, 7 * EPOCHS_STEP + 3):
        epoch = beyond_lost_epochs(highest)
        assert epoch > highest + EPOCHS_STEP
        assert epoch % EPOCHS_STEP == 0
    assert len({beyond_lost_epochs(5) for _ in range(200)}) > 10, "nodes that know of different losses differ"
    assert beyond_lost_epochs(INT32_MAX) <= INT32_MAX


def test_R3_R4_all_partitions_begin_again_and_those_with_several_replicas_have_no_leader() -> None:
    image = image_of(ALL)
    one = PartitionState(2, 4, (2,), (2,), 3)
    image = image.apply_all(chained([TopicCreated("one", new_topic_id(), (one,))], image.position))
    changes = raised_epochs(image, 9, RAISED)
    begun = image.apply_all(chained(list(changes), image.position))
    assert begun.topics["t"].partitions == (LEADERLESS,)
    assert begun.topics["one"].partitions == (replace(one, leader_epoch=RAISED, partition_epoch=4),)
    assert [waits_for_ends(begun.topics[name].partitions[0]) for name in ("t", "one")] == [True, False]
    assert raised_epochs(begun, 9, RAISED + EPOCHS_STEP) == [], "another node knew of the same loss"
    assert raised_epochs(begun, RAISED, 2 * RAISED) != [], "one that knew of that knows of a further loss"


def test_R4_the_longest_log_of_the_highest_epoch_leads() -> None:
    state = elected(LEADERLESS, {1: (5, 90), 2: (6, 70), 3: (6, 80)})
    assert (state.leader, state.isr, state.elr, state.leader_epoch) == (3, (3,), (), RAISED + 1)
    assert not waits_for_ends(state)


def test_R4_of_equal_replicas_the_first_whose_disk_has_room_leads() -> None:
    ends = {1: (6, 80), 2: (6, 80), 3: (6, 79)}
    assert elected(LEADERLESS, ends).leader == 1
    assert elected(LEADERLESS, ends, full=(1,), version=3).leader == 2
    assert elected(LEADERLESS, ends, full=(1, 2), version=3).leader == 1


def test_R4_nobody_leads_before_all_that_live_have_answered() -> None:
    assert elected(LEADERLESS, {1: (6, 80), 2: (6, 80)}) == LEADERLESS
    assert elected(LEADERLESS, {1: (6, 80), 2: (6, 80)}, stopping=(3,)) == LEADERLESS
    assert elected(LEADERLESS, {1: (6, 80), 2: (6, 80)}, fenced=(3,)).leader == 1


@pytest.mark.parametrize(
    ("min_isr", "fenced", "ends", "leader"),
    [
        (2, (2, 3), {1: (6, 80)}, NO_LEADER),  # what was committed may be on the other two alone
        (3, (2, 3), {1: (6, 80)}, 1),
        (1, (3,), {1: (6, 80), 2: (6, 80)}, NO_LEADER),
        (None, (3,), {1: (6, 80), 2: (6, 80)}, 1),
        (2, (3,), {1: (6, 80), 2: (-1, 0)}, NO_LEADER),  # it may have been moved away and back
        (2, (), {1: (-1, 0), 2: (-1, 0), 3: (-1, 0)}, 1),
    ],
)
def test_R4_as_many_answer_as_each_committed_record_can_not_have_missed(
    min_isr: int | None, fenced: tuple[int, ...], ends: dict[int, tuple[int, int]], leader: int
) -> None:
    assert elected(LEADERLESS, ends, min_isr=min_isr, fenced=fenced).leader == leader


def test_R4_an_answer_of_another_time_does_not_count() -> None:
    ends = {1: (6, 80), 2: (6, 80), 3: (6, 80)}
    assert elected(LEADERLESS, ends, broker_epoch=9) == LEADERLESS, "a node has started again since"
    assert elected(LEADERLESS, ends, epoch=RAISED - EPOCHS_STEP) == LEADERLESS, "there was another loss since"
    led = replace(LEADERLESS, leader=2, isr=(2,), leader_epoch=RAISED + 1)
    assert elected(led, ends, epoch=RAISED + 1) == led
    lost = replace(LEADERLESS, leader_epoch=RAISED + 2)
    assert elected(lost, ends, epoch=RAISED + 2) == lost, "it has had a leader since: that is an operator's word"
    assert elected(replace(LEADERLESS, leader_epoch=0), ends, epoch=0).leader == NO_LEADER


def test_R3_partitions_that_are_added_after_a_loss_begin_behind_it() -> None:
    for epoch, first in ((0, 0), (7, 0), (RAISED, RAISED + 1), (RAISED + 5, RAISED + 1)):
        topic = image_of(replace(ALL, leader_epoch=epoch)).topics["t"]
        assert first_leader_epoch(topic) == first


def test_an_image_knows_the_highest_leader_epoch() -> None:
    image = image_of(ALL, replace(ALL, leader_epoch=11))
    assert image.highest_leader_epoch == 11
    assert decode_image(encode_image(image), image.digest).highest_leader_epoch == 11
    begun: MetadataImage = image.apply_all(chained(list(raised_epochs(image, 11, RAISED)), image.position))
    assert begun.highest_leader_epoch == RAISED
