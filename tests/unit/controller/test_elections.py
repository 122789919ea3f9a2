"""Elections (R4): who leads when nodes fail, return and restart, and who is in sync and eligible then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chained_changes import chained
from three_nodes import ALL, FIRST, TOPIC_ID, after, image_of, registered

from semel.broker.controller.elections import (
    configs_changed,
    elect,
    elect_preferred,
    elect_unclean,
    node_registered,
    nodes_fenced,
    nodes_unfenced,
)
from semel.broker.metadata.changes import (
    BrokerFenced,
    BrokerUnfenced,
    ConfigsChanged,
    PartitionChanged,
    PartitionState,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER, TopicPartition


def test_R4_the_first_in_sync_replica_that_is_alive_leads() -> None:
    image = image_of(ALL)
    changes = nodes_fenced(image, [1], default_min_isr=1)
    expected = PartitionState(2, 6, (1, 2, 3), (2, 3), 8)
    assert changes == [BrokerFenced(1, 1), PartitionChanged("t", TOPIC_ID, 0, expected)]
    by_order = image_of(replace(ALL, isr=(3, 2, 1)))
    assert after(by_order, nodes_fenced(by_order, [1], default_min_isr=1)).leader == 2, "in the order of replicas"


def test_R4_a_node_that_shuts_down_is_not_elected() -> None:
    image = image_of(ALL)
    assert after(image, nodes_fenced(image, [1], default_min_isr=1, stopping={2})).leader == 3


def test_R5_a_follower_that_fails_leaves_the_in_sync_set_and_the_leader_stays_in_its_epoch() -> None:
    image = image_of(ALL)
    state = after(image, nodes_fenced(image, [3], default_min_isr=1))
    assert state == PartitionState(1, 5, (1, 2, 3), (1, 2), 8)


def test_R4_who_leaves_when_too_few_are_in_sync_is_eligible_and_leads_when_nobody_else_can() -> None:
    image = image_of(ALL)
    changes = nodes_fenced(image, [2, 3], default_min_isr=1)
    alone = after(image, changes)
    assert alone == PartitionState(1, 5, (1, 2, 3), (1,), 8, elr=(2, 3))
    image = image.apply_all(chained(changes, image.position))
    changes = nodes_fenced(image, [1], default_min_isr=1)
    nobody = after(image, changes)
    assert nobody == PartitionState(NO_LEADER, 6, (1, 2, 3), (), 9, elr=(1, 2, 3))
    image = image.apply_all(chained(changes, image.position))
    changes = nodes_unfenced(image, [3], default_min_isr=1)
    assert changes[0] == BrokerUnfenced(3, 3)
    assert after(image, changes) == PartitionState(3, 7, (1, 2, 3), (3,), 10, elr=(1, 2))


def test_R4_nobody_but_the_last_in_sync_replica_leads_where_it_alone_has_all_records() -> None:
    image = image_of(replace(ALL, isr=(1,)), min_isr=1)
    changes = nodes_fenced(image, [1], default_min_isr=1)
    state = after(image, changes)
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), (1,))
    image = image.apply_all(chained(changes, image.position))
    assert after(image, nodes_unfenced(image, [1], default_min_isr=1)) == replace(
        ALL, isr=(1,), leader_epoch=7, partition_epoch=9
    )


def test_min_isr_is_the_nodes_where_the_topic_has_none_and_at_most_the_number_of_replicas() -> None:
    image = image_of(ALL, min_isr=None)
    assert after(image, nodes_fenced(image, [2, 3], default_min_isr=2)).elr == (2, 3)
    assert after(image, nodes_fenced(image, [2, 3], default_min_isr=1)).elr == ()
    two = image_of(PartitionState(1, 0, (1, 2), (1, 2)), min_isr=9)
    assert after(two, nodes_fenced(two, [2], default_min_isr=1)).elr == (2,)


def test_who_is_fenced_already_or_unknown_changes_nothing() -> None:
    image = image_of(ALL, fenced=(3,))
    assert nodes_fenced(image, [3, 9], default_min_isr=1) == []
    assert nodes_unfenced(image, [1, 9], default_min_isr=1) == []


def test_the_only_replica_leads_again_when_its_node_returns() -> None:
    image = image_of(PartitionState(1, 0, (1,), (1,)))
    changes = nodes_fenced(image, [1], default_min_isr=1)
    assert after(image, changes) == PartitionState(NO_LEADER, 1, (1,), (1,), 1)
    image = image.apply_all(chained(changes, image.position))
    for returns in (
        nodes_unfenced(image, [1], default_min_isr=1),
        node_registered(image, registered(1), default_min_isr=1),
    ):
        assert after(image, returns) == PartitionState(1, 2, (1,), (1,), 2)


@pytest.mark.parametrize("changed", [{}, {"is_clean": False, "durability": "os"}, {"directory_id": "other"}])
def test_a_registration_leaves_a_partition_alone_whose_only_replica_it_is(changed: dict[str, object]) -> None:
    """A single node writes one entry when it starts, however many partitions it has."""
    image = image_of(*[PartitionState(1, 3, (1,), (1,), 2)] * 3)
    registration = registered(1, **changed)
    assert node_registered(image, registration, default_min_isr=1) == []


@pytest.mark.parametrize(
    ("former", "now", "elr", "last_known_elr"),
    [
        ({}, {}, (1,), ()),
        ({}, {"is_clean": False}, (1,), ()),
        ({"durability": "os"}, {"durability": "os"}, (1,), ()),
        ({"durability": "os"}, {"durability": "os", "is_clean": False}, (), (1,)),
        ({"durability": "os"}, {"is_clean": False}, (), (1,)),
        ({}, {"durability": "os", "is_clean": False}, (), (1,)),
        ({}, {"directory_id": "other"}, (), ()),
    ],
    ids=["clean", "killed-disk", "clean-os", "killed-os", "killed-was-os", "killed-is-os", "other-directory"],
)
def test_R5_a_new_start_is_out_of_sync_and_eligible_only_if_it_has_what_it_had(
    former: dict[str, object], now: dict[str, object], elr: tuple[int, ...], last_known_elr: tuple[int, ...]
) -> None:
    image = image_of(replace(ALL, isr=(1, 2)))
    image = image.apply_all(chained([registered(1, **former)], image.position))
    changes = node_registered(image, registered(1, **now), default_min_isr=1)
    expected = PartitionState(2, 6, (1, 2, 3), (2,), 8, elr=elr, last_known_elr=last_known_elr)
    assert after(image, changes) == expected


def test_R4_a_leader_that_restarts_and_can_not_be_replaced_begins_another_epoch() -> None:
    """Records that its former start had not counted may be gone: their offsets are given again in another epoch."""
    image = image_of(replace(ALL, isr=(1,)))
    assert after(image, node_registered(image, registered(1), default_min_isr=1)) == replace(
        ALL, isr=(1,), leader_epoch=6, partition_epoch=8
    )


def test_R5_an_eligible_replica_that_restarts_without_its_records_is_eligible_no_more() -> None:
    image = image_of(replace(ALL, isr=(1,), elr=(2, 3)), min_isr=2)
    image = image.apply_all(chained([registered(2, durability="os")], image.position))
    changes = node_registered(image, registered(2, is_clean=False), default_min_isr=1)
    state = after(image, changes)
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (3,), (2,))
    assert (state.leader_epoch, state.partition_epoch) == (5, 8)


def test_R4_an_older_copy_of_a_directory_is_not_eligible() -> None:
    """It was stopped cleanly when it was copied, and synced all that it had: it has not what came later."""
    image = image_of(replace(ALL, leader=NO_LEADER, isr=(), elr=(1, 2)), min_isr=2, fenced=(1, 2, 3))
    image = image.apply_all(chained([registered(2)], image.position))
    state = after(image, node_registered(image, registered(2), default_min_isr=2, is_older_copy=True))
    assert (state.leader, state.elr, state.last_known_elr) == (NO_LEADER, (1,), (2,))
    as_it_was = after(image, node_registered(image, registered(2), default_min_isr=2))
    assert as_it_was.leader == 2, "nobody else is alive, and it has all records"


def test_R5_a_lower_min_isr_ends_eligibility_before_records_are_committed_without_the_eligible() -> None:
    image = image_of(replace(ALL, isr=(1,), elr=(2,), last_known_elr=(3,)), replace(ALL, isr=(), leader=-1, elr=(1,)))
    lower = ConfigsChanged("TOPIC", "t", {"min.insync.replicas": "1"})
    alone = PartitionChanged("t", TOPIC_ID, 0, replace(ALL, isr=(1,), partition_epoch=8))
    assert configs_changed(image, lower, default_min_isr=2) == [alone, lower]
    default = ConfigsChanged("TOPIC", "t", {"min.insync.replicas": None})
    assert configs_changed(image, default, default_min_isr=1) == [alone, default]
    assert configs_changed(image, default, default_min_isr=2) == [default]
    other = ConfigsChanged("TOPIC", "t", {"retention.ms": "5"})
    assert configs_changed(image, other, default_min_isr=1) == [other]


def test_R5_a_lower_min_isr_of_the_nodes_concerns_topics_without_their_own() -> None:
    state = replace(ALL, isr=(1,), elr=(2,))
    nodes = ConfigsChanged("BROKER", "-1", {"min.insync.replicas": "1"})
    expected = PartitionChanged("t", TOPIC_ID, 0, replace(ALL, isr=(1,), partition_epoch=8))
    assert configs_changed(image_of(state, min_isr=None), nodes, default_min_isr=1) == [expected, nodes]
    assert configs_changed(image_of(state, min_isr=2), nodes, default_min_isr=1) == [nodes]


def test_R4_an_election_that_nobody_needs_or_can_win_leaves_the_state() -> None:
    image = image_of(ALL, fenced=(3,))
    assert elect(ALL, image, min_isr=2) is ALL
    nobody = replace(ALL, leader=NO_LEADER, isr=(), elr=(3,))
    assert elect(nobody, image, min_isr=2) is nobody, "nodes 1 and 2 are alive, and may lack records"


def test_R4_only_an_operator_elects_a_replica_that_may_lack_records_and_it_is_reported() -> None:
    image = image_of(replace(ALL, leader=NO_LEADER, isr=(), elr=(3,), last_known_elr=(2,)), fenced=(3,))
    election = elect_unclean(image, FIRST, default_min_isr=1)
    assert election.is_unclean
    assert election.change.state == PartitionState(2, 6, (1, 2, 3), (2,), 8), "it was the last to have all of them"
    any_replica = image_of(replace(ALL, leader=NO_LEADER, isr=(), elr=(3,)), fenced=(3,))
    assert elect_unclean(any_replica, FIRST, default_min_isr=1).change.state.leader == 1


def test_R4_an_operator_who_asks_for_any_leader_gets_a_complete_one_where_there_is_one() -> None:
    image = image_of(replace(ALL, leader=NO_LEADER, isr=(), elr=(3,)))
    election = elect_unclean(image, FIRST, default_min_isr=1)
    assert not election.is_unclean
    assert election.change.state == PartitionState(3, 6, (1, 2, 3), (3,), 8)


def test_the_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    image = image_of(replace(ALL, leader=2))
    assert elect_preferred(image, FIRST) == (
        PartitionChanged("t", TOPIC_ID, 0, replace(ALL, leader_epoch=6, partition_epoch=8)),
        False,
    )


@pytest.mark.parametrize(
    ("state", "fenced", "tp", "unclean", "code", "says"),
    [
        (ALL, (), FIRST, False, ErrorCode.ELECTION_NOT_NEEDED, "node 1 leads t-0 already"),
        (ALL, (), FIRST, True, ErrorCode.ELECTION_NOT_NEEDED, "node 1 leads t-0 already"),
        (replace(ALL, leader=2, isr=(2, 3)), (), FIRST, False, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "not in sync"),
        (replace(ALL, leader=2), (1,), FIRST, False, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "not alive"),
        (
            replace(ALL, leader=NO_LEADER, isr=()), (1, 2, 3), FIRST, True,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "start one of them, with --accept-data-loss",
        ),
        (ALL, (), TopicPartition("t", 1), False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition t-1"),
        (ALL, (), TopicPartition("u", 0), True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition u-0"),
    ],
)  # fmt: skip
def test_an_election_that_can_not_be_is_refused_in_words(
    state: PartitionState, fenced: tuple[int, ...], tp: TopicPartition, unclean: bool, code: ErrorCode, says: str
) -> None:
    image = image_of(state, fenced=fenced)
    with pytest.raises(SemelError, match=says) as raised:
        elect_unclean(image, tp, default_min_isr=1) if unclean else elect_preferred(image, tp)
    assert raised.value.code is code


def test_many_partitions_fail_over_as_one_batch() -> None:
    """Each of them once, and a topic is copied once: 10,000 copies of 10,000 partitions would take a minute."""
    image = image_of(*[ALL] * 10_000)
    changes = nodes_fenced(image, [1], default_min_isr=1)
    assert len(changes) == 10_001
    moved = image.apply_all(chained(changes, image.position)).topics["t"].partitions
    assert {state.leader for state in moved} == {2}
