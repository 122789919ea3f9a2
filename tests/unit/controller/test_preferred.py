"""Leaders go back to the preferred replicas when these are in sync again, without an operator (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from three_nodes import ALL, FIRST, after, image_of

from semel.broker.controller.preferred import LedElsewhere, preferred_elections
from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.protocol.ids import TopicPartition

AWAY = replace(ALL, leader=2)
"""Node 1 is preferred, and 2 leads."""


def found_in(image: MetadataImage, percent: int) -> list[TopicPartition]:
    elsewhere = LedElsewhere(image, imbalance_max_percent=percent)
    for topic in image.topics.values():
        elsewhere.count(topic)
    return [tp for topic in image.topics.values() for tp in elsewhere.find(topic)]


def elected(*states: PartitionState, percent: int = 10, **image: object) -> list[int]:
    """Return the numbers of the partitions whose preferred replica is elected."""
    before = image_of(*states, **image)  # type: ignore[arg-type]
    found = preferred_elections(before, found_in(before, percent))
    assert all(isinstance(one, PartitionChanged) for one in found)
    return [one.partition for one in found if isinstance(one, PartitionChanged)]


def test_R4_a_preferred_replica_that_is_in_sync_leads_again() -> None:
    image = image_of(AWAY)
    state = after(image, preferred_elections(image, [FIRST]))
    assert (state.leader, state.leader_epoch) == (1, AWAY.leader_epoch + 1)
    assert (state.isr, state.replicas) == (AWAY.isr, AWAY.replicas)


@pytest.mark.parametrize(
    "state",
    [
        ALL,
        replace(AWAY, isr=(2, 3)),
        replace(AWAY, isr=(2, 3), elr=(1,)),
        replace(AWAY, removing=(3,)),
    ],
    ids=["leads", "not in sync", "eligible", "is moved"],
)
def test_R4_nothing_is_elected_where_the_preferred_replica_may_not_lead(state: PartitionState) -> None:
    assert elected(state) == []


def test_R4_a_node_that_is_dead_or_stops_or_has_a_full_disk_is_given_nothing() -> None:
    assert elected(AWAY, fenced=(1,)) == []
    assert elected(AWAY, stopping=(1,)) == []
    assert elected(AWAY, full=(1,)) == []


def test_R4_it_is_decided_by_the_newest_metadata() -> None:
    """What was found while others had their turns may be over."""
    assert found_in(image_of(AWAY), 10) == [FIRST]
    assert preferred_elections(image_of(replace(AWAY, isr=(2, 3))), [FIRST]) == []
    assert preferred_elections(image_of(AWAY), [FIRST._replace(topic="deleted"), FIRST._replace(partition=7)]) == []


def test_some_imbalance_is_left_alone() -> None:
    states = [AWAY] * 2 + [ALL] * 8
    assert elected(*states, percent=20) == []
    assert elected(*states, percent=19) == [0, 1]
