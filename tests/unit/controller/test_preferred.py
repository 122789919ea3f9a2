"""Leaders go back to the preferred replicas when these are in sync again, without an operator (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from three_nodes import ALL, after, image_of

from semel.broker.controller.preferred import preferred_elections
from semel.broker.metadata.changes import PartitionChanged, PartitionState

AWAY = replace(ALL, leader=2)
"""Node 1 is preferred, and 2 leads."""


def elected(*states: PartitionState, percent: int = 10, changes_max: int = 1_000, **image: object) -> list[int]:
    """Return the numbers of the partitions whose preferred replica is elected."""
    found = preferred_elections(
        image_of(*states, **image),
        imbalance_max_percent=percent,
        changes_max=changes_max,  # type: ignore[arg-type]
    )
    assert all(isinstance(one, PartitionChanged) for one in found)
    return [one.partition for one in found if isinstance(one, PartitionChanged)]


def test_R4_a_preferred_replica_that_is_in_sync_leads_again() -> None:
    image = image_of(AWAY)
    state = after(image, preferred_elections(image, imbalance_max_percent=10, changes_max=1))
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


def test_R4_a_node_that_is_dead_or_stops_is_given_nothing() -> None:
    assert elected(AWAY, fenced=(1,)) == []
    assert elected(AWAY, stopping=(1,)) == []


def test_some_imbalance_is_left_alone() -> None:
    states = [AWAY] * 2 + [ALL] * 8
    assert elected(*states, percent=20) == []
    assert elected(*states, percent=19) == [0, 1]
    assert elected(*states, percent=0, changes_max=1) == [0]
