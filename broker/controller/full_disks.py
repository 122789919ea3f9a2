"""A node whose disk refuses producers: another in-sync replica leads in its place, on a node that has room (R4).

The node says so itself, in the metadata, so that it gets nothing to lead while that lasts. It stays in sync: as a
follower it may use the reserve that producers may not (disk.min.free.bytes).
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import replace

from semel.broker.controller.membership import alive_nodes, changed, follows, full_nodes, stopping_nodes
from semel.broker.metadata.changes import FULL_DISKS_VERSION, BrokerFull, Change, PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.protocol.ids import TopicId


def able_to_lead(image: MetadataImage, node_id: int) -> frozenset[int]:
    """Return the nodes that may lead in place of a full one: alive, not about to stop, and with room."""
    return alive_nodes(image) - stopping_nodes(image) - full_nodes(image) - {node_id}


def successor(state: PartitionState, node_id: int, able: Container[int]) -> int | None:
    """Return which replica may lead in place of `node_id`, None where none may or another one leads already."""
    if state.leader != node_id:
        return None
    return next((each for each in state.replicas if each in state.isr and each in able), None)


def disk_told(image: MetadataImage, node_id: int, broker_epoch: int, *, is_full: bool) -> list[Change]:
    """Return what a node says of its disk, where that is new.

    is_full: whether its disk refuses producers

    Nothing changes for a node that has registered again since, and while another node does not know of such changes.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch or image.version < FULL_DISKS_VERSION:
        return []
    return [] if broker.is_full == is_full else [BrokerFull(node_id, broker_epoch, is_full)]


def led_elsewhere(
    image: MetadataImage, node_id: int, broker_epoch: int, partitions: Collection[tuple[TopicId, int]]
) -> list[Change]:
    """Return how others lead what a full node leads of these partitions: where nobody in sync has room, it leads on.

    Nothing changes for a node that has registered again since, and while another node does not know of full disks.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != broker_epoch or image.version < FULL_DISKS_VERSION:
        return []
    able = able_to_lead(image, node_id)
    changes: list[Change] = []
    for topic_id, number in partitions:
        found = image.partition_by_id(topic_id, number)
        if found is None:
            continue
        topic, state = found
        leader = successor(state, node_id, able)
        if leader is not None:
            changes += changed(topic, number, follows(state, replace(state, leader=leader)))
    return changes
