"""What an operator may set about the journal, and its bounds for which there is no setting."""

from __future__ import annotations

from dataclasses import dataclass

from semel.broker.log.journal_format import ENTRY_HEADER_BYTES, FILE_HEADER_BYTES
from semel.protocol.int_bounds import INT32_MAX
from semel.runtime.setting import ConfigError, PartConfig, setting


@dataclass(frozen=True)
class JournalConfig(PartConfig):
    """Bounds and thresholds of the journal."""

    journal_file_bytes: int = setting(
        64 << 20, "Size at which the journal begins a new file.", unit="bytes", minimum=1 << 16, maximum=INT32_MAX
    )
    journal_buffer_max_bytes: int = setting(
        1 << 20,
        "Appends are collected up to this before they are written to the journal (they are synced later anyway).",
        unit="bytes",
        minimum=1 << 16,
        maximum=INT32_MAX,
        at_most="journal.unsynced.max.bytes",
    )
    journal_unsynced_max_bytes: int = setting(
        128 << 20,
        "With this much in the journal and not synced, the next append waits for the disk.",
        unit="bytes",
        minimum=1 << 16,
        long=True,
    )
    journal_spare_max_bytes: int = setting(
        256 << 20,
        "Files of the journal that the logs no longer need are kept up to this (spare files), and written over: that "
        "is faster than beginning new ones. They are removed when the disk is nearly full, and when the node stops. "
        "With less than journal.file.bytes none is kept, nor one that a single write has made larger than that.",
        unit="bytes",
        minimum=0,
        long=True,
    )
    journal_direct_write_bytes: int = 64 << 10
    """A payload of this size or more is written at once instead of being copied into the buffer."""
    journal_inline_sync_max_bytes: int = 128 << 10
    """Groups up to this are synced on the event loop, larger ones in a thread."""
    journal_inline_sync_max_seconds: float = 0.0003
    """Only while syncs have lately taken no longer than this, about what a thread costs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.journal_file_bytes < FILE_HEADER_BYTES + ENTRY_HEADER_BYTES:
            raise ConfigError(f"journal.file.bytes = {self.journal_file_bytes} holds no entry")
        if not 0 < self.journal_direct_write_bytes <= self.journal_buffer_max_bytes:
            raise ConfigError(
                f"journal_direct_write_bytes = {self.journal_direct_write_bytes} is not positive, or more than "
                f"journal.buffer.max.bytes = {self.journal_buffer_max_bytes}"
            )
