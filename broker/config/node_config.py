"""The settings of a node: what its parts declare, and what is of the node itself.

A part declares its settings where it uses them, in a `PartConfig`; a setting has its name, type, default, bounds and
words there and nowhere else. `NodeConfig` is the config of every part at once, so the parts take it as it is.
A setting is named with dots in place of underscores: Kafka's name where Kafka has it. Values come from the sources
that `broker/config/sources.py` reads, or are the defaults. `docs/configuration.md` and the command's help are made from
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from semel.broker.config.delegation import DelegationConfig, SaslAndDelegation
from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.config.permissions import PermissionConfig
from semel.broker.config.quotas import QuotaConfig
from semel.broker.config.remote_storage import RemoteStorageConfig
from semel.broker.config.sasl import SaslAndTokens, SaslConfig
from semel.broker.config.tls import TlsConfig
from semel.broker.config.tokens import TokenConfig
from semel.broker.log.config import LogDefaults, TopicOnlySettings
from semel.broker.logs.config import LogManagerConfig
from semel.broker.peers.config import PeerConfig, ReplicationConfig
from semel.group_coordinator.config import GroupConfig
from semel.protocol.int_bounds import INT16_MAX, INT32_MAX
from semel.runtime.setting import PartConfig, Setting, Value, setting, settings_of
from semel.txn_coordinator.config import TransactionConfig

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True)
class OwnSettings(PartConfig):
    """Who and where the node is."""

    data_dir: str = setting(
        "semel-data",
        "The directory with everything the node keeps: logs, journal, and the metadata unless metadata.url is set. "
        "One process at a time may use it.",
    )
    node_id: int = setting(
        1,
        "This node's number in the cluster. -1: the one that its data directory has, or else one that no other node "
        "has, from 1001 on, for nodes that have nothing on their disks.",
        minimum=-1,
        maximum=INT32_MAX,
    )
    broker_rack: str = setting(
        "", "Where this node stands, a zone for instance. A partition's replicas are spread over racks; clients see it."
    )
    replica_selector_class: str = setting(
        "",
        "Which replica consumers read from. Empty: the leader. Kafka's name of the rack-aware selector: a follower in "
        "the consumer's rack (client.rack), where one is in sync (KIP-392).",
        choices=("", RACK_AWARE_SELECTOR),
    )
    cordoned_log_dirs: tuple[str, ...] = setting(
        (),
        "Whether the node gets new replicas: * for none (KIP-1066). What it has stays there, and it may lead it. Set "
        "while the node runs, never at a start: `semel node cordon`, or kafka-configs.sh.",
        choices=("*",),
        dynamic=True,
        only_dynamic=True,
    )
    kafka_listen: str = setting(
        "127.0.0.1:9092",
        "HOST:PORT on which the Kafka protocol is served (the data plane). Port 0 takes a free one. tls://HOST:PORT "
        "encrypts it, with ssl.certificate.location.",
    )
    kafka_advertised: str = setting(
        "", "HOST:PORT that clients connect to for the Kafka protocol. Empty: the address listened on."
    )
    kafka_listeners: tuple[str, ...] = setting(
        (),
        "Several listeners for the Kafka protocol in place of kafka.listen, as NAME=ADDRESS or "
        "NAME=ADDRESS?advertised=HOST:PORT with commas between them. One may have ssl.certificate.location, "
        "ssl.key.location, ssl.ca.location and ssl.client.auth of its own behind the question mark, with & between "
        "them (%2C for a comma in a path). Clients are told the addresses of the listeners "
        "of all nodes that have the name of the one they came by. The node's main one is the first.",
    )
    grpc_listen: str = setting(
        "127.0.0.1:9094",
        "HOST:PORT on which gRPC is served (the control plane). Port 0 takes a free one. tls://HOST:PORT encrypts it, "
        "with ssl.certificate.location.",
    )
    grpc_advertised: str = setting("", "HOST:PORT that clients connect to for gRPC. Empty: the address listened on.")
    grpc_listeners: tuple[str, ...] = setting(
        (),
        "Several listeners for gRPC in place of grpc.listen, as those of kafka.listeners. Semel's clients exchange "
        "records by the Kafka listener of the same name, and by the node's main one where there is none.",
    )
    listeners_allow_anonymous: bool = setting(
        False,
        "Confirms that anonymous access is intended beyond the loopback: on a listener that asks neither for a "
        "certificate (tls:// and ssl.client.auth = required) nor for a password (sasl:// or tls+sasl://), everybody "
        "who can connect may read, write and delete everything. With false the node does not start with such a "
        "listener; true says that the network keeps strangers out.",
    )
    shutdown_grace_ms: int = setting(
        10_000,
        "How long requests in flight may continue after SIGTERM before they are cut off.",
        unit="ms",
        minimum=0,
        maximum=600_000,
        dynamic=True,
    )
    log_format: str = setting(
        "text", "How the node writes its own log lines to standard error.", choices=("text", "json")
    )
    log_level: str = setting(
        "info", "The least severe log line that is written.", choices=("debug", "info", "warning", "error")
    )


@dataclass(frozen=True)
class MetadataSettings(PartConfig):
    """Where the metadata is, and how it is kept."""

    metadata_url: str = setting(
        "",
        "SQLAlchemy URL of the database that holds the metadata, for example "
        "postgresql+psycopg://user:password@host/semel. Empty: SQLite in the data directory.",
        sensitive=True,
    )
    metadata_timeout_ms: int = setting(
        10_000,
        "How long a statement in the metadata database may take, connecting and waiting for locks included. A call "
        "that does not end within one and a half times of it, such as a COMMIT that waits for a standby, is given up: "
        "its connection is broken, and another one reads whether the change was written.",
        unit="ms",
        minimum=100,
        maximum=600_000,
    )
    metadata_snapshot_changes: int = setting(
        1_000, "After how many changes of the metadata a snapshot of it is written.", minimum=1, maximum=1_000_000
    )
    controller_lease_ms: int = setting(
        2_000,
        "How long the controller's lease lasts without being renewed. Another node may take over after it. Only with "
        "metadata.url: the metadata in the data directory has no other node.",
        unit="ms",
        minimum=1_000,
        maximum=600_000,
    )


_WHY_FIFTY: Final = (
    "So the number can never be changed later, and it bounds how many nodes can share this work: therefore 50, as in "
    "Kafka, also on one node. They cost it directories (0.4 MB, nearly all of it the file system's) and some "
    "milliseconds of a start. A node that stays alone may be given fewer before its first start."
)


@dataclass(frozen=True)
class TopicSettings(PartConfig):
    """What topics there may be, and how they are made."""

    auto_create_topics_enable: bool = setting(
        True, "Whether asking for the metadata of a topic that does not exist may create it.", dynamic=True
    )
    delete_topic_enable: bool = setting(True, "Whether topics can be deleted.")
    num_partitions: int = setting(
        1, "Partitions of a new topic that does not say how many it wants.", minimum=1, maximum=100_000, dynamic=True
    )
    default_replication_factor: int = setting(
        1, "Replicas of a new topic that does not say how many it wants.", minimum=1, maximum=INT16_MAX
    )
    max_partitions: int = setting(
        20_000,
        "The most partitions this node holds. Creating more is refused.",
        minimum=1,
        maximum=1_000_000,
        dynamic=True,
    )
    offsets_topic_num_partitions: int = setting(
        50,
        "Partitions of __consumer_offsets. Takes effect only when the topic is created, by the first group: a group "
        f"belongs to a partition by the hash of its id. {_WHY_FIFTY}",
        minimum=1,
        maximum=10_000,
    )
    offsets_topic_replication_factor: int = setting(
        3,
        "Replicas of each partition of __consumer_offsets, as far as so many nodes are alive when it is created.",
        minimum=1,
        maximum=INT16_MAX,
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600,
        "Segment size of __consumer_offsets when it is created.",
        unit="bytes",
        minimum=61,
        maximum=INT32_MAX,
    )
    transaction_state_log_num_partitions: int = setting(
        50,
        "Partitions of __transaction_state. Takes effect only when the topic is created, by the first transaction: a "
        f"transactional id belongs to a partition by its hash. {_WHY_FIFTY}",
        minimum=1,
        maximum=10_000,
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "Replicas of each partition of __transaction_state, as far as so many nodes are alive when it is created.",
        minimum=1,
        maximum=INT16_MAX,
    )
    transaction_state_log_min_isr: int = setting(
        2,
        "min.insync.replicas of __transaction_state where it is created with several replicas: so many have what is "
        "decided before anybody hears of it. At most the number of replicas.",
        minimum=1,
        maximum=INT16_MAX,
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600,
        "Segment size of __transaction_state when it is created.",
        unit="bytes",
        minimum=61,
        maximum=INT32_MAX,
    )


@dataclass(frozen=True)
class ProduceSettings(PartConfig):
    """How large compressed batches are checked."""

    produce_check_threads: int = setting(
        2,
        "Threads in which large compressed batches are opened and checked, and compressed again where "
        "compression.type asks for it.",
        minimum=1,
        maximum=64,
    )
    produce_check_queue_max: int = setting(
        1_000,
        "Produce requests that may wait for such a thread, one of each connection. More are refused, to be sent again "
        "(NOT_ENOUGH_REPLICAS).",
        minimum=1,
        maximum=1_000_000,
    )


@dataclass(frozen=True)
class GrpcSettings(PartConfig):
    """What the gRPC listener takes before it refuses or waits."""

    grpc_max_message_bytes: int = setting(
        16 << 20, "The largest gRPC message taken or sent.", unit="bytes", minimum=4_096, maximum=INT32_MAX
    )
    grpc_max_concurrent_rpcs: int = setting(
        10_000,
        "Calls in progress at once, streams and waiting joins included. More are refused as RESOURCE_EXHAUSTED.",
        minimum=1,
        maximum=1_000_000,
    )
    grpc_max_connections: int = setting(
        2_000,
        "Connections of gRPC at once. One more is closed as soon as it is accepted; clients say UNAVAILABLE.",
        minimum=1,
        maximum=1_000_000,
    )
    grpc_handshake_timeout_ms: int = setting(
        10_000,
        "A connection that has not begun to speak HTTP/2 after this is closed.",
        unit="ms",
        minimum=100,
        maximum=INT32_MAX,
    )
    grpc_max_concurrent_streams: int = setting(
        1_000,
        "Calls in progress at once on one connection of gRPC. Clients keep further ones back.",
        minimum=1,
        maximum=INT32_MAX,
    )
    grpc_max_array_length: int = setting(
        100_000, "The most items of any list in a gRPC request.", minimum=1, maximum=10_000_000
    )
    grpc_keepalive_ms: int = setting(
        60_000,
        "How often an idle gRPC connection is probed; one that does not answer is closed.",
        unit="ms",
        minimum=1_000,
        maximum=INT32_MAX,
    )


@dataclass(frozen=True)
class MetricsSettings(PartConfig):
    """Where metrics are given, and how many."""

    metrics_listen: str = setting(
        "",
        "HOST:PORT on which Prometheus finds /metrics, and containers /healthz and /readyz. Empty: none. Port 0 takes "
        "a free one. tls://HOST:PORT encrypts it, with ssl.certificate.location; tls+sasl://HOST:PORT asks for a "
        "user's password (HTTP Basic) or token, too. OTLP is asked for by OpenTelemetry's variables "
        "(OTEL_EXPORTER_OTLP_ENDPOINT): docs/metrics.md.",
    )
    metrics_allow_anonymous: bool = setting(
        False,
        "Confirms that everybody who can connect may read the metrics, where metrics.listen is beyond the loopback and "
        "asks neither for a password nor for a certificate. With false, and without listeners.allow.anonymous, the "
        "node does not start so.",
    )
    metrics_max_partitions: int = setting(
        1_000,
        "Partitions with metrics of their own, the internal topics' last. The largest values are of all partitions.",
        minimum=0,
        maximum=1_000_000,
    )
    metrics_max_group_partitions: int = setting(
        5_000,
        "Lags that are shown, one for each group and partition.",
        minimum=0,
        maximum=1_000_000,
    )
    metrics_max_connections: int = setting(
        64,
        "Connections at once to metrics.listen. One more takes the place of one that has not asked yet.",
        minimum=1,
        maximum=10_000,
    )


PARTS: Final[Mapping[type[PartConfig], str]] = MappingProxyType(
    {
        OwnSettings: "The node",
        TlsConfig: "TLS",
        SaslConfig: "Users",
        TokenConfig: "Tokens",
        DelegationConfig: "Delegation tokens",
        PermissionConfig: "Permissions",
        QuotaConfig: "Client quotas",
        MetadataSettings: "Metadata",
        PeerConfig: "Other nodes",
        ReplicationConfig: "Replication",
        TopicSettings: "Topics",
        LogManagerConfig: "Logs",
        LogDefaults: "Logs",
        RemoteStorageConfig: "Remote storage",
        ProduceSettings: "Logs",
        KafkaLimits: "The Kafka listener",
        TransactionConfig: "Transactions",
        GroupConfig: "Groups",
        GrpcSettings: "gRPC",
        MetricsSettings: "Metrics",
    }
)
"""Who declares settings, in the order of the documentation, and the section of each there."""


@dataclass(frozen=True)
class NodeConfig(
    OwnSettings,
    TlsConfig,
    SaslAndTokens,
    SaslAndDelegation,
    PermissionConfig,
    QuotaConfig,
    MetadataSettings,
    PeerConfig,
    ReplicationConfig,
    TopicSettings,
    LogManagerConfig,
    LogDefaults,
    RemoteStorageConfig,
    ProduceSettings,
    KafkaLimits,
    TransactionConfig,
    GroupConfig,
    GrpcSettings,
    MetricsSettings,
):
    """The settings of one node, each with its value. Immutable: a dynamic change makes a new one."""


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        name: dataclasses.replace(made, section=section)
        for part, section in PARTS.items()
        for name, made in settings_of(part).items()
    }
)
"""Every setting by name, in the order of the documentation."""

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        **{
            made.topic_name: dataclasses.replace(made, name=made.topic_name, dynamic=True)
            for made in SETTINGS.values()
            if made.topic_name is not None
        },
        **settings_of(TopicOnlySettings),
    }
)
"""Every topic-level setting by name. Its default is the node's setting of `TOPIC_DEFAULTS`, where that has one."""

TOPIC_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {made.topic_name: made.name for made in SETTINGS.values() if made.topic_name is not None}
)
"""Which of the node's settings is the default of a topic-level one."""


def attribute_of(name: str) -> str:
    """Return the field of `NodeConfig` that holds the setting `name`."""
    return name.replace(".", "_")


def value_of(config: NodeConfig, name: str) -> Value:
    value: Value = getattr(config, attribute_of(name))
    return value
