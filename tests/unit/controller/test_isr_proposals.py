"""AlterPartition (R5): which proposals of in-sync replicas are accepted, and what the others are answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from three_nodes import ALL, TOPIC_ID, image_of

from semel.broker.controller.isr import ProposedIsr, decide_isr, left_by
from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER, new_topic_id

ALONE = replace(ALL, isr=(1,))
EPOCHS = {1: 1, 2: 2, 3: 3}
"""The broker epochs of the nodes in `image_of`."""


def proposed(isr: dict[int, int], **changed: object) -> ProposedIsr:
    plain = ProposedIsr(TOPIC_ID, 0, ALL.leader_epoch, ALL.partition_epoch, isr)
    return replace(plain, **changed)  # type: ignore[arg-type]


def test_R5_a_replica_that_caught_up_joins_and_nobody_is_eligible_beside_enough_in_sync() -> None:
    image = image_of(replace(ALONE, elr=(2,), last_known_elr=(3,)), min_isr=2)
    decision = decide_isr(image, 1, 1, [proposed({1: 1, 3: 3})], default_min_isr=1)
    state = PartitionState(1, 5, (1, 2, 3), (1, 3), 8)
    assert decision.changes == [PartitionChanged("t", TOPIC_ID, 0, state)]
    assert (decision.results[0].error, decision.results[0].state) == (ErrorCode.NONE, state)


def test_R5_a_replica_that_joins_where_too_few_are_in_sync_still_leaves_the_others_eligible() -> None:
    image = image_of(replace(ALONE, elr=(2,), last_known_elr=(3,)), min_isr=3)
    decision = decide_isr(image, 1, 1, [proposed({1: 1, 3: 3})], default_min_isr=1)
    assert decision.results[0].state == PartitionState(1, 5, (1, 2, 3), (1, 3), 8, elr=(2,))


def test_R5_a_replica_that_is_left_out_where_too_few_remain_is_eligible() -> None:
    decision = decide_isr(image_of(ALL, min_isr=2), 1, 1, [proposed({1: 1})], default_min_isr=1)
    assert decision.results[0].state == PartitionState(1, 5, (1, 2, 3), (1,), 8, elr=(2, 3))


@pytest.mark.parametrize(
    ("proposal", "code", "says"),
    [
        (proposed({1: 1, 2: 2}, topic_id=new_topic_id()), ErrorCode.UNKNOWN_TOPIC_ID, "may have been deleted"),
        (proposed({1: 1, 2: 2}, partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none with the number 1"),
        (proposed({1: 1, 2: 2}, partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none with the number -1"),
        (proposed({1: 1, 2: 2}, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH, "leader epoch is 5, not 4"),
        (proposed({1: 1, 2: 2}, leader_epoch=6), ErrorCode.NOT_CONTROLLER, "newer than this metadata"),
        (proposed({1: 1, 2: 2}, partition_epoch=6), ErrorCode.INVALID_UPDATE_VERSION, "partition epoch is 7, not 6"),
        (proposed({1: 1, 2: 2}, partition_epoch=8), ErrorCode.NOT_CONTROLLER, "newer than this metadata"),
        (proposed({2: 2}), ErrorCode.INVALID_REQUEST, "can't be left out"),
        (proposed({}), ErrorCode.INVALID_REQUEST, "can't be left out"),
        (proposed({1: 1, 4: 4}), ErrorCode.INVALID_REQUEST, "node 4 has no replica"),
        (proposed({1: 1, 2: 1}), ErrorCode.INELIGIBLE_REPLICA, "broker epoch 2, and caught up with 1"),
        (proposed({1: 1, 2: -1}), ErrorCode.INELIGIBLE_REPLICA, "broker epoch 2, and caught up with -1"),
        (proposed({1: 1, 3: 3}), ErrorCode.INELIGIBLE_REPLICA, "node 3 is fenced"),
    ],
    ids=[
        *("topic", "partition", "negative", "old-leader-epoch", "new-leader-epoch", "old-partition-epoch"),
        *("new-partition-epoch", "no-leader", "empty", "no-replica", "restarted", "no-broker-epoch", "fenced"),
    ],
)
def test_R5_a_proposal_that_does_not_follow_is_refused(proposal: ProposedIsr, code: ErrorCode, says: str) -> None:
    decision = decide_isr(image_of(ALONE, fenced=(3,)), 1, 1, [proposal], default_min_isr=1)
    assert decision.changes == []
    assert decision.results[0].error is code
    assert says in decision.results[0].message


def test_R5_only_the_leader_proposes_under_its_own_broker_epoch() -> None:
    image = image_of(ALONE)
    for node_id, epoch, code in (
        (2, 2, ErrorCode.INVALID_REQUEST),
        (1, 9, ErrorCode.STALE_BROKER_EPOCH),
        (9, 9, ErrorCode.STALE_BROKER_EPOCH),
    ):
        decision = decide_isr(image, node_id, epoch, [proposed({1: 1, 2: 2})], default_min_isr=1)
        assert (decision.changes, decision.results[0].error) == ([], code)


def test_R5_a_replica_that_is_not_registered_does_not_join() -> None:
    state = replace(ALONE, replicas=(1, 2, 4))
    decision = decide_isr(image_of(state), 1, 1, [proposed({1: 1, 4: 4})], default_min_isr=1)
    assert decision.results[0].error is ErrorCode.INELIGIBLE_REPLICA
    assert "node 4 is not registered" in decision.results[0].message


def test_R5_a_node_that_shuts_down_does_not_join_but_one_that_is_in_sync_may_stay() -> None:
    image = image_of(replace(ALL, isr=(1, 2)))
    refused = decide_isr(image, 1, 1, [proposed(EPOCHS)], default_min_isr=1, stopping={3})
    assert refused.results[0].error is ErrorCode.INELIGIBLE_REPLICA
    accepted = decide_isr(image, 1, 1, [proposed(EPOCHS)], default_min_isr=1, stopping={1, 2})
    assert accepted.results[0].error is ErrorCode.NONE, "the leader, which shuts down, waits for just this"


def test_R5_who_is_in_sync_already_need_not_have_been_heard_of_under_a_new_leader() -> None:
    """A leader that has just begun, and of whose followers one lags, does not know the broker epoch of the other."""
    decision = decide_isr(image_of(ALL), 1, 1, [proposed({1: 0, 2: -1})], default_min_isr=1)
    assert decision.results[0].state == replace(ALL, isr=(1, 2), partition_epoch=8)


@pytest.mark.parametrize(
    ("state", "node_id", "epoch", "isr"),
    [
        (ALL, 3, 3, (1, 2)),
        (ALL, 3, 2, None),
        (ALL, 9, 9, None),
        (replace(ALL, isr=(1, 3)), 3, 3, None),
        (replace(ALL, isr=(1, 2)), 3, 3, None),
        (replace(ALL, leader=NO_LEADER), 3, 3, None),
    ],
    ids=["follower", "former start", "not registered", "too few left", "not in sync", "no leader"],
)
def test_R5_R2_a_follower_leaves_by_itself_where_enough_others_are_in_sync(
    state: PartitionState, node_id: int, epoch: int, isr: tuple[int, ...] | None
) -> None:
    partitions = {(TOPIC_ID, 0): False, (TOPIC_ID, 7): False, (new_topic_id(), 0): False}
    changes = left_by(image_of(state, min_isr=2), node_id, epoch, partitions, default_min_isr=1)
    if isr is None:
        assert changes == []
    else:
        after = replace(state, isr=isr, partition_epoch=state.partition_epoch + 1)
        assert changes == [PartitionChanged("t", TOPIC_ID, 0, after)]


@pytest.mark.parametrize(
    ("state", "is_lost", "left"),
    [
        (ALL, False, PartitionState(2, 6, (1, 2, 3), (2, 3), 8)),
        (replace(ALL, isr=(1, 3)), False, PartitionState(3, 6, (1, 2, 3), (3,), 8, elr=(1,))),
        (replace(ALL, isr=(1, 3)), True, PartitionState(3, 6, (1, 2, 3), (3,), 8, last_known_elr=(1,))),
        (ALONE, True, None),
        (replace(ALONE, elr=(2,)), False, None),
        (replace(ALONE, replicas=(2, 1, 3), elr=(2,)), False, None),
        (replace(ALONE, elr=(2,)), True, PartitionState(2, 6, (1, 2, 3), (2,), 8, last_known_elr=(1,))),
    ],
    ids=[
        "others in sync",
        "too few",
        "too few and lost",
        "nobody else",
        "eligible",
        "preferred and eligible",
        "eligible and lost",
    ],
)
def test_R4_a_leader_that_cannot_write_leaves_to_another_complete_replica(
    state: PartitionState, is_lost: bool, left: PartitionState | None
) -> None:
    """What an eligible replica lacks was acknowledged by this leader alone: it counts unless it is lost here, too."""
    expected = [] if left is None else [PartitionChanged("t", TOPIC_ID, 0, left)]
    assert left_by(image_of(state), 1, 1, {(TOPIC_ID, 0): is_lost}, default_min_isr=1) == expected


@pytest.mark.parametrize("is_lost", [False, True])
def test_R4_a_leader_that_cannot_write_leaves_to_nobody_who_stops_or_is_dead(is_lost: bool) -> None:
    image = image_of(ALL, fenced=(3,), stopping=(2,))
    assert left_by(image, 1, 1, {(TOPIC_ID, 0): is_lost}, default_min_isr=1) == []


def test_R4_of_two_that_may_lead_in_place_of_who_cannot_write_the_one_with_room_does() -> None:
    (change,) = left_by(image_of(ALL, full=(2,)), 1, 1, {(TOPIC_ID, 0): False}, default_min_isr=1)
    assert isinstance(change, PartitionChanged)
    assert change.state.leader == 3


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (replace(ALL, isr=(1, 3)), replace(ALL, isr=(1,), last_known_elr=(3,), partition_epoch=8)),
        (replace(ALONE, elr=(3,)), replace(ALONE, last_known_elr=(3,), partition_epoch=8)),
    ],
    ids=["in sync", "eligible"],
)
def test_R4_a_follower_that_has_lost_its_records_is_not_counted_as_complete(
    state: PartitionState, left: PartitionState
) -> None:
    """It could be elected, with nothing, where it stayed because too few would have been left."""
    assert left_by(image_of(state), 3, 3, {(TOPIC_ID, 0): True}, default_min_isr=1) == [
        PartitionChanged("t", TOPIC_ID, 0, left)
    ]


def test_each_proposal_succeeds_or_fails_for_itself_and_each_sees_those_before_it() -> None:
    image = image_of(ALONE, ALONE, min_isr=1)
    proposals = [
        proposed({1: 1, 2: 2}),
        proposed({1: 1, 3: 9}, partition=1),
        proposed({1: 1, 3: 3}),
        proposed({1: 1, 2: 2, 3: 3}, partition_epoch=8),
    ]
    decision = decide_isr(image, 1, 1, proposals, default_min_isr=1)
    assert [result.error for result in decision.results] == [
        ErrorCode.NONE,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NONE,
    ]
    assert [
        (change.partition, change.state.isr) for change in decision.changes if isinstance(change, PartitionChanged)
    ] == [
        (0, (1, 2)),
        (0, (1, 2, 3)),
    ]


def test_a_proposal_of_what_is_already_so_writes_nothing() -> None:
    decision = decide_isr(image_of(ALL), 1, 1, [proposed(EPOCHS)], default_min_isr=1)
    assert (decision.changes, decision.results[0].error, decision.results[0].state) == ([], ErrorCode.NONE, ALL)


def test_R5_the_same_set_again_ends_eligibility_where_it_is_enough_by_the_setting_of_now() -> None:
    stuck = replace(ALONE, elr=(2,), last_known_elr=(3,))
    decision = decide_isr(image_of(stuck, min_isr=1), 1, 1, [proposed({1: 1})], default_min_isr=1)
    assert decision.results[0].state == replace(ALONE, partition_epoch=8)
    still = decide_isr(image_of(stuck, min_isr=2), 1, 1, [proposed({1: 1})], default_min_isr=1)
    assert (still.changes, still.results[0].state) == ([], stuck)
