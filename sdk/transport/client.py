"""What every client is made of: an IO thread, the control plane, what is known about the cluster, data connections."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from semel.protocol.compiled import warn_if_interpreted
from semel.runtime.clock import Clock
from semel.runtime.kafka_client.connection import Connection
from semel.sdk.transport.cluster import Cluster
from semel.sdk.transport.connection import Connections
from semel.sdk.transport.in_process import find_link
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import Key
from semel.sdk.transport.security import Access
from semel.sdk.transport.silent_nodes import SilentNodes
from semel.sdk.transport.surroundings import surroundings

T = TypeVar("T")


class ClientCore:
    """The shared core of Producer, Consumer and Admin, sync or asyncio. Nothing connects before the first use."""

    def __init__(self, owner: str, options: ClientOptions, clock: Clock | None = None) -> None:
        """`owner` names the client in messages, for example "Producer".

        clock: where everything in the client reads the time; None: that of its surroundings, so the machine's
        """
        from semel.sdk.transport.control import Control  # brings gRPC, which a program needs once it makes a client

        warn_if_interpreted()
        self.options = options
        here = surroundings()
        self.clock: Clock = here.clock if clock is None else clock
        self.io = here.make_io(owner)
        link = find_link(options.addresses)
        access = Access(options.security, self.clock)
        self.control = Control(options, self.clock, link, access)
        self.cluster = Cluster(self.control, options, self.clock)
        silent_nodes = SilentNodes(self.control, self.cluster)
        self.connections = Connections(
            options, self.clock, self.cluster.data_address, link, silent_nodes.look_into, access
        )

    def coordinator_connection(self, key: Key) -> Connection | None:
        """Return the data connection to the node that coordinates a key, as far as is known; None where none is open.
        On the IO thread.
        """
        nodes, known = self.cluster.snapshot.nodes, self.control.nodes
        if len(nodes) == 1:
            (node_id,) = nodes  # it may be known under an address of its own
            return self.connections.opened(node_id)
        address = known.coordinator(key) or known.current
        found = next((node_id for node_id, of_node in known.by_id.items() if of_node == address), None)
        return None if found is None else self.connections.opened(found)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run `coroutine` on the IO thread and wait for it; see `IoThread.run`."""
        return self.io.run(coroutine, timeout_ms)

    def close(self) -> None:
        """Close connections, channels and the thread. Does nothing the second time, and in a forked child."""
        if self.io.closed or self.io.forked:
            self.io.close()
            return
        self.io.call_soon(self.connections.close)
        self.io.close()
        self.control.close()
