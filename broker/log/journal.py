"""The node's journal: one sequence of files for all partitions, so that one sync makes appends of many durable.

An append is in the page cache of its partition's log and in the journal. The journal is synced for a whole group of
appends at once (group commit) and tells who was waiting; the logs are synced in the background, after which the journal
is cut. After a crash the journal's entries are put back into the logs where these lost them (D1). Files that the logs
no longer need are written over (`journal_spares.py`).

A position counts the bytes of all entries since the journal was first opened. An entry carries the position up to
which the journal was known to be durable when it was written. So a bad entry can be judged: where a later one says that
the bad one had been durable, the disk lost something acknowledged, and opening fails loudly; otherwise nobody was told
about it, and the journal ends there (a torn tail).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from semel.broker.log.disk_errors import is_full, remedy
from semel.broker.log.journal_config import JournalConfig
from semel.broker.log.journal_format import (
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    MARK_BITS,
    EntryType,
    JournalEntry,
    build_entry_header,
    build_file_header,
)
from semel.broker.log.journal_recovery import (
    READ_BYTES,
    SUFFIX,
    JournalCut,
    JournalFile,
    JournalLook,
    JournalReading,
    JournalRecovery,
    find_journal_files,
)
from semel.broker.log.journal_spares import SpareFiles
from semel.broker.log.journal_sync import SyncJob, SyncTimes
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import TopicId
from semel.protocol.randomness import new_secret
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer, Storage, StorageFile
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.journal")

_FULL_PAUSE_S: Final = 0.05
_FULL_PAUSE_S_MAX: Final = 1.0
"""How long the journal waits before it tries again to write on a full disk; twice as long each time."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts since the journal was opened, and sizes now. `sync_seconds_buckets` counts by LATENCY_BOUNDS_SECONDS."""

    entries: int
    written_bytes: int
    syncs: int
    syncs_inline: int
    sync_seconds_total: float
    sync_seconds_recent: float
    sync_seconds_buckets: tuple[int, ...]
    size_bytes: int
    unsynced_bytes: int
    files: int


class Journal:
    """The journal of one node. Everything but the sync itself runs on the event loop's thread.

    The order is `open`, then `replay` to its end, then `append`.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        clock: Clock,
        config: JournalConfig,
        on_failure: Callable[[SemelError], None] | None,
        executor: Executor | None,
    ) -> None:
        """Use `open`."""
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._config = config
        self._on_failure = on_failure
        self._own_executor = executor is None
        self._executor = executor
        self._files: list[JournalFile] = []
        self._spares = SpareFiles(
            storage, folder, config.journal_spare_max_bytes // config.journal_file_bytes, config.journal_file_bytes
        )
        self._mark = new_secret(MARK_BITS)
        self._file: StorageFile | None = None
        self._file_size = 0
        self._position = 0
        self._written_position = 0
        self._durable_position = 0
        self._sequence = 0
        self._written_sequence = 0
        self._replayed = False
        self._buffer = bytearray()
        self._unsynced_files: list[StorageFile] = []
        self._folder_unsynced = False
        self._flush_scheduled = False
        self._begins_file = False
        self._job: SyncJob | None = None
        self._error: SemelError | None = None
        self._full: OSError | None = None
        self._full_pause_s = _FULL_PAUSE_S
        self._on_full: Callable[[], None] | None = None
        self._closed = False
        self._listeners: list[Callable[[int], None]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_numbers = itertools.count()
        self._sync_times = SyncTimes()
        self._opened_position = 0
        self._opened_sequence = 0

    @classmethod
    def open(
        cls,
        storage: Storage,
        folder: str,
        *,
        clock: Clock,
        config: JournalConfig | None = None,
        on_failure: Callable[[SemelError], None] | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """Find the journal's files, without reading their entries, and remove the spares of the run before.

        `on_failure` is called once, when a write or sync has failed and the journal is closed for good.
        `executor` runs the large syncs; without one the journal makes a thread of its own when it first needs it.
        Raises `SemelError` for file names that are no journal's, and `OSError`.
        """
        journal = cls(storage, folder, clock, config or JournalConfig(), on_failure, executor)
        journal._files = find_journal_files(storage, folder)
        journal._spares.remove_former()
        if journal._files:
            first = journal._files[0]
            journal._position = first.base
            journal._sequence = max(0, first.first_sequence)
        else:
            journal._replayed = True
        return journal

    def replay(self) -> Iterator[JournalEntry]:
        """Yield the entries of the run before, oldest first, and then cut a torn tail. Raises as `replay_parts`."""
        for part in self.replay_parts():
            yield from part

    def replay_parts(self, read_bytes: int = READ_BYTES) -> Iterator[list[JournalEntry]]:
        """Do what `replay` does, with as many entries at a time as are read at a time.

        read_bytes: how many bytes are read at a time, or one larger entry
        Raises `SemelError` where something that had been durable cannot be read.
        """
        if self._replayed and not self._files:
            return
        assert not self._replayed, "the journal is replayed once, before it takes appends"
        recovery = JournalRecovery(self._storage, self._folder, self._files, self._position, self._sequence)
        yield from recovery.parts(read_bytes)
        # Appends continue from here, into a new file.
        self._replayed = True
        self._files = recovery.files
        self._position = self._written_position = self._durable_position = self._opened_position = recovery.position
        self._sequence = self._written_sequence = self._opened_sequence = recovery.sequence

    def cuts(self) -> dict[tuple[TopicId, int], list[JournalCut]]:
        """Return where each log was cut in the run before, of those that were. Before a replay.

        Oldest first, and the lowest offset first: a cut that a later one contains is left out. Raises `OSError`. What
        can't be read is for the replay to tell.
        """
        cuts: dict[tuple[TopicId, int], list[JournalCut]] = {}
        look = JournalLook(self._storage, self._folder, list(self._files), self._position, self._sequence)
        for entry in look.entries():
            if entry.type is EntryType.TRUNCATE:
                of_log = cuts.setdefault((entry.topic_id, entry.partition), [])
                while of_log and of_log[-1].offset >= entry.base_offset:
                    of_log.pop()
                of_log.append(JournalCut(entry.end_position, entry.base_offset))
        return cuts

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Where the next entry begins."""
        return self._position

    @property
    def begin_position(self) -> int:
        """Where the oldest entry begins that a recovery would read."""
        return self._files[0].base if self._files else self._position

    def begin_file(self) -> None:
        """Have the next entry begin another file: a cut takes the entries until now then, also amid appends."""
        self._begins_file = True

    @property
    def durable_position(self) -> int:
        """Every entry that ends at or before this survives a power cut."""
        return self._durable_position

    @property
    def size_bytes(self) -> int:
        """How many bytes a recovery would have to read."""
        return self._position - (self._files[0].base if self._files else self._written_position)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to replay, not even a file."""
        return not self._files

    @property
    def error(self) -> SemelError | None:
        """Why the journal is closed for good, or None."""
        return self._error

    @property
    def full(self) -> OSError | None:
        """Why what was appended waits in memory for room on the disk, or None where it does not."""
        return self._full

    @property
    def waiting_bytes(self) -> int:
        """Bytes of entries that are not in a file yet."""
        return len(self._buffer)

    def when_full(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time that a write finds the disk full."""
        self._on_full = callback

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            entries=self._sequence - self._opened_sequence,
            written_bytes=self._written_position - self._opened_position,
            syncs=self._sync_times.count,
            syncs_inline=self._sync_times.inline_count,
            sync_seconds_total=self._sync_times.seconds_total,
            sync_seconds_recent=self._sync_times.seconds_recent,
            sync_seconds_buckets=tuple(self._sync_times.buckets),
            size_bytes=self.size_bytes,
            unsynced_bytes=self._position - self._durable_position,
            files=len(self._files),
        )

    def add_listener(self, callback: Callable[[int], None]) -> None:
        """Call `callback(durable_position)` each time the durable position has moved."""
        self._listeners.append(callback)

    # --- Appending ----------------------------------------------------------------------------------------------------

    def append(self, topic_id: TopicId, partition: int, end_before: int, buffers: Sequence[Buffer]) -> int:
        """Append whole batches of a partition and return the position at which they are durable.

        end_before: where its log ended before them. The first may begin later, where a follower's leader has compacted.

        The buffers may be reused after the return. Within an event loop the entry is synced without further ado,
        together with all others of this turn of the loop; without one, call `sync_now`. Raises `SemelError` where the
        journal has failed.
        """
        return self._append_entry(EntryType.APPEND, topic_id, partition, end_before, buffers)

    def append_truncation(self, topic_id: TopicId, partition: int, offset: int) -> int:
        """Say that the partition's log was cut at `offset`, so that a recovery does not bring back what was there."""
        return self._append_entry(EntryType.TRUNCATE, topic_id, partition, offset, (b"",))

    def _append_entry(
        self, kind: EntryType, topic_id: TopicId, partition: int, base_offset: int, buffers: Sequence[Buffer]
    ) -> int:
        if self._error is not None:
            raise self._refusal()
        if self._closed:
            raise FatalError(f"the journal {self._folder} is closed", ErrorCode.KAFKA_STORAGE_ERROR)
        assert self._replayed, "entries of an earlier run must be replayed before the first append"
        payload = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        length = len(payload)
        if length > ENTRY_BYTES_MAX:
            raise FatalError(
                f"an append of {length} bytes is more than the {ENTRY_BYTES_MAX} that the journal takes at once",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        header = build_entry_header(
            kind, self._sequence, self._durable_position, topic_id, partition, base_offset, payload, self._mark
        )
        self._sequence += 1
        self._position += ENTRY_HEADER_BYTES + length
        if self._full is not None:
            self._buffer += header
            self._buffer += payload
            return self._position
        if length >= self._config.journal_direct_write_bytes:
            self._write(header, payload)
        else:
            self._buffer += header
            self._buffer += payload
            if len(self._buffer) >= self._config.journal_buffer_max_bytes:
                self._write()
        if self._position - self._durable_position > self._config.journal_unsynced_max_bytes and self._full is None:
            self.sync_now()
        elif not self._flush_scheduled and self._job is None:
            self._schedule_flush()
        if self._error is not None:
            raise self._refusal()
        return self._position

    def _schedule_flush(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._flush_scheduled = True
        loop.call_soon(self._flush)

    def _write(self, *more: Buffer) -> None:
        """Bring the buffer, and then `more`, to the current file: to the page cache, not yet to the disk."""
        parts: list[Buffer] = [self._buffer, *more] if self._buffer else list(more)
        if not parts:
            return
        size = sum(len(part) for part in parts)
        while True:
            try:
                self._write_parts(parts, size)
                break
            except OSError as error:
                if not is_full(error) or not self._undo_write():
                    self._fail("written", error)
                    return
                if not self._spares.drop_one():
                    self._wait_for_room(error, parts)
                    return
            except Exception as error:  # whatever it is: these entries have their numbers, and are in no file
                self._fail("written", error)
                return
        if self._full is not None:
            _log.info("the disk has room again, and the journal continues")
            self._full, self._full_pause_s = None, _FULL_PAUSE_S
        self._file_size += size
        self._written_position += size
        self._written_sequence = self._sequence
        self._buffer = bytearray()

    def _write_parts(self, parts: Sequence[Buffer], size: int) -> None:
        if self._file is None or self._is_to_roll(size):
            before, self._file = self._file, self._roll()
            self._close_if_synced(before)
        self._begins_file = False
        if not self._unsynced_files or self._unsynced_files[-1] is not self._file:
            self._unsynced_files.append(self._file)
        self._file.write_many_at(parts, self._file_size)

    def _close_if_synced(self, file: StorageFile | None) -> None:
        """Close a file that another one follows. What is still to be synced is closed behind its sync."""
        is_synced_now = self._job is not None and file in self._job.files
        if file is not None and file not in self._unsynced_files and not is_synced_now:
            file.close()

    def _is_to_roll(self, size: int) -> bool:
        """Say whether the next `size` bytes begin another file: none is larger than it is to be, but by one write."""
        if self._file_size == FILE_HEADER_BYTES:
            return False
        return self._begins_file or self._file_size + size > self._config.journal_file_bytes

    def _undo_write(self) -> bool:
        """Cut what a write that failed left in the file. Nothing of it was synced, and nobody was told of it."""
        try:
            if self._file is not None:
                self._file.truncate(self._file_size)
        except OSError:
            return False
        return True

    def _wait_for_room(self, error: OSError, parts: Sequence[Buffer]) -> None:
        """On a full disk what was to be written waits in memory, and so do those who wait for it to be durable (D1).

        The same bytes go to the same place later, so a part of them that the disk kept is of no harm.
        """
        self._buffer = bytearray().join(parts)
        if self._full is None:
            _log.warning(
                "the disk is full: the journal %s can't be written (%s). Appends wait, and new ones are refused, until "
                "there is room. Next step: %s",
                self._folder, error, remedy(error),
            )  # fmt: skip
        self._full = error
        if self._on_full is not None:
            self._on_full()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if not self._flush_scheduled:
            self._flush_scheduled = True
            loop.call_later(self._full_pause_s, self._flush)
            self._full_pause_s = min(self._full_pause_s * 2, _FULL_PAUSE_S_MAX)

    def _roll(self) -> StorageFile:
        """Begin a file, over a spare where there is one.

        It is synced with its first group; the one before stays on the list until that is done.
        """
        if not self._storage.exists(self._folder):
            self._storage.make_folder(self._folder)
            self._storage.sync_folder(_parent(self._folder))
        base, first_sequence = self._written_position, self._written_sequence
        path = f"{self._folder}/{base:020d}{SUFFIX}"
        if self._files and self._files[-1].path == path:
            self._files.pop()  # a recovery has found nothing but its header
        if self._folder_unsynced or (self._job is not None and self._job.syncs_folder):
            # Names reach the disk in their order: entries without the ones before them would look like a loss.
            self._storage.sync_folder(self._folder)
        is_spare = self._spares.take(path)
        file = self._storage.open(path, create=True)
        try:
            if not is_spare:
                file.truncate(0)
            file.write_many_at([build_file_header(base, first_sequence)], 0)
        except OSError:
            file.close()
            with suppress(OSError):  # a file without a whole header is the next attempt's to write again
                self._storage.remove(path)
            raise
        self._files.append(JournalFile(path, base, first_sequence, is_own=True))
        self._folder_unsynced = True
        self._file_size = FILE_HEADER_BYTES
        return file

    # --- Group commit -------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Sync what this turn of the event loop appended, unless a sync is running: then its end begins the next."""
        self._flush_scheduled = False
        if self._closed or self._error is not None:
            return
        self._write()
        size = self._written_position - self._durable_position
        if size == 0 or self._job is not None or self._error is not None:
            return
        config = self._config
        if (
            size <= config.journal_inline_sync_max_bytes
            and self._sync_times.seconds_recent <= config.journal_inline_sync_max_seconds
        ):
            self._sync_inline()
        else:
            self._sync_in_thread()

    def sync_now(self) -> None:
        """Wait until everything appended is durable, blocking the thread. Raises `SemelError` where that fails."""
        if self._error is None:
            self._write()
        if self._job is not None:
            # A failed sync is reported once per open file, so the running one's outcome must be known before another.
            self._job.done.exception()
            self._finish(self._job)
        if self._error is None and self._written_position > self._durable_position:
            self._sync_inline()
        if self._error is not None:
            raise self._refusal()
        if self._full is not None:
            raise RetriableError(
                f"the journal {self._folder} can't be written: {self._full}", ErrorCode.KAFKA_STORAGE_ERROR
            ) from self._full

    def _begin_job(self) -> SyncJob:
        files, self._unsynced_files = self._unsynced_files, []
        folder = self._folder if self._folder_unsynced else None
        self._folder_unsynced = False
        return SyncJob(self._storage, self._clock, files, folder, self._written_position)

    def _sync_inline(self) -> None:
        job = self._begin_job()
        self._sync_times.inline_count += 1
        try:
            job.seconds = job.run()
        except Exception as error:  # whatever it is, the next job does not sync these files again
            self._fail("synced", error)
            return
        self._synced(job)

    def _sync_in_thread(self) -> None:
        if self._executor is None:
            self._executor = Threads(1, "semel-journal")
        loop = asyncio.get_running_loop()
        job = self._job = self._begin_job()
        job.done = self._executor.submit(job.run)
        job.done.add_done_callback(lambda _: loop.call_soon_threadsafe(self._finish, job))

    def _finish(self, job: SyncJob) -> None:
        """Note the outcome of a sync in the thread, once."""
        if self._job is not job:
            return
        self._job = None
        if self._error is not None:
            return
        error = job.done.exception()
        if isinstance(error, Exception):
            self._fail("synced", error)
            return
        job.seconds = job.done.result()
        self._synced(job)
        if not self._closed and self._position > self._durable_position and not self._flush_scheduled:
            self._schedule_flush()

    def _synced(self, job: SyncJob) -> None:
        for file in job.files:
            # One that was written to while it was synced, and then rolled, is in the next job too.
            if file is not self._file and file not in self._unsynced_files:
                file.close()
        is_small = job.target - self._durable_position <= self._config.journal_inline_sync_max_bytes
        self._sync_times.took(job.seconds, is_small=is_small)
        self._durable_position = job.target
        for listener in self._listeners:
            try:
                listener(job.target)
            except Exception:
                _log.exception("a listener of the journal failed")
        waiters = self._waiters
        while waiters and waiters[0][0] <= job.target:
            waiter = heapq.heappop(waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    async def wait_durable(self, position: int) -> None:
        """Wait until entries that end at or before `position` are durable. Raises `SemelError` if that fails."""
        if position <= self._durable_position:
            return
        if self._error is not None:
            raise self._refusal()
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (position, next(self._waiter_numbers), waiter))
        if not self._flush_scheduled and self._job is None and self._full is None:
            self._schedule_flush()
        await waiter

    def _refusal(self) -> SemelError:
        assert self._error is not None
        return RetriableError(self._error.message, self._error.code)

    def _fail(self, what: str, cause: Exception) -> None:
        """Close for good. After a failed sync the kernel may have dropped the bytes, so a second one proves nothing."""
        why = str(cause) if isinstance(cause, OSError) else repr(cause)
        self._error = RetriableError(
            f"the journal {self._folder} could not be {what}: {why}. The node accepts nothing until it is restarted; "
            f"what it acknowledged is kept. Next step: {remedy(cause)}, then restart the node.",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        _log.critical("%s", self._error)
        self._buffer = bytearray()
        waiters, self._waiters = self._waiters, []
        for _, _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self._refusal())
        if self._on_failure is not None:
            self._on_failure(self._error)

    def durable_entries(self) -> Iterator[JournalEntry]:
        """Return what is durable now, read from the files: in any thread, while appends continue, before the next cut.

        Iterating raises `SemelError` and `OSError`.
        """
        if not self._files:
            return iter(())
        first = self._files[0]
        reading = JournalReading(self._storage, self._folder, list(self._files), first.base, first.first_sequence)
        return reading.entries_to(self._durable_position)

    # --- Cutting ------------------------------------------------------------------------------------------------------

    def take_files_below(self, position: int) -> list[JournalFile]:
        """Forget the files that hold nothing at or past `position`, and return them for `retire_files`."""
        if (
            self._file is not None
            and position >= self._position == self._durable_position
            and self._job is None
            and self._file_size > FILE_HEADER_BYTES
        ):
            # All of the current file is in the logs: the next append begins another, so that nothing is left to replay.
            self._file.close()
            self._file = None
        ends = [file.base for file in self._files[1:]]
        if self._file is None:
            ends.append(self._position)
        count = sum(1 for end in ends if end <= min(position, self._durable_position))
        taken, self._files = self._files[:count], self._files[count:]
        for file, end in zip(taken, ends, strict=False):
            file.size_bytes = FILE_HEADER_BYTES + end - file.base
        return taken

    def retire_files(self, files: Sequence[JournalFile], keep_spares: bool = True) -> None:
        """Give up files that `take_files_below` gave; safe in another thread. Raises `OSError`.

        keep_spares: keep some of them, to be written over: there is room for them on the disk
        """
        self._spares.retire(files, keep=keep_spares and self._full is None)

    def cut(self, position: int) -> None:
        """Remove what the logs have durably themselves: the files that hold nothing at or past `position`."""
        self._spares.remove(self.take_files_below(position))

    def drop_spare(self) -> bool:
        """Remove one of the files that are kept to be written over. Returns whether that made room."""
        return self._spares.drop_one()

    def close(self) -> None:
        """Sync what is left and close the files. Raises `SemelError` where the sync fails."""
        if self._closed:
            return
        try:
            if self._error is None:
                self.sync_now()
        finally:
            self._closed = True
            if self._job is not None:
                self._job.done.exception()
                self._job = None
            for file in {id(file): file for file in (*self._unsynced_files, self._file) if file is not None}.values():
                file.close()
            self._unsynced_files = []
            self._file = None
            if self._own_executor and self._executor is not None:
                self._executor.shutdown()
            self._spares.drop()


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."
