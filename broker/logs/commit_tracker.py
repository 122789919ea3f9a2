# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""Tracks which of the node's appends are durable, for all partitions together (D1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from semel.broker.log.disk_errors import is_full
from semel.broker.log.journal import Journal
from semel.broker.logs.disk_space import DiskSpace, WriteFailures
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer
from semel.runtime.telemetry.buckets import Buckets


class Tracked(Protocol):
    """What the tracker needs of a partition."""

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> TopicId: ...

    def made_durable(self, offset: int) -> None:
        """Take note that everything below `offset` is durable."""
        ...


class CommitTimes(NamedTuple):
    """Where commits are measured, and by which clock."""

    buckets: Buckets
    clock: Clock


class CommitTracker:
    """When the node's appends count as durable: with the journal's sync, or at once without a journal.

    Shared by all partitions of a node, so that what a sync makes durable costs by appends, never by partitions.
    """

    __slots__ = (
        "_on_flush_wanted",
        "_pending",
        "_sample",
        "commit_times",
        "dirty",
        "dirty_bytes",
        "failures",
        "flush_bytes",
        "flush_wanted",
        "journal",
        "journal_max_bytes",
        "space",
        "waits_for_room",
    )

    def __init__(
        self,
        journal: Journal | None,
        space: DiskSpace | None = None,
        *,
        journal_max_bytes: int = 1 << 62,
        flush_bytes: int = 1 << 62,
        on_flush_wanted: Callable[[], None] | None = None,
    ) -> None:
        """`journal_max_bytes`: with more in the journal than this, clients are refused until the logs are flushed.

        `on_flush_wanted` is called when `flush_bytes` were appended since the last flush began.
        """
        self.journal = journal
        self.journal_max_bytes = journal_max_bytes
        self.space = space
        self.flush_bytes = flush_bytes
        self.flush_wanted = False
        self._on_flush_wanted = on_flush_wanted
        self.dirty: dict[Any, None] = {}
        """Partitions with appends since their last flush. Compiled classes have no type parameters: see `Partition`."""
        self.dirty_bytes = 0
        self.waits_for_room = False
        """Whether somebody waits for a flush for which the disk had no room: it is tried again as soon as there is."""
        self.failures = WriteFailures()
        self._pending: deque[tuple[int, Tracked, int]] = deque()
        self.commit_times: CommitTimes | None = None
        """Where it is measured how long appends take to be durable: one of each group that a sync commits."""
        self._sample: tuple[int, float] | None = None
        if journal is not None:
            journal.add_listener(self._durable)
            journal.when_full(self._journal_full)

    @property
    def pending(self) -> int:
        """How many appends are not committed yet."""
        return len(self._pending)

    def check_room(self, size: int) -> None:
        """Refuse a client's append that the disk or the journal has no room for. Raises `RetriableError`."""
        self.check_journal()
        if self.space is not None:
            self.space.take(size if self.journal is None else 2 * size)  # the log, and the journal
        if self.journal is not None and self.journal.size_bytes > self.journal_max_bytes:
            raise RetriableError(
                f"the journal has grown to {self.journal.size_bytes} bytes, more than its bound of "
                f"{self.journal_max_bytes}: the disk does not keep up with flushing the logs. Retry after a pause.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )

    def check_journal(self, bytes_max: int = 0) -> None:
        """Refuse an append while more than `bytes_max` wait in memory for room on the disk. Raises `RetriableError`."""
        journal = self.journal
        if journal is not None and journal.full is not None and journal.waiting_bytes > bytes_max:
            raise RetriableError(
                f"the disk is full, and {journal.waiting_bytes} bytes wait to be written to the journal "
                f"({journal.full}). Make room; retry after a pause.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )

    def write_failed(self, error: SemelError) -> None:
        """Note that an append failed: where the disk is full, it is looked at again before the next one."""
        if self.space is not None and is_full(error.__cause__):
            with suppress(OSError):
                self.space.write_failed()

    def _journal_full(self) -> None:
        """The flush that is asked for removes files of the journal, and so makes room, too."""
        if self.space is not None:
            with suppress(OSError):
                self.space.write_failed()
        if not self.flush_wanted and self._on_flush_wanted is not None:
            self.flush_wanted = True
            self._on_flush_wanted()

    def appended(self, partition: Tracked, end_before: int, next_offset: int, buffers: Sequence[Buffer]) -> None:
        """Note what was just appended to a partition's log. Raises `SemelError` where the journal has failed.

        end_before, next_offset: where the log ended before that, and ends now
        """
        if self.failures.last:
            self.failures.succeeded()
        self.note_dirty(partition, buffers)
        journal = self.journal
        if journal is None:
            partition.made_durable(next_offset)
            return
        position = journal.append(partition.topic_id, partition.tp.partition, end_before, buffers)
        if self.commit_times is not None and self._sample is None:
            self._sample = position, self.commit_times.clock.monotonic()
        self._pending.append((position, partition, next_offset))
        if position <= journal.durable_position:
            self._durable(journal.durable_position)

    def note_dirty(self, partition: Tracked, buffers: Sequence[Buffer]) -> None:
        """Note what is to be flushed, and have that done where it is much by now."""
        self.dirty[partition] = None
        for buffer in buffers:
            self.dirty_bytes += len(buffer)
        if self.dirty_bytes >= self.flush_bytes and not self.flush_wanted:
            self.flush_wanted = True
            if self._on_flush_wanted is not None:
                self._on_flush_wanted()

    def flush_begins(self) -> list[Any]:
        """Return the partitions that are dirty, and count again what is appended from here on."""
        dirty = list(self.dirty)
        self.dirty.clear()
        self.dirty_bytes = 0
        self.flush_wanted = self.waits_for_room = False
        return dirty

    def truncated(self, partition: Tracked, offset: int) -> None:
        """Note that a partition's log was cut at `offset`."""
        self.dirty[partition] = None
        if self.journal is not None:
            # What is still on its way to the disk must not commit the offsets again, for other bytes.
            self._pending = deque(item for item in self._pending if item[1] is not partition or item[2] <= offset)
            self.journal.append_truncation(partition.topic_id, partition.tp.partition, offset)

    def _durable(self, position: int) -> None:
        if self._sample is not None and self._sample[0] <= position and self.commit_times is not None:
            self.commit_times.buckets.record(self.commit_times.clock.monotonic() - self._sample[1])
            self._sample = None
        pending = self._pending
        while pending and pending[0][0] <= position:
            _, partition, next_offset = pending.popleft()
            partition.made_durable(next_offset)
