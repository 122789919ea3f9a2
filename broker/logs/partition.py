"""One partition on this node: its log, how far it is committed, and who waits for that.

An append is in the log at once, and committed when it is durable: when the journal is synced, or, with durability "os",
at once. The high watermark is the end of what is committed; readers see nothing beyond it (R1, D1). All calls are plain
and synchronous, on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from semel.broker.log.append_validation import CheckedBatch
from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.disk_errors import is_full
from semel.broker.log.journal import Journal
from semel.broker.log.log_types import (
    NOTHING_OPENED,
    AbortedTransaction,
    AppendResult,
    EpochEndOffset,
    LogRange,
    Opened,
)
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH
from semel.broker.log.verification import VerificationGuard
from semel.broker.logs.disk_space import DiskSpace, WriteFailures
from semel.protocol.api.topics import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    ListOffset,
)
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer, StorageFile
from semel.runtime.telemetry.buckets import Buckets

_log = logging.getLogger("semel.partition")

ACKS_ALL: Final = -1
WAITING_BYTES_MAX: Final = 4 << 20
"""On a full disk coordinators' records and markers are taken until so much waits in memory for room."""
HIGH_WATERMARK: Final = -1
"""For `delete_records`: everything that is committed."""

CommitCallback = Callable[[SemelError | None], None]
"""Called once: with None when the offset is committed, with the error when it never will be here."""


class FetchedRange(NamedTuple):
    """What a read found: `size` bytes of whole batches at `position` of `file` (None where there is nothing yet).

    `first_offset` is the first batch's, at or below the offset asked for; `next_offset` is where to read on.
    `aborted_transactions` is for read_committed alone, and complete for the range (L3).
    """

    file: StorageFile | None
    position: int
    size: int
    first_offset: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: Sequence[AbortedTransaction]

    def read(self) -> bytes:
        """Return the batches as bytes."""
        return b"" if self.file is None else self.file.read_at(self.size, self.position)


class CommitTimes(NamedTuple):
    """Where commits are measured, and by which clock."""

    buckets: Buckets
    clock: Clock


class Durability:
    """When the node's appends count as committed: with the journal's sync, or at once without a journal.

    Shared by all partitions of a node, so that what a sync commits costs by appends, never by partitions.
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
        "journal_bytes_max",
        "space",
    )

    def __init__(
        self,
        journal: Journal | None,
        space: DiskSpace | None = None,
        *,
        journal_bytes_max: int = 1 << 62,
        flush_bytes: int = 1 << 62,
        on_flush_wanted: Callable[[], None] | None = None,
    ) -> None:
        """`journal_bytes_max`: with more in the journal than this, clients are refused until the logs are flushed.

        `on_flush_wanted` is called when `flush_bytes` were appended since the last flush began.
        """
        self.journal = journal
        self.journal_bytes_max = journal_bytes_max
        self.space = space
        self.flush_bytes = flush_bytes
        self.flush_wanted = False
        self._on_flush_wanted = on_flush_wanted
        self.dirty: dict[Partition, None] = {}
        """Partitions with appends since their last flush."""
        self.dirty_bytes = 0
        self.failures = WriteFailures()
        self._pending: deque[tuple[int, Partition, int]] = deque()
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
        if self.journal is not None and self.journal.size_bytes > self.journal_bytes_max:
            raise RetriableError(
                f"the journal has grown to {self.journal.size_bytes} bytes, more than its bound of "
                f"{self.journal_bytes_max}: the disk does not keep up with flushing the logs. Retry after a pause.",
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
        """Take up that an append failed: where the disk is full, it is looked at again before the next one."""
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

    def appended(self, partition: Partition, base_offset: int, next_offset: int, buffers: Sequence[Buffer]) -> None:
        """Take up what was just appended to a partition's log. Raises `SemelError` where the journal has failed."""
        self.dirty[partition] = None
        if self.failures.last:
            self.failures.succeeded()
        for buffer in buffers:
            self.dirty_bytes += len(buffer)
        if self.dirty_bytes >= self.flush_bytes and not self.flush_wanted:
            self.flush_wanted = True
            if self._on_flush_wanted is not None:
                self._on_flush_wanted()
        journal = self.journal
        if journal is None:
            partition.advance_high_watermark(next_offset)
            return
        position = journal.append(partition.topic_id, partition.tp.partition, base_offset, buffers)
        if self.commit_times is not None and self._sample is None:
            self._sample = position, self.commit_times.clock.monotonic()
        self._pending.append((position, partition, next_offset))
        if position <= journal.durable_position:
            self._durable(journal.durable_position)

    def flush_begins(self) -> list[Partition]:
        """Return the partitions that are dirty, and count again what is appended from here on."""
        dirty = list(self.dirty)
        self.dirty.clear()
        self.dirty_bytes = 0
        self.flush_wanted = False
        return dirty

    def truncated(self, partition: Partition, offset: int) -> None:
        """Take up that a partition's log was cut at `offset`."""
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
            partition.advance_high_watermark(next_offset)


class Partition:
    """One partition. Made by the `LogManager`."""

    __slots__ = (
        "_clock",
        "_durability",
        "_held_back",
        "_high_watermark",
        "_last_stable_offset",
        "_listeners",
        "_offline_error",
        "_on_log_start_moved",
        "_waiters",
        "leader_epoch",
        "log",
        "topic_id",
        "tp",
    )

    _numbers = itertools.count()
    """Order waiters for the same offset."""

    def __init__(
        self,
        log: PartitionLog,
        durability: Durability,
        clock: Clock,
        *,
        leader_epoch: int = 0,
        on_log_start_moved: Callable[[Partition], None] | None = None,
    ) -> None:
        """Everything in `log` counts as committed: it was recovered and is on the disk."""
        self.log = log
        self.tp: TopicPartition = log.tp
        self.topic_id: TopicId = log.topic_id
        self.leader_epoch = leader_epoch
        self._durability = durability
        self._clock = clock
        self._on_log_start_moved = on_log_start_moved
        self._offline_error: SemelError | None = None
        self._high_watermark = log.log_end_offset
        self._held_back: int | None = None
        self._last_stable_offset = self._find_last_stable_offset()
        # Made when first needed: most partitions are idle.
        self._waiters: list[tuple[int, int, CommitCallback]] | None = None
        self._listeners: dict[Callable[[Partition], None], None] | None = None

    # --- where the log is ---------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The end of what is committed. Never goes back (R1)."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see (L1)."""
        return self._last_stable_offset

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def config(self) -> LogConfig:
        return self.log.config

    @property
    def offline_error(self) -> SemelError | None:
        """Why this partition takes and gives nothing, or None."""
        return self._offline_error

    def update_config(self, config: LogConfig) -> None:
        """Follow a change of the topic's settings."""
        self.log.update_config(config)

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(
        self,
        buffer: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        acks: int = ACKS_ALL,
        verified: bool | VerificationGuard = False,
        checked: CheckedBatch | None = None,
    ) -> AppendResult:
        """Append the whole batch in `buffer`, which is patched in place where it is writable.

        The append is committed when `when_committed(result.last_offset)` or `wait_committed` says so; with acks of 0
        or 1 the caller answers without. `verified`, `checked`: see `PartitionLog.append`. Raises `SemelError`: then
        nothing was appended, except for KAFKA_STORAGE_ERROR of a failed journal, after which the partition is offline.
        """
        self._check_online()
        durability = self._durability
        if origin is AppendOrigin.CLIENT:
            if acks == ACKS_ALL and self.log.config.min_insync_replicas > 1:
                raise RetriableError(
                    f"{self.tp} has one replica in sync, fewer than min.insync.replicas="
                    f"{self.log.config.min_insync_replicas}. Lower it, or add replicas.",
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                )
            durability.check_room(len(buffer))
        else:
            durability.check_journal(WAITING_BYTES_MAX)
        try:
            result = self.log.append(
                buffer,
                origin=origin,
                leader_epoch=self.leader_epoch,
                now_ms=self._clock.now_ms(),
                verified=verified,
                checked=checked,
            )
        except SemelError as error:
            self._look_after_log(error)
            raise
        if result.appended:
            durability.appended(self, result.base_offset, result.last_offset + 1, result.appended)
        return result

    def append_batch(self, batch: bytearray) -> int:
        """Append a coordinator's batch and return its base offset (`semel.runtime.shard.ShardLog`)."""
        return self.append(batch, origin=AppendOrigin.COORDINATOR).base_offset

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion = TransactionVersion.V1,
        *,
        forged_epoch: int = NO_COORDINATOR_EPOCH,
    ) -> int | None:
        """Append a transaction marker and return its offset, or None where it repeats an applied one (P9, P10).

        forged_epoch: see `ProducerState.check_marker`.

        The first one may still be on its way to the disk: whoever answers for it waits for `log_end_offset` - 1.
        """
        self._check_online()
        self._durability.check_journal(WAITING_BYTES_MAX)
        try:
            result = self.log.append_marker(
                producer,
                coordinator_epoch,
                committed,
                self._clock.now_ms(),
                leader_epoch=self.leader_epoch,
                version=version,
                forged_epoch=forged_epoch,
            )
        except SemelError as error:
            self._look_after_log(error)
            raise
        if not result.appended:
            return None
        self._durability.appended(self, result.base_offset, result.last_offset + 1, result.appended)
        return result.base_offset

    def truncate_to(self, offset: int) -> bool:
        """Cut what is not committed from `offset` on (R3). Returns whether there was anything to cut."""
        self._check_online()
        if offset < self._high_watermark:
            raise FatalError(
                f"{self.tp} is committed up to {self._high_watermark} and cannot be cut at {offset}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        cut = self.log.truncate_to(offset, now_ms=self._clock.now_ms())
        if cut:
            self._durability.truncated(self, offset)
            refusal = RetriableError(
                f"{self.tp} was cut at {offset} to follow its leader", ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            waiters = self._waiters or []
            self._waiters = [waiter for waiter in waiters if waiter[0] < offset] or None
            for waiter in sorted(waiters):
                if waiter[0] >= offset:
                    _call(waiter[2], refusal)
        return cut

    # --- waiting ------------------------------------------------------------------------------------------------------

    def when_committed(self, offset: int, callback: CommitCallback) -> None:
        """Call `callback` once: when the record at `offset` is committed (now, if it is), or never will be here."""
        if offset < self._high_watermark:
            callback(None)
        elif self._offline_error is not None:
            callback(self._refusal())
        else:
            if self._waiters is None:
                self._waiters = []
            heapq.heappush(self._waiters, (offset, next(self._numbers), callback))

    async def wait_committed(self, offset: int) -> None:
        """Wait until the high watermark is past `offset`. Raises `SemelError` where it never will be here."""
        if offset < self._high_watermark:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: SemelError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.when_committed(offset, committed)
        await done

    def add_append_listener(self, callback: Callable[[Partition], None]) -> None:
        """Call `callback(partition)` each time more can be read, or the partition went offline, until it is removed."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[callback] = None

    def remove_append_listener(self, callback: Callable[[Partition], None]) -> None:
        """Stop calling `callback`. One that is not there is no error."""
        if self._listeners is not None:
            self._listeners.pop(callback, None)
            if not self._listeners:
                self._listeners = None

    def advance_high_watermark(self, offset: int) -> None:
        """Commit everything below `offset`. For the `Durability` alone."""
        if offset <= self._high_watermark or self._offline_error is not None:
            return
        if self._held_back is not None:
            self._held_back = max(self._held_back, offset)
            return
        assert offset <= self.log.log_end_offset, "nothing is committed that was not appended"
        self._high_watermark = offset
        self._last_stable_offset = self._find_last_stable_offset()
        waiters = self._waiters
        if waiters is not None:
            while waiters and waiters[0][0] < offset:
                _call(heapq.heappop(waiters)[2], None)
            if not waiters:
                self._waiters = None
        self._notify()

    def pause(self) -> None:
        """Commit nothing and give readers nothing, until `resume`: whoever waits, waits. For tests of clients."""
        if self._held_back is None:
            self._held_back = self._high_watermark

    def resume(self) -> None:
        """Take `pause` back: commit what could have been committed since, and tell all who wait."""
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self.advance_high_watermark(held_back)
            self._notify()

    @property
    def is_paused(self) -> bool:
        return self._held_back is not None

    def _notify(self) -> None:
        if self._listeners is not None:
            for listener in tuple(self._listeners):
                _call(listener, self)

    def _find_last_stable_offset(self) -> int:
        unstable = self.log.first_unstable_offset(self._high_watermark)
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        min_one_batch: bool = True,
    ) -> FetchedRange:
        """Return where the committed batches from `offset` on are, up to `max_bytes` of them.

        Nothing at or past the high watermark, under read_committed the last stable offset, is in the range (L2).
        Raises `SemelError` (OFFSET_OUT_OF_RANGE) for an offset that is not in the log nor at its end.
        """
        self._check_online()
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise FatalError(
                f"offset {offset} of {self.tp} is not within {log.log_start_offset} to {log.log_end_offset}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        committed_only = isolation is IsolationLevel.READ_COMMITTED
        upto = self._last_stable_offset if committed_only else self._high_watermark
        aborted: Sequence[AbortedTransaction] = ()
        if offset >= upto or self._held_back is not None:
            found = LogRange(None, 0, 0, offset, offset)
        else:
            found = log.read(offset, max_bytes, upto, min_one_batch)
            if committed_only and found.size > 0:
                aborted = log.aborted_transactions(found.first_offset, found.next_offset)
        return FetchedRange(*found, self._high_watermark, self._last_stable_offset, log.log_start_offset, aborted)

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches from the one with `offset` on, committed or not, for a coordinator that loads."""
        self._check_online()
        if offset >= self.log.log_end_offset:
            return b""
        found = self.log.read(offset, max_bytes, self.log.log_end_offset, True)
        return b"" if found.file is None else found.file.read_at(found.size, found.position)

    def list_offset(
        self,
        timestamp_ms: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        opened: Opened = NOTHING_OPENED,
    ) -> ListOffset:
        """Return the offset for a timestamp or for one of the special ones.

        EARLIEST is the start of the log; LATEST the high watermark, under read_committed the last stable offset (L2);
        MAX_TIMESTAMP the record with the largest timestamp (KIP-734); a timestamp the first record at or after it, and
        -1 where no visible record is. There is no tiered storage, so the earliest local offset is the earliest, and
        the offsets that tell how far it has come are -1 (KIP-405, KIP-1005, KIP-1023). `opened` and what is raised:
        see `PartitionLog.offset_for_timestamp`.
        """
        self._check_online()
        end = self._last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else self._high_watermark
        if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return self._earliest_offset()
        if timestamp_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
            return ListOffset(-1, -1)
        if timestamp_ms == LATEST_TIMESTAMP:
            return ListOffset(end, -1, self.leader_epoch)
        found = self.log.offset_for_timestamp(timestamp_ms, opened)
        if found is None or found.offset >= end:
            return ListOffset(-1, -1)
        return ListOffset(found.offset, found.timestamp_ms, found.leader_epoch)

    def _earliest_offset(self) -> ListOffset:
        """The epoch is that of the first record, because a reader that begins there asks where that one ended."""
        start = self.log.log_start_offset
        nothing_there = start == self.log.log_end_offset
        return ListOffset(start, -1, self.leader_epoch if nothing_there else self.log.epochs.epoch_for(start))

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset | None:
        """Return where a leader epoch ended (KIP-101): the largest at or below it that is known, None if none is.

        An epoch in which nothing was written is not in the log; it ends where the log does.
        """
        self._check_online()
        if not 0 <= leader_epoch <= self.leader_epoch:
            return None
        found = self.log.end_offset_for_epoch(leader_epoch) if leader_epoch < self.leader_epoch else None
        return found or EpochEndOffset(leader_epoch, self.log.log_end_offset)

    def delete_records(self, before_offset: int) -> int:
        """Let the log start at `before_offset`, or HIGH_WATERMARK, and return where it starts now.

        Raises `SemelError` (OFFSET_OUT_OF_RANGE) beyond the high watermark.
        """
        self._check_online()
        before = self._high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if not 0 <= before <= self._high_watermark:
            raise FatalError(
                f"records of {self.tp} can be deleted up to the high watermark {self._high_watermark}, "
                f"not up to {before_offset}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        start = self.log.delete_records(before)
        if self._on_log_start_moved is not None:
            self._on_log_start_moved(self)
        return start

    # --- going away ---------------------------------------------------------------------------------------------------

    def go_offline(self, error: SemelError) -> None:
        """Refuse everything from now on with `error`, and tell all who wait. The first error stays."""
        if self._offline_error is not None:
            return
        self._offline_error = error
        waiters, self._waiters = self._waiters, None
        for _, _, callback in sorted(waiters or ()):
            _call(callback, self._refusal())
        self._notify()

    def _look_after_log(self, error: SemelError) -> None:
        if self.log.offline_error is not None:
            _log.critical("%s is offline: %s", self.tp, self.log.offline_error)
            self.go_offline(self.log.offline_error)
        elif error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._durability.write_failed(error)
            self._durability.failures.failed(self._clock.monotonic(), error.message)

    def _check_online(self) -> None:
        if self._offline_error is not None:
            raise self._refusal()

    def _refusal(self) -> SemelError:
        """A new exception each time: one that is raised again and again would collect every traceback."""
        assert self._offline_error is not None
        return error_for(self._offline_error.code, self._offline_error.message)


def _call(callback: Callable[..., None], argument: object) -> None:
    """Call back; the failure of one who waited must not keep the others waiting."""
    try:
        callback(argument)
    except Exception:
        _log.exception("a callback of a partition failed")
