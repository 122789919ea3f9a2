"""Connections to nodes that do not answer and lead nothing any more are closed: a frozen node says nothing.

What waits for its answer would otherwise wait for all of request_timeout_ms, while another node leads long since. It is
the other nodes' word that counts: a node that is slow, and leads, is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import SemelError

if TYPE_CHECKING:
    from semel.runtime.kafka_client.connection import Connection
    from semel.sdk.transport.cluster import Cluster, ClusterSnapshot
    from semel.sdk.transport.control import Control

_log = logging.getLogger("semel.client")

_ASK_MS: Final = 2_000
"""How long one of the other nodes may take to answer."""


class SilentNodes:
    """Asks other nodes about one that does not answer. On the IO thread."""

    def __init__(self, control: Control, cluster: Cluster) -> None:
        self._control = control
        self._cluster = cluster
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._turn = 0

    def look_into(self, node_id: int, connection: Connection) -> None:
        """Find out whether a node still leads something, and close the connection to it if not."""
        if node_id in self._asking:
            return
        task = asyncio.get_running_loop().create_task(self._ask(node_id, connection), name=f"does node {node_id} lead?")
        self._asking[node_id] = task
        task.add_done_callback(lambda _: self._asking.pop(node_id, None))

    async def _ask(self, node_id: int, connection: Connection) -> None:
        addresses = dict(self._control.nodes.by_id)
        others = [address for other, address in addresses.items() if other != node_id]
        self._turn += 1
        for place in range(len(others)):  # not always the same one first: it may be cut off from the others
            try:
                snapshot = await self._cluster.ask_node(others[(self._turn + place) % len(others)], timeout_ms=_ASK_MS)
            except SemelError:
                continue
            if connection.is_open and connection.in_flight and not _leads(node_id, snapshot):
                _log.info("node %d does not answer, and leads nothing any more: asking the new leaders", node_id)
                connection.close("the node does not answer, and leads nothing any more")
                if node_id in addresses:
                    self._control.nodes.give_up_on(addresses[node_id])
            return


def _leads(node_id: int, snapshot: ClusterSnapshot) -> bool:
    return any(one.leader_id == node_id for topic in snapshot.topics.values() for one in topic.partitions)
