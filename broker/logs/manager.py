"""All logs of a node: opening and recovering them, making and deleting partitions, closing.

What a start does after anything but a clean stop: each log is validated from its recovery point on and cut where it is
torn (D2); then the journal's entries from there on are compared with the log and put back where it lost them (D1); then
everything is flushed and the journal is emptied. Each step can be repeated after a crash in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.log.config import LogConfig
from semel.broker.log.disk_errors import is_full, remedy
from semel.broker.log.epochs_file import EpochsWrite
from semel.broker.log.journal import Journal, JournalStatistics
from semel.broker.log.journal_format import JournalEntry
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_id_bound import ProducerIdBound
from semel.broker.log.producer_snapshot import encode_packed
from semel.broker.log.producer_state import PackedEntry
from semel.broker.logs.commit_tracker import CommitTimes, CommitTracker
from semel.broker.logs.config import Durability, LogManagerConfig
from semel.broker.logs.data_folder import JOURNAL_FOLDER, DataFolder
from semel.broker.logs.disk_space import DiskSpace
from semel.broker.logs.disk_thread import DiskThread
from semel.broker.logs.filling import NotFilledError, fill
from semel.broker.logs.journal_replay import RecoveryReport, damage_of, replay_journal
from semel.broker.logs.known_partitions import PartitionKey
from semel.broker.logs.last_recovery import NOTE_FILE, RecoveryNote, update_note, write_note
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.maintenance import LogMaintenance
from semel.broker.logs.offline import OfflineKind, OfflineLog, OfflineLogs, message_of
from semel.broker.logs.opening import LogOpener
from semel.broker.logs.partition import Partition
from semel.broker.logs.proofs import FetchRounds
from semel.broker.logs.remote_part import RemotePart
from semel.broker.logs.unreported import UNREPORTED_FILE, UnreportedRecovery
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, FatalError, SemelError, error_for
from semel.protocol.ids import TopicId, TopicPartition, format_topic_id
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer, Storage
from semel.runtime.telemetry.buckets import Buckets
from semel.runtime.threads import Threads
from semel.runtime.turns import Turns, in_turns

_log = logging.getLogger("semel.logs")

_CUT_ATTEMPTS: Final = 2
"""One flush leaves the journal as it is where a log goes away meanwhile, because it is moved or deleted."""
_MAKERS: Final = 8
"""How many threads make the folders of new logs side by side."""
_NAMED_MAX: Final = 5
_FLUSHED_ALONE_MAX: Final = 32
"""Fewer logs than these are flushed one after the other after a recovery: threads would cost more than they bring."""


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
    producer_ids: int
    flushes: int
    flush_seconds_total: float
    flush_seconds_last: float
    folders_to_delete: int
    compactions: int
    journal: JournalStatistics | None


def _pass_over(tp: TopicPartition, error: Exception) -> None:
    """The error is found again when the log is opened."""


def _as_others(commits: CommitTracker) -> CommitTracker:
    return commits


async def _nothing() -> None:
    """Nobody has to know before a partition is made."""


class LogManager:
    """A node's logs. `open` first; `maintenance.run` works beside it until cancelled; `close` ends it cleanly."""

    def __init__(
        self,
        storage: Storage,
        data_dir: str,
        clock: Clock,
        config: LogManagerConfig | None = None,
        *,
        node_id: int = 0,
        cluster_id: str | None = None,
        on_failure: Callable[[SemelError], None] | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`node_id` and `cluster_id` say whose folder it must be. A `cluster_id` of None takes the one that is there.

        `on_failure` is called when the journal fails (then every partition is offline), and for each log that fails.

        `executor` runs what waits for the disk; without one the manager makes a thread of its own.
        """
        self.config = config or LogManagerConfig()
        self.folder = DataFolder(storage, data_dir)
        self.recovery = RecoveryReport(clean=True, partitions=0)
        self.opened_ms = 0
        self.last_unclean = RecoveryNote()
        self.unreported = UnreportedRecovery(storage, self.folder.file(UNREPORTED_FILE))
        """What starts have found that no registration has told yet."""
        self.fetch_rounds = FetchRounds()
        """What tells which fetches of followers were sent after a moment (R9)."""
        self._owner = node_id, cluster_id
        self._storage = storage
        self._clock = clock
        self._on_failure = on_failure
        self._executor = executor
        self._thread = DiskThread(executor)
        self._journal: Journal | None = None
        self._partitions: dict[TopicPartition, Partition] = {}
        self.space = DiskSpace(storage, self.folder.path, self.config.disk_min_free_bytes)
        self._commits: CommitTracker = CommitTracker(None)
        self._diskless_commits = self._commits
        self._opener = LogOpener(storage, self.folder, clock, self.config)
        self._opener.producer_ids.count = self._count_producer_ids
        self._bringing_back = asyncio.Lock()
        self._making = asyncio.Lock()
        self.maintenance = LogMaintenance(
            self.config,
            storage,
            self.folder,
            clock,
            self._thread,
            self.space,
            self._partitions,
            self._log_failed,
            self._vanished,
            self._keep_entries,
        )
        self.remote_part: Callable[[Partition], RemotePart] | None = None
        """Gives a partition of a topic with remote.storage.enable what it asks of the remote storage."""
        self.on_vanished: Callable[[Partition], None] = lambda partition: None
        """Is called with each partition that went offline because its directory is gone."""
        self.diskless_commits: Callable[[CommitTracker], CommitTracker] = _as_others
        """Gives what tracks the appends of diskless partitions, from what tracks those of others."""
        self.before_new: Callable[[], Awaitable[None]] = _nothing
        """Is waited for before partitions are made. Where it raises `OSError`, they are not made."""
        self._failed = False
        self._open = False

    @property
    def cluster_id(self) -> str:
        """The cluster that the folder belongs to."""
        return self.folder.cluster_id

    @property
    def write_error(self) -> str:
        """Why appends fail now; empty where they do not."""
        full = self.journal_full
        return f"the disk is full: {full}" if full else self._commits.failures.last

    @property
    def journal_full(self) -> str:
        """Why nothing that is appended becomes durable now, for want of room; empty where it does."""
        full = None if self._journal is None else self._journal.full
        return "" if full is None else str(full)

    @property
    def offline(self) -> OfflineLogs:
        """The partitions that should be here and are not open."""
        return self._opener.offline

    @property
    def producer_ids(self) -> ProducerIdBound:
        """How many producer ids there may be."""
        return self._opener.producer_ids

    def _count_producer_ids(self) -> int:
        return sum(len(partition.log.producer_state) for partition in self._partitions.values())

    def reconfigure(self, config: LogManagerConfig) -> None:
        """Take over what may change while the node runs, for the logs that there are and those to come."""
        self.config = config
        self.producer_ids.max = config.producer_ids_max
        self.producer_ids.per_partition_max = config.producer_ids_per_partition_max
        self._opener.config = config
        self.maintenance.reconfigure(config)
        for partition in self._partitions.values():
            partition.log.producer_id_expiration_ms = config.producer_id_expiration_ms

    def measure_commits(self, buckets: Buckets) -> None:
        """From now on, record how long appends take to be durable: one of each group that a sync commits."""
        self._commits.commit_times = CommitTimes(buckets, self._clock)

    def disk_bytes(self) -> tuple[int, int]:
        """Return the size of the disk and what is free of it. Raises `OSError`."""
        return self._storage.total_bytes(self.folder.path), self.space.refresh()

    # --- Opening ------------------------------------------------------------------------------------------------------

    def open(
        self,
        log_config: Callable[[TopicPartition, TopicId], LogConfig] = lambda tp, topic_id: LogConfig(),
        *,
        is_only_replica: Callable[[TopicPartition, TopicId], bool] = lambda tp, topic_id: True,
        is_diskless: Callable[[TopicPartition, TopicId], bool] = lambda tp, topic_id: False,
        progress: Callable[[int, int, TopicPartition], None] | None = None,
    ) -> RecoveryReport:
        """Lock the folder, open all logs in it and recover what a crash left.

        `log_config` gives each partition's settings; `progress(done, total, tp)` is called after each log's opening.
        `is_only_replica` says where nobody else has the partition, now and whenever one is made: it leads. Others have
        no part until they are told. What is there of diskless topics is deleted: it is read again from where it was
        committed, if this node still leads it. A log that can't be opened is in `offline`. Raises `SemelError` where
        another process holds the folder, it belongs to another node, or the journal cannot be read; and `OSError`.
        """
        assert not self._open, "the logs are open already"
        self._opener.log_config = log_config
        self._opener.is_only_replica = is_only_replica
        self.folder.take(*self._owner)
        try:
            self.space.refresh()
            self._open_all(progress, is_diskless)
        except BaseException as error:
            if isinstance(error, (SemelError, OSError)):
                self._opener.kept.abandon()
            self._abandon()
            raise
        self._open = True
        self.opened_ms = self._clock.now_ms()
        note = self.folder.file(NOTE_FILE)
        self.last_unclean = update_note(self._storage, note, self.recovery, self.opened_ms)
        return self.recovery

    def _open_all(
        self,
        progress: Callable[[int, int, TopicPartition], None] | None,
        is_diskless: Callable[[TopicPartition, TopicId], bool],
    ) -> None:
        journal = self._journal = Journal.open(
            self._storage,
            self.folder.file(JOURNAL_FOLDER),
            clock=self._clock,
            config=self.config,
            on_failure=self._journal_failed,
            executor=self._executor,
        )
        clean = self.folder.take_clean_mark() and journal.is_empty
        former = [one for one in self.folder.find_logs(_pass_over) if is_diskless(*one)]
        for tp, _ in former:
            self.folder.drop_log_folder(tp)
        deleted_folders = self.folder.find_deleted()
        cuts = {} if clean else journal.cuts()
        logs = self._opener.open_all(progress, clean=clean, on_loss=self.unreported.lost, cuts=cuts)
        self.folder.known.remove([(topic_id, tp.partition) for tp, topic_id in former])
        if clean:
            self.recovery = RecoveryReport(clean=True, partitions=len(logs), damage=damage_of(logs.values()))
            self._note_findings(logs)
            for log in logs.values():
                if log.recovery_point < log.log_end_offset:
                    log.flush()  # it was not as the last stop had left it
        else:
            points = self.folder.recovery_points.all()
            self.recovery = replay_journal(journal, logs, points, cuts, self._clock.now_ms(), self._opener)
            self._note_findings(logs)
            logs = {key: log for key, log in logs.items() if self.offline.get(log.tp) is None}
            for log in logs.values():
                log.write_again()  # a sync may have failed in the run before
            self._flush_recovered(list(logs.values()))
            flushed = {log.tp: (log.topic_id, log.recovery_point) for log in logs.values()}
            self.folder.recovery_points.write({**flushed, **self._opener.flushed_points})
            for key, log in logs.items():
                lost = self.unreported.damaged_from(key)
                if lost is not None and log.replayed_cut is not None and log.replayed_cut <= lost:
                    self.unreported.repaired(key)
            self._opener.kept.finish()
            journal.cut(journal.position)
        self._opener.discard_replayed()
        if self.config.durability == Durability.OS.value:
            journal.close()
            self._journal = None
        else:
            self.space.make_room = journal.drop_spare
        self._commits = CommitTracker(
            self._journal,
            self.space,
            journal_max_bytes=self.config.journal_max_bytes,
            flush_bytes=self.config.journal_flush_bytes,
            on_flush_wanted=self.maintenance.wake_up,
        )
        self._diskless_commits = self.diskless_commits(self._commits)
        for log in logs.values():
            self._add(log)
        self.maintenance.opened(self._commits, deleted_folders)

    def _note_findings(self, logs: Mapping[PartitionKey, PartitionLog]) -> None:
        """Note what the others are to be told, before this start hides it from the next one."""
        found_any = bool(self.recovery.partitions or self.recovery.journal_entries or len(self.offline))
        points = self.folder.recovery_points.all()
        self.unreported.found(
            clean=self.recovery.clean or not found_any,
            damaged={key: first for key, log in logs.items() if (first := log.recovered_damage_from) is not None},
            short={key: log.log_end_offset for key, log in logs.items() if log.log_end_offset < points.get(log.tp, 0)},
        )
        self.folder.opened()

    def _flush_recovered(self, logs: Sequence[PartitionLog]) -> None:
        """Flush all logs. Many are synced side by side, because a file system makes one commit of the syncs that wait.

        Raises `SemelError`: what the journal gave back would be lost with it.
        """
        if self._executor is not None or len(logs) < _FLUSHED_ALONE_MAX:
            for log in logs:
                log.flush()
            return
        with Threads(_MAKERS, "semel-recovery") as pool:
            for first in range(0, len(logs), _MAKERS):
                part = logs[first : first + _MAKERS]
                works = [log.begin_flush() for log in part]
                jobs = [pool.submit(work.run) for work in works]
                for log, work, job in zip(part, works, jobs, strict=True):
                    error = job.exception()
                    if error is not None and not isinstance(error, OSError):
                        raise error
                    log.end_flush(work, error)

    # --- Partitions ---------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> Mapping[TopicPartition, int]:
        """Up to where each log was on the disk when the start found it, by what is noted of it and where it was cut."""
        return self._opener.synced

    async def damage_repaired(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what starts found damaged in these partitions: their leaders have given all of it back."""
        note = self.last_unclean.without(partitions)
        if note is not self.last_unclean:
            self.last_unclean = note
            await self._thread.run(write_note, self._storage, self.folder.file(NOTE_FILE), note)
            _log.info("%s: complete again, what a start found lost is there", ", ".join(map(str, partitions)))

    def partition(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    def noted_start(self, tp: TopicPartition) -> int:
        """Return where a log starts at least after any crash, 0 where nothing is noted of it."""
        return self.folder.log_starts.get(tp)

    def create_partition(
        self, tp: TopicPartition, topic_id: TopicId, log_config: LogConfig, *, leader_epoch: int = 0
    ) -> Partition:
        """Make a partition, durably, or return the one that is there already.

        Raises `SemelError` where there is one of another topic by that name, and `OSError`.
        """
        wanted = NewPartition(tp, topic_id, log_config, leader_epoch)
        there = self._existing(wanted)
        if there is not None:
            if self._opener.is_only_replica(tp, topic_id):
                self._lead_alone(there, wanted.leader_epoch)
            return there
        self.folder.make_log_folder(tp, topic_id)
        return self._open_new(wanted)

    async def create_partitions(self, wanted: Sequence[NewPartition]) -> dict[TopicPartition, SemelError | OSError]:
        """Make partitions as `create_partition` does, waiting for the disk off the event loop, and for many at once.

        Returns those that could not be made, and why; they are offline, and made again later where the disk refused.
        """
        async with self._making:  # one that is being begun again is there, too
            return await self._create_partitions(wanted)

    async def make_diskless(self, wanted: Sequence[NewPartition]) -> None:
        """Begin the logs of partitions again that are diskless from now on: all of each was copied."""
        async with self._making:
            for one in wanted:
                try:
                    self.delete_partition(one.tp)
                except OSError as error:
                    _log.error("the log of %s, which is diskless now, could not be put away: %s", one.tp, error)
            await self._create_partitions([one for one in wanted if one.tp not in self._partitions])

    async def _create_partitions(self, wanted: Sequence[NewPartition]) -> dict[TopicPartition, SemelError | OSError]:
        failures: dict[TopicPartition, SemelError | OSError] = {}
        new: list[NewPartition] = []
        led: list[tuple[Partition, LeaderState]] = []
        async for one in in_turns(wanted, ends_with_caller=False):
            try:
                there = self._existing(one)
            except SemelError as error:
                failures[one.tp] = error
                continue
            if there is None:
                new.append(one)
            elif there.config.diskless_enable != one.log_config.diskless_enable:
                continue  # it is begun again, and leads no more until then
            elif one.leader_epoch > there.leader_epoch and self._opener.is_only_replica(one.tp, one.topic_id):
                led.append((there, LeaderState.alone(one.leader_epoch, there.log_end_offset)))
        await self.lead(led)

        def make(part: Sequence[NewPartition]) -> None:
            try:
                for one in part:
                    self._opener.kept.discard((one.topic_id, one.tp.partition))  # of a log that is not there any more
                failures.update(self.folder.make_log_folders([(one.tp, one.topic_id) for one in part]))
            except OSError as error:
                failures.update((one.tp, error) for one in part)

        try:
            if new:
                await self.before_new()
        except OSError as error:
            failures.update((one.tp, error) for one in new)
        moved = [one for one in new if self.was_moved(one.tp, one.topic_id) and one.tp not in failures]
        if any(not one.log_config.diskless_enable for one in moved):
            try:
                await self._forget_former_lives()
            except (SemelError, OSError) as error:
                failures.update((one.tp, error) for one in moved)
        # Side by side, because a file system makes one commit of the syncs that wait at the same time.
        left = [one for one in new if one.tp not in failures]
        parts = [part for first in range(_MAKERS) if (part := left[first::_MAKERS])]
        await self._thread.run_all(make, parts)
        offline = [self._not_made(one, failures[one.tp]) for one in new if one.tp in failures]
        turns = Turns(ends_with_caller=False)
        for one in new:
            if one.tp in failures:
                continue
            try:
                self._open_new(one)
            except (SemelError, OSError) as error:
                failures[one.tp] = error
                offline.append(self._opener.failed(one.tp, one.topic_id, error, one.leader_epoch))
            await turns.give_way()
        self._opener.take_offline(offline)
        return failures

    def _not_made(self, wanted: NewPartition, error: SemelError | OSError) -> OfflineLog:
        kind = OfflineKind.NOT_MADE if isinstance(error, OSError) else OfflineKind.DAMAGED
        reason = message_of(error)
        if kind is OfflineKind.NOT_MADE:
            reason = f"its files could not be made ({reason}): {remedy(error)}"
        return OfflineLog(
            wanted.tp, wanted.topic_id, kind, reason.rstrip("."), self._clock.now_ms(), wanted.leader_epoch
        )

    def _existing(self, wanted: NewPartition) -> Partition | None:
        assert self._open, "open the logs first"
        there = self._partitions.get(wanted.tp)
        if there is not None and there.topic_id != wanted.topic_id:
            raise FatalError(
                f"{wanted.tp} is there already with the topic id {format_topic_id(there.topic_id)}, not "
                f"{format_topic_id(wanted.topic_id)}",
                ErrorCode.INCONSISTENT_TOPIC_ID,
            )
        return there

    async def lead(self, wanted: Iterable[tuple[Partition, LeaderState]]) -> None:
        """Lead partitions, and have their epochs noted on the disk (R7), off the event loop, many at once.

        One for which that fails is offline; on a full disk it is tried again with the next flush.
        """
        await self.note_epochs(
            [(partition, note) for partition, leader in wanted if (note := partition.lead(leader)) is not None]
        )

    async def note_epochs(self, notes: Sequence[tuple[Partition, EpochsWrite]]) -> None:
        """Write what `Partition.lead` has returned, as `lead` does."""
        failures: dict[Partition, OSError] = {}

        def write(part: Sequence[tuple[Partition, EpochsWrite]]) -> None:
            for partition, note in part:
                try:
                    note.run()
                except OSError as error:
                    failures[partition] = error

        parts = [part for first in range(_MAKERS) if (part := notes[first::_MAKERS])]
        await self._thread.run_all(write, parts)
        for partition, error in failures.items():
            if self._partitions.get(partition.tp) is partition:
                partition.epoch_not_noted(error)

    @staticmethod
    def _lead_alone(partition: Partition, leader_epoch: int) -> None:
        """Lead the only replica of a partition, and wait for the disk where its epoch is to be noted (R7)."""
        note = partition.lead(LeaderState.alone(leader_epoch, partition.log_end_offset))
        if note is not None:
            try:
                note.run()
            except OSError as error:
                partition.epoch_not_noted(error)

    def _open_new(self, wanted: NewPartition) -> Partition:
        """Open the log in a folder that was just made."""
        log = self._opener.open_log(wanted.tp, wanted.topic_id, clean=True, config=wanted.log_config)
        return self._add_led(log, wanted.leader_epoch)

    def _add_led(self, log: PartitionLog, leader_epoch: int) -> Partition:
        partition = self._add(log)
        if self._opener.is_only_replica(log.tp, log.topic_id):
            self._lead_alone(partition, leader_epoch)
        return partition

    def _add(self, log: PartitionLog) -> Partition:
        """Have a partition that nobody has said yet under which epoch it is led."""
        log.epochs.truncate_from_end(log.log_end_offset + 1)  # what the journal has not brought back either
        committed = self.folder.high_watermarks.get(log.tp)
        lost = self.unreported.damaged_from((log.topic_id, log.tp.partition))
        if lost is not None:
            committed = min(committed, lost)  # what is behind it may have to be cut
        partition = Partition(
            log,
            self._diskless_commits if log.config.diskless_enable else self._commits,
            self._clock,
            high_watermark=None if self._opener.is_only_replica(log.tp, log.topic_id) else committed,
            on_log_start_moved=self.maintenance.log_start_moved,
            before_cut=self._before_cut,
        )
        self._partitions[log.tp] = partition
        self._attach_tier(partition)
        self.offline.remove(log.tp)
        return partition

    def _attach_tier(self, partition: Partition) -> None:
        if partition.config.has_remote and partition.tier is None and self.remote_part is not None:
            partition.attach_tier(self.remote_part(partition))

    def _before_cut(self, partition: Partition, offset: int) -> None:
        """Note before a log is cut that it is not synced from there on: the journal's word of it may be lost with what
        is written again. Raises `SemelError`.
        """
        try:
            self.folder.recovery_points.lower(partition.tp, offset)
        except OSError as error:
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp} can't be cut now ({error}): {remedy(error)}"
            ) from error

    async def restart_at(self, partition: Partition, offset: int, producers: Collection[PackedEntry]) -> bool:
        """Begin a follower's log again at `offset`: what it needs next is deleted at its leader. It has no part then.

        Returns False where it is not there any more, or leads by now. A crash on the way leaves no log, or an empty one
        that knows the producers (P7). Raises `SemelError` and `OSError`: then the partition is offline, and
        `bring_back` brings it.

        producers: what is known of those who had written before the offset
        """
        async with self._making:  # nobody else makes it meanwhile, empty and from 0 on
            if self._partitions.get(partition.tp) is not partition or partition.leader is not None:
                return False
            await self._restart_at(partition, offset, producers)
            return True

    async def continue_at(
        self,
        partition: Partition,
        offset: int,
        producers: Collection[PackedEntry],
        batches: AsyncIterator[Buffer | int] | None = None,
        end_offset: int | None = None,
    ) -> bool:
        """Begin a leader's log again at `offset`: up to there the remote storage has it, and this disk has lost it.

        producers: what is known of those who had written before the offset
        batches: committed ones from the offset on, to be appended before anything else; an
            offset begins a new segment there
        end_offset: where these have to end
        Returns False where it is not there any more, or leads no longer. Fails as `restart_at`.
        """
        async with self._making:
            if self._partitions.get(partition.tp) is not partition or partition.leader is None:
                return False
            await self._restart_at(partition, offset, producers, batches, end_offset)
            return True

    async def _restart_at(
        self,
        partition: Partition,
        offset: int,
        producers: Collection[PackedEntry],
        batches: AsyncIterator[Buffer | int] | None = None,
        end_offset: int | None = None,
    ) -> None:
        wanted = NewPartition(partition.tp, partition.topic_id, partition.config, partition.leader_epoch)
        tp, topic_id = wanted.tp, wanted.topic_id

        def make() -> None:
            known = encode_packed(producers) if producers else b""
            self.folder.make_log_folder(tp, topic_id, start=offset, producers=known)

        # Where nothing was ever written to it, it need not be made again: a node takes over very many at a time.
        is_kept = batches is not None and not offset and not producers and partition.log.is_unused
        is_gone, is_made = False, is_kept
        try:
            if is_kept:
                log = partition.log
                self._take_out(partition, _begun_again(tp))
            else:
                self.delete_partition(tp)
                is_gone = True
                await self._thread.run(make)
                is_made = True
                log = self._opener.open_log(tp, topic_id, clean=True, start=offset, config=wanted.log_config)
            if batches is not None:
                try:
                    await fill(log, batches, end_offset, self._clock)
                except NotFilledError:
                    # It is begun once more, empty, so that it is there to be tried again.
                    self.maintenance.delete_later(self.folder.drop_log_folder(tp), 0)
                    is_made = False
                    await self._thread.run(make)
                    is_made = True
                    log = self._opener.open_log(tp, topic_id, clean=True, start=offset, config=wanted.log_config)
                    self._add_led(log, wanted.leader_epoch)
                    raise
            if self._opener.is_only_replica(tp, topic_id) and (note := log.begin_epoch(wanted.leader_epoch)):
                try:
                    await self._thread.run(note.run)  # so that the event loop need not wait for the disk
                except OSError as error:
                    log.epoch_not_noted(error)
            again = self._add_led(log, wanted.leader_epoch)
            if batches is not None:
                self._commits.dirty[again] = None  # what was just written is to be flushed like any append
            if not is_kept:
                # Starts that were noted while there was no such log have taken its note away: its leader waits for it.
                self.maintenance.log_start_moved(again)
        except NotFilledError as error:
            raise error.reason from None
        except (SemelError, OSError) as error:
            has_files = is_made or (not is_gone and self.folder.has_log_name(tp))
            failed = self._opener.failed(tp, topic_id, error, wanted.leader_epoch) if has_files else None
            self._opener.take_offline([failed or self._not_made(wanted, error)])
            raise

    # --- What was lost ------------------------------------------------------------------------------------------------

    def recovery_reported(self, not_read: Set[tuple[TopicId, int]] = frozenset()) -> None:
        """A registration has told what this start found, and starts before it. Raises `OSError`.

        not_read: partitions that it told as incomplete for no other reason than that they could not be read
        """
        here = {
            (one.topic_id, one.tp.partition): self._opener.is_only_replica(one.tp, one.topic_id)
            for one in (*self.partitions(), *self.offline)
            if one.topic_id is not None
        }
        is_all_known = all(one.topic_id is not None for one in self.offline)
        kept = {key for key in self.unreported.damaged if not here.get(key, is_all_known)}
        self.unreported.reported(kept, not_read=not_read)

    # --- Offline partitions -------------------------------------------------------------------------------------------

    def was_made(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        """Say whether this folder has had the partition, so that it must not be made again, empty (D1, D3)."""
        return (topic_id, tp.partition) in self.folder.known or tp in self._opener.suspected

    def was_moved(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        """Say whether this folder had the partition until it was moved to other nodes."""
        return self.folder.known.was_moved((topic_id, tp.partition))

    def moved_of(self, topic_ids: Collection[TopicId]) -> list[tuple[TopicId, int]]:
        """Return the partitions of topics that this folder had until they were moved to other nodes."""
        return self.folder.known.moved_of(topic_ids)

    def forget_all_but(self, keys: Collection[tuple[TopicId, int]]) -> None:
        """Forget what is noted and kept of partitions that the metadata does not know: they were deleted.

        Raises `OSError`.
        """
        self.folder.known.remove_all_but(keys)
        self._opener.kept.discard_all_but(keys)

    def release_missing(self) -> None:
        """Call this once it is known which partitions vanished: the checkpoints forget the others that are gone."""
        self._opener.release_missing()

    def has_directory(self, tp: TopicPartition) -> bool:
        """Say whether there is anything under a partition's name."""
        return self._storage.exists(self.folder.log_folder(tp))

    def take_offline_vanished(self, wanted: Sequence[NewPartition], *, was_open: bool = False) -> None:
        """Take partitions offline that had been made here and whose directories are gone. Raises `OSError`.

        was_open: the node had them open until now, so that their files are not as a clean stop leaves them
        """
        if not wanted:
            return
        self.folder.known.add((one.topic_id, one.tp.partition) for one in wanted)
        now_ms = self._clock.now_ms()

        def is_clean(tp: TopicPartition) -> bool:
            # Where it comes back as a crash left it, it must be recovered, whatever clean stops there were meanwhile.
            before = self.offline.get(tp)
            return not was_open and (self._opener.was_clean if before is None else before.is_clean)

        self._opener.take_offline(
            [
                OfflineLog(
                    one.tp,
                    one.topic_id,
                    # What a diskless topic had there is a copy: it is made again, and read again.
                    OfflineKind.NOT_MADE if one.log_config.diskless_enable else OfflineKind.VANISHED,
                    f"its directory {self.folder.log_folder(one.tp)} had been made, and is gone",
                    now_ms,
                    one.leader_epoch,
                    is_clean(one.tp),
                )
                for one in wanted
            ]
        )

    def _vanished(self, gone: Sequence[Partition]) -> None:
        """Take partitions offline whose directories were taken away under the running node. The others stay.

        Their files are open, and took appends that no start will find: those are in the journal, which keeps them.
        """
        for one in gone:
            del self._partitions[one.tp]
            self._commits.dirty.pop(one, None)
            one.go_offline(
                error_for(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{one.tp} is offline, because its directory {self.folder.log_folder(one.tp)} is gone: "
                    "`semel doctor` says what to do",
                )
            )
            one.log.release_files()
        self.take_offline_vanished(
            [NewPartition(one.tp, one.topic_id, one.config, one.leader_epoch) for one in gone], was_open=True
        )
        for one in gone:
            # No offset is given out twice, also where there is no journal to tell how far it had come (D3).
            self.folder.high_watermarks.note(one.tp, one.high_watermark)
            self.on_vanished(one)

    async def _keep_entries(self, keys: Collection[tuple[TopicId, int]], entries: Iterator[JournalEntry]) -> None:
        async with self._bringing_back:  # not while one of them is deleted
            offline = {(one.topic_id, one.tp.partition) for one in self.offline}
            wanted = frozenset(key for key in keys if key in offline)
            await self._thread.run(self._opener.keep_all, wanted, entries)

    def accept_loss(self, wanted: NewPartition) -> Partition:
        """Make a partition again whose directory is gone, behind the last offset that is known of it (D3).

        What the journal still has of it is in it. Raises `SemelError` and `OSError`.
        """
        tp, topic_id = wanted.tp, wanted.topic_id
        if self.has_directory(tp):
            raise FatalError(
                f"the loss of {tp} can't be accepted: {self.folder.log_folder(tp)} is there, and is no directory of a "
                "log. Move it away, and start again"
            )
        key = topic_id, tp.partition
        start, end = self._opener.lost_offsets(tp, topic_id)
        self.folder.make_log_folder(tp, topic_id, start=start)
        log = self._opener.open_log(tp, topic_id, clean=True, start=start, config=wanted.log_config)
        if self._opener.kept.has(key):
            try:
                self._opener.kept.replay(key, log, 0)
            except CorruptBatchError as error:
                _log.warning("%s: of what is kept of it, a broken batch and what follows is given up: %s", tp, error)
        log.flush()
        self._opener.kept.discard(key)
        given_up = f"its records below offset {log.log_start_offset} are given up, and " if log.log_start_offset else ""
        _log.warning(
            "the loss of %s is accepted: %sit continues at offset %d", tp, given_up, max(end, log.log_end_offset)
        )
        return self._add_led(log, wanted.leader_epoch)

    async def bring_back(self) -> list[Partition]:
        """Try again to make and open the offline partitions that are due. Returns those that are back."""
        due = self.offline.due(self._clock.monotonic())
        if not due:
            return []
        async with self._bringing_back:
            due = self._still_there([one for one in due if self.offline.get(one.tp) is one])
            new = [
                NewPartition(one.tp, one.topic_id, self._opener.log_config(one.tp, one.topic_id), one.leader_epoch)
                for one in due
                if one.kind is OfflineKind.NOT_MADE and one.topic_id is not None
            ]
            if new:
                await self.create_partitions(new)
            for one in due:
                if one.kind is OfflineKind.UNREADABLE:
                    await self._reopen(one)
            back = [partition for one in due if (partition := self._partitions.get(one.tp)) is not None]
        if back:
            named = ", ".join(str(one.tp) for one in back[:_NAMED_MAX])
            _log.info("online again: %s%s", named, ", ..." if len(back) > _NAMED_MAX else "")
        return back

    def _still_there(self, due: Sequence[OfflineLog]) -> list[OfflineLog]:
        """Return those that may be tried again: what was made and is gone now is not made again, empty (D3)."""
        gone = {
            one.tp: NewPartition(one.tp, one.topic_id, self._opener.log_config(one.tp, one.topic_id), one.leader_epoch)
            for one in due
            if one.topic_id is not None and self.was_made(one.tp, one.topic_id) and not self.has_directory(one.tp)
            if not self._opener.log_config(one.tp, one.topic_id).diskless_enable
        }
        self.take_offline_vanished(list(gone.values()))
        return [one for one in due if one.tp not in gone]

    async def _reopen(self, one: OfflineLog) -> None:
        """Recover a log beside the event loop, and open what that left, as after a clean stop."""
        ends: list[tuple[int, int]] = []
        try:
            one.topic_id = self.folder.read_topic_id(one.tp)  # or nothing that makes it a log's is there any more
            await self._thread.run(lambda: ends.append(self._opener.recover(one)))
            start, end = ends[0]
            log = self._opener.open_log(one.tp, one.topic_id, clean=True, start=start, point=end)
            key = one.topic_id, one.tp.partition
            try:
                self._opener.note_damage(key, log)
            except OSError:
                log.release_files()
                raise
            self._opener.kept.discard(key)
            self._add_led(log, one.leader_epoch)
        except (SemelError, OSError, ValueError) as error:
            self._opener.retry_failed(one, error)

    async def delete_offline(self, one: OfflineLog, *, keeps_files: bool = False, was_moved: bool = False) -> None:
        """Give up an offline partition that was deleted or moved, with what there is of it. Raises `OSError`.

        keeps_files: set its directory aside
        was_moved: other nodes have it
        """
        async with self._bringing_back:  # not while it is being opened
            if self._partitions.get(one.tp) is not None:
                if was_moved and one.topic_id is not None:
                    await self.move_away([(one.topic_id, one.tp.partition)])
                else:
                    self.delete_partition(one.tp, keeps_files=keeps_files)
                return
            self.offline.remove(one.tp)
            if one.topic_id is None:
                return
            key = one.topic_id, one.tp.partition
            self.folder.known.remove([key], were_moved=was_moved)
            self._opener.kept.discard(key)
            if not self._storage.exists(self.folder.log_folder(one.tp)):
                return
            if keeps_files:
                self._set_aside(one.tp)
            else:
                self.maintenance.delete_later(self.folder.drop_log_folder(one.tp), 0)

    def _set_aside(self, tp: TopicPartition) -> None:
        _log.warning("the directory of %s is set aside, as %s", tp, self.folder.drop_log_folder(tp, "stray"))

    def delete_partition(self, tp: TopicPartition, *, keeps_files: bool = False) -> bool:
        """Take a partition away at once; its files go later, in the background. Returns whether there was one.

        The folder is renamed first, so a crash never leaves half of a log under its name. Raises `OSError`.

        keeps_files: they do not go, and the directory is set aside
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return False
        self._take_out(partition, _begun_again(tp))
        self.folder.known.remove([(partition.topic_id, tp.partition)])
        if keeps_files:
            self._set_aside(tp)
        else:
            self._drop(partition)
        return True

    def _take_out(self, partition: Partition, error: SemelError) -> None:
        """Let nobody have a partition any more; who waits for it gets the error."""
        del self._partitions[partition.tp]
        self._commits.dirty.pop(partition, None)
        partition.go_offline(error)
        partition.log.release_files()
        self.maintenance.taken_out(partition)

    def _drop(self, partition: Partition) -> None:
        """Rename the folder of a partition that was taken out, and have its files go later. Raises `OSError`."""
        tp = partition.tp
        had_start = partition.log_start_offset > 0 or self.folder.log_starts.get(tp) > 0
        folder, delay_ms = self.folder.drop_log_folder(tp), partition.config.file_delete_delay_ms
        self.maintenance.delete_later(folder, delay_ms, had_start=had_start)

    async def move_away(self, keys: Collection[tuple[TopicId, int]]) -> None:
        """Delete the logs of partitions, open or offline, that were moved to other nodes.

        That this node had them is noted first, and made sure of: where the metadata loses the move, it tells that it
        has nothing of them (R10). Until the directory is gone all of the log is there. A node that stops meanwhile
        still puts away the directories of all that are noted.
        """
        async with self._making:
            leaving = [one for one in self.partitions() if (one.topic_id, one.tp.partition) in keys]
            for one in leaving:
                # From here on nobody fetches into it, whatever the metadata says meanwhile.
                self._take_out(one, error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{one.tp} was moved to other nodes"))
            failure, cancelled = await self._thread.outcome(
                lambda: self.folder.known.remove(keys, durably=True, were_moved=True)
            )
            if failure is not None:
                raise failure
            turns = Turns(ends_with_caller=False)
            for one in leaving:
                try:
                    self._drop(one)
                except OSError as error:
                    _log.error("the log of %s, which was moved away, could not be deleted: %s", one.tp, error)
                if cancelled is None:
                    try:
                        await turns.give_way()
                    except asyncio.CancelledError as error:
                        cancelled = error
            if cancelled is not None:
                raise cancelled
        for offline in self.offline:
            if (offline.topic_id, offline.tp.partition) in keys:
                await self.delete_offline(offline, was_moved=True)

    async def _forget_former_lives(self) -> None:
        """Bring everything to the disk, and cut the journal: it may have entries of a partition that was moved away.

        A recovery would put them into the log that the node gets of it now. Raises `OSError` where that can't be done.
        """
        journal = self._journal
        if journal is None:
            return
        if journal.full is not None:
            raise journal.full
        position = journal.position
        await journal.wait_durable(position)
        journal.begin_file()
        for _ in range(_CUT_ATTEMPTS):
            await self.maintenance.flush()
            if journal.begin_position >= position:
                return
        raise OSError(errno.EBUSY, "the journal can't be cut now, because a log could not be flushed")

    async def forget(self, keys: Collection[tuple[TopicId, int]]) -> None:
        """Forget partitions on the disk that are about to be deleted, many at once, so that none of them ever counts as
        vanished: not even where the metadata's database loses the deletion (R10).
        """
        await self._thread.run(lambda: self.folder.known.remove(keys, durably=True))

    def update_config(self, topic: str, log_config: Callable[[int], LogConfig]) -> None:
        """Give all partitions of a topic new settings: by their numbers."""
        for tp, partition in self._partitions.items():
            if tp.topic == topic:
                config = log_config(tp.partition)
                if config.diskless_enable == partition.config.diskless_enable:  # else its log is begun again
                    partition.update_config(config)
                    self._attach_tier(partition)

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            partitions=len(self._partitions) + len(self.offline),
            offline_partitions=len(self.offline)
            + sum(1 for one in self._partitions.values() if one.offline_error is not None),
            dirty_partitions=len(self._commits.dirty),
            dirty_bytes=self._commits.dirty_bytes,
            uncommitted_appends=self._commits.pending,
            free_bytes=self.space.free_bytes,
            producer_ids=self._count_producer_ids(),
            flushes=self.maintenance.flushes,
            flush_seconds_total=self.maintenance.flush_seconds_total,
            flush_seconds_last=self.maintenance.flush_seconds_last,
            folders_to_delete=self.maintenance.folders_to_delete,
            compactions=self.maintenance.compactions,
            journal=None if self._journal is None else self._journal.statistics(),
        )

    # --- Failing ------------------------------------------------------------------------------------------------------

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
        if self._on_failure is not None:
            self._on_failure(error)

    # --- Closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush and close everything, so that the next start has nothing to recover. `maintenance.run` must have ended.

        After a failure of the disk, which `on_failure` was called with, it only closes, and the next start recovers.
        Raises `SemelError` and `OSError`; on a full disk it warns, and the next start recovers.
        """
        if not self._open:
            return
        try:
            if self._journal is not None and not self._failed:
                self._journal.sync_now()
            if not self._failed:
                await self.maintenance.flush()
            if not self._failed:
                self._close_cleanly()
        except (SemelError, OSError) as error:
            # A log or journal that failed is not to be trusted, also where its sync failed for want of room.
            if self._failed or not (is_full(error) or is_full(error.__cause__)):
                raise
            _log.warning("the disk is full, so this is no clean stop, and the next start recovers: %s", error)
        finally:
            self._abandon()

    def _close_cleanly(self) -> None:
        logs = self._partitions
        for partition in logs.values():
            try:
                partition.log.flush()
            except SemelError as error:
                if partition.log.offline_error is not None:
                    self._log_failed(partition, error)
                raise
            partition.go_offline(_stopping())
            partition.log.close()
        self.folder.recovery_points.write({tp: (one.topic_id, one.log.recovery_point) for tp, one in logs.items()})
        self.folder.log_starts.write({tp: (one.topic_id, one.log_start_offset) for tp, one in logs.items()})
        self.folder.high_watermarks.write({tp: (one.topic_id, one.high_watermark) for tp, one in logs.items()})
        if self._journal is not None:
            self._journal.sync_now()
            self._journal.cut(self._journal.position)
        if self._leaves_all_clean():
            self.folder.mark_clean()  # else the next start recovers all, and with them those that were not closed
        self._partitions.clear()

    def _leaves_all_clean(self) -> bool:
        if not all(one.is_clean for one in self.offline):
            return False
        if self._opener.was_clean:
            return True
        # A start that was given up has not said yet what is offline: what is missing may come back as a crash left it.
        here = {(one.topic_id, one.tp.partition) for one in (*self._partitions.values(), *self.offline)}
        return not self.folder.known.has_more_than(here)

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
        self.offline.clear()
        self.folder.release()
        self._open = False


def _stopping() -> SemelError:
    return error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node is stopping")


def _begun_again(tp: TopicPartition) -> SemelError:
    return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} was deleted, or is begun again")
