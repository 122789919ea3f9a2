"""The settings of one partition's log, under Kafka's topic configuration names (with underscores)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

from semel.protocol.errors import ErrorCode, UsageError

INT64_MAX: Final = (1 << 63) - 1
INT32_MAX: Final = (1 << 31) - 1
DAY_MS: Final = 24 * 60 * 60 * 1000


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


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one topic's logs behave. Defaults are Kafka's. Sizes in bytes, times in milliseconds.

    Raises `UsageError` (INVALID_CONFIG) for a value out of range, naming the setting as Kafka does.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    """-1: no limit."""
    retention_bytes: int = -1
    """For one partition. -1: no limit."""
    cleanup_policy: frozenset[CleanupPolicy] = frozenset({CleanupPolicy.DELETE})
    max_message_bytes: int = (1 << 20) + 12
    """The largest record batch, compressed as it came."""
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    """How much older than the broker's clock a record may be. Anything but the maximum costs a decode of each batch."""
    message_timestamp_after_max_ms: int = INT64_MAX
    compression_type: CompressionSetting = CompressionSetting.PRODUCER
    """Anything but `producer` costs a decode of each batch that came in another compression."""
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    file_delete_delay_ms: int = 60_000
    min_insync_replicas: int = 1

    # Worked out once, because every append asks.
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
        derived = {
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
        if self.max_compaction_lag_ms < self.min_compaction_lag_ms:
            raise UsageError(
                f"max.compaction.lag.ms={self.max_compaction_lag_ms} is less than "
                f"min.compaction.lag.ms={self.min_compaction_lag_ms}",
                ErrorCode.INVALID_CONFIG,
            )

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

    def to_kafka(self) -> dict[str, str]:
        """Return all settings under Kafka's names as text."""
        return {kafka_name(name): _format(getattr(self, name)) for name in _settings()}


def _settings() -> list[str]:
    return [one.name for one in fields(LogConfig) if one.init]


_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "segment_bytes": (61, INT32_MAX),
    "segment_ms": (1, INT64_MAX),
    "segment_index_bytes": (24, INT32_MAX),
    "index_interval_bytes": (0, INT32_MAX),
    "retention_ms": (-1, INT64_MAX),
    "retention_bytes": (-1, INT64_MAX),
    "max_message_bytes": (0, INT32_MAX),
    "message_timestamp_before_max_ms": (0, INT64_MAX),
    "message_timestamp_after_max_ms": (0, INT64_MAX),
    "min_cleanable_dirty_ratio": (0.0, 1.0),
    "delete_retention_ms": (0, INT64_MAX),
    "min_compaction_lag_ms": (0, INT64_MAX),
    "max_compaction_lag_ms": (1, INT64_MAX),
    "file_delete_delay_ms": (0, INT64_MAX),
    "min_insync_replicas": (1, INT32_MAX),
}


def kafka_name(field_name: str) -> str:
    """Return Kafka's topic configuration name for a field (`segment_bytes` is `segment.bytes`)."""
    return field_name.replace("_", ".")


def _parse(name: str, default: Any, text: str) -> Any:
    try:
        if isinstance(default, frozenset):
            return frozenset(CleanupPolicy(part.strip()) for part in text.split(",") if part.strip())
        if isinstance(default, Enum):
            return type(default)(text.strip())
        return type(default)(text)
    except ValueError as error:
        raise UsageError(f"{name}={text!r} is not a valid value", ErrorCode.INVALID_CONFIG) from error


def _format(value: Any) -> str:
    if isinstance(value, frozenset):
        return ",".join(sorted(policy.value for policy in value))
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)
