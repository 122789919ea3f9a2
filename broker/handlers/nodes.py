"""The nodes of a cluster: which there are, whether they get new replicas, and the removal of one that is gone."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from semel.broker.controller.departure import check_may_cordon, unregister
from semel.broker.controller.membership import CORDONED_SETTING, cordoned_nodes, existing_node
from semel.broker.handlers.newest import read_newest
from semel.broker.metadata.changes import Change, ConfigsChanged
from semel.broker.metadata.image import BROKER_RESOURCE, MetadataImage
from semel.broker.services import Services
from semel.protocol.api.cluster import Listener, NodeState

_log = logging.getLogger("semel.cluster")


async def describe_nodes(node: Services) -> Sequence[NodeState]:
    """Return all registered nodes by their numbers, by the newest metadata that can be read."""
    await read_newest(node)
    image = node.metadata.image
    cordoned = cordoned_nodes(image)
    return [
        NodeState(
            node_id,
            broker.rack,
            # This one answers, so it is alive, whatever the metadata says.
            is_alive=not broker.is_fenced or node_id == node.config.node_id,
            is_stopping=broker.is_stopping,
            is_cordoned=node_id in cordoned,
            is_alone=not broker.peer_port,
            is_full=broker.is_full,
            listeners=(
                *(Listener("kafka", *each) for each in broker.all_kafka_listeners),
                *(Listener("grpc", *each) for each in broker.all_grpc_listeners),
            ),
        )
        for node_id, broker in sorted(image.brokers.items())
    ]


async def cordon(node: Services, node_id: int, *, is_cordoned: bool) -> None:
    """Have a node get no new replicas (KIP-1066), or let it get some again. It need not be alive.

    Raises BROKER_ID_NOT_REGISTERED, and UNSUPPORTED_VERSION while another node does not know of that.
    """

    def decide(image: MetadataImage) -> list[Change]:
        existing_node(image, node_id)
        if is_cordoned == (node_id in cordoned_nodes(image)):
            return []
        check_may_cordon(image)
        values = {CORDONED_SETTING: "*" if is_cordoned else None}
        return [ConfigsChanged(BROKER_RESOURCE, str(node_id), values)]

    await node.metadata.change(decide)
    await node.caught_up()


async def remove(node: Services, node_id: int) -> None:
    """Remove a node from the metadata that is dead and has no replicas. Raises as `controller.departure.unregister`."""
    is_alone = not node.config.peer_listen

    def decide(image: MetadataImage) -> list[Change]:
        return unregister(image, node_id, may_be_unfenced=is_alone and node_id != node.config.node_id)

    await node.metadata.change(decide)
    _log.warning("node %d was removed from the cluster", node_id)
    await node.caught_up()
