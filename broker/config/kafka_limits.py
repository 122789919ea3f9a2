"""What an operator may set about the Kafka listener. It stands here because handlers read some of it too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from semel.protocol.int_bounds import INT32_MAX
from semel.runtime.setting import ConfigError, PartConfig, setting


@dataclass(frozen=True)
class KafkaLimits(PartConfig):
    """What the listener takes before it refuses or waits."""

    socket_request_max_bytes: int = setting(
        100 << 20,
        "The largest request of the Kafka protocol. A larger one closes its connection.",
        unit="bytes",
        minimum=4_096,
        maximum=INT32_MAX,
        at_most="queued.max.request.bytes",
    )
    socket_send_buffer_bytes: int = setting(
        256 << 10,
        "What the system may hold of a connection's answers, less than the processor's cache so that large fetches "
        "pass through it; clients that are far away need more. -1 leaves it to the system.",
        unit="bytes",
        minimum=-1,
        maximum=INT32_MAX,
    )
    queued_max_request_bytes: int = setting(
        512 << 20,
        "Memory for requests that are being received or are not answered yet, all connections together, beyond the "
        "first 64 KiB of each. It is taken as the bytes come. What finds no room waits, unread.",
        unit="bytes",
        minimum=4_096,
        long=True,
    )
    kafka_request_receive_timeout_ms: int = setting(
        30_000,
        "A request that has begun to come and brings less than 16 KiB in such a time, or its rest, is given up: its "
        "connection is closed. So is one that keeps memory for that long while others wait for some.",
        unit="ms",
        minimum=1_000,
        maximum=INT32_MAX,
    )
    kafka_max_in_flight_requests: int = setting(
        512,
        "Unanswered requests of one connection. With more, it is not read until answers are out.",
        minimum=1,
        maximum=1_000_000,
    )
    kafka_output_max_bytes: int = setting(
        4 << 20,
        "Answers that wait in memory for a client that reads slowly. With more, it is not read.",
        unit="bytes",
        minimum=4_096,
        maximum=INT32_MAX,
    )
    max_connections: int = setting(
        10_000,
        "Connections at once. One more is closed as soon as it is accepted.",
        minimum=1,
        maximum=1_000_000,
        dynamic=True,
    )
    kafka_max_connections_per_ip: int = setting(
        INT32_MAX,
        "Of them, connections from one address. One more is closed as well.",
        minimum=1,
        maximum=INT32_MAX,
        dynamic=True,
    )
    kafka_max_connections_overrides: tuple[str, ...] = setting(
        (), "Other bounds for some addresses, as ADDRESS:COUNT, for example 10.0.0.7:500.", dynamic=True
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "An idle connection, also one of gRPC, is closed after this.",
        unit="ms",
        minimum=1_000,
        maximum=INT32_MAX,
    )
    fetch_max_bytes: int = setting(
        55 << 20,
        "The most that one fetch returns, whatever it asks for (a larger first batch excepted).",
        unit="bytes",
        minimum=1_024,
        maximum=INT32_MAX,
    )
    max_request_partition_size_limit: int = setting(
        2_000,
        "The most partitions that one answer to DescribeTopicPartitions holds; a cursor leads to the rest.",
        minimum=1,
        maximum=1_000_000,
        dynamic=True,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1_000, "Fetch sessions kept at once (KIP-227).", minimum=1, maximum=1_000_000
    )
    fetch_session_max_partitions: int = setting(
        1_000_000, "Partitions of all fetch sessions together.", minimum=1, maximum=INT32_MAX
    )
    fetch_session_min_idle_ms: int = setting(
        120_000,
        "A fetch session that was used within this time is not given up for another one.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.socket_send_buffer_bytes == 0:
            raise ConfigError("socket.send.buffer.bytes = 0 holds nothing: -1 leaves it to the system")
        parse_connection_overrides(self.kafka_max_connections_overrides)


def parse_connection_overrides(texts: Iterable[str]) -> dict[str, int]:
    """Return how many connections each address may have, of texts `ADDRESS:COUNT`. Raises `ConfigError`."""
    counts: dict[str, int] = {}
    for text in texts:
        address, _, count = text.strip().rpartition(":")
        try:
            counts[str(ip_address(address.strip("[]")))] = int(count)
            valid = int(count) >= 0
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(
                f"kafka.max.connections.overrides: {text!r} is not ADDRESS:COUNT, for example 10.0.0.7:500"
            )
    return counts
