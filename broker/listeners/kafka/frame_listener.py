"""Accepts connections that carry frames of the Kafka protocol, and keeps what they share: limits, counters, memory.

Which APIs they are served, and what comes before the first frame, is the matter of the listeners made of it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.listeners.acceptor import Acceptor, ConnectionLimits, OpenConnections
from semel.broker.listeners.kafka.api_versions import api_versions_api
from semel.broker.listeners.kafka.connection import (
    PROGRESS_BYTES_MIN,
    ConnectionCounters,
    ConnectionProtocol,
    KafkaConnection,
)
from semel.broker.listeners.kafka.flushes import Flushes
from semel.broker.listeners.kafka.registry import Api, ApiRegistry
from semel.broker.listeners.kafka.request_memory import RequestMemory
from semel.broker.listeners.kafka.send_threads import SendThreads
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.runtime.limited_log import LimitedLog

if TYPE_CHECKING:
    import ssl

    from semel.broker.listeners.kafka.socket_reads import SocketReads
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import RequestTimes

_log = logging.getLogger("semel.kafka")

_ROOM_TOLD_EVERY_S: Final = 60.0
_HOLDERS_NAMED: Final = 5
_ABORTED_WITHIN_S: Final = 5.0
"""How long a stop waits for connections that were aborted."""


class FrameListener(ABC):
    """Serves one address. Other APIs join through `registry` before `start`."""

    name = "Kafka"
    """As messages call it."""
    listener_name = DEFAULT_LISTENER
    """What answers go by: the addresses of listeners that have this name."""
    look_s_max = float("inf")
    """How often connections are looked at, at least."""

    def __init__(
        self,
        node: Services,
        host: str,
        port: int,
        limits: KafkaLimits,
        apis: Iterable[Api],
        *,
        request_times: Sequence[RequestTimes] | None = None,
        encryption: Callable[[], ssl.SSLContext] | None = None,
        beside: FrameListener | None = None,
    ) -> None:
        """`apis`: what is served besides ApiVersions. request_times: by API key, where requests are measured.

        encryption: gives what a connection is encrypted with; None: they are not
        beside:     another listener that this one shares its limits with, of connections and of memory
        """
        self._encryption = encryption
        self.node = node
        self.request_times = request_times
        self.limits = limits
        self.counters = ConnectionCounters()
        self.refusals = LimitedLog(_log)
        self.registry = ApiRegistry()
        for api in apis:
            self.registry.register(api)
        self.registry.register(api_versions_api(self.registry))
        self.loop: asyncio.AbstractEventLoop
        self.flushes: Flushes
        self.send_threads: SendThreads
        self.reads: SocketReads | None = None
        """What reads connections that nothing encrypts; None: asyncio does."""
        self._host = host
        self._port = port
        self._acceptor: Acceptor
        self._is_cut_off = False
        self._listens = True
        self._connections: dict[KafkaConnection, None] = {}
        self.room: RequestMemory = (
            RequestMemory(self.limits.queued_max_request_bytes, self.limits.socket_request_max_bytes)
            if beside is None
            else beside.room
        )
        self._open: OpenConnections = OpenConnections() if beside is None else beside._open
        self._room_told_at = -_ROOM_TOLD_EVERY_S
        self._watch_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """The port in use, also where port 0 was asked for."""
        return self._port

    @property
    def acceptor(self) -> Acceptor:
        """What accepts its connections, once it was started."""
        return self._acceptor

    def _protocol(self) -> asyncio.BaseProtocol:
        """Return what serves a connection that was accepted."""
        return ConnectionProtocol(KafkaConnection(self))

    @abstractmethod
    def _connection_limits(self) -> ConnectionLimits:
        """Return how many connections there may be."""

    def _connection_wait_s(self, address: str) -> float:
        """Return after how long a new connection of an address is to be closed; 0 where it is served."""
        return 0.0

    @abstractmethod
    def _finish(self) -> None:
        """Let no request wait for others any more: the listener stops."""

    async def start(self, *, listens: bool = True) -> None:
        """Begin to accept; only what is adopted without `listens`. Raises `OSError` where the address is taken."""
        self._listens = listens
        self.loop = asyncio.get_running_loop()
        self.flushes = Flushes(self.loop.call_soon)
        self.send_threads = SendThreads(self.loop)
        limits = self._connection_limits()
        self._acceptor = Acceptor(
            self.name, self._protocol, limits, self.refusals, self._encryption, self._connection_wait_s, self._open
        )
        await self.listen()
        self._watch()

    async def listen(self) -> None:
        """Accept connections, for the first time or after `cut_off`."""
        self._is_cut_off = False
        if self._listens and not self._acceptor.is_listening:
            self._port = await self._acceptor.listen(self._host, self._port)
        if self.reads is None:
            self.reads = _socket_reads(self.loop)  # after what can fail: it has a descriptor

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve a connection that came in another way than by the port."""
        await self._acceptor.adopt(accepted)

    async def cut_off(self) -> None:
        """Refuse connections and close those there are, as if the network were gone. For tests of clients."""
        self._is_cut_off = True  # a connection may be half accepted, and appear after this
        self.disconnect()
        await self._acceptor.close()
        self._close_reads()

    def disconnect(self) -> None:
        """Close all connections, as if the network had been gone for a moment."""
        for connection in tuple(self._connections):
            connection.cut_off()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Accept no more, answer what was received for up to `grace_s` seconds, then close everything."""
        if self._watch_timer is None:
            return
        self._watch_timer.cancel()
        self._watch_timer = None
        self._emptied = asyncio.Event()
        await self._acceptor.close()
        self._finish()
        for connection in tuple(self._connections):
            connection.finish()
        if self._connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_s)
            except TimeoutError:
                _log.warning("stopping: connections=%d cut off after %.1f s", len(self._connections), grace_s)
                for connection in tuple(self._connections):
                    connection.abort("the node stops")
                try:
                    await asyncio.wait_for(self._emptied.wait(), _ABORTED_WITHIN_S)
                except TimeoutError:  # nothing holds up the stop
                    _log.error("stopping: connections=%d could not be closed, and are left", len(self._connections))
        self.send_threads.close()
        self._close_reads()
        self.refusals.close()

    def _close_reads(self) -> None:
        reads, self.reads = self.reads, None
        if reads is not None:
            self.loop.remove_reader(reads.fileno())
            reads.close()

    def in_flight(self) -> int:
        """Return how many requests are received and not answered."""
        return sum(connection.in_flight for connection in self._connections)

    def reconfigure(self, limits: KafkaLimits) -> None:
        """Take over what may change while the node runs. Connections that there are stay."""
        self.limits = limits
        self._acceptor.limits = self._connection_limits()

    # --- For connections ----------------------------------------------------------------------------------------------

    def connected(self, connection: KafkaConnection) -> bool:
        """Accept a new connection. Returns whether it may stay."""
        self._connections[connection] = None
        if self._is_cut_off:
            return False
        if self._emptied is not None:
            return False
        self.counters.accepted_connections += 1
        return True

    def disconnected(self, connection: KafkaConnection) -> None:
        self._connections.pop(connection, None)
        self._acceptor.left(connection.address)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def admitted(self, connection: KafkaConnection) -> Callable[[int], Api | None]:
        """The client has proven who it is. Returns what finds the APIs that it is served, by their keys."""
        return self.registry.get

    def room_ran_out(self, connection: KafkaConnection, wanted: int) -> None:
        """Say who holds the room that a request has to wait for, now and then."""
        now = self.loop.time()
        if now - self._room_told_at < _ROOM_TOLD_EVERY_S:
            return
        self._room_told_at = now
        room = self.room
        most = heapq.nlargest(_HOLDERS_NAMED, room.claims(), key=lambda claim: claim.held)
        _log.warning(
            "no room for %d bytes of a request: peer=%s waits, connections waiting=%d held=%d of "
            "queued.max.request.bytes=%d by connections=%d, those that hold most: %s",
            wanted,
            connection.peer,
            room.waiting,
            room.held,
            room.bytes_max,
            len(room.claims()),
            "; ".join(claim.owner.describe_room(now) for claim in most),
        )

    def _has_to_leave(self, connection: KafkaConnection, now: float) -> bool:
        """Close a connection that may not stay. Returns whether it was closed."""
        return False

    def _watch(self) -> None:
        """Close connections on which nothing happens, or not enough."""
        limits, counters = self.limits, self.counters
        idle_s, receive_s = limits.connections_max_idle_ms / 1000, limits.kafka_request_receive_timeout_ms / 1000
        every_s = min(idle_s / 4, receive_s / 4, self.look_s_max)
        now = self.loop.time()
        for connection in tuple(self._connections):
            if now - connection.last_used >= every_s:
                connection.let_go_of_block()
            if connection.receives_too_slowly(now):
                counters.slow_connections += 1
                connection.abort(
                    f"a request came too slowly: less than {PROGRESS_BYTES_MIN} bytes of it in "
                    f"kafka.request.receive.timeout.ms={limits.kafka_request_receive_timeout_ms}"
                )
            elif self._has_to_leave(connection, now):
                pass
            elif connection.muted and connection.has_hung_up():
                connection.cut_off()
            elif (connection.quiet or connection.muted) and now - connection.last_used >= idle_s:
                counters.idle_connections_closed += 1
                connection.expire()
        self.node.client_quotas.forget_idle()
        for claim in self.room.crowding(now, receive_s):
            claim.owner.leave_room_to_others()
        self._watch_timer = self.loop.call_later(every_s, self._watch)


def _socket_reads(loop: asyncio.AbstractEventLoop) -> SocketReads | None:
    """Return what reads sockets beside asyncio, where it is compiled: on Linux."""
    try:
        from semel.broker.listeners.kafka.socket_reads import SocketReads

        reads = SocketReads()
        loop.add_reader(reads.fileno(), reads.read)
    except (ImportError, OSError, NotImplementedError):
        return None
    return reads
