"""The settings of a partition's log, under Kafka's topic configuration names, and the node's defaults for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

from semel.broker.log.throttled_replicas import NO_REPLICAS, ThrottledReplicas
from semel.protocol.compression import DEFAULT_MAX_UNCOMPRESSED_BYTES
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.protocol.time_units import DAY_MS
from semel.runtime.setting import PartConfig, setting, settings_of

UNLIMITED: Final = -1
"""A retention without a limit."""
AS_THE_WHOLE: Final = -2
"""A local retention that is the same as the whole one."""
DISKLESS_LOCAL_BYTES: Final = 16 << 20
"""So much of a diskless partition is kept on its leader's disk, where local.retention.bytes says nothing else."""


class AppendOrigin(Enum):
    """Who appends, which says what is checked (P5)."""

    CLIENT = "client"
    """A producer: everything is checked."""
    COORDINATOR = "coordinator"
    """A coordinator's records: the producer epoch alone is checked."""
    REPLICATION = "replication"
    """What a leader, or this log before a crash, already decided: nothing is refused for its producer."""


class TimestampType(Enum):
    """Whose clock stamps the records: the producer's, or the broker's at the append."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class CleanupPolicy(Enum):
    """What happens to old records: removed by age and size, or all but the last of each key removed."""

    DELETE = "delete"
    COMPACT = "compact"


class CompressionSetting(Enum):
    """`compression.type`: keep what the producer chose, or compress again at the append."""

    PRODUCER = "producer"
    UNCOMPRESSED = "uncompressed"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True)
class LogDefaults(PartConfig):
    """What a node's logs do where their topic says nothing else, and what all of them refuse. Defaults are Kafka's."""

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
    log_local_retention_ms: int = setting(
        -2,
        "How long segments that are in the remote storage are kept on this disk, too. -1: for ever. -2: as long as "
        "retention.ms says. At most retention.ms.",
        unit="ms",
        minimum=-2,
        long=True,
        dynamic=True,
        topic_name="local.retention.ms",
    )
    log_local_retention_bytes: int = setting(
        -2,
        "How many bytes of each partition are kept on this disk, of what is in the remote storage, too. -1: any "
        "number. -2: as many as retention.bytes says. At most retention.bytes.",
        unit="bytes",
        minimum=-2,
        long=True,
        dynamic=True,
        topic_name="local.retention.bytes",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "delete: old segments go by age and size. compact: the last value of each key is kept. Both can be "
        "given. A topic may also have neither: nothing is deleted.",
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
        "An index entry is made each time the log has grown by this many bytes.",
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
    message_uncompressed_max_bytes: int = setting(
        DEFAULT_MAX_UNCOMPRESSED_BYTES,
        "The largest that a compressed record batch may become. A batch that becomes larger is refused "
        "(MESSAGE_TOO_LARGE).",
        unit="bytes",
        minimum=1 << 20,
        maximum=DEFAULT_MAX_UNCOMPRESSED_BYTES,
    )
    message_compression_ratio_max: int = setting(
        200,
        "How many times its size a compressed record batch may become, where it becomes larger than 16 MiB and than "
        "max.message.bytes. One that becomes larger is refused (MESSAGE_TOO_LARGE).",
        minimum=1,
        maximum=1_000_000,
    )


@dataclass(frozen=True)
class TopicOnlySettings(PartConfig):
    """What a topic alone can say: there is no setting of the node's that is its default."""

    remote_storage_enable: bool = setting(
        False,
        "Whether closed segments are copied to the remote storage that remote.storage.url names, and may leave this "
        "disk then (KIP-405). It can't be taken back, and not together with cleanup.policy=compact.",
        dynamic=True,
    )
    diskless_enable: bool = setting(
        False,
        "Whether the topic's records are in the remote storage and the metadata's database alone: acknowledged once "
        "they are there, with one replica, which any node can take over at once (KIP-1163). Needs remote.storage.url. "
        "A topic can become diskless while it is used, and stays it. log.diskless.enable is the default of new ones.",
        dynamic=True,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "Replicas that are sent no faster than leader.replication.throttled.rate to others that are not in sync. Each "
        "is PARTITION:NODE, with the node that leads; * for all.",
        dynamic=True,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "Replicas that are fetched no faster than follower.replication.throttled.rate while they are not in sync. Each "
        "is PARTITION:NODE, with the node that fetches; * for all.",
        dynamic=True,
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one topic's logs behave: its own settings over `LogDefaults`. Sizes in bytes, times in milliseconds.

    Raises `UsageError` (INVALID_CONFIG) for a value out of range, naming the setting as Kafka does.
    """

    segment_bytes: int = LogDefaults.log_segment_bytes
    segment_ms: int = LogDefaults.log_roll_ms
    segment_index_bytes: int = LogDefaults.log_index_size_max_bytes
    index_interval_bytes: int = LogDefaults.log_index_interval_bytes
    retention_ms: int = LogDefaults.log_retention_ms
    """-1: no limit."""
    retention_bytes: int = LogDefaults.log_retention_bytes
    """For one partition. -1: no limit."""
    remote_storage_enable: bool = TopicOnlySettings.remote_storage_enable
    diskless_enable: bool = TopicOnlySettings.diskless_enable
    local_retention_ms: int = LogDefaults.log_local_retention_ms
    """-1: no limit. -2: `retention_ms`."""
    local_retention_bytes: int = LogDefaults.log_local_retention_bytes
    """-1: no limit. -2: `retention_bytes`."""
    cleanup_policy: frozenset[CleanupPolicy] = frozenset(map(CleanupPolicy, LogDefaults.log_cleanup_policy))
    max_message_bytes: int = LogDefaults.message_max_bytes
    """The largest record batch, compressed as it came."""
    message_timestamp_type: TimestampType = field(default=TimestampType(LogDefaults.log_message_timestamp_type))
    message_timestamp_before_max_ms: int = LogDefaults.log_message_timestamp_before_max_ms
    """How much older than the broker's clock a record may be. Anything but the maximum costs a decode of each batch."""
    message_timestamp_after_max_ms: int = LogDefaults.log_message_timestamp_after_max_ms
    compression_type: CompressionSetting = field(default=CompressionSetting(LogDefaults.compression_type))
    """Anything but `producer` costs a decode of each batch that came in another compression."""
    min_cleanable_dirty_ratio: float = LogDefaults.log_cleaner_min_cleanable_ratio
    delete_retention_ms: int = LogDefaults.log_cleaner_delete_retention_ms
    min_compaction_lag_ms: int = LogDefaults.log_cleaner_min_compaction_lag_ms
    max_compaction_lag_ms: int = LogDefaults.log_cleaner_max_compaction_lag_ms
    file_delete_delay_ms: int = LogDefaults.log_segment_delete_delay_ms
    min_insync_replicas: int = LogDefaults.min_insync_replicas
    leader_replication_throttled_replicas: ThrottledReplicas = NO_REPLICAS
    follower_replication_throttled_replicas: ThrottledReplicas = NO_REPLICAS
    becomes_diskless: bool = field(default=False, metadata={"is_no_setting": True})
    """Whether it is on this disk while its topic is diskless: it is yet to be copied."""

    # Worked out once, because every append asks.
    has_remote: bool = field(init=False, repr=False, compare=False)
    """Whether closed segments are copied to the remote storage."""
    leaves_disk: bool = field(init=False, repr=False, compare=False)
    """Whether what is copied may leave the disk. What is compacted is read again and again, and stays."""
    is_compacted: bool = field(init=False, repr=False, compare=False)
    is_deleted: bool = field(init=False, repr=False, compare=False)
    roll_ms: int = field(init=False, repr=False, compare=False)
    """After how long a segment is rolled: what is to be compacted by then must be out of the active segment."""
    takes_batches_as_they_come: bool = field(init=False, repr=False, compare=False)
    """Whether nothing but the batch itself can make a client's batch unwelcome, and nothing is changed in it."""
    recompresses: bool = field(init=False, repr=False, compare=False)
    """Whether batches are written again in another compression than they came in."""

    def __post_init__(self) -> None:
        compacted = CleanupPolicy.COMPACT in self.cleanup_policy
        has_remote = self.remote_storage_enable or self.diskless_enable
        derived = {
            "has_remote": has_remote,
            "leaves_disk": has_remote and not compacted,
            "is_compacted": compacted,
            "is_deleted": CleanupPolicy.DELETE in self.cleanup_policy,
            "roll_ms": min(self.segment_ms, self.max_compaction_lag_ms) if compacted else self.segment_ms,
            "recompresses": self.compression_type is not CompressionSetting.PRODUCER,
            "takes_batches_as_they_come": not compacted
            and self.message_timestamp_type is TimestampType.CREATE_TIME
            and self.message_timestamp_before_max_ms == self.message_timestamp_after_max_ms == INT64_MAX
            and self.compression_type is CompressionSetting.PRODUCER,
        }
        for name, worked_out in derived.items():
            object.__setattr__(self, name, worked_out)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(
                    f"{kafka_name(name)}={value} is out of range: it must be from {low} to {high}",
                    ErrorCode.INVALID_CONFIG,
                )
        self._check_local_retention("ms", self.local_retention_ms, self.retention_ms)
        self._check_local_retention("bytes", self.local_retention_bytes, self.retention_bytes)
        if self.remote_storage_enable and compacted and not (self.diskless_enable or self.becomes_diskless):
            raise UsageError(
                "remote.storage.enable=true does not go together with cleanup.policy=compact: what is compacted stays "
                "on the disk. Diskless topics can be compacted (diskless.enable=true)",
                ErrorCode.INVALID_CONFIG,
            )
        if self.max_compaction_lag_ms < self.min_compaction_lag_ms:
            raise UsageError(
                f"max.compaction.lag.ms={self.max_compaction_lag_ms} is less than "
                f"min.compaction.lag.ms={self.min_compaction_lag_ms}",
                ErrorCode.INVALID_CONFIG,
            )

    @staticmethod
    def _check_local_retention(unit: str, local: int, whole: int) -> None:
        if local != AS_THE_WHOLE and whole != UNLIMITED and not 0 <= local <= whole:
            raise UsageError(
                f"local.retention.{unit}={local} is more than retention.{unit}={whole}: what is deleted everywhere is "
                f"not kept on the disk. Give it at most {whole}, or -2 for the same",
                ErrorCode.INVALID_CONFIG,
            )

    @property
    def kept_locally_ms(self) -> int:
        """How long a segment stays on the disk that is in the remote storage, too. -1: no limit."""
        return self.retention_ms if self.local_retention_ms == AS_THE_WHOLE else self.local_retention_ms

    @property
    def kept_locally_bytes(self) -> int:
        """How much of a partition stays on the disk of what is in the remote storage, too. -1: no limit."""
        if self.local_retention_bytes != AS_THE_WHOLE:
            return self.local_retention_bytes
        if self.diskless_enable:
            return (
                min(DISKLESS_LOCAL_BYTES, self.retention_bytes) if self.retention_bytes >= 0 else DISKLESS_LOCAL_BYTES
            )
        return self.retention_bytes

    @classmethod
    def from_kafka(cls, configs: Mapping[str, str], base: LogConfig | None = None) -> LogConfig:
        """Return the settings for Kafka's names and text values, over `base`. Raises `UsageError` (INVALID_CONFIG)."""
        known = {kafka_name(name): name for name in _settings()}
        start = base if base is not None else cls()
        values: dict[str, Any] = {name: getattr(start, name) for name in _settings()}
        for name, text in configs.items():
            if name not in known:
                raise UsageError(f"there is no topic configuration {name!r} for a log", ErrorCode.INVALID_CONFIG)
            values[known[name]] = _parse(name, values[known[name]], text)
        return cls(**values)


def _settings() -> list[str]:
    return [one.name for one in fields(LogConfig) if one.init and not one.metadata]


_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    made.topic_name.replace(".", "_"): (made.minimum, INT64_MAX if made.maximum is None else made.maximum)
    for made in settings_of(LogDefaults).values()
    if made.topic_name is not None and made.minimum is not None
}


def kafka_name(field_name: str) -> str:
    """Return Kafka's topic configuration name for a field (`segment_bytes` is `segment.bytes`)."""
    return field_name.replace("_", ".")


def _parse(name: str, default: Any, text: str) -> Any:
    if isinstance(default, ThrottledReplicas):
        return ThrottledReplicas.parse(name, text)
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.strip().lower()]
        if isinstance(default, frozenset):
            return frozenset(CleanupPolicy(part.strip()) for part in text.split(",") if part.strip())
        if isinstance(default, Enum):
            return type(default)(text.strip())
        return type(default)(text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{name}={text!r} is not a valid value", ErrorCode.INVALID_CONFIG) from error
