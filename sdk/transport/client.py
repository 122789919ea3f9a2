"""What every client is made of: an IO thread, the control plane, what is known about the cluster, data connections."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from semel.protocol.compiled import warn_if_interpreted
from semel.sdk.transport.cluster import Cluster
from semel.sdk.transport.connection import Connections
from semel.sdk.transport.control import Control
from semel.sdk.transport.io_thread import IoThread
from semel.sdk.transport.options import ClientOptions

T = TypeVar("T")


class ClientCore:
    """The shared core of Producer, Consumer and Admin, sync or asyncio. Nothing connects before the first use."""

    def __init__(self, owner: str, options: ClientOptions) -> None:
        """`owner` names the client in messages, for example "Producer"."""
        warn_if_interpreted()
        self.options = options
        self.io = IoThread(owner)
        self.control = Control(options)
        self.cluster = Cluster(self.control, options)
        self.connections = Connections(options, self.cluster.data_address)

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
