"""A node whose disk refuses producers: another in-sync replica leads in its place, on a node that has room (R4).

The node says so itself, in the metadata, so that it gets nothing back to lead while that lasts. It stays in sync: as a
follower it may use the reserve that producers may not (disk.min.free.bytes).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from semel.broker.controller.membership import alive_nodes, changed, follows, full_nodes, stopping_nodes
from semel.broker.metadata.changes import FULL_DISKS_VERSION, BrokerFull, Change
from semel.broker.metadata.image import MetadataImage
from semel.protocol.ids import TopicId


def led_elsewhere(
    image: MetadataImage, node_id: int, broker_epoch: int, partitions: Collection[tuple[TopicId, int]], *, is_full: bool
) -> list[Change]:
    """Return what a node says of its disk, where that is new, and who leads in its place.

    partitions: of those that it leads: where nobody in sync has room, it leads on
    is_full: whether its disk refuses producers

    Nothing changes for a node that has registered again since, and while another node does not know of such changes.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch or image.version < FULL_DISKS_VERSION:
        return []
    changes: list[Change] = [] if broker.is_full == is_full else [BrokerFull(node_id, broker_epoch, is_full)]
    if not is_full:
        return changes
    able = alive_nodes(image) - stopping_nodes(image) - full_nodes(image) - {node_id}
    for topic_id, number in partitions:
        topic = image.topic_by_id(topic_id)
        if topic is None or not 0 <= number < len(topic.partitions):
            continue
        state = topic.partitions[number]
        leader = next((each for each in state.replicas if each in state.isr and each in able), None)
        if state.leader == node_id and leader is not None:
            changes += changed(topic, number, follows(state, replace(state, leader=leader)))
    return changes
