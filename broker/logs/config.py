"""How the logs of a node are kept, as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from semel.broker.log.cleaner import DEFAULT_KEYS_MAX
from semel.broker.log.journal import JournalConfig
from semel.broker.log.producer_id_bound import DEFAULT_MAX, DEFAULT_PER_PARTITION_MAX


class DurabilityMode(Enum):
    """What an append with acks=all waits for."""

    JOURNAL = "journal"
    """The disk: the journal's sync. Survives a power cut."""
    OS = "os"
    """The page cache, as Kafka does by default. Survives a killed process."""


@dataclass(frozen=True, slots=True)
class LogManagerConfig:
    """Settings of a node's logs as a whole. Sizes in bytes, times in milliseconds.

    cluster_id:           checked against meta.properties; None takes what is there, or makes a new one.
    journal_flush_bytes:  the logs are flushed and the journal cut when it has grown by this.
    journal_bytes_max:    clients are refused while the journal is larger than this.
    flush_interval_ms:    the logs are flushed at least this often while there is something to flush.
    min_free_bytes:       clients are refused while the disk has less than this free.
    cleaner_keys_max:     keys that one round of compaction holds in memory; more take more rounds.
    producer_ids_max:     producer ids that the partitions remember together; new ones are refused beyond it.
    producer_ids_per_partition_max: those of one partition.
    open_files_max:       files that all logs together keep open; those opened longest ago are closed first.
    """

    node_id: int = 0
    cluster_id: str | None = None
    durability: DurabilityMode = DurabilityMode.JOURNAL
    journal: JournalConfig = field(default_factory=JournalConfig)
    journal_flush_bytes: int = 256 << 20
    journal_bytes_max: int = 2 << 30
    flush_interval_ms: int = 60_000
    retention_check_interval_ms: int = 300_000
    cleaner_interval_ms: int = 15_000
    cleaner_keys_max: int = DEFAULT_KEYS_MAX
    producer_expiry_interval_ms: int = 600_000
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000
    min_free_bytes: int = 256 << 20
    open_files_max: int = 512
    producer_ids_max: int = DEFAULT_MAX
    producer_ids_per_partition_max: int = DEFAULT_PER_PARTITION_MAX

    def __post_init__(self) -> None:
        if not 0 < self.journal_flush_bytes <= self.journal_bytes_max:
            raise ValueError(
                f"0 < journal_flush_bytes <= journal_bytes_max must hold: "
                f"{self.journal_flush_bytes}, {self.journal_bytes_max}"
            )
