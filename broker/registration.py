"""A node's entry in the metadata: where it is reached, and what its start means for its replicas (R4, R5)."""

from __future__ import annotations

import socket

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import Address, parse_address
from semel.broker.controller.elections import node_registered
from semel.broker.controller.membership import partitions_of, stopping_nodes
from semel.broker.logs.manager import LogManager
from semel.broker.metadata.changes import BrokerRegistered, Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.ids import TopicPartition


def advertised(name: str, text: str, listening: Address) -> Address:
    """Return the address that others are to connect to: that of the setting `name`, whose value is `text`, if any."""
    if text:
        return parse_address(name, text)
    if listening.host in ("0.0.0.0", "::"):  # noqa: S104
        return Address(socket.gethostname(), listening.port)
    return listening


def returned(
    image: MetadataImage, registered: BrokerRegistered, logs: LogManager, *, default_min_isr: int
) -> list[Change]:
    """Return what the registration of a node that starts changes in the partitions that it has replicas of."""
    return node_registered(
        image,
        registered,
        default_min_isr=default_min_isr,
        stopping=stopping_nodes(image),
        damaged={one.tp for one in logs.partitions() if one.log.recovered_damage},
        gone=_replicas_gone(image, registered.node_id, logs),
    )


def _replicas_gone(image: MetadataImage, node_id: int, logs: LogManager) -> set[TopicPartition]:
    """Return a node's partitions that others have replicas of, too, and whose logs were here and are not.

    One that was never made lacks nothing: nothing was committed while it was in sync, and had not fetched.
    """
    gone: set[TopicPartition] = set()
    for topic, number, state in partitions_of(image):
        tp = TopicPartition(topic.name, number)
        if (
            node_id in state.replicas
            and len(state.replicas) > 1
            and logs.partition(tp) is None
            and (logs.offline.get(tp) is not None or logs.was_made(tp, topic.topic_id))
        ):
            gone.add(tp)
    return gone


async def check_others_serve_peers(metadata: Metadata, config: NodeConfig) -> None:
    """Raise `NodeStartError` where a node runs that is alone: it takes no part in replication, nor expects others."""
    for session in await metadata.silent_nodes(0):
        other = metadata.image.brokers.get(session.node_id)
        if (
            other is not None
            and other.node_id != config.node_id
            and not other.peer_port
            and session.silent_ms < config.controller_lease_ms
        ):
            raise NodeStartError(
                f"node {other.node_id} runs alone on {metadata.location}: it has no peer.listen. Stop it, give it "
                "peer.listen and cluster.secret.file, and start it again",
                StartFailure.METADATA,
            )
