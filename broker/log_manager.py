"""All logs of a node: opening and recovering them, making and deleting partitions, and what is done in the background.

What a start does after anything but a clean stop: each log is validated from its recovery point on and cut where it is
torn (D2); then the journal's entries from there on are compared with the log and put back where it lost them (D1); then
everything is flushed and the journal is emptied. Each step can be repeated after a crash in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from semel.broker.data_folder import JOURNAL_FOLDER, DataFolder
from semel.broker.disk_space import DiskSpace
from semel.broker.disk_thread import DiskThread
from semel.broker.log.cleaner import DEFAULT_KEYS_MAX
from semel.broker.log.config import LogConfig
from semel.broker.log.journal import Journal, JournalConfig, JournalStatistics
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log_compaction import Compactor
from semel.broker.log_recovery import RecoveryReport, replay_journal
from semel.broker.partition import Durability, Partition
from semel.protocol.errors import ErrorCode, FatalError, SemelError, error_for
from semel.protocol.ids import TopicId, TopicPartition, format_topic_id
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.logs")

_SPACE_LOOK_SECONDS: Final = 10.0
"""How often at least the free space of the disk is looked at."""
_TURN_SECONDS: Final = 0.005
"""How long a background duty works on the event loop before it lets others have a turn."""
_MAKERS: Final = 8
"""How many threads make the folders of new logs side by side."""


class NewPartition(NamedTuple):
    """A partition to make."""

    tp: TopicPartition
    topic_id: TopicId
    log_config: LogConfig
    leader_epoch: int = 0


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

    def __post_init__(self) -> None:
        if not 0 < self.journal_flush_bytes <= self.journal_bytes_max:
            raise ValueError(
                f"0 < journal_flush_bytes <= journal_bytes_max must hold: "
                f"{self.journal_flush_bytes}, {self.journal_bytes_max}"
            )


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Counts and sizes for the metrics. `journal` is None with durability "os"."""

    partitions: int
    offline_partitions: int
    dirty_partitions: int
    dirty_bytes: int
    free_bytes: int
    flushes: int
    flush_seconds_total: float
    flush_seconds_last: float
    folders_to_delete: int
    compactions: int
    journal: JournalStatistics | None


@dataclass(slots=True)
class _Duties:
    """When the background work is due next, by the monotonic clock in seconds."""

    flush: float
    retention: float
    producers: float


class LogManager:
    """A node's logs. `open` first; `run` works in the background until it is cancelled; `close` ends it cleanly."""

    def __init__(
        self,
        storage: Storage,
        data_dir: str,
        clock: Clock,
        config: LogManagerConfig | None = None,
        *,
        on_failure: Callable[[SemelError], None] | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`on_failure` is told, once, when the journal has failed: every partition is offline then.

        `executor` runs what waits for the disk; without one the manager makes a thread of its own.
        """
        self.config = config or LogManagerConfig()
        self.folder = DataFolder(storage, data_dir)
        self.recovery = RecoveryReport(clean=True, partitions=0)
        self._storage = storage
        self._clock = clock
        self._on_failure = on_failure
        self._executor = executor
        self._thread = DiskThread(executor)
        self._compactor = Compactor(
            self.folder.clean_offsets, self._is_current, clock, self._thread, self.config.cleaner_keys_max
        )
        self._journal: Journal | None = None
        self._partitions: dict[TopicPartition, Partition] = {}
        self._space = DiskSpace(storage, self.folder.path, self.config.min_free_bytes)
        self._durability = Durability(None)
        self._log_starts_moved = False
        self._files = OpenFiles(self.config.open_files_max)
        self._going: list[tuple[float, str]] = []
        """Folders to delete, and when, by the monotonic clock."""
        self._wake: asyncio.Event | None = None
        self._flushing = asyncio.Lock()
        self._flushes = 0
        self._flush_seconds_total = 0.0
        self._flush_seconds_last = 0.0
        self._failed = False
        self._open = False

    @property
    def cluster_id(self) -> str:
        """The cluster that the folder belongs to."""
        return self.folder.cluster_id

    def disk_bytes(self) -> tuple[int, int]:
        """Return the size of the disk and what is free of it. Raises `OSError`."""
        return self._storage.total_bytes(self.folder.path), self._space.refresh()

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(
        self,
        log_config: Callable[[TopicPartition, TopicId], LogConfig] = lambda tp, topic_id: LogConfig(),
        *,
        progress: Callable[[int, int, TopicPartition], None] | None = None,
    ) -> RecoveryReport:
        """Lock the folder, open all logs in it and recover what a crash left.

        `log_config` gives each partition's settings; `progress(done, total, tp)` is called after each log's opening.
        Raises `SemelError` where another process holds the folder, it belongs to another node, or something that was
        acknowledged cannot be read; and `OSError`.
        """
        assert not self._open, "the logs are open already"
        self.folder.take(self.config.node_id, self.config.cluster_id)
        try:
            self._space.refresh()
            self._open_all(log_config, progress)
        except BaseException:
            self._abandon()
            raise
        self._open = True
        return self.recovery

    def _open_all(
        self,
        log_config: Callable[[TopicPartition, TopicId], LogConfig],
        progress: Callable[[int, int, TopicPartition], None] | None,
    ) -> None:
        journal = self._journal = Journal.open(
            self._storage,
            self.folder.file(JOURNAL_FOLDER),
            clock=self._clock,
            config=self.config.journal,
            on_failure=self._journal_failed,
            executor=self._executor,
        )
        clean = self.folder.take_clean_mark() and journal.is_empty
        recovery_points = self.folder.recovery_points.read()
        log_starts = self.folder.log_starts.read()
        self._going = [(0.0, path) for path in self.folder.find_deleted()]
        found = list(self.folder.find_logs())
        logs: dict[tuple[TopicId, int], PartitionLog] = {}
        for done, (tp, topic_id) in enumerate(found, 1):
            logs[topic_id, tp.partition] = PartitionLog.open(
                self._storage,
                self.folder.log_folder(tp),
                tp,
                topic_id,
                log_config(tp, topic_id),
                now_ms=self._clock.now_ms(),
                log_start_offset=log_starts.get(tp, 0),
                recovery_point=recovery_points.get(tp, 0),
                clean=clean,
                max_producer_id_expiration_ms=self.config.producer_id_expiration_ms,
                files=self._files,
            )
            if progress is not None:
                progress(done, len(found), tp)
        if clean:
            self.recovery = RecoveryReport(clean=True, partitions=len(logs))
            for log in logs.values():
                if log.recovery_point < log.log_end_offset:
                    log.flush()  # it was not as the last stop had left it
        else:
            self.recovery = replay_journal(journal, logs, recovery_points, self._clock.now_ms())
            for log in logs.values():
                log.flush()
            self.folder.recovery_points.write({log.tp: (log.topic_id, log.recovery_point) for log in logs.values()})
            journal.cut(journal.position)
        if self.config.durability is DurabilityMode.OS:
            journal.close()
            self._journal = None
        self._durability = Durability(
            self._journal,
            self._space,
            journal_bytes_max=self.config.journal_bytes_max,
            flush_bytes=self.config.journal_flush_bytes,
            on_flush_wanted=self._wake_up,
        )
        for log in logs.values():
            self._add(log, 0)
        self._compactor.opened({log.tp: log.topic_id for log in logs.values()})

    # --- partitions ---------------------------------------------------------------------------------------------------

    def partition(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    def create_partition(
        self, tp: TopicPartition, topic_id: TopicId, log_config: LogConfig, *, leader_epoch: int = 0
    ) -> Partition:
        """Make a partition, durably, or return the one that is there already.

        Raises `SemelError` where there is one of another topic by that name, and `OSError`.
        """
        wanted = NewPartition(tp, topic_id, log_config, leader_epoch)
        there = self._existing(wanted)
        if there is not None:
            return there
        self.folder.make_log_folder(tp, topic_id)
        return self._open_new(wanted)

    async def create_partitions(self, wanted: Sequence[NewPartition]) -> dict[TopicPartition, SemelError | OSError]:
        """Make partitions as `create_partition` does, waiting for the disk off the event loop, and for many at once.

        Returns those that could not be made, and why.
        """
        failures: dict[TopicPartition, SemelError | OSError] = {}
        new: list[NewPartition] = []
        for one in wanted:
            try:
                if self._existing(one) is None:
                    new.append(one)
            except SemelError as error:
                failures[one.tp] = error

        def make(part: Sequence[NewPartition]) -> None:
            failures.update(self.folder.make_log_folders([(one.tp, one.topic_id) for one in part]))

        # Side by side, because a file system makes one commit of the syncs that wait at the same time.
        parts = [part for first in range(_MAKERS) if (part := new[first::_MAKERS])]
        await asyncio.gather(*(self._thread.run(make, part) for part in parts))
        turn_ends = self._clock.monotonic() + _TURN_SECONDS
        for one in new:
            if one.tp in failures:
                continue
            try:
                self._open_new(one)
            except (SemelError, OSError) as error:
                failures[one.tp] = error
            if self._clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._clock.monotonic() + _TURN_SECONDS
        return failures

    def _existing(self, wanted: NewPartition) -> Partition | None:
        assert self._open, "open the logs first"
        there = self._partitions.get(wanted.tp)
        if there is not None:
            if there.topic_id != wanted.topic_id:
                raise FatalError(
                    f"{wanted.tp} is there already with the topic id {format_topic_id(there.topic_id)}, not "
                    f"{format_topic_id(wanted.topic_id)}",
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                )
            there.leader_epoch = max(there.leader_epoch, wanted.leader_epoch)
        return there

    def _open_new(self, wanted: NewPartition) -> Partition:
        """Open the log in a folder that was just made."""
        folder = self.folder.log_folder(wanted.tp)
        try:
            log = PartitionLog.open(
                self._storage,
                folder,
                wanted.tp,
                wanted.topic_id,
                wanted.log_config,
                now_ms=self._clock.now_ms(),
                clean=True,
                max_producer_id_expiration_ms=self.config.producer_id_expiration_ms,
                files=self._files,
            )
        except Exception:
            with contextlib.suppress(OSError):
                self._storage.remove_tree(folder)
            raise
        return self._add(log, wanted.leader_epoch)

    def _add(self, log: PartitionLog, leader_epoch: int) -> Partition:
        partition = Partition(
            log,
            self._durability,
            self._clock,
            leader_epoch=leader_epoch,
            on_log_start_moved=self._log_start_moved,
        )
        self._partitions[log.tp] = partition
        return partition

    def delete_partition(self, tp: TopicPartition) -> bool:
        """Take a partition away at once; its files go later, in the background. Returns whether there was one.

        The folder is renamed first, so a crash never leaves half of a log under its name. Raises `OSError`.
        """
        partition = self._partitions.pop(tp, None)
        if partition is None:
            return False
        self._durability.dirty.pop(partition, None)
        partition.go_offline(
            error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} was deleted, or is being moved away")
        )
        partition.log.release_files()
        target = self.folder.drop_log_folder(tp)
        due = self._clock.monotonic() + partition.config.file_delete_delay_ms / 1000
        self._going.append((due, target))
        self._log_starts_moved = True
        self._wake_up()
        return True

    def update_config(self, topic: str, log_config: LogConfig) -> None:
        """Give all partitions of a topic new settings."""
        for tp, partition in self._partitions.items():
            if tp.topic == topic:
                partition.update_config(log_config)

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            partitions=len(self._partitions),
            offline_partitions=sum(1 for one in self._partitions.values() if one.offline_error is not None),
            dirty_partitions=len(self._durability.dirty),
            dirty_bytes=self._durability.dirty_bytes,
            free_bytes=self._space.free_bytes,
            flushes=self._flushes,
            flush_seconds_total=self._flush_seconds_total,
            flush_seconds_last=self._flush_seconds_last,
            folders_to_delete=len(self._going),
            compactions=self._compactor.rounds,
            journal=None if self._journal is None else self._journal.statistics(),
        )

    # --- failing ------------------------------------------------------------------------------------------------------

    def _journal_failed(self, error: SemelError) -> None:
        """Take every log offline: what was appended and not acknowledged must not be seen by anybody (D1, L2)."""
        self._failed = True
        for partition in self._partitions.values():
            partition.go_offline(error)
        if self._on_failure is not None:
            self._on_failure(error)

    def _log_failed(self, partition: Partition, error: SemelError) -> None:
        self._failed = True
        _log.critical("%s", error)
        partition.go_offline(error)

    def _log_start_moved(self, partition: Partition) -> None:
        self._log_starts_moved = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    # --- in the background --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what is due, until cancelled: flush, cut the journal, retain, compact, expire, delete.

        A duty that fails is logged and tried again when it is due next.
        """
        assert self._open, "open the logs first"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_duties())
            group.create_task(self._run_cleaner())

    async def _run_cleaner(self) -> None:
        """Compact beside the other duties: a long round must not keep the journal from being cut."""
        while True:
            await asyncio.sleep(self.config.cleaner_interval_ms / 1000)
            await self._guard("compact the logs", self.compact_logs)

    async def _run_duties(self) -> None:
        now = self._clock.monotonic()
        config = self.config
        duties = _Duties(
            flush=now + config.flush_interval_ms / 1000,
            retention=now + config.retention_check_interval_ms / 1000,
            producers=now + config.producer_expiry_interval_ms / 1000,
        )
        self._wake = asyncio.Event()
        try:
            while True:
                await self._run_due(duties)
                due = min(duties.flush, duties.retention, duties.producers, *(going[0] for going in self._going))
                pause = min(max(due - self._clock.monotonic(), 0.0), _SPACE_LOOK_SECONDS)
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            self._wake = None

    async def _run_due(self, duties: _Duties) -> None:
        now = self._clock.monotonic()
        config = self.config
        if self._durability.flush_wanted or now >= duties.flush:
            duties.flush = now + config.flush_interval_ms / 1000
            await self._guard("flush the logs", self.flush)
        if self._log_starts_moved:
            await self._guard("note where the logs start", self._write_log_starts)
        if now >= duties.retention:
            duties.retention = now + config.retention_check_interval_ms / 1000
            await self._guard("apply the retention", self.check_retention)
        if now >= duties.producers:
            duties.producers = now + config.producer_expiry_interval_ms / 1000
            await self._guard("expire producers", self.expire_producers)
        if any(going[0] <= now for going in self._going):
            await self._guard("delete folders", self.delete_folders)
        self._space.refresh()

    async def _guard(self, what: str, duty: Callable[[], Awaitable[object]]) -> None:
        try:
            await duty()
        except (SemelError, OSError) as error:
            _log.error("could not %s: %s", what, error)
        except Exception:
            _log.exception("could not %s", what)

    async def flush(self) -> None:
        """Bring all logs to the disk, note how far they are, and cut the journal behind that. Raises `OSError`.

        A log that cannot be flushed goes offline, and then the journal is kept: it has what the log may have lost.
        """
        async with self._flushing:
            begin = self._clock.monotonic()
            durability = self._durability
            journal = self._journal
            cut = 0 if journal is None else journal.position
            dirty = durability.flush_begins()
            try:
                while dirty:
                    if await self._flush_one(dirty[-1]):
                        durability.dirty.setdefault(dirty[-1])
                    dirty.pop()
            finally:
                durability.dirty.update(dict.fromkeys(dirty))
            await self._write_checkpoints()
            kept = any(one.offline_error is not None for one in durability.dirty)
            if journal is not None and not kept and journal.error is None:
                await self._thread.run(journal.remove_files, journal.take_files_below(cut))
            self._flushes += 1
            self._flush_seconds_last = self._clock.monotonic() - begin
            self._flush_seconds_total += self._flush_seconds_last

    async def _flush_one(self, partition: Partition) -> bool:
        """Flush one log, waiting for the disk in the thread. Returns whether it still needs it, being offline."""
        log = partition.log
        try:
            if self._is_online(partition):
                work = log.begin_flush()
                failure, cancelled = (None, None) if work.is_empty else await self._thread.outcome(work.run)
                if self._is_online(partition):
                    log.end_flush(work, failure)
                if cancelled is not None:
                    raise cancelled
        except SemelError as error:
            self._log_failed(partition, error)
        return partition.offline_error is not None and self._partitions.get(partition.tp) is partition

    async def _write_checkpoints(self) -> None:
        logs = self._partitions
        points = {tp: (one.topic_id, one.log.recovery_point) for tp, one in logs.items()}
        marks = {tp: (one.topic_id, one.high_watermark) for tp, one in logs.items()}
        await self._thread.run(self.folder.recovery_points.write, points, self._is_current)
        await self._thread.run(self.folder.high_watermarks.write, marks, self._is_current)
        await self._write_log_starts()

    def _is_current(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        partition = self._partitions.get(tp)
        return partition is not None and partition.topic_id == topic_id

    def _is_online(self, partition: Partition) -> bool:
        return partition.offline_error is None and self._partitions.get(partition.tp) is partition

    async def _write_log_starts(self) -> None:
        self._log_starts_moved = False
        starts = {tp: (one.topic_id, one.log_start_offset) for tp, one in self._partitions.items()}
        try:
            await self._thread.run(self.folder.log_starts.write, starts, self._is_current)
        except BaseException:
            self._log_starts_moved = True
            raise

    async def check_retention(self) -> int:
        """Delete the segments that are too old, or too many, in all partitions. Returns how many."""
        deleted = 0
        async for partition in self._in_turns():
            try:
                start = partition.log_start_offset
                deleted += partition.log.delete_old_segments(self._clock.now_ms(), partition.high_watermark)
                self._log_starts_moved |= partition.log_start_offset != start
            except SemelError as error:
                self._log_failed(partition, error)
        return deleted

    async def compact_logs(self) -> int:
        """Compact every log that is dirty enough (D4). Returns how many.

        Only what is below the recovery point on the disk: from there on, a recovery compares logs with the journal.
        """
        compacted = 0
        async for partition in self._in_turns():
            try:
                compacted += await self._compactor.compact(partition, self.folder.recovery_points.get(partition.tp))
            except SemelError as error:
                self._log_failed(partition, error)
        return compacted

    async def expire_producers(self) -> int:
        """Forget producers that have been idle for too long (P8). Returns how many."""
        expired = 0
        async for partition in self._in_turns():
            expired += partition.log.expire_producers(self._clock.now_ms())
        return expired

    async def _in_turns(self) -> AsyncIterator[Partition]:
        """Yield all partitions that are online, letting others have the event loop every few milliseconds."""
        turn_ends = self._clock.monotonic() + _TURN_SECONDS
        for partition in list(self._partitions.values()):
            if self._clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._clock.monotonic() + _TURN_SECONDS
            if self._is_online(partition):
                yield partition

    async def delete_folders(self) -> None:
        """Delete the folders of deleted partitions whose time has come."""
        now = self._clock.monotonic()
        due = [path for when, path in self._going if when <= now]
        self._going = [going for going in self._going if going[0] > now]
        for path in due:
            try:
                await self._thread.run(self._storage.remove_tree, path)
            except OSError as error:
                _log.error("could not delete %s: %s; it is tried again at the next start", path, error)

    # --- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush and close everything, so that the next start has nothing to recover. `run` must have ended.

        After a failure of the disk it only closes, and the next start recovers.
        """
        if not self._open:
            return
        try:
            if self._journal is not None and not self._failed:
                self._journal.sync_now()
            if not self._failed:
                await self.flush()
            if not self._failed:
                self._close_cleanly()
        finally:
            self._abandon()

    def _close_cleanly(self) -> None:
        logs = self._partitions
        for partition in logs.values():
            partition.log.flush()
            partition.go_offline(_stopping())
            partition.log.close()
        self.folder.recovery_points.write({tp: (one.topic_id, one.log.recovery_point) for tp, one in logs.items()})
        self.folder.log_starts.write({tp: (one.topic_id, one.log_start_offset) for tp, one in logs.items()})
        self.folder.high_watermarks.write({tp: (one.topic_id, one.high_watermark) for tp, one in logs.items()})
        if self._journal is not None:
            self._journal.sync_now()
            self._journal.cut(self._journal.position)
        self.folder.mark_clean()
        self._partitions = {}

    def _abandon(self) -> None:
        """Let everything go as it is."""
        for partition in self._partitions.values():
            partition.go_offline(_stopping())
            partition.log.release_files()
        self._partitions.clear()
        if self._journal is not None:
            with contextlib.suppress(OSError, SemelError):
                self._journal.close()
            self._journal = None
        self._thread.close()
        self.folder.release()
        self._open = False


def _stopping() -> SemelError:
    return error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node is stopping")
