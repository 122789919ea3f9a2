"""The settings of a node: the one place that says what there is, what it means, and what it may be.

Every field of `NodeConfig` is a setting, named with dots in place of underscores: Kafka's name where Kafka has it.
Values come from the sources that `broker/config/sources.py` reads, or are the defaults given here.
`docs/configuration.md` and the command's help are made from this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from semel.broker.config.setting import INT32_MAX, INT64_MAX, Setting, Value, setting, settings_of
from semel.broker.log.producer_id_bound import DEFAULT_MAX, DEFAULT_PER_PARTITION_MAX

DAY_MS: Final = 86_400_000


class Durability(Enum):
    """What an acknowledgement with acks=all promises on one replica (D1)."""

    DISK = "disk"
    OS = "os"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings of one node, each with its value. Immutable: a dynamic change makes a new one."""

    # The node
    data_dir: str = setting(
        "semel-data",
        "The folder with everything the node keeps: logs, journal, and the metadata unless metadata.url is set. "
        "One process at a time may use it.",
    )
    node_id: int = setting(1, "This node's number in the cluster.", minimum=0, maximum=INT32_MAX)
    broker_rack: str = setting("", "Where this node stands, as clients see it in the metadata.")
    kafka_listen: str = setting(
        "127.0.0.1:9092", "HOST:PORT on which the Kafka protocol is served (the data plane). Port 0 takes a free one."
    )
    kafka_advertised: str = setting(
        "", "HOST:PORT that clients are told for the Kafka protocol. Empty: the address listened on."
    )
    grpc_listen: str = setting(
        "127.0.0.1:9094", "HOST:PORT on which gRPC is served (the control plane). Port 0 takes a free one."
    )
    grpc_advertised: str = setting("", "HOST:PORT that clients are told for gRPC. Empty: the address listened on.")
    listeners_allow_anonymous: bool = setting(
        False,
        "Whether it is meant that listeners beyond the loopback serve anybody: there are no users and no encryption "
        "yet, so everybody who can connect may read, write and delete everything. Changes no access: false warns at "
        "the start and in semel doctor, true says that the network keeps strangers out.",
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

    # Metadata
    metadata_url: str = setting(
        "",
        "SQLAlchemy URL of the database that holds the metadata, for example "
        "postgresql+psycopg://user:password@host/semel. Empty: SQLite in the data folder.",
        sensitive=True,
    )
    metadata_timeout_ms: int = setting(
        10_000,
        "How long a statement in the metadata database may take, connecting and waiting for locks included.",
        unit="ms",
        minimum=100,
        maximum=600_000,
    )
    metadata_snapshot_changes: int = setting(
        1_000, "After how many changes of the metadata a snapshot of it is written.", minimum=1, maximum=1_000_000
    )
    controller_lease_ms: int = setting(
        10_000,
        "How long the controller's lease lasts without being renewed. Another node may take over after it. Only with "
        "metadata.url: the metadata in the data folder has no other node.",
        unit="ms",
        minimum=1_000,
        maximum=600_000,
    )

    # Topics
    auto_create_topics_enable: bool = setting(
        True, "Whether asking for the metadata of a topic that does not exist may create it.", dynamic=True
    )
    delete_topic_enable: bool = setting(True, "Whether topics can be deleted.")
    num_partitions: int = setting(
        1, "Partitions of a new topic that does not say how many it wants.", minimum=1, maximum=100_000, dynamic=True
    )
    default_replication_factor: int = setting(
        1, "Replicas of a new topic that does not say how many it wants.", minimum=1, maximum=32_767
    )
    max_partitions: int = setting(
        20_000,
        "The most partitions this node holds. Creating more is refused.",
        minimum=1,
        maximum=1_000_000,
        dynamic=True,
    )
    offsets_topic_num_partitions: int = setting(
        50, "Partitions of __consumer_offsets. Takes effect only when the topic is created.", minimum=1, maximum=10_000
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600,
        "Segment size of __consumer_offsets when it is created.",
        unit="bytes",
        minimum=61,
        maximum=INT32_MAX,
    )
    transaction_state_log_num_partitions: int = setting(
        50, "Partitions of __transaction_state. Takes effect only when the topic is created.", minimum=1, maximum=10_000
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600,
        "Segment size of __transaction_state when it is created.",
        unit="bytes",
        minimum=61,
        maximum=INT32_MAX,
    )

    # Logs
    durability: str = setting(
        "disk",
        "What an answer to acks=all on one replica promises. disk: the records survive a power cut (one "
        "group-committed fsync of the node's journal). os: they survive a killed process (Kafka's default).",
        choices=tuple(kind.value for kind in Durability),
    )
    journal_flush_bytes: int = setting(
        256 << 20,
        "The logs are flushed, and the journal is cut, when it has grown by this.",
        unit="bytes",
        minimum=1 << 20,
        long=True,
    )
    journal_max_bytes: int = setting(
        2 << 30,
        "Producers are refused while the journal is larger than this: the disk does not keep up.",
        unit="bytes",
        minimum=1 << 20,
        long=True,
    )
    journal_file_bytes: int = setting(
        64 << 20, "Size at which the journal begins a new file.", unit="bytes", minimum=1 << 16, maximum=INT32_MAX
    )
    journal_buffer_max_bytes: int = setting(
        1 << 20,
        "Appends are collected up to this before they are written to the journal (they are synced later anyway).",
        unit="bytes",
        minimum=1 << 16,
        maximum=INT32_MAX,
    )
    journal_unsynced_max_bytes: int = setting(
        128 << 20,
        "With this much in the journal and not synced, the next append waits for the disk.",
        unit="bytes",
        minimum=1 << 16,
        long=True,
    )
    log_max_open_files: int = setting(
        512,
        "Files that all logs together keep open; those opened longest ago are closed first.",
        minimum=16,
        maximum=1_000_000,
    )
    log_flush_interval_ms: int = setting(
        60_000,
        "The logs are flushed at least this often while there is something to flush.",
        unit="ms",
        minimum=100,
        maximum=INT32_MAX,
        dynamic=True,
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        "How often old segments are looked for.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "How often a log to compact is looked for.", unit="ms", minimum=1, maximum=INT32_MAX, dynamic=True
    )
    log_cleaner_max_keys: int = setting(
        500_000,
        "Keys that one round of compaction holds in memory. A log with more takes more rounds.",
        minimum=1_000,
        maximum=INT32_MAX,
    )
    disk_min_free_bytes: int = setting(
        256 << 20,
        "Producers are refused while the disk has less than this free, so that the node itself can continue.",
        unit="bytes",
        minimum=0,
        long=True,
    )
    log_segment_bytes: int = setting(
        1_073_741_824,
        "Size at which a new segment file is begun.",
        unit="bytes",
        minimum=61,
        maximum=INT32_MAX,
        dynamic=True,
        topic_name="segment.bytes",
    )
    log_roll_ms: int = setting(
        7 * DAY_MS,
        "Age at which a new segment is begun even if the old one is not full.",
        unit="ms",
        minimum=1,
        long=True,
        dynamic=True,
        topic_name="segment.ms",
    )
    log_retention_ms: int = setting(
        7 * DAY_MS,
        "How long records are kept. -1: for ever.",
        unit="ms",
        minimum=-1,
        long=True,
        dynamic=True,
        topic_name="retention.ms",
    )
    log_retention_bytes: int = setting(
        -1,
        "How many bytes of each partition are kept. -1: any number.",
        unit="bytes",
        minimum=-1,
        long=True,
        dynamic=True,
        topic_name="retention.bytes",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "delete: old segments go by age and size. compact: the last value of each key is kept. Both can be "
        "given. A topic may also have neither: nothing goes.",
        choices=("delete", "compact"),
        dynamic=True,
        topic_name="cleanup.policy",
    )
    message_max_bytes: int = setting(
        1_048_588,
        "The largest record batch that is taken (after compression).",
        unit="bytes",
        minimum=0,
        maximum=INT32_MAX,
        dynamic=True,
        topic_name="max.message.bytes",
    )
    message_uncompressed_max_bytes: int = setting(
        128 << 20,
        "The largest that a compressed record batch may become. A batch that becomes larger is refused "
        "(MESSAGE_TOO_LARGE).",
        unit="bytes",
        minimum=1 << 20,
        maximum=128 << 20,
    )
    message_compression_ratio_max: int = setting(
        200,
        "How many times its size a compressed record batch may become, where it becomes larger than 16 MiB and than "
        "max.message.bytes. One that becomes larger is refused (MESSAGE_TOO_LARGE).",
        minimum=1,
        maximum=1_000_000,
    )
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
    log_message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a record's time is when it was made or when it was appended.",
        choices=("CreateTime", "LogAppendTime"),
        dynamic=True,
        topic_name="message.timestamp.type",
    )
    log_message_timestamp_before_max_ms: int = setting(
        INT64_MAX,
        "How far a record's create time may lie in the past. Less than the largest costs a decode of each batch.",
        unit="ms",
        minimum=0,
        long=True,
        dynamic=True,
        topic_name="message.timestamp.before.max.ms",
    )
    log_message_timestamp_after_max_ms: int = setting(
        INT64_MAX,
        "How far a record's create time may lie in the future. Less than the largest costs a decode of each batch.",
        unit="ms",
        minimum=0,
        long=True,
        dynamic=True,
        topic_name="message.timestamp.after.max.ms",
    )
    compression_type: str = setting(
        "producer",
        "How batches are kept. producer: as they came; uncompressed or a codec: written again where they differ.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        dynamic=True,
        topic_name="compression.type",
    )
    log_index_interval_bytes: int = setting(
        4_096,
        "An index entry is made after so many bytes of log.",
        unit="bytes",
        minimum=0,
        maximum=INT32_MAX,
        dynamic=True,
        topic_name="index.interval.bytes",
    )
    log_index_size_max_bytes: int = setting(
        10_485_760,
        "The largest index file. A full one begins a new segment.",
        unit="bytes",
        minimum=24,
        maximum=INT32_MAX,
        dynamic=True,
        topic_name="segment.index.bytes",
    )
    log_segment_delete_delay_ms: int = setting(
        60_000,
        "How long the files of a deleted segment stay, so that readers can finish.",
        unit="ms",
        minimum=0,
        long=True,
        dynamic=True,
        topic_name="file.delete.delay.ms",
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5,
        "A log is compacted once this part of it was written since the last compaction.",
        minimum=0,
        maximum=1,
        dynamic=True,
        topic_name="min.cleanable.dirty.ratio",
    )
    log_cleaner_delete_retention_ms: int = setting(
        DAY_MS,
        "How long a compacted log keeps deletions (and transaction markers), so that readers see them.",
        unit="ms",
        minimum=0,
        long=True,
        dynamic=True,
        topic_name="delete.retention.ms",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0,
        "How long a record stays uncompacted at least.",
        unit="ms",
        minimum=0,
        long=True,
        dynamic=True,
        topic_name="min.compaction.lag.ms",
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        INT64_MAX,
        "How long a record may stay uncompacted at most.",
        unit="ms",
        minimum=1,
        long=True,
        dynamic=True,
        topic_name="max.compaction.lag.ms",
    )
    min_insync_replicas: int = setting(
        1,
        "How many replicas must have a record before acks=all is answered.",
        minimum=1,
        maximum=INT32_MAX,
        dynamic=True,
        topic_name="min.insync.replicas",
    )
    producer_id_expiration_ms: int = setting(
        DAY_MS,
        "After how long without an append a partition forgets a producer id (P8).",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
        dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "How often forgotten producer ids are looked for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    producer_ids_per_partition_max: int = setting(
        DEFAULT_PER_PARTITION_MAX,
        "How many producer ids a partition remembers, each for `producer.id.expiration.ms`. Batches of new ones are "
        "refused beyond it, with THROTTLING_QUOTA_EXCEEDED; producers that the partition knows continue.",
        minimum=1,
        maximum=INT32_MAX,
        dynamic=True,
    )
    producer_ids_max: int = setting(
        DEFAULT_MAX,
        "How many producer ids all partitions of this node remember together, one in each partition that a producer "
        "writes to. Each takes some 360 bytes of memory, and 1.3 KB after five batches. Beyond it as for a partition.",
        minimum=1,
        maximum=INT32_MAX,
        dynamic=True,
    )

    # The Kafka listener
    socket_request_max_bytes: int = setting(
        100 << 20,
        "The largest request of the Kafka protocol. A larger one closes its connection.",
        unit="bytes",
        minimum=4_096,
        maximum=INT32_MAX,
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
        "connection is closed. So is one that keeps memory for so long while others wait for some.",
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

    # Transactions
    transaction_max_timeout_ms: int = setting(
        900_000, "The longest transaction timeout that a producer may ask for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    transactional_id_expiration_ms: int = setting(
        7 * DAY_MS,
        "After how long without a transaction a transactional id is forgotten.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    transactional_id_max_bytes: int = setting(
        1_024,
        "The longest transactional id that a producer may initialise with. Each is kept in memory, and read at each "
        "start, until it expires.",
        unit="bytes",
        minimum=1,
        maximum=32_767,
    )
    transactional_ids_max_bytes: int = setting(
        512 << 20,
        "What the transactional ids, open transactions and remembered commits of this node may hold in memory "
        "together: 4 KiB for each id or key of shared transactions, and what it holds beyond that: 170 bytes for a "
        "partition in a transaction, and 500 bytes and its payload for a commit with a token. Beyond it new ids are "
        "refused with POLICY_VIOLATION. Known ones continue within their 4 KiB and a fair share; those that hold more "
        "can't add partitions nor commit with a token (TRANSACTION_ABORTABLE).",
        unit="bytes",
        minimum=1,
    )
    transaction_two_phase_commit_enable: bool = setting(
        False,
        "Whether somebody outside, such as a database, may decide about transactions (KIP-939). They never time "
        "out: one that is forgotten holds its partitions' readers until an operator aborts it.",
    )
    commit_history_max: int = setting(
        100,
        "How many commits with a token are remembered for each transactional id, or key of shared transactions.",
        minimum=1,
        maximum=10_000,
    )
    commit_history_expiration_ms: int = setting(
        30 * DAY_MS,
        "After how long without a commit or an attempt the commits of a key are forgotten.",
        unit="ms",
        minimum=1,
        long=True,
    )
    commit_one_off_expiration_ms: int = setting(
        15 * 60_000,
        "After how long without a commit or an attempt a key is forgotten of which it is known that nobody uses it "
        "again, such as that of a single batch write.",
        unit="ms",
        minimum=1_000,
        long=True,
    )
    shared_transaction_max_writers: int = setting(
        1_000, "The most writers of one shared transaction.", minimum=1, maximum=10_000
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        100,
        "How long adding a partition waits for the producer's previous transaction to complete, before the producer "
        "gets CONCURRENT_TRANSACTIONS and retries (KIP-890).",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    transaction_markers_max_in_flight: int = setting(
        1_000, "Decided transactions whose markers are being written at once.", minimum=1, maximum=1_000_000
    )
    transaction_marker_retry_backoff_ms: int = setting(
        20, "The first pause before a marker is tried again.", unit="ms", minimum=1, maximum=60_000
    )
    transaction_marker_retry_backoff_max_ms: int = setting(
        5_000, "The longest pause before a marker is tried again.", unit="ms", minimum=1, maximum=600_000
    )

    # Groups
    group_min_session_timeout_ms: int = setting(
        6_000, "The shortest session timeout that a member may ask for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a member may ask for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    group_initial_rebalance_delay_ms: int = setting(
        0,
        "How long the first rebalance of an empty group waits for more members. 0: a single consumer starts at once.",
        unit="ms",
        minimum=0,
        maximum=INT32_MAX,
    )
    group_max_size: int = setting(1_000, "The most members of one group.", minimum=1, maximum=INT32_MAX)
    group_new_member_join_timeout_ms: int = setting(
        300_000,
        "How long a new member of a rebalance is kept though it is not heard of.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    group_id_max_bytes: int = setting(1_024, "The longest id of a group.", unit="bytes", minimum=1, maximum=8_191)
    group_protocols_max: int = setting(64, "The most assignors that a member may offer.", minimum=1, maximum=1_000)
    group_member_metadata_max_bytes: int = setting(
        262_144,
        "The largest subscription of a member, all its assignors together.",
        unit="bytes",
        minimum=1,
        maximum=1 << 24,
    )
    group_max_bytes: int = setting(
        8 << 20,
        "What the members of one group may hold in memory: subscriptions, assignments, ids. A member that is too many "
        "is refused with GROUP_MAX_SIZE_REACHED.",
        unit="bytes",
        minimum=1,
    )
    group_members_max_bytes: int = setting(
        128 << 20,
        "What the members of all groups of this node may hold in memory together. A member that is too many is refused "
        "with GROUP_MAX_SIZE_REACHED; those that are in continue.",
        unit="bytes",
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        "Members of consumer groups (KIP-848) that are not heard of for so long are removed.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000,
        "How often members of consumer groups send heartbeats; each takes one step of a rebalance.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    group_consumer_max_size: int = setting(
        1_000, "The most members of one consumer group.", minimum=1, maximum=INT32_MAX
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        "What consumer groups may be assigned by; the first where members do not choose.",
        choices=("uniform", "range"),
    )
    group_consumer_assignor_offload_enable: bool = setting(
        True,
        "Whether the assignments of large consumer groups are computed in a thread (KIP-1263). Members keep what they "
        "have until then. Without it, each holds up everything else that the node does.",
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000,
        "How long a consumer group whose assignment was computed in a thread waits at least before the next one, which "
        "is then for all changes meanwhile. It waits ten times as long as the computation took, if that is longer. "
        "Small groups are assigned at once.",
        unit="ms",
        minimum=0,
        maximum=INT32_MAX,
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Which way groups with members may move between the protocols. upgrade: to the newer one when a member joins "
        "by it. downgrade: back when the last such member is gone.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    offset_metadata_max_bytes: int = setting(
        4_096, "The longest metadata text of a committed offset.", unit="bytes", minimum=0, maximum=32_767
    )
    offsets_max_bytes: int = setting(
        256 << 20,
        "What the committed offsets of all groups of this node may hold in memory together, some 400 bytes each and "
        "2 KB for each group. Offsets of partitions that a group has none of are refused beyond it, with "
        "INVALID_COMMIT_OFFSET_SIZE; groups that have theirs continue.",
        unit="bytes",
        minimum=1,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "How long the offsets of an empty group are kept.",
        unit="minutes",
        minimum=1,
        maximum=INT32_MAX,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often expired offsets are looked for.", unit="ms", minimum=1, maximum=INT32_MAX
    )

    # gRPC
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

    # Metrics
    metrics_listen: str = setting(
        "",
        "HOST:PORT on which Prometheus finds /metrics, and containers /healthz and /readyz. Empty: none. Port 0 takes "
        "a free one. OTLP is asked for by OpenTelemetry's variables (OTEL_EXPORTER_OTLP_ENDPOINT): docs/metrics.md.",
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


SECTIONS: Final = {
    "data_dir": "The node",
    "metadata_url": "Metadata",
    "auto_create_topics_enable": "Topics",
    "durability": "Logs",
    "socket_request_max_bytes": "The Kafka listener",
    "transaction_max_timeout_ms": "Transactions",
    "group_min_session_timeout_ms": "Groups",
    "grpc_max_message_bytes": "gRPC",
    "metrics_listen": "Metrics",
}

SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(settings_of(NodeConfig, SECTIONS))
"""Every setting by name, in the order of the documentation."""

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        made.topic_name: dataclasses.replace(made, name=made.topic_name, dynamic=True)
        for made in SETTINGS.values()
        if made.topic_name is not None
    }
)
"""Every topic-level setting by name. Its default is the node's setting of `TOPIC_DEFAULTS`."""

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
