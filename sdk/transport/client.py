"""What every client is made of: an IO thread, the control plane, what is known about the cluster, data connections."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from semel.protocol.compiled import warn_if_interpreted
from semel.runtime.clock import Clock
from semel.sdk.transport.cluster import Cluster
from semel.sdk.transport.connection import Connections
from semel.sdk.transport.control import Control
from semel.sdk.transport.in_process import find_link
from semel.sdk.transport.options import ClientOptions
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
