"""What is done for a node's logs in the background: flushing, cutting the journal, retention, compaction, and the rest.

Whatever waits for the disk waits in a thread; everything else takes short turns on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from semel.broker.log.disk_errors import is_full
from semel.broker.log.journal_format import JournalEntry
from semel.broker.logs.commit_tracker import CommitTracker
from semel.broker.logs.compaction import Compactor
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.data_folder import META_FILE, DataFolder
from semel.broker.logs.disk_space import DiskSpace
from semel.broker.logs.disk_thread import DiskThread
from semel.broker.logs.known_partitions import PartitionKey
from semel.broker.logs.partition import Partition
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock, ClockWatch
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.storage import Storage
from semel.runtime.turns import Turns, in_turns

_log = logging.getLogger("semel.logs")

_SPACE_LOOK_SECONDS: Final = 10.0
"""How often at least the free space of the disk is looked at."""
_ROOM_LOOK_SECONDS: Final = 1.0
"""How often it is tried again to flush what the disk had no room for."""
_TELL_EVERY_SECONDS: Final = 60.0
"""So often it is said again that a duty fails for the same reason."""
_DIRECTORIES_LOOK_SECONDS: Final = 10.0
_DELETE_AGAIN_SECONDS: Final = 60.0
"""How often it is looked whether all partitions still have their directories; each flush looks, too."""


@dataclass(slots=True)
class _Duties:
    """When the background work is due next, by the monotonic clock in seconds."""

    flush: float
    retention: float
    producers: float
    directories: float


def noted_start(partition: Partition) -> int:
    """Return where a log may be said to start on the disk: not behind what is on the disk of the log itself.

    A log that ends below its start begins again there, empty, and knows nothing of the producers before (P7).
    """
    return min(partition.log_start_offset, partition.log.recovery_point)


class LogMaintenance:
    """The background work on a node's logs. `opened` first; `run` continues until it is cancelled."""

    def __init__(
        self,
        config: LogManagerConfig,
        storage: Storage,
        folder: DataFolder,
        clock: Clock,
        thread: DiskThread,
        space: DiskSpace,
        partitions: Mapping[TopicPartition, Partition],
        on_log_failed: Callable[[Partition, SemelError], None],
        on_vanished: Callable[[Sequence[Partition]], None],
        keep_entries: Callable[[Collection[PartitionKey], Iterator[JournalEntry]], Awaitable[None]],
    ) -> None:
        """`partitions` is the manager's own table.

        on_log_failed: is called with a log that must go offline
        on_vanished:   takes partitions out of the table, and offline, because their directories are gone
        keep_entries:  keeps what the journal has of partitions. Raises `SemelError` and `OSError`
        """
        self._config = config
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._thread = thread
        self._space = space
        self._partitions = partitions
        self._on_log_failed = on_log_failed
        self._on_vanished = on_vanished
        self._keep_entries = keep_entries
        self._not_kept: set[PartitionKey] = set()
        """Partitions that vanished, and whose entries are in the journal alone: it is not cut before they are kept."""
        self._compactor = Compactor(folder.clean_offsets, self._is_current, clock, thread, config.log_cleaner_max_keys)
        self._commits: CommitTracker = CommitTracker(None)
        self._is_open = False
        self._watch = ClockWatch(clock)
        self._log_starts_moved = False
        self._start_unflushed = False
        """Whether a follower's log starts behind what is on its disk: its leader waits for the note of that."""
        self._unflushed = False
        """Whether the flush under way left something unflushed for want of room."""
        self._no_room_next = 0.0
        self._room_next = 0.0
        self._going: list[tuple[float, str]] = []
        """Folders to delete, and when, by the monotonic clock."""
        self._wake: asyncio.Event | None = None
        self._duties = _Duties(0.0, 0.0, 0.0, 0.0)
        self._failed: dict[str, str] = {}
        """The duties that failed when they were last due, and why."""
        self._told: dict[str, float] = {}
        """When it was last said that a duty failed: a disk may be full for hours."""
        self._intervals_changed = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._noting_starts = asyncio.Lock()
        self.flushes = 0
        self.flush_seconds_total = 0.0
        self.flush_seconds_last = 0.0

    def opened(self, commits: CommitTracker, deleted_folders: Iterable[str]) -> None:
        """Begin with the logs as they were opened, and what is left of deleted ones."""
        self._commits = commits
        self._is_open = True
        self._going = [(0.0, path) for path in deleted_folders]
        self._compactor.opened({tp: one.topic_id for tp, one in self._partitions.items()})

    def reconfigure(self, config: LogManagerConfig) -> None:
        """Go by other intervals from now on; what was due later than they say is due by them."""
        self._config = config
        self._duties.flush = min(self._duties.flush, self._clock.monotonic() + config.log_flush_interval_ms / 1000)
        self._intervals_changed.set()
        self.wake_up()

    @property
    def compactions(self) -> int:
        """Rounds of compaction so far."""
        return self._compactor.rounds

    @property
    def error(self) -> str:
        """What failed when it was last due, and why; empty where nothing did."""
        return "; ".join(f"could not {what}: {why}" for what, why in self._failed.items())

    @property
    def folders_to_delete(self) -> int:
        return len(self._going)

    # --- What there is to do ------------------------------------------------------------------------------------------

    def log_start_moved(self, partition: Partition) -> None:
        self._log_starts_moved = True
        self._start_unflushed |= partition.leader is None and noted_start(partition) < partition.log_start_offset
        self.wake_up()

    async def log_starts_noted(self, partitions: Iterable[Partition]) -> None:
        """Wait until the disk has where these logs start now: who was told a start finds it after any crash (D1).

        What is deleted but not on the disk yet is flushed first, see `noted_start`. Those that wait at a time share one
        write. Raises `OSError`.
        """
        partitions = list(partitions)
        if any(noted_start(one) < one.log_start_offset for one in partitions):
            await self.flush()
        await self._write_log_starts(only_if_moved=True)
        for one in partitions:
            if noted_start(one) < one.log_start_offset:
                raise OSError(f"{one.tp} could not be flushed up to offset {one.log_start_offset}")

    def taken_out(self, partition: Partition) -> None:
        """A log is gone, or is begun again: what was noted of it does not hold for the next one."""
        self._compactor.forget(partition.tp)

    def delete_later(self, folder: str, delay_ms: int, *, had_start: bool = True) -> None:
        """Delete the folder of a log that is gone, after a delay in which readers can finish.

        had_start: it may be among the noted starts of logs. Without that they need not be written again, which for
            each of many partitions would be work by the square of their number.
        """
        self._going.append((self._clock.monotonic() + delay_ms / 1000, folder))
        self._log_starts_moved |= had_start
        self.wake_up()

    def wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    # --- Doing it -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what is due, until cancelled: flush, cut the journal, retain, compact, expire, delete.

        A duty that fails is logged and tried again when it is due next.
        """
        assert self._is_open, "open the logs first"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_duties())
            group.create_task(self._run_cleaner())

    async def _run_cleaner(self) -> None:
        """Compact beside the other duties: a long round must not keep the journal from being cut."""
        while True:
            try:
                async with asyncio.timeout(self._config.log_cleaner_backoff_ms / 1000):
                    await self._intervals_changed.wait()
            except TimeoutError:
                await self._guard("compact the logs", self.compact_logs)
            else:
                self._intervals_changed.clear()  # the pause begins again, with its new length

    async def _run_duties(self) -> None:
        now = self._clock.monotonic()
        config = self._config
        duties = self._duties = _Duties(
            flush=now + config.log_flush_interval_ms / 1000,
            retention=now + config.log_retention_check_interval_ms / 1000,
            producers=now + config.producer_id_expiration_check_interval_ms / 1000,
            directories=now + _DIRECTORIES_LOOK_SECONDS,
        )
        self._wake = asyncio.Event()
        try:
            while True:
                await self._run_due(duties)
                due = min(duties.flush, duties.retention, duties.producers, *(going[0] for going in self._going))
                look_s = _ROOM_LOOK_SECONDS if self._commits.waits_for_room else _SPACE_LOOK_SECONDS
                pause = min(max(due - self._clock.monotonic(), 0.0), look_s)
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
        config = self._config
        has_room = self._commits.waits_for_room and not self._space.is_refusing and now >= self._room_next
        if self._commits.flush_wanted or self._start_unflushed or has_room or now >= duties.flush:
            self._room_next = now + _ROOM_LOOK_SECONDS
            duties.flush = now + config.log_flush_interval_ms / 1000
            await self._guard("flush the logs", self.flush)
        if now >= duties.directories:
            duties.directories = now + _DIRECTORIES_LOOK_SECONDS
            await self._guard("look for the directories of partitions", self.take_vanished_offline)
        if self._log_starts_moved:
            await self._guard("note where the logs start", self._write_log_starts)
        else:
            self._failed.pop("note where the logs start", None)  # a flush has noted it
        if now >= duties.retention:
            duties.retention = now + config.log_retention_check_interval_ms / 1000
            await self._guard("apply the retention", self.check_retention)
        if now >= duties.producers:
            duties.producers = now + config.producer_id_expiration_check_interval_ms / 1000
            await self._guard("expire producers", self.expire_producers)
        if any(going[0] <= now for going in self._going):
            await self._guard("delete directories", self.delete_folders)
        await self._guard("look at the clock", self.look_at_clock)
        self._space.refresh()

    async def _guard(self, what: str, duty: Callable[[], Awaitable[object]]) -> None:
        try:
            await duty()
        except (SemelError, OSError) as error:
            now, told = self._clock.monotonic(), self._told.get(what)
            if told is None or self._failed.get(what) != str(error) or now - told >= _TELL_EVERY_SECONDS:
                self._told[what] = now
                _log.error("could not %s: %s", what, error)
            self._failed[what] = str(error)
        except Exception as error:
            self._failed[what] = repr(error)
            _log.exception("could not %s", what)
        else:
            self._failed.pop(what, None)

    async def flush(self) -> None:
        """Bring all logs to the disk, note how far they are, and cut the journal behind that. Raises `OSError`.

        A log that cannot be flushed goes offline, and then the journal is kept: it has what the log may have lost.
        """
        async with self._flushing:
            begin = self._clock.monotonic()
            commits = self._commits
            journal = commits.journal
            self._unflushed = self._start_unflushed = False
            cut = 0 if journal is None else journal.position
            dirty = commits.flush_begins()
            try:
                while dirty:
                    if await self._flush_one(dirty[-1]):
                        commits.dirty.setdefault(dirty[-1])
                    dirty.pop()
            finally:
                commits.dirty.update(dict.fromkeys(dirty))
                commits.waits_for_room |= self._unflushed
            # After the syncs, which succeed also for files without a name: what such files got is not on the disk.
            await self.take_vanished_offline()
            await self._write_checkpoints()
            await self._keep_vanished()
            kept = self._unflushed or any(one.offline_error is not None for one in commits.dirty)
            if journal is not None and not kept and journal.error is None:
                await self._thread.run(journal.retire_files, journal.take_files_below(cut), not self._space.is_scarce)
            self.flushes += 1
            self.flush_seconds_last = self._clock.monotonic() - begin
            self.flush_seconds_total += self.flush_seconds_last

    async def _flush_one(self, partition: Partition) -> bool:
        """Flush one log, waiting for the disk in the thread. Returns whether it still needs it, being offline."""
        log, cancelled, has_room = partition.log, None, True
        try:
            if self._is_online(partition):
                work = log.begin_flush()
                failure, cancelled = (None, None) if work.is_empty else await self._thread.outcome(work.run)
                if self._is_online(partition):
                    log.end_flush(work, failure)
        except SemelError as error:
            has_room = log.offline_error is not None or not is_full(error.__cause__)
            if has_room:
                await self._log_failed(partition, error)
            else:
                self._unflushed = True
                self._say_no_room(error)
        if cancelled is not None:
            raise cancelled  # also where the disk failed or was full: a node that stops waits for its duties to end
        if not has_room:
            return self._is_online(partition)
        return partition.offline_error is not None and self._partitions.get(partition.tp) is partition

    async def _log_failed(self, partition: Partition, error: SemelError) -> None:
        """Take one partition offline, because its directory is gone or what must always hold does not, or all of them,
        because the disk fails.
        """
        stopped = partition.log.offline_error
        if stopped is not None and isinstance(stopped.__cause__, BrokenInvariantError):
            partition.go_offline(stopped)
            return
        try:
            await self.take_vanished_offline()
        except OSError as other:
            _log.error("could not look for the directory of %s: %s", partition.tp, other)
        if self._partitions.get(partition.tp) is partition:
            self._on_log_failed(partition, error)

    async def take_vanished_offline(self) -> None:
        """Take the partitions offline whose directories are gone from the data directory. Raises `OSError`."""
        before = list(self._partitions.values())
        names: set[str] = set()
        await self._thread.run(lambda: names.update(self._storage.list_folder(self._folder.path)))
        if META_FILE not in names:
            return  # no data directory at all: that is the disk's failure, not a partition's
        missing = [
            one
            async for one in in_turns(before, ends_with_caller=False)
            if self._folder.log_folder(one.tp).rpartition("/")[2] not in names
        ]
        gone = [one for one in missing if self._partitions.get(one.tp) is one]
        if gone:
            self._not_kept.update((one.topic_id, one.tp.partition) for one in gone)
            self._on_vanished(gone)

    async def _keep_vanished(self) -> None:
        """Keep what the journal has of partitions that vanished, before it is cut. Raises `SemelError`, `OSError`."""
        journal = self._commits.journal
        keys = frozenset(self._not_kept)
        if keys and journal is not None:
            if journal.full is None:
                await journal.wait_durable(journal.position)
            await self._keep_entries(keys, journal.durable_entries())
        self._not_kept -= keys

    def _say_no_room(self, error: SemelError) -> None:
        now = self._clock.monotonic()
        if now >= self._no_room_next:
            self._no_room_next = now + _TELL_EVERY_SECONDS
            _log.warning("%s. It is tried again; the journal keeps what was not flushed", error.message)

    async def _write_checkpoints(self) -> None:
        points: dict[TopicPartition, tuple[TopicId, int]] = {}
        marks: dict[TopicPartition, tuple[TopicId, int]] = {}
        async for one in self._all_in_turns():
            points[one.tp] = one.topic_id, one.log.recovery_point
            marks[one.tp] = one.topic_id, one.high_watermark
        # A log that is cut after it was asked has noted less itself.
        await self._thread.run(self._folder.recovery_points.write, points, self._is_current, self._recovery_point)
        await self._thread.run(self._folder.high_watermarks.write, marks, self._is_current)
        await self._write_log_starts()

    def _is_current(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        partition = self._partitions.get(tp)
        return partition is not None and partition.topic_id == topic_id

    def _recovery_point(self, tp: TopicPartition) -> int:
        partition = self._partitions.get(tp)
        return 0 if partition is None else partition.log.recovery_point

    def _is_online(self, partition: Partition) -> bool:
        return partition.offline_error is None and self._partitions.get(partition.tp) is partition

    async def _write_log_starts(self, *, only_if_moved: bool = False) -> None:
        # One at a time: what was gathered first must not be written last.
        async with self._noting_starts:
            if only_if_moved and not self._log_starts_moved:
                return
            self._log_starts_moved = False
            starts: dict[TopicPartition, tuple[TopicId, int]] = {}
            try:
                async for one in self._all_in_turns():
                    starts[one.tp] = one.topic_id, noted_start(one)
                await self._thread.run(self._folder.log_starts.write, starts, self._is_current)
            except BaseException:
                self._log_starts_moved = True
                raise

    async def check_retention(self) -> int:
        """Delete the segments that are too old, or too many, in all partitions. Returns how many."""
        deleted = 0
        async for partition in self._in_turns():
            try:
                start = partition.log_start_offset
                deleted += partition.log.delete_old_segments(
                    self._clock.now_ms(), partition.high_watermark, is_led_here=partition.leader is not None
                )
                self._log_starts_moved |= partition.log_start_offset != start
                if partition.log.needs_flush:
                    self._commits.dirty.setdefault(partition)
            except SemelError as error:
                if partition.log.offline_error is None and is_full(error.__cause__):
                    self._say_no_room(error)
                else:
                    await self._log_failed(partition, error)
        return deleted

    async def compact_logs(self) -> int:
        """Compact every log that is dirty enough (D4). Returns how many.

        Only what is below the recovery point on the disk: from there on, a recovery compares logs with the journal.
        """
        compacted = 0
        async for partition in self._in_turns():
            try:
                compacted += await self._compactor.compact(partition, self._folder.recovery_points.get(partition.tp))
            except SemelError as error:
                await self._log_failed(partition, error)
        return compacted

    async def expire_producers(self) -> int:
        """Forget producers that have been idle for too long (P8). Returns how many."""
        await self.look_at_clock()
        expired = 0
        turns = Turns(ends_with_caller=False)
        async for partition in self._in_turns():
            for count in partition.log.expire_producers(self._watch.now_ms()):
                expired += count
                await turns.give_way()
        return expired

    async def look_at_clock(self) -> None:
        """Let a jump of the clock make no producer look idle (P8)."""
        ahead_ms = self._watch.jumped_ms()
        if not ahead_ms:
            return
        turns = Turns(ends_with_caller=False)
        async for partition in self._all_in_turns():
            for _ in partition.log.clock_jumped(ahead_ms, self._clock.now_ms()):
                await turns.give_way()

    def _all_in_turns(self) -> AsyncIterator[Partition]:
        """Yield all partitions. Who asked for a flush may be gone meanwhile: it is done to its end."""
        return in_turns(list(self._partitions.values()), ends_with_caller=False)

    async def _in_turns(self) -> AsyncIterator[Partition]:
        """Yield all partitions that are online."""
        async for partition in in_turns(list(self._partitions.values())):
            if self._is_online(partition):
                yield partition

    async def delete_folders(self) -> None:
        """Delete the folders of deleted partitions whose time has come. Raises `OSError`: it is tried again later."""
        now = self._clock.monotonic()
        due = [path for when, path in self._going if when <= now]
        self._going = [going for going in self._going if going[0] > now]
        failure: OSError | None = None
        for path in due:
            try:
                await self._thread.run(self._storage.remove_tree, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                failure = error
                self._going.append((now + _DELETE_AGAIN_SECONDS, path))
        if failure is not None:
            raise failure
