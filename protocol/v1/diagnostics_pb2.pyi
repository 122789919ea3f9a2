from semel.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HangingEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANGING_END_ABORT: _ClassVar[HangingEnd]
    HANGING_END_AS_DECIDED: _ClassVar[HangingEnd]
    HANGING_END_AS_COMMIT: _ClassVar[HangingEnd]
    HANGING_END_AS_ABORT: _ClassVar[HangingEnd]
HANGING_END_ABORT: HangingEnd
HANGING_END_AS_DECIDED: HangingEnd
HANGING_END_AS_COMMIT: HangingEnd
HANGING_END_AS_ABORT: HangingEnd

class SnapshotRequest(_message.Message):
    __slots__ = ("limit", "producer_ids")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    limit: int
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, limit: _Optional[int] = ..., producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class NodeSnapshot(_message.Message):
    __slots__ = ("node_id", "now_ms", "coordinators_away", "transactions", "transactions_total", "held", "held_total", "groups", "groups_total", "topics", "topics_total", "offline", "disk", "settings", "leaders", "offline_total", "forged", "forged_total", "config_file", "version", "metadata_sequence", "nodes", "replication", "replication_total", "internal_topics", "is_controller", "throttled_topics", "moving_total", "metadata_away_ms", "delegation_secret_mark", "tokens_without_user", "tokens_without_user_total", "remote_storage", "remote_error", "remote_troubles", "remote_troubles_total", "remote_bytes_to_copy", "remote_use")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_AWAY_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    HELD_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FORGED_FIELD_NUMBER: _ClassVar[int]
    FORGED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FILE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_TOTAL_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_TOPICS_FIELD_NUMBER: _ClassVar[int]
    IS_CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    MOVING_TOTAL_FIELD_NUMBER: _ClassVar[int]
    METADATA_AWAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_SECRET_MARK_FIELD_NUMBER: _ClassVar[int]
    TOKENS_WITHOUT_USER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_WITHOUT_USER_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REMOTE_STORAGE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ERROR_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TROUBLES_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TROUBLES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BYTES_TO_COPY_FIELD_NUMBER: _ClassVar[int]
    REMOTE_USE_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    now_ms: int
    coordinators_away: _containers.RepeatedCompositeFieldContainer[CoordinatorPartition]
    transactions: _containers.RepeatedCompositeFieldContainer[OpenTransaction]
    transactions_total: int
    held: _containers.RepeatedCompositeFieldContainer[HeldPartition]
    held_total: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupFacts]
    groups_total: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicFacts]
    topics_total: int
    offline: _containers.RepeatedCompositeFieldContainer[OfflinePartition]
    disk: DiskFacts
    settings: _containers.RepeatedCompositeFieldContainer[SettingFact]
    leaders: int
    offline_total: int
    forged: _containers.RepeatedCompositeFieldContainer[ForgedMarker]
    forged_total: int
    config_file: str
    version: str
    metadata_sequence: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeFacts]
    replication: _containers.RepeatedCompositeFieldContainer[ReplicationFacts]
    replication_total: int
    internal_topics: _containers.RepeatedCompositeFieldContainer[InternalTopicFacts]
    is_controller: bool
    throttled_topics: _containers.RepeatedScalarFieldContainer[str]
    moving_total: int
    metadata_away_ms: int
    delegation_secret_mark: str
    tokens_without_user: _containers.RepeatedCompositeFieldContainer[OwnedToken]
    tokens_without_user_total: int
    remote_storage: str
    remote_error: str
    remote_troubles: _containers.RepeatedCompositeFieldContainer[RemoteTrouble]
    remote_troubles_total: int
    remote_bytes_to_copy: int
    remote_use: RemoteUse
    def __init__(self, node_id: _Optional[int] = ..., now_ms: _Optional[int] = ..., coordinators_away: _Optional[_Iterable[_Union[CoordinatorPartition, _Mapping]]] = ..., transactions: _Optional[_Iterable[_Union[OpenTransaction, _Mapping]]] = ..., transactions_total: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldPartition, _Mapping]]] = ..., held_total: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupFacts, _Mapping]]] = ..., groups_total: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicFacts, _Mapping]]] = ..., topics_total: _Optional[int] = ..., offline: _Optional[_Iterable[_Union[OfflinePartition, _Mapping]]] = ..., disk: _Optional[_Union[DiskFacts, _Mapping]] = ..., settings: _Optional[_Iterable[_Union[SettingFact, _Mapping]]] = ..., leaders: _Optional[int] = ..., offline_total: _Optional[int] = ..., forged: _Optional[_Iterable[_Union[ForgedMarker, _Mapping]]] = ..., forged_total: _Optional[int] = ..., config_file: _Optional[str] = ..., version: _Optional[str] = ..., metadata_sequence: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeFacts, _Mapping]]] = ..., replication: _Optional[_Iterable[_Union[ReplicationFacts, _Mapping]]] = ..., replication_total: _Optional[int] = ..., internal_topics: _Optional[_Iterable[_Union[InternalTopicFacts, _Mapping]]] = ..., is_controller: bool = ..., throttled_topics: _Optional[_Iterable[str]] = ..., moving_total: _Optional[int] = ..., metadata_away_ms: _Optional[int] = ..., delegation_secret_mark: _Optional[str] = ..., tokens_without_user: _Optional[_Iterable[_Union[OwnedToken, _Mapping]]] = ..., tokens_without_user_total: _Optional[int] = ..., remote_storage: _Optional[str] = ..., remote_error: _Optional[str] = ..., remote_troubles: _Optional[_Iterable[_Union[RemoteTrouble, _Mapping]]] = ..., remote_troubles_total: _Optional[int] = ..., remote_bytes_to_copy: _Optional[int] = ..., remote_use: _Optional[_Union[RemoteUse, _Mapping]] = ...) -> None: ...

class RemoteUse(_message.Message):
    __slots__ = ("since_ms", "puts", "gets", "deletes", "lists", "sent_bytes", "read_bytes", "stored_objects", "stored_bytes", "topics", "topics_total")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    PUTS_FIELD_NUMBER: _ClassVar[int]
    GETS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    puts: int
    gets: int
    deletes: int
    lists: int
    sent_bytes: int
    read_bytes: int
    stored_objects: int
    stored_bytes: int
    topics: _containers.RepeatedCompositeFieldContainer[RemoteTopic]
    topics_total: int
    def __init__(self, since_ms: _Optional[int] = ..., puts: _Optional[int] = ..., gets: _Optional[int] = ..., deletes: _Optional[int] = ..., lists: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., read_bytes: _Optional[int] = ..., stored_objects: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[RemoteTopic, _Mapping]]] = ..., topics_total: _Optional[int] = ...) -> None: ...

class RemoteTopic(_message.Message):
    __slots__ = ("topic", "objects", "stored_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    objects: int
    stored_bytes: int
    def __init__(self, topic: _Optional[str] = ..., objects: _Optional[int] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class RemoteTrouble(_message.Message):
    __slots__ = ("partition", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    error: str
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class OwnedToken(_message.Message):
    __slots__ = ("token_id", "owner")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    owner: str
    def __init__(self, token_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class NodeFacts(_message.Message):
    __slots__ = ("node_id", "is_fenced", "is_stopping", "leads", "is_cordoned", "is_full")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_FENCED_FIELD_NUMBER: _ClassVar[int]
    IS_STOPPING_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    IS_CORDONED_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    is_fenced: bool
    is_stopping: bool
    leads: int
    is_cordoned: bool
    is_full: bool
    def __init__(self, node_id: _Optional[int] = ..., is_fenced: bool = ..., is_stopping: bool = ..., leads: _Optional[int] = ..., is_cordoned: bool = ..., is_full: bool = ...) -> None: ...

class ReplicationFacts(_message.Message):
    __slots__ = ("partition", "leader", "replicas", "isr", "elr", "last_known_elr", "min_insync_replicas", "missing", "waits_for_replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELR_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_ELR_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    leader: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    isr: _containers.RepeatedScalarFieldContainer[int]
    elr: _containers.RepeatedScalarFieldContainer[int]
    last_known_elr: _containers.RepeatedScalarFieldContainer[int]
    min_insync_replicas: int
    missing: _containers.RepeatedCompositeFieldContainer[ReplicaFacts]
    waits_for_replicas: bool
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., isr: _Optional[_Iterable[int]] = ..., elr: _Optional[_Iterable[int]] = ..., last_known_elr: _Optional[_Iterable[int]] = ..., min_insync_replicas: _Optional[int] = ..., missing: _Optional[_Iterable[_Union[ReplicaFacts, _Mapping]]] = ..., waits_for_replicas: bool = ...) -> None: ...

class ReplicaFacts(_message.Message):
    __slots__ = ("node_id", "lacks")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    lacks: int
    def __init__(self, node_id: _Optional[int] = ..., lacks: _Optional[int] = ...) -> None: ...

class InternalTopicFacts(_message.Message):
    __slots__ = ("topic", "replicas", "wanted", "min_insync_replicas")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    replicas: int
    wanted: int
    min_insync_replicas: int
    def __init__(self, topic: _Optional[str] = ..., replicas: _Optional[int] = ..., wanted: _Optional[int] = ..., min_insync_replicas: _Optional[int] = ...) -> None: ...

class ForgedMarker(_message.Message):
    __slots__ = ("partition", "producer_id", "producer_epoch", "coordinator_epoch", "latest_epoch", "last_append_ms", "transactional_id")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LATEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    latest_epoch: int
    last_append_ms: int
    transactional_id: str
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., latest_epoch: _Optional[int] = ..., last_append_ms: _Optional[int] = ..., transactional_id: _Optional[str] = ...) -> None: ...

class CoordinatorPartition(_message.Message):
    __slots__ = ("topic", "partition", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    reason: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class OpenTransaction(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "state", "timeout_ms", "start_ms", "last_update_ms", "partitions", "partitions_total", "key", "attempt", "client_id", "client_host", "marker_attempts", "marker_error")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    MARKER_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MARKER_ERROR_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    last_update_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    partitions_total: int
    key: str
    attempt: str
    client_id: str
    client_host: str
    marker_attempts: int
    marker_error: str
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., state: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., start_ms: _Optional[int] = ..., last_update_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., partitions_total: _Optional[int] = ..., key: _Optional[str] = ..., attempt: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., marker_attempts: _Optional[int] = ..., marker_error: _Optional[str] = ...) -> None: ...

class HeldPartition(_message.Message):
    __slots__ = ("partition", "last_stable_offset", "high_watermark", "producer_id", "producer_epoch", "first_offset", "since_ms", "last_append_ms", "open_transactions", "is_known", "outcome", "transactional_id")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    last_stable_offset: int
    high_watermark: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int
    last_append_ms: int
    open_transactions: int
    is_known: bool
    outcome: str
    transactional_id: str
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., last_stable_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., first_offset: _Optional[int] = ..., since_ms: _Optional[int] = ..., last_append_ms: _Optional[int] = ..., open_transactions: _Optional[int] = ..., is_known: bool = ..., outcome: _Optional[str] = ..., transactional_id: _Optional[str] = ...) -> None: ...

class GroupFacts(_message.Message):
    __slots__ = ("group_id", "state", "members", "lag", "worst", "worst_lag", "unread_since_ms", "last_commit_ms", "expires_ms", "rebalances_ms")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    WORST_FIELD_NUMBER: _ClassVar[int]
    WORST_LAG_FIELD_NUMBER: _ClassVar[int]
    UNREAD_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCES_MS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    state: str
    members: int
    lag: int
    worst: _common_pb2.TopicPartition
    worst_lag: int
    unread_since_ms: int
    last_commit_ms: int
    expires_ms: int
    rebalances_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group_id: _Optional[str] = ..., state: _Optional[str] = ..., members: _Optional[int] = ..., lag: _Optional[int] = ..., worst: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., worst_lag: _Optional[int] = ..., unread_since_ms: _Optional[int] = ..., last_commit_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., rebalances_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicFacts(_message.Message):
    __slots__ = ("topic", "partitions", "size_bytes", "largest_partition", "largest_bytes", "retention_ms", "min_insync_replicas", "replicas", "deletes", "tight", "is_diskless")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    TIGHT_FIELD_NUMBER: _ClassVar[int]
    IS_DISKLESS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    size_bytes: int
    largest_partition: int
    largest_bytes: int
    retention_ms: int
    min_insync_replicas: int
    replicas: int
    deletes: bool
    tight: _containers.RepeatedCompositeFieldContainer[PartitionReplicas]
    is_diskless: bool
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., size_bytes: _Optional[int] = ..., largest_partition: _Optional[int] = ..., largest_bytes: _Optional[int] = ..., retention_ms: _Optional[int] = ..., min_insync_replicas: _Optional[int] = ..., replicas: _Optional[int] = ..., deletes: bool = ..., tight: _Optional[_Iterable[_Union[PartitionReplicas, _Mapping]]] = ..., is_diskless: bool = ...) -> None: ...

class PartitionReplicas(_message.Message):
    __slots__ = ("partition", "replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class OfflinePartition(_message.Message):
    __slots__ = ("partition", "reason", "kind", "since_ms", "retry_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    reason: str
    kind: str
    since_ms: int
    retry_ms: int
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., reason: _Optional[str] = ..., kind: _Optional[str] = ..., since_ms: _Optional[int] = ..., retry_ms: _Optional[int] = ...) -> None: ...

class DiskFacts(_message.Message):
    __slots__ = ("data_dir", "total_bytes", "free_bytes", "min_free_bytes", "durability", "syncs", "slow_syncs", "slow_sync_ms", "sync_ms_mean", "sync_ms_recent", "journal_bytes", "journal_max_bytes", "write_error", "started_ms", "started_clean", "unclean_ms", "unclean_found", "damaged_ms", "damage", "maintenance_error", "is_refusing", "resume_bytes")
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    SLOW_SYNCS_FIELD_NUMBER: _ClassVar[int]
    SLOW_SYNC_MS_FIELD_NUMBER: _ClassVar[int]
    SYNC_MS_MEAN_FIELD_NUMBER: _ClassVar[int]
    SYNC_MS_RECENT_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITE_ERROR_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_CLEAN_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_MS_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FOUND_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_REFUSING_FIELD_NUMBER: _ClassVar[int]
    RESUME_BYTES_FIELD_NUMBER: _ClassVar[int]
    data_dir: str
    total_bytes: int
    free_bytes: int
    min_free_bytes: int
    durability: str
    syncs: int
    slow_syncs: int
    slow_sync_ms: int
    sync_ms_mean: float
    sync_ms_recent: float
    journal_bytes: int
    journal_max_bytes: int
    write_error: str
    started_ms: int
    started_clean: bool
    unclean_ms: int
    unclean_found: str
    damaged_ms: int
    damage: str
    maintenance_error: str
    is_refusing: bool
    resume_bytes: int
    def __init__(self, data_dir: _Optional[str] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., min_free_bytes: _Optional[int] = ..., durability: _Optional[str] = ..., syncs: _Optional[int] = ..., slow_syncs: _Optional[int] = ..., slow_sync_ms: _Optional[int] = ..., sync_ms_mean: _Optional[float] = ..., sync_ms_recent: _Optional[float] = ..., journal_bytes: _Optional[int] = ..., journal_max_bytes: _Optional[int] = ..., write_error: _Optional[str] = ..., started_ms: _Optional[int] = ..., started_clean: bool = ..., unclean_ms: _Optional[int] = ..., unclean_found: _Optional[str] = ..., damaged_ms: _Optional[int] = ..., damage: _Optional[str] = ..., maintenance_error: _Optional[str] = ..., is_refusing: bool = ..., resume_bytes: _Optional[int] = ...) -> None: ...

class SettingFact(_message.Message):
    __slots__ = ("name", "value", "is_dynamic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    is_dynamic: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., is_dynamic: bool = ...) -> None: ...

class TransactionHistoryRequest(_message.Message):
    __slots__ = ("key", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: str
    limit: int
    def __init__(self, key: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class TransactionHistory(_message.Message):
    __slots__ = ("key", "coordinator", "coordinator_node", "now_ms", "log_start_offset", "log_end_offset", "compacted_to", "events", "events_total", "writes", "coordinator_error", "read_error", "writes_cut")
    KEY_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_NODE_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_TO_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ERROR_FIELD_NUMBER: _ClassVar[int]
    READ_ERROR_FIELD_NUMBER: _ClassVar[int]
    WRITES_CUT_FIELD_NUMBER: _ClassVar[int]
    key: str
    coordinator: _common_pb2.TopicPartition
    coordinator_node: int
    now_ms: int
    log_start_offset: int
    log_end_offset: int
    compacted_to: int
    events: _containers.RepeatedCompositeFieldContainer[TransactionEvent]
    events_total: int
    writes: _containers.RepeatedCompositeFieldContainer[TransactionWrite]
    coordinator_error: str
    read_error: str
    writes_cut: bool
    def __init__(self, key: _Optional[str] = ..., coordinator: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., coordinator_node: _Optional[int] = ..., now_ms: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., compacted_to: _Optional[int] = ..., events: _Optional[_Iterable[_Union[TransactionEvent, _Mapping]]] = ..., events_total: _Optional[int] = ..., writes: _Optional[_Iterable[_Union[TransactionWrite, _Mapping]]] = ..., coordinator_error: _Optional[str] = ..., read_error: _Optional[str] = ..., writes_cut: bool = ...) -> None: ...

class TransactionEvent(_message.Message):
    __slots__ = ("offset", "time_ms", "kind", "transactional_id", "state", "producer_id", "producer_epoch", "timeout_ms", "start_ms", "partitions", "partitions_total", "client_id", "client_host", "cause", "by_client_id", "by_host", "attempt", "token", "sequence", "payload_bytes", "writers")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BY_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    BY_HOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    time_ms: int
    kind: str
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    partitions_total: int
    client_id: str
    client_host: str
    cause: str
    by_client_id: str
    by_host: str
    attempt: str
    token: str
    sequence: int
    payload_bytes: int
    writers: int
    def __init__(self, offset: _Optional[int] = ..., time_ms: _Optional[int] = ..., kind: _Optional[str] = ..., transactional_id: _Optional[str] = ..., state: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., start_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., partitions_total: _Optional[int] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., cause: _Optional[str] = ..., by_client_id: _Optional[str] = ..., by_host: _Optional[str] = ..., attempt: _Optional[str] = ..., token: _Optional[str] = ..., sequence: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., writers: _Optional[int] = ...) -> None: ...

class TransactionWrite(_message.Message):
    __slots__ = ("partition", "producer_id", "producer_epoch", "kind", "first_offset", "last_offset", "time_ms", "group_id", "committed", "committed_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    producer_id: int
    producer_epoch: int
    kind: str
    first_offset: int
    last_offset: int
    time_ms: int
    group_id: str
    committed: _common_pb2.TopicPartition
    committed_offset: int
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., kind: _Optional[str] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., time_ms: _Optional[int] = ..., group_id: _Optional[str] = ..., committed: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., committed_offset: _Optional[int] = ...) -> None: ...

class AbortHangingRequest(_message.Message):
    __slots__ = ("partition", "start_offset", "unknown_elsewhere", "end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    start_offset: int
    unknown_elsewhere: bool
    end: HangingEnd
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., start_offset: _Optional[int] = ..., unknown_elsewhere: bool = ..., end: _Optional[_Union[HangingEnd, str]] = ...) -> None: ...

class AbortHangingResponse(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "committed")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    committed: bool
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., committed: bool = ...) -> None: ...
