"""What a diskless partition's appends wait for, in place of the node's journal (D1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.broker.diskless.writer import Writer
from semel.broker.logs.commit_tracker import CommitTracker, Tracked
from semel.broker.logs.partition import Partition
from semel.protocol.errors import ErrorCode, RetriableError
from semel.runtime.storage import Buffer

WAITING_BYTES_MAX: Final = 128 << 20
"""With more on its way to the store and the database, producers are refused."""
COORDINATORS_BYTES_MAX: Final = 16 << 20
"""So much more coordinators' records and markers may be."""


class DisklessCommits(CommitTracker):
    """When appends to diskless partitions count: once the database has them."""

    def __init__(self, local: CommitTracker, writer: Writer) -> None:
        """local: that of the partitions on this node's disk, which notes what is to be flushed"""
        super().__init__(None, local.space)
        self._local = local
        self._writer = writer
        self.dirty = local.dirty

    def check_room(self, size: int) -> None:
        self._check_waiting(WAITING_BYTES_MAX - size)
        if self.space is not None:
            self.space.take(size)

    def check_journal(self, bytes_max: int = 0) -> None:
        self._check_waiting(WAITING_BYTES_MAX + COORDINATORS_BYTES_MAX)

    def _check_waiting(self, bytes_max: int) -> None:
        waiting = self._writer.waiting_bytes
        if waiting > bytes_max:
            why = f" ({self._writer.error})" if self._writer.error else ""
            raise RetriableError(
                f"{waiting} bytes wait to be written to the remote storage and the metadata's database{why}. "
                "Retry after a pause",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )

    def appended(self, partition: Tracked, end_before: int, next_offset: int, buffers: Sequence[Buffer]) -> None:
        assert isinstance(partition, Partition)
        if self.failures.last:
            self.failures.succeeded()
        self._local.note_dirty(partition, buffers)
        self._writer.add(partition, end_before, next_offset, buffers)
