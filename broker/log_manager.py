"""All logs of a node: opening and recovering them, making and deleting partitions, closing.

What a start does after anything but a clean stop: each log is validated from its recovery point on and cut where it is
torn (D2); then the journal's entries from there on are compared with the log and put back where it lost them (D1); then
everything is flushed and the journal is emptied. Each step can be repeated after a crash in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.data_folder import JOURNAL_FOLDER, DataFolder
from semel.broker.disk_space import DiskSpace
from semel.broker.disk_thread import DiskThread
from semel.broker.log.config import LogConfig
from semel.broker.log.journal import Journal, JournalStatistics
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log_manager_config import DurabilityMode, LogManagerConfig
from semel.broker.log_recovery import RecoveryReport, damage_of, replay_journal
from semel.broker.log_upkeep import TURN_SECONDS, LogUpkeep
from semel.broker.partition import CommitTimes, Durability, Partition
from semel.broker.recovery_note import NOTE_FILE, RecoveryNote, update_note
from semel.protocol.errors import ErrorCode, FatalError, SemelError, error_for
from semel.protocol.ids import TopicId, TopicPartition, format_topic_id
from semel.runtime.buckets import Buckets
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.logs")

_MAKERS: Final = 8
"""How many threads make the folders of new logs side by side."""


class NewPartition(NamedTuple):
    """A partition to make."""

    tp: TopicPartition
    topic_id: TopicId
    log_config: LogConfig
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Counts and sizes for the metrics. `journal` is None with durability "os"."""

    partitions: int
    offline_partitions: int
    dirty_partitions: int
    dirty_bytes: int
    uncommitted_appends: int
    free_bytes: int
    flushes: int
    flush_seconds_total: float
    flush_seconds_last: float
    folders_to_delete: int
    compactions: int
    journal: JournalStatistics | None


class LogManager:
    """A node's logs. `open` first; `upkeep.run` works in the background until cancelled; `close` ends it cleanly."""

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
        self.opened_ms = 0
        self.last_unclean = RecoveryNote()
        self._storage = storage
        self._clock = clock
        self._on_failure = on_failure
        self._executor = executor
        self._thread = DiskThread(executor)
        self._journal: Journal | None = None
        self._partitions: dict[TopicPartition, Partition] = {}
        self._space = DiskSpace(storage, self.folder.path, self.config.min_free_bytes)
        self._durability = Durability(None)
        self._files = OpenFiles(self.config.open_files_max)
        self.upkeep = LogUpkeep(
            self.config,
            storage,
            self.folder,
            clock,
            self._thread,
            self._space,
            self._partitions,
            self._log_failed,
        )
        self._failed = False
        self._open = False

    @property
    def cluster_id(self) -> str:
        """The cluster that the folder belongs to."""
        return self.folder.cluster_id

    @property
    def write_error(self) -> str:
        """Why appends fail now; empty where they do not."""
        return self._durability.failures.last

    def measure_commits(self, buckets: Buckets) -> None:
        """From now on, record how long appends take to be durable: one of each group that a sync commits."""
        self._durability.commit_times = CommitTimes(buckets, self._clock)

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
        self.opened_ms = self._clock.now_ms()
        note = self.folder.file(NOTE_FILE)
        self.last_unclean = update_note(self._storage, note, self.recovery, self.opened_ms)
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
        deleted_folders = self.folder.find_deleted()
        logs = self._open_logs(log_config, progress, recovery_points, clean=clean)
        if clean:
            self.recovery = RecoveryReport(clean=True, partitions=len(logs), damage=damage_of(logs.values()))
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
            on_flush_wanted=self.upkeep.wake_up,
        )
        for log in logs.values():
            self._add(log, 0)
        self.upkeep.opened(self._durability, deleted_folders)

    def _open_logs(
        self,
        log_config: Callable[[TopicPartition, TopicId], LogConfig],
        progress: Callable[[int, int, TopicPartition], None] | None,
        recovery_points: Mapping[TopicPartition, int],
        *,
        clean: bool,
    ) -> dict[tuple[TopicId, int], PartitionLog]:
        log_starts = self.folder.log_starts.read()
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
        return logs

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
        turn_ends = self._clock.monotonic() + TURN_SECONDS
        for one in new:
            if one.tp in failures:
                continue
            try:
                self._open_new(one)
            except (SemelError, OSError) as error:
                failures[one.tp] = error
            if self._clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._clock.monotonic() + TURN_SECONDS
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
            on_log_start_moved=self.upkeep.log_start_moved,
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
        self.upkeep.delete_later(self.folder.drop_log_folder(tp), partition.config.file_delete_delay_ms)
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
            uncommitted_appends=self._durability.pending,
            free_bytes=self._space.free_bytes,
            flushes=self.upkeep.flushes,
            flush_seconds_total=self.upkeep.flush_seconds_total,
            flush_seconds_last=self.upkeep.flush_seconds_last,
            folders_to_delete=self.upkeep.folders_to_delete,
            compactions=self.upkeep.compactions,
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

    # --- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush and close everything, so that the next start has nothing to recover. `upkeep.run` must have ended.

        After a failure of the disk it only closes, and the next start recovers.
        """
        if not self._open:
            return
        try:
            if self._journal is not None and not self._failed:
                self._journal.sync_now()
            if not self._failed:
                await self.upkeep.flush()
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
        self._partitions.clear()

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
