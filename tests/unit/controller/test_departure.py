"""A node that is gone for good leaves the metadata, and a cordoned one gets no new replicas."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chained_changes import chained
from three_nodes import FIRST, TOPIC_ID, registered

from semel.broker.controller.departure import check_may_cordon, unregister
from semel.broker.controller.membership import CORDONED_SETTING, cordoned_nodes
from semel.broker.controller.moves import begin_move
from semel.broker.handlers.topics.replica_placement import placed_as_assigned
from semel.broker.metadata.changes import (
    METADATA_VERSION,
    BrokerFenced,
    BrokerUnregistered,
    ConfigsChanged,
    MetadataVersionRaised,
    PartitionState,
    TopicCreated,
    decode_change,
    encode_change,
)
from semel.broker.metadata.image import BROKER_RESOURCE, EMPTY_IMAGE, MetadataImage
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import new_topic_id


def world(
    *, fenced: Sequence[int] = (), version: int = METADATA_VERSION, old: Sequence[int] = (), replicas: int = 2
) -> MetadataImage:
    """Four nodes with the broker epochs 1 to 4; the partition is on the first two, or so many."""
    nodes = [
        registered(each, peer_host="h", peer_port=3, metadata_version=1 if each in old else METADATA_VERSION)
        for each in range(1, 5)
    ]
    state = PartitionState(1, 5, tuple(range(1, replicas + 1)), (1,))
    return EMPTY_IMAGE.apply_all(
        chained(
            [
                *nodes,
                *([MetadataVersionRaised(version)] if version > 1 else []),
                TopicCreated("t", TOPIC_ID, (state,)),
                *(BrokerFenced(node_id, node_id) for node_id in fenced),
            ]
        )
    )


def cordoned(image: MetadataImage, node_id: int, value: str | None = "*") -> MetadataImage:
    change = ConfigsChanged(BROKER_RESOURCE, str(node_id), {CORDONED_SETTING: value})
    return image.apply_all(chained([change], image.position))


def refusal(image: MetadataImage, node_id: int) -> SemelError:
    with pytest.raises(SemelError) as refused:
        unregister(image, node_id)
    return refused.value


def test_a_dead_node_without_replicas_is_removed_and_its_settings_with_it() -> None:
    image = cordoned(world(fenced=[4]), 4)
    changes = unregister(image, 4)
    assert changes == [BrokerUnregistered(4, 4)]
    assert [decode_change(*encode_change(each)) for each in changes] == changes
    after = image.apply_all(chained(changes, image.position))
    assert sorted(after.brokers) == [1, 2, 3]
    assert not after.broker_configs.get(4)
    assert sorted(image.brokers) == [1, 2, 3, 4], "the image before is as it was"


def test_a_node_stays_that_is_alive_or_has_replicas_or_is_not_there() -> None:
    alive = refusal(world(), 4)
    assert (alive.code, "it is alive" in alive.message) == (ErrorCode.INVALID_REQUEST, True)
    has = refusal(world(fenced=[2]), 2)
    assert (has.code, "replicas of 1 partition (t-0)" in has.message) == (ErrorCode.INVALID_REQUEST, True)
    assert "semel node drain 2" in has.message
    assert "--accept-data-loss" not in has.message, "node 1 has a copy"
    none = refusal(world(), 9)
    assert (none.code, "1, 2, 3, 4" in none.message) == (ErrorCode.BROKER_ID_NOT_REGISTERED, True)
    assert unregister(world(), 4, may_be_unfenced=True) == [BrokerUnregistered(4, 4)], "the others are its former ids"


def test_a_dead_node_with_the_only_copy_is_told_with_the_ways_out() -> None:
    """The refusal sent its operator to the drain, which can't move what no other node has."""
    cure = "start node 2 again, with --accept-data-loss if its directory is lost, or delete the topics"
    only = refusal(world(fenced=[1, 2]), 2)
    assert only.message.endswith(f"replicas of 1 partition (t-0). No node that is alive has a copy of them: {cure}")
    image = world(fenced=[2])
    more = TopicCreated("u", new_topic_id(), (PartitionState(-1, 5, (2,), (2,)), PartitionState(3, 5, (3, 2), (3,))))
    both = refusal(image.apply_all(chained([more], image.position)), 2)
    assert "`semel node drain 2`. No node that is alive has a copy of 1 partition (u-0): " in both.message
    assert both.message.endswith(cure)


def test_where_the_removed_node_alone_was_old_the_version_is_raised_with_it() -> None:
    changes = unregister(world(fenced=[4], version=1, old=[4]), 4)
    assert changes == [MetadataVersionRaised(METADATA_VERSION), BrokerUnregistered(4, 4)]
    refused = refusal(world(fenced=[4], version=1, old=[3]), 4)
    assert (refused.code, "node 3" in refused.message) == (ErrorCode.UNSUPPORTED_VERSION, True)


def test_a_former_run_is_not_removed_in_place_of_the_current_one() -> None:
    image = world(fenced=[4])
    with pytest.raises(ValueError, match="broker epoch 3"):
        image.apply_all(chained([BrokerUnregistered(4, 3)], image.position))


@pytest.mark.parametrize(("value", "expected"), [("*", {3}), ("", set()), (" ", set()), (None, set())])
def test_who_is_cordoned_is_a_setting_of_the_node(value: str | None, expected: set[int]) -> None:
    assert cordoned_nodes(cordoned(cordoned(world(), 3), 3, value)) == expected


def test_nobody_is_cordoned_while_an_older_node_would_place_replicas_there() -> None:
    check_may_cordon(world())
    with pytest.raises(SemelError, match="Upgrade all nodes first") as refused:
        check_may_cordon(world(version=1, old=[3]))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_cordoned_node_gets_no_new_replica_and_keeps_those_that_it_has() -> None:
    image = cordoned(cordoned(world(replicas=3), 4), 2)
    with pytest.raises(SemelError, match="on node 4, which is cordoned: `semel node uncordon 4`") as refused:
        begin_move(image, FIRST, (1, 4), default_min_isr=1)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (change,) = begin_move(image, FIRST, (2, 1), default_min_isr=1)
    assert change.state.replicas_after == (2, 1), "it stays where it is"
    with pytest.raises(SemelError, match="node 4: it is cordoned"):
        placed_as_assigned(image, "u", 0, {0: (1, 4)})
