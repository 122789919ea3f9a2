"""What an operator may set about the logs of a node as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from semel.broker.log.journal_config import JournalConfig
from semel.broker.log.producer_id_bound import DEFAULT_MAX, DEFAULT_PER_PARTITION_MAX
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.time_units import DAY_MS
from semel.runtime.setting import setting


class Durability(Enum):
    """What an acknowledgement with acks=all promises on one replica (D1)."""

    DISK = "disk"
    """The journal's sync: the records survive a power cut."""
    OS = "os"
    """The page cache, as Kafka does by default: they survive a killed process."""


@dataclass(frozen=True)
class LogManagerConfig(JournalConfig):
    """How a node's logs are kept."""

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
        at_most="journal.max.bytes",
    )
    journal_max_bytes: int = setting(
        2 << 30,
        "Producers are refused while the journal is larger than this: the disk does not keep up.",
        unit="bytes",
        minimum=1 << 20,
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
