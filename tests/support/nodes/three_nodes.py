"""An image of a cluster of three nodes with one topic, for tests of what is decided from it."""

from __future__ import annotations

from dataclasses import replace

from chained_changes import chained

from semel.broker.metadata.changes import (
    BrokerFenced,
    BrokerFull,
    BrokerRegistered,
    BrokerStopping,
    Change,
    MetadataVersionRaised,
    PartitionState,
    TopicCreated,
)
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.ids import TopicPartition, new_topic_id

TOPIC_ID = new_topic_id()
ALL = PartitionState(leader=1, leader_epoch=5, replicas=(1, 2, 3), isr=(1, 2, 3), partition_epoch=7)
FIRST = TopicPartition("t", 0)


def registered(node_id: int, **changed: object) -> BrokerRegistered:
    plain = BrokerRegistered(node_id, f"start-{node_id}", f"dir-{node_id}", "h", 1, "h", 2)
    return replace(plain, **changed)  # type: ignore[arg-type]


def image_of(
    *states: PartitionState,
    min_isr: int | None = 2,
    fenced: tuple[int, ...] = (),
    stopping: tuple[int, ...] = (),
    full: tuple[int, ...] = (),
    version: int = 1,
) -> MetadataImage:
    """Nodes 1 to 3, with the broker epochs 1 to 3, and a topic."""
    configs = {} if min_isr is None else {"min.insync.replicas": str(min_isr)}
    changes: list[Change] = [
        *(registered(node_id) for node_id in (1, 2, 3)),
        TopicCreated("t", TOPIC_ID, states, configs),
        *(BrokerFenced(node_id, node_id) for node_id in fenced),
        *(BrokerStopping(node_id, node_id) for node_id in stopping),
        *(BrokerFull(node_id, node_id, True) for node_id in full),
        *([MetadataVersionRaised(version)] if version > 1 else []),
    ]
    return EMPTY_IMAGE.apply_all(chained(changes))


def after(image: MetadataImage, changes: list[Change]) -> PartitionState:
    return image.apply_all(chained(changes, image.position)).topics["t"].partitions[0]
