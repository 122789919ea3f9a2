"""What an operator may set about the nodes of a cluster among themselves."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.runtime.setting import PartConfig, setting


@dataclass(frozen=True)
class PeerConfig(PartConfig):
    """Where the other nodes come in, and what proves that they are nodes of this cluster."""

    peer_listen: str = setting(
        "",
        "HOST:PORT on which the other nodes of a cluster are served; needs metadata.url and cluster.secret.file. "
        "Empty: the node runs alone. Port 0 takes a free one. tls://HOST:PORT encrypts it, with "
        "ssl.certificate.location and ssl.ca.location.",
    )
    peer_advertised: str = setting("", "HOST:PORT that the other nodes connect to. Empty: the address listened on.")
    cluster_secret_file: str = setting(
        "",
        "A file with the secret that all nodes of the cluster share, 32 to 4,096 bytes, for example of `openssl rand "
        "-base64 48`. Line breaks at its end do not count. Nobody but the node's user should be able to read it.",
    )
    peer_request_timeout_ms: int = setting(
        10_000,
        "How long a request to another node may take, connecting included. Then it is made again.",
        unit="ms",
        minimum=100,
        maximum=600_000,
    )
    peer_handshake_timeout_ms: int = setting(
        5_000,
        "How long a connection of another node may take to prove that it has the secret. Then it is closed.",
        unit="ms",
        minimum=100,
        maximum=600_000,
    )
    peer_max_connections: int = setting(
        1_000,
        "Connections of other nodes at once; each of them has up to three. One more is closed.",
        minimum=1,
        maximum=INT32_MAX,
    )


@dataclass(frozen=True)
class ReplicationConfig(PartConfig):
    """How followers fetch, when they count as in sync, and when a node counts as dead. Names are Kafka's."""

    replica_lag_time_max_ms: int = setting(
        30_000,
        "A follower that has not had all of the leader's records for so long leaves the in-sync replicas.",
        unit="ms",
        minimum=100,
        maximum=3_600_000,
    )
    replica_fetch_wait_max_ms: int = setting(
        500,
        "How long a leader may wait for more records before it answers a follower's fetch.",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    replica_fetch_max_bytes: int = setting(
        1 << 20,
        "Bytes of one partition that a follower fetches at once. A larger batch comes alone.",
        unit="bytes",
        minimum=1,
        maximum=INT32_MAX,
    )
    replica_fetch_response_max_bytes: int = setting(
        10 << 20,
        "Bytes of all partitions that a follower fetches at once from one leader.",
        unit="bytes",
        minimum=1,
        maximum=INT32_MAX,
    )
    replica_fetch_backoff_ms: int = setting(
        100,
        "How long a follower waits before it fetches again where that has failed.",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    leader_replication_throttled_rate: int = setting(
        INT64_MAX,
        "Bytes per second that this node sends of the partitions that it leads, to replicas that are not in sync "
        "(KIP-73). Counts for those of a topic's leader.replication.throttled.replicas, all together.",
        unit="bytes/s",
        minimum=0,
        long=True,
        dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        INT64_MAX,
        "Bytes per second that this node fetches for its replicas that are not in sync (KIP-73). Counts for those of a "
        "topic's follower.replication.throttled.replicas, all together.",
        unit="bytes/s",
        minimum=0,
        long=True,
        dynamic=True,
    )
    broker_session_timeout_ms: int = setting(
        2_000,
        "A node of a cluster that has not been heard of for so long counts as dead: others lead what it led. By the "
        "time of the metadata's database. One whose peer address refuses connections counts as dead sooner, and one "
        "that answers there only after three times as long.",
        unit="ms",
        minimum=200,
        maximum=600_000,
    )
    auto_leader_rebalance_enable: bool = setting(
        True,
        "Whether a node that was away leads again what prefers it, once it has caught up. Otherwise others lead until "
        "an operator says so: `semel partition elect`.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300, "How often it is looked for leaders that are not the preferred ones.", unit="s", minimum=1, maximum=86_400
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "Of the partitions that prefer a node so many may be led by others before it leads them again.",
        unit="%",
        minimum=0,
        maximum=100,
    )
    broker_heartbeat_interval_ms: int = setting(
        400,
        "How often a node of a cluster notes in the metadata's database that it lives.",
        unit="ms",
        minimum=50,
        maximum=60_000,
    )
