"""What a partition asks of the remote storage: the seam between the logs and `broker.tiers`."""

from __future__ import annotations

from typing import Protocol

from semel.broker.log.log_types import LogRange, TimestampOffset


class RemotePart(Protocol):
    """The part of one partition's log that is in the remote storage (KIP-405)."""

    @property
    def is_known(self) -> bool:
        """Whether what is there was looked up since this node last began to lead, or to follow."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset behind the last record that is there, 0 where none is."""
        ...

    def look_up(self) -> None:
        """Look up, in the background, what is there, because others may have changed it. Calls `tier_is_known` then."""
        ...

    def is_end_proven(self) -> bool:
        """Say whether this node knew a moment ago that no other one leads, and has more. If not, that is looked up."""
        ...

    def read(self, offset: int, max_bytes: int, upto: int, min_one_batch: bool, committed_only: bool) -> LogRange:
        """Return whole batches from the one that holds `offset` on, as `Partition.read` does.

        Where they are not here yet, they are fetched in the background, and nothing is returned; the partition's
        readers are woken then. Where there are none up to the beginning of this disk's part, `next_offset` says where
        that is. Raises `SemelError` (KAFKA_STORAGE_ERROR) where they could not be had a moment ago.
        """
        ...

    async def record_at(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first record that is there with this timestamp or a later one; for MAX_TIMESTAMP the first with
        the largest, where nothing on the disk has a larger one. Raises `SemelError`.
        """
        ...

    async def note_start(self, offset: int) -> None:
        """Note durably that the log begins at an offset. Raises `SemelError`."""
        ...
