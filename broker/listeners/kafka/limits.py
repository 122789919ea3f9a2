"""The bounds of the Kafka listener, with Kafka's names where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.protocol.kafka.messages import MAX_ENTRIES

if TYPE_CHECKING:
    from semel.broker.services import Services


def entries_max(node: Services) -> int:
    """Return how many entries a request may have: it may name every partition that there may be, each in a topic."""
    return max(MAX_ENTRIES, 2 * node.config.max_partitions)


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """What one listener takes before it refuses or waits.

    socket_request_max_bytes: the largest request; a larger one closes its connection.
    socket_send_buffer_bytes: what the system may hold of one connection's answers; -1 leaves it to the system.
    queued_max_request_bytes: memory for requests that are being received or are not answered yet, all connections
        together, beyond the first 64 KiB of each. Where there is no room for more, it waits, unread.
    request_receive_timeout_ms: a request that brings next to nothing (16 KiB) in such a time is given up, and so is one
        that keeps room so long while others wait for some.
    max_in_flight_requests: unanswered requests of one connection; with more, it is not read until answers are out.
    max_connections: connections at once; one more is closed as soon as it is accepted.
    max_connections_per_address: of them from one address; `max_connections_overrides`: other bounds, by address.
    connections_max_idle_ms: a connection with nothing in flight and nothing received for so long is closed.
    output_max_bytes: answers that wait in memory for a peer that reads slowly; with more, it is not read.
    fetch_max_bytes: the most that one fetch returns, whatever it asks for (the first batch excepted).
    fetch_sessions_max: fetch sessions kept at once (KIP-227).
    fetch_session_partitions_max: partitions of all sessions together.
    fetch_session_min_idle_ms: a session used within this time is not evicted for another one.
    """

    socket_request_max_bytes: int = 100 << 20
    socket_send_buffer_bytes: int = 256 << 10
    queued_max_request_bytes: int = 512 << 20
    request_receive_timeout_ms: int = 30_000
    max_in_flight_requests: int = 512
    max_connections: int = 10_000
    max_connections_per_address: int = 2**31 - 1
    connections_max_idle_ms: int = 600_000
    output_max_bytes: int = 4 << 20
    fetch_max_bytes: int = 55 << 20
    fetch_sessions_max: int = 1_000
    fetch_session_partitions_max: int = 1_000_000
    fetch_session_min_idle_ms: int = 120_000
    max_connections_overrides: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name == "max_connections_overrides":
                continue
            if getattr(self, name) < 1 and (name, getattr(self, name)) != ("socket_send_buffer_bytes", -1):
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise ValueError(
                f"queued_max_request_bytes={self.queued_max_request_bytes} would never admit a request of "
                f"socket_request_max_bytes={self.socket_request_max_bytes}"
            )
