"""Others lead in the place of a node whose disk refuses producers (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chained_changes import chained
from three_nodes import ALL, FIRST, TOPIC_ID, image_of, registered

from semel.broker.controller.elections import elect_preferred
from semel.broker.controller.full_disks import led_elsewhere
from semel.broker.controller.membership import full_nodes
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
    changes = led_elsewhere(image_of(state, version=VERSION), 1, 1, PARTITIONS, is_full=True)
    assert changes[0] == BrokerFull(1, 1, True)
    if leader is None:
        assert changes[1:] == []
    else:
        after = replace(state, leader=leader, leader_epoch=6, partition_epoch=8)
        assert changes[1:] == [PartitionChanged("t", TOPIC_ID, 0, after)], "it stays in sync"


def test_R4_nobody_leads_in_its_place_who_is_full_dead_or_about_to_stop() -> None:
    for kept in ({"full": (2, 3)}, {"fenced": (2, 3)}, {"stopping": (2, 3)}):
        image = image_of(ALL, version=VERSION, **kept)  # type: ignore[arg-type]
        assert led_elsewhere(image, 1, 1, PARTITIONS, is_full=True) == [BrokerFull(1, 1, True)]
    image = image_of(ALL, version=VERSION, full=(2,))
    assert led_elsewhere(image, 1, 1, PARTITIONS, is_full=True)[1].state.leader == 3  # type: ignore[union-attr]


def test_what_is_known_is_not_said_again_and_room_is_said_once() -> None:
    full = image_of(replace(ALL, leader=2), version=VERSION, full=(1,))
    assert led_elsewhere(full, 1, 1, PARTITIONS, is_full=True) == []
    assert led_elsewhere(full, 1, 1, PARTITIONS, is_full=False) == [BrokerFull(1, 1, False)]
    assert led_elsewhere(image_of(ALL, version=VERSION), 1, 1, PARTITIONS, is_full=False) == []


def test_R4_a_former_start_and_older_nodes_change_nothing() -> None:
    assert led_elsewhere(image_of(ALL, version=VERSION), 1, 0, PARTITIONS, is_full=True) == []
    assert led_elsewhere(image_of(ALL, version=VERSION), 9, 9, PARTITIONS, is_full=True) == []
    assert led_elsewhere(image_of(ALL, version=VERSION - 1), 1, 1, PARTITIONS, is_full=True) == []


def test_a_full_node_stays_full_in_a_snapshot_until_it_registers() -> None:
    image = image_of(ALL, version=VERSION, full=(1,))
    assert full_nodes(decode_image(encode_image(image), image.digest)) == {1}
    assert full_nodes(image.apply_all(chained([registered(1)], image.position))) == frozenset()


def test_R4_the_preferred_leader_is_not_elected_by_hand_while_its_disk_is_full() -> None:
    with pytest.raises(SemelError, match="has a full disk: elect it when there is room") as refused:
        elect_preferred(image_of(replace(ALL, leader=2), full=(1,)), FIRST)
    assert refused.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
