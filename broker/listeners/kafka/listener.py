"""Accepts Kafka connections and keeps what they share: limits, counters, memory for large requests."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.fetch import FetchHandler
from semel.broker.handlers.produce import ProduceHandler
from semel.broker.listeners.acceptor import Acceptor, ConnectionLimits
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.broker.listeners.kafka.api_versions import api_versions_api
from semel.broker.listeners.kafka.connection import PROGRESS_BYTES_MIN, KafkaConnection
from semel.broker.listeners.kafka.data_plane import fetch_api, produce_api
from semel.broker.listeners.kafka.limits import KafkaLimits
from semel.broker.listeners.kafka.registry import ApiRegistry
from semel.broker.listeners.kafka.request_room import RequestRoom
from semel.runtime.limited_log import LimitedLog

if TYPE_CHECKING:
    from semel.broker.listeners.interception import Interceptor
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import RequestTimes

_log = logging.getLogger("semel.kafka")

_ROOM_TOLD_EVERY_S: Final = 60.0
_HOLDERS_NAMED: Final = 5


@dataclass(slots=True)
class _Counters:
    requests: list[int] = field(default_factory=lambda: [0] * 128)
    received_bytes: int = 0
    sent_bytes: int = 0
    sendfile_bytes: int = 0
    accepted_connections: int = 0
    aborted_connections: int = 0
    idle_connections_closed: int = 0
    slow_connections: int = 0
    crowding_connections: int = 0
    out_of_memory_connections: int = 0


@dataclass(frozen=True, slots=True)
class KafkaListenerStatistics:
    """Counts since the listener was made, and sizes now.

    `refused_connections` were too many, `refused_of_address` of them from their address; `accepts_exhausted` counts the
    times when the system had no descriptor for another. `aborted_connections` were closed because of what their peers
    sent, also those whose requests came too slowly (`slow`), kept room that others waited for (`crowding`), or were too
    large for the system's memory (`out_of_memory`). `waiting_connections` wait for room now, and did so
    `waits_for_room` times. `duplicate_batches` were repeated by idempotent producers and not appended again (P1).
    """

    requests: dict[str, int]
    received_bytes: int
    sent_bytes: int
    sendfile_bytes: int
    connections: int
    accepted_connections: int
    refused_connections: int
    refused_of_address: int
    accepts_exhausted: int
    aborted_connections: int
    idle_connections_closed: int
    slow_connections: int
    crowding_connections: int
    out_of_memory_connections: int
    reserved_bytes: int
    waiting_connections: int
    waits_for_room: int
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
        self.refusals = LimitedLog(_log)
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
        self._acceptor: Acceptor
        self._is_cut_off = False
        self._connections: set[KafkaConnection] = set()
        self.room = RequestRoom(self.limits.queued_max_request_bytes, self.limits.socket_request_max_bytes)
        self._room_told_at = -_ROOM_TOLD_EVERY_S
        self._watch_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def port(self) -> int:
        """The port in use, also where port 0 was asked for."""
        return self._port

    async def start(self) -> None:
        """Begin to accept. Raises `OSError` where the address is taken."""
        self.loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(
            "Kafka",
            lambda: KafkaConnection(self),
            _connection_limits(self.limits),
            self.refusals,
        )
        await self.listen()
        self._watch()

    async def listen(self) -> None:
        """Accept connections, for the first time or after `cut_off`."""
        self._is_cut_off = False
        if not self._acceptor.is_listening:
            self._port = await self._acceptor.listen(self._host, self._port)

    async def cut_off(self) -> None:
        """Refuse connections and close those there are, as if the network were gone. For tests of clients."""
        self._is_cut_off = True  # a connection may be half accepted, and appear after this
        self.disconnect()
        await self._acceptor.close()

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
            refused_connections=self._acceptor.refused,
            refused_of_address=self._acceptor.refused_of_address,
            accepts_exhausted=self._acceptor.exhausted,
            aborted_connections=counters.aborted_connections,
            idle_connections_closed=counters.idle_connections_closed,
            slow_connections=counters.slow_connections,
            crowding_connections=counters.crowding_connections,
            out_of_memory_connections=counters.out_of_memory_connections,
            reserved_bytes=self.room.held,
            waiting_connections=self.room.waiting,
            waits_for_room=self.room.refused_steps,
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

    def reconfigure(self, limits: KafkaLimits) -> None:
        """Take over what may change while the node runs. Connections that there are stay."""
        self.limits = limits
        self._acceptor.limits = _connection_limits(limits)

    # --- For connections ----------------------------------------------------------------------------------------------

    def connected(self, connection: KafkaConnection) -> bool:
        """Take up a new connection. Returns whether it may stay."""
        self._connections.add(connection)
        if self._is_cut_off:
            return False
        if self._emptied is not None:
            return False
        self.counters.accepted_connections += 1
        return True

    def disconnected(self, connection: KafkaConnection) -> None:
        self._connections.discard(connection)
        self._acceptor.left(connection.address)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def room_ran_out(self, connection: KafkaConnection, wanted: int) -> None:
        """Say who holds the room that a request has to wait for, now and then."""
        now = time.monotonic()
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

    def _watch(self) -> None:
        """Close connections on which nothing happens, or not enough."""
        limits, counters = self.limits, self.counters
        idle_s, receive_s = limits.connections_max_idle_ms / 1000, limits.request_receive_timeout_ms / 1000
        every_s = min(idle_s, receive_s) / 4
        now = time.monotonic()
        for connection in tuple(self._connections):
            if now - connection.last_used >= every_s:
                connection.let_go_of_block()
            if connection.receives_too_slowly(now):
                counters.slow_connections += 1
                connection.abort(
                    f"a request came too slowly: less than {PROGRESS_BYTES_MIN} bytes of it in "
                    f"kafka.request.receive.timeout.ms={limits.request_receive_timeout_ms}"
                )
            elif connection.quiet and now - connection.last_used >= idle_s:
                counters.idle_connections_closed += 1
                connection.expire()
        for claim in self.room.crowding(now, receive_s):
            claim.owner.leave_room_to_others()
        self._watch_timer = self.loop.call_later(every_s, self._watch)


def _connection_limits(limits: KafkaLimits) -> ConnectionLimits:
    return ConnectionLimits(
        limits.max_connections, limits.max_connections_per_address, limits.max_connections_overrides
    )
