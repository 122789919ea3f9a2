"""A node leaves: it is cordoned (KIP-1066), and removed once it is gone for good (UnregisterBroker, KIP-631)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.broker.controller.membership import alive_nodes, existing_node, partitions_of
from semel.broker.metadata.changes import LEAVING_VERSION, BrokerUnregistered, Change, MetadataVersionRaised
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TopicPartition
from semel.protocol.wording import counted

_NAMED_MAX: Final = 5


def check_may_cordon(image: MetadataImage) -> None:
    """Raise `FatalError` (UNSUPPORTED_VERSION) while a node would place replicas without looking who is cordoned."""
    if image.version < LEAVING_VERSION:
        raise FatalError(
            "nodes can't be cordoned yet: not all of them run a semel that knows of that. Upgrade all nodes first",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def unregister(image: MetadataImage, node_id: int, *, may_be_unfenced: bool = False) -> list[Change]:
    """Return the changes after which a node is no part of the cluster any more.

    may_be_unfenced: nobody fences nodes, because the one that runs is alone

    It must be dead and have no replicas: removed too early, it would be forgotten as one that has all records. If it
    was the last that kept the metadata at an older version, that is raised with it.
    Raises `FatalError`: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST where it can't go yet; UNSUPPORTED_VERSION while
    another node does not know of such changes.
    """
    broker = existing_node(image, node_id)
    alive = alive_nodes(image)
    held, stuck = [], []
    for topic, number, state in partitions_of(image):
        if node_id in state.replicas:
            held.append(TopicPartition(topic.name, number))
            if alive.isdisjoint(state.replicas):
                stuck.append(held[-1])
    if held:
        raise FatalError(
            f"node {node_id} can't be removed: it has replicas of {_named(held)}. {_ways_out(node_id, held, stuck)}",
            ErrorCode.INVALID_REQUEST,
        )
    if not broker.is_fenced and not may_be_unfenced:
        raise FatalError(
            f"node {node_id} can't be removed: it is alive. Stop it first, and wait until the others have noticed",
            ErrorCode.INVALID_REQUEST,
        )
    others = [one for one in image.brokers.values() if one.node_id != node_id]
    agreed = min((one.metadata_version for one in others), default=image.version)
    if agreed < LEAVING_VERSION:
        old = next(one.node_id for one in others if one.metadata_version == agreed)
        raise FatalError(
            f"node {node_id} can't be removed yet: node {old} runs a semel that does not know of that. Upgrade all "
            "nodes first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    raised: list[Change] = [MetadataVersionRaised(agreed)] if agreed > image.version else []
    return [*raised, BrokerUnregistered(node_id, broker.epoch)]


def _ways_out(node_id: int, held: Sequence[TopicPartition], stuck: Sequence[TopicPartition]) -> str:
    """Return how a node gets rid of replicas. `stuck`: those that can't be moved, because no replica is alive."""
    drain = f"Move them to other nodes first: `semel node drain {node_id}`"
    if not stuck:
        return drain
    again = f"start node {node_id} again, with --accept-data-loss if its directory is lost, or delete the topics"
    if len(stuck) == len(held):
        return f"No node that is alive has a copy of them: {again}"
    return f"{drain}. No node that is alive has a copy of {_named(stuck)}: {again}"


def _named(partitions: Sequence[TopicPartition]) -> str:
    more = ", ..." if len(partitions) > _NAMED_MAX else ""
    return f"{counted(len(partitions), 'partition')} ({', '.join(map(str, partitions[:_NAMED_MAX]))}{more})"
