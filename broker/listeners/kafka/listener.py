"""Accepts Kafka connections and keeps what they share: limits, counters, memory for large requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.fetch import FetchHandler
from semel.broker.handlers.produce import ProduceHandler
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.broker.listeners.kafka.api_versions import api_versions_api
from semel.broker.listeners.kafka.connection import KafkaConnection
from semel.broker.listeners.kafka.data_plane import fetch_api, produce_api
from semel.broker.listeners.kafka.limits import KafkaLimits
from semel.broker.listeners.kafka.refusal_log import RefusalLog
from semel.broker.listeners.kafka.registry import ApiRegistry

if TYPE_CHECKING:
    from semel.broker.listeners.interception import Interceptor
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import RequestTimes

_log = logging.getLogger("semel.kafka")

BACKLOG: Final = 512


@dataclass(slots=True)
class _Counters:
    requests: list[int] = field(default_factory=lambda: [0] * 128)
    received_bytes: int = 0
    sent_bytes: int = 0
    sendfile_bytes: int = 0
    accepted_connections: int = 0
    refused_connections: int = 0
    aborted_connections: int = 0
    idle_connections_closed: int = 0


@dataclass(frozen=True, slots=True)
class KafkaListenerStatistics:
    """Counts since the listener was made, and sizes now.

    `aborted_connections` were closed because of what their peers sent; `duplicate_batches` were repeated by idempotent
    producers and not appended again (P1).
    """

    requests: dict[str, int]
    received_bytes: int
    sent_bytes: int
    sendfile_bytes: int
    connections: int
    accepted_connections: int
    refused_connections: int
    aborted_connections: int
    idle_connections_closed: int
    reserved_bytes: int
    appended_batches: int
    appended_bytes: int
    duplicate_batches: int
    refused_batches: int
    verifications: int
    fetched_bytes: int
    waiting_fetches: int
    fetch_sessions: int
    fetch_sessions_evicted: int


class KafkaListener:
    """Serves the Kafka protocol on one address. Other APIs join through `registry` before `start`."""

    def __init__(
        self,
        node: Services,
        host: str,
        port: int,
        limits: KafkaLimits | None = None,
        *,
        produce: ProduceHandler | None = None,
        fetch: FetchHandler | None = None,
        interceptor: Interceptor | None = None,
        request_times: Sequence[RequestTimes] | None = None,
    ) -> None:
        """`produce` and `fetch`: the node's handlers, where other listeners share them; own ones otherwise.

        `request_times`: by API key, where requests are measured.
        """
        self.node = node
        self.request_times = request_times
        self.limits = limits or KafkaLimits()
        self.counters = _Counters()
        self.refusals = RefusalLog(_log)
        self.registry = ApiRegistry()
        self.produce = produce or ProduceHandler(node)
        self.fetch = fetch or FetchHandler(node, self.limits)
        self.registry.register(produce_api(self.produce))
        self.registry.register(fetch_api(self.fetch))
        for api in ALL_APIS:
            self.registry.register(api)
        self.registry.register(api_versions_api(self.registry))
        if interceptor is not None:
            self.registry.replace(interceptor.kafka_api)
        self.loop: asyncio.AbstractEventLoop
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._is_cut_off = False
        self._connections: set[KafkaConnection] = set()
        self._reserved_bytes = 0
        self._waiting_for_room: deque[tuple[KafkaConnection, int]] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """The port in use, also where port 0 was asked for."""
        return self._port

    async def start(self) -> None:
        """Begin to accept. Raises `OSError` where the address is taken."""
        self.loop = asyncio.get_running_loop()
        await self.listen()
        self._watch_idle()

    async def listen(self) -> None:
        """Accept connections, for the first time or after `cut_off`."""
        self._is_cut_off = False
        if self._server is None:
            self._server = await self.loop.create_server(
                lambda: KafkaConnection(self), self._host, self._port, backlog=BACKLOG
            )
            self._port = self._server.sockets[0].getsockname()[1]

    async def cut_off(self) -> None:
        """Refuse connections and close those there are, as if the network were gone. For tests of clients."""
        self._is_cut_off = True  # a connection may be half accepted, and appear after this
        self.disconnect()
        await self._close_server()

    async def _close_server(self) -> asyncio.Server | None:
        """Accept no more. What was accepted a moment ago has to be made known to the server before that is closed:

        asyncio fails to do so afterwards, and forgets the socket.
        """
        server, self._server = self._server, None
        if server is not None:
            for listening in server.sockets:
                self.loop.remove_reader(listening.fileno())
            for _ in range(2):
                await asyncio.sleep(0)
            server.close()
        return server

    def disconnect(self) -> None:
        """Close all connections, as if the network had been gone for a moment."""
        for connection in tuple(self._connections):
            connection.cut_off()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Accept no more, answer what was received for up to `grace_s` seconds, then close everything."""
        if self._idle_timer is None:
            return
        self._idle_timer.cancel()
        self._idle_timer = None
        self._emptied = asyncio.Event()
        server = await self._close_server()
        self.fetch.finish()
        for connection in tuple(self._connections):
            connection.finish()
        if self._connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_s)
            except TimeoutError:
                _log.warning("stopping: connections=%d cut off after %.1f s", len(self._connections), grace_s)
                for connection in tuple(self._connections):
                    connection.abort("the node stops")
                await self._emptied.wait()
        if server is not None:
            await server.wait_closed()
        self.refusals.close()

    def statistics(self) -> KafkaListenerStatistics:
        """Return the counters."""
        counters = self.counters
        open_outputs = [each.output for each in self._connections if each.output is not None]
        return KafkaListenerStatistics(
            requests={api.key.name: counters.requests[api.key] for api in self.registry},
            received_bytes=counters.received_bytes,
            sent_bytes=counters.sent_bytes + sum(output.sent_bytes for output in open_outputs),
            sendfile_bytes=counters.sendfile_bytes + sum(output.sendfile_bytes for output in open_outputs),
            connections=len(self._connections),
            accepted_connections=counters.accepted_connections,
            refused_connections=counters.refused_connections,
            aborted_connections=counters.aborted_connections,
            idle_connections_closed=counters.idle_connections_closed,
            reserved_bytes=self._reserved_bytes,
            appended_batches=self.produce.appended_batches,
            appended_bytes=self.produce.appended_bytes,
            duplicate_batches=self.produce.duplicate_batches,
            refused_batches=self.produce.refused_batches,
            verifications=self.produce.verifications,
            fetched_bytes=self.fetch.fetched_bytes,
            waiting_fetches=self.fetch.waiting,
            fetch_sessions=len(self.fetch.sessions),
            fetch_sessions_evicted=self.fetch.sessions.evicted,
        )

    def in_flight(self) -> int:
        """Return how many requests are received and not answered."""
        return sum(connection.in_flight for connection in self._connections)

    # --- For connections ----------------------------------------------------------------------------------------------

    def connected(self, connection: KafkaConnection) -> bool:
        """Take up a new connection. Returns whether it may stay."""
        self._connections.add(connection)
        if self._is_cut_off:
            return False
        if len(self._connections) > self.limits.max_connections or self._emptied is not None:
            self.counters.refused_connections += 1
            self.refusals.warning(
                "closing connection: peer=%s reason=more than max.connections=%d",
                connection.peer,
                self.limits.max_connections,
            )
            return False
        self.counters.accepted_connections += 1
        return True

    def disconnected(self, connection: KafkaConnection) -> None:
        self._connections.discard(connection)
        if self._waiting_for_room:
            self._waiting_for_room = deque(item for item in self._waiting_for_room if item[0] is not connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def reserve(self, connection: KafkaConnection, size: int) -> bool:
        """Reserve memory for a large request. Where there is none now, `connection.room_made` is called later."""
        if self._reserved_bytes + size <= self.limits.queued_max_request_bytes and not self._waiting_for_room:
            self._reserved_bytes += size
            return True
        self._waiting_for_room.append((connection, size))
        return False

    def release(self, size: int) -> None:
        """Give back what was reserved, to those who wait in the order they came."""
        if size == 0:
            return
        self._reserved_bytes -= size
        waiting = self._waiting_for_room
        while waiting and self._reserved_bytes + waiting[0][1] <= self.limits.queued_max_request_bytes:
            connection, wanted = waiting.popleft()
            self._reserved_bytes += wanted
            connection.room_made(wanted)

    def _watch_idle(self) -> None:
        limit_s = self.limits.connections_max_idle_ms / 1000
        now = self.loop.time()
        for connection in tuple(self._connections):
            if connection.quiet and now - connection.last_used >= limit_s:
                self.counters.idle_connections_closed += 1
                connection.expire()
        self._idle_timer = self.loop.call_later(limit_s / 4, self._watch_idle)
