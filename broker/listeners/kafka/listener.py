"""The Kafka protocol for clients: every API there is, and the counters of this listener."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.broker.config.kafka_limits import KafkaLimits, parse_connection_overrides
from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.listeners.acceptor import ConnectionLimits
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.broker.listeners.kafka.data_plane import fetch_api, produce_api
from semel.broker.listeners.kafka.frame_listener import FrameListener

if TYPE_CHECKING:
    from semel.broker.listeners.interception import Interceptor
    from semel.broker.listeners.tls import Certificates
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import RequestTimes


_HANDSHAKES_MAX: Final = 1_000
"""Connections that are not encrypted yet, each of which has its buffers. Clients that come all at once are fewer."""


@dataclass(frozen=True, slots=True)
class KafkaListenerStatistics:
    """Counts since the listener was made, and sizes now.

    `refused_connections` were too many, `refused_of_address` of them from their address; `failed_handshakes` were
    closed before they were encrypted; `accepts_exhausted` counts the times when the system had no descriptor for
    another. `aborted_connections` were closed because of what their peers sent, also those whose requests came too
    slowly (`slow`), kept room that others waited for (`crowding`), or were too large for the system's memory
    (`out_of_memory`). `waiting_connections` wait for room now, and did so `waits_for_room` times.
    `duplicate_batches` were repeated by idempotent producers and not appended again (P1).
    """

    requests: dict[str, int]
    received_bytes: int
    sent_bytes: int
    sendfile_bytes: int
    connections: int
    accepted_connections: int
    refused_connections: int
    refused_of_address: int
    failed_handshakes: int
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


class KafkaListener(FrameListener):
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
        certificates: Certificates | None = None,
    ) -> None:
        """`produce` and `fetch`: the node's handlers, where other listeners share them; own ones otherwise.

        `request_times`: by API key, where requests are measured. `certificates`: where connections are encrypted.
        """
        limits = limits or KafkaLimits()
        encryption = None if certificates is None else certificates.for_clients
        self.produce = produce or ProduceHandler(node)
        self.fetch = fetch or FetchHandler(node, limits)
        apis = (produce_api(self.produce), fetch_api(self.fetch), *ALL_APIS)
        super().__init__(node, host, port, limits, apis, request_times=request_times, encryption=encryption)
        if interceptor is not None:
            self.registry.replace(interceptor.kafka_api)

    def _connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            self.limits.max_connections,
            self.limits.kafka_max_connections_per_ip,
            parse_connection_overrides(self.limits.kafka_max_connections_overrides),
            handshakes_max=_HANDSHAKES_MAX,
        )

    def _finish(self) -> None:
        self.fetch.finish()

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
            failed_handshakes=self._acceptor.failed_handshakes,
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
