"""A node leaves: it is cordoned (KIP-1066), and removed once it is gone for good (UnregisterBroker, KIP-631)."""

from __future__ import annotations

from typing import Final

from semel.broker.controller.membership import existing_node, partitions_of
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
    held = [
        TopicPartition(topic.name, number) for topic, number, state in partitions_of(image) if node_id in state.replicas
    ]
    if held:
        named = f"{', '.join(map(str, held[:_NAMED_MAX]))}{', ...' if len(held) > _NAMED_MAX else ''}"
        raise FatalError(
            f"node {node_id} can't be removed: it has replicas of {counted(len(held), 'partition')} ({named}). Move "
            f"them to other nodes first: `semel node drain {node_id}`",
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
