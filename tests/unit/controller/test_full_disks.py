"""Others lead in the place of a node whose disk refuses producers (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chained_changes import chained
from three_nodes import ALL, FIRST, TOPIC_ID, image_of, registered

from semel.broker.controller.elections import elect_preferred, node_registered, nodes_fenced
from semel.broker.controller.full_disks import disk_told, led_elsewhere
from semel.broker.controller.membership import full_nodes
from semel.broker.controller.placement import place_replicas
from semel.broker.controller.shutdown import step_down
from semel.broker.metadata.changes import FULL_DISKS_VERSION, BrokerFull, PartitionChanged, PartitionState
from semel.broker.metadata.image import decode_image, encode_image
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import new_topic_id

VERSION = FULL_DISKS_VERSION
PARTITIONS = [(TOPIC_ID, 0), (TOPIC_ID, 7), (new_topic_id(), 0)]


@pytest.mark.parametrize(
    ("state", "leader"),
    [
        (ALL, 2),
        (replace(ALL, isr=(1, 3)), 3),
        (replace(ALL, isr=(1,), elr=(2,)), None),
        (replace(ALL, leader=2), None),
    ],
    ids=["first in sync", "the only other in sync", "eligible alone", "another leads"],
)
def test_R4_an_in_sync_replica_leads_in_place_of_a_full_node(state: PartitionState, leader: int | None) -> None:
    changes = led_elsewhere(image_of(state, version=VERSION), 1, 1, PARTITIONS)
    if leader is None:
        assert changes == []
    else:
        after = replace(state, leader=leader, leader_epoch=6, partition_epoch=8)
        assert changes == [PartitionChanged("t", TOPIC_ID, 0, after)], "it stays in sync"


def test_R4_nobody_leads_in_its_place_who_is_full_dead_or_about_to_stop() -> None:
    for kept in ({"full": (2, 3)}, {"fenced": (2, 3)}, {"stopping": (2, 3)}):
        image = image_of(ALL, version=VERSION, **kept)  # type: ignore[arg-type]
        assert led_elsewhere(image, 1, 1, PARTITIONS) == []
    image = image_of(ALL, version=VERSION, full=(2,))
    assert led_elsewhere(image, 1, 1, PARTITIONS)[0].state.leader == 3  # type: ignore[union-attr]


def test_what_is_known_is_not_said_again_and_room_is_said_once() -> None:
    full, roomy = image_of(ALL, version=VERSION, full=(1,)), image_of(ALL, version=VERSION)
    assert disk_told(full, 1, 1, is_full=True) == []
    assert disk_told(full, 1, 1, is_full=False) == [BrokerFull(1, 1, False)]
    assert disk_told(roomy, 1, 1, is_full=True) == [BrokerFull(1, 1, True)]
    assert disk_told(roomy, 1, 1, is_full=False) == []


def test_R4_a_former_start_and_older_nodes_change_nothing() -> None:
    assert VERSION == 3, "metadata of version 2 is read by nodes that do not know of full disks"
    for version, node_id, epoch in ((VERSION, 1, 0), (VERSION, 9, 9), (2, 1, 1)):
        image = image_of(ALL, version=version)
        assert disk_told(image, node_id, epoch, is_full=True) == []
        assert led_elsewhere(image, node_id, epoch, PARTITIONS) == []


def test_a_snapshot_says_nothing_of_room_where_all_have_it() -> None:
    """A node that does not know of full disks reads it."""
    assert "is_full" not in encode_image(image_of(ALL))


@pytest.mark.parametrize("strike", ["fenced", "stopped", "restarted"])
def test_R4_of_two_in_sync_replicas_the_one_with_room_is_elected(strike: str) -> None:
    image = image_of(ALL, version=VERSION, full=(2,))
    if strike == "fenced":
        changes = nodes_fenced(image, [1], default_min_isr=1)
    elif strike == "stopped":
        changes = step_down(image, 1, default_min_isr=1).changes
    else:
        changes = node_registered(image, registered(1), default_min_isr=1)
    assert [change.state.leader for change in changes if isinstance(change, PartitionChanged)] == [3]


def test_R4_a_full_node_is_elected_where_no_other_one_is_in_sync() -> None:
    (_, change) = nodes_fenced(image_of(replace(ALL, isr=(1, 2)), version=VERSION, full=(2,)), [1], default_min_isr=1)
    assert isinstance(change, PartitionChanged)
    assert change.state.leader == 2


def test_new_replicas_are_on_full_nodes_only_where_the_others_are_too_few() -> None:
    image = image_of(ALL, version=VERSION, full=(1,))
    placed = place_replicas(image, "new", 6, 1, nodes=(1, 2, 3), start=0)
    assert {replica for state in placed for replica in state.replicas} == {2, 3}
    (state,) = place_replicas(image, "new", 1, 3, nodes=(1, 2, 3), start=0)
    assert set(state.replicas) == set(state.isr) == {1, 2, 3}
    assert state.leader in (2, 3)
    everywhere = image_of(ALL, version=VERSION, full=(1, 2, 3))
    assert len(place_replicas(everywhere, "new", 1, 3, nodes=(1, 2, 3), start=0)[0].isr) == 3


def test_a_full_node_stays_full_in_a_snapshot_until_it_registers() -> None:
    image = image_of(ALL, version=VERSION, full=(1,))
    assert full_nodes(decode_image(encode_image(image), image.digest)) == {1}
    assert full_nodes(image.apply_all(chained([registered(1)], image.position))) == frozenset()


def test_R4_the_preferred_leader_is_not_elected_by_hand_while_its_disk_is_full() -> None:
    with pytest.raises(SemelError, match="has a full disk: elect it when there is room") as refused:
        elect_preferred(image_of(replace(ALL, leader=2), full=(1,)), FIRST)
    assert refused.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
