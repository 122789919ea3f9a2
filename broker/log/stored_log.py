"""The segments of one partition as a whole: opened, rolled, cut, retired, replaced, brought to the disk, closed.

`partition_log` appends and reads on top of it. Once the disk can no longer be trusted, the log is offline for good.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NoReturn, Self

from semel.broker.log.abort_checkpoint import write_aborts
from semel.broker.log.clean_check import walk_fault
from semel.broker.log.config import LogConfig
from semel.broker.log.disk_errors import is_full, remedy
from semel.broker.log.flushing import FlushWork
from semel.broker.log.leader_epochs import LeaderEpochs
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_id_bound import ProducerIdBound
from semel.broker.log.producer_snapshot import SnapshotFiles, SnapshotWork
from semel.broker.log.producer_state import ProducerState
from semel.broker.log.recovery import LoadedLog, LogLoader, replay_headers
from semel.broker.log.retention import DeletedFiles, segments_to_delete
from semel.broker.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment
from semel.broker.log.segments import Segments
from semel.broker.log.verification import Verifications
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.storage import Storage

logger = logging.getLogger(__name__)

_BROKEN_PLACES_MAX: Final = 100
DEFAULT_PRODUCER_ID_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000


class StoredLog:
    """What a `PartitionLog` is without its appends and reads.

    log_end_offset is the offset of the next record; log_start_offset the first that may be read; all below
    recovery_point is on the disk. `offline_error` is set for good once the disk can no longer be trusted with this log.
    """

    __slots__ = (
        "_broken",
        "_closed",
        "_deleted",
        "_files",
        "_folder",
        "_folder_changed",
        "_generation",
        "_producer_ids",
        "_rebuilt",
        "_segments",
        "_snapshot_due",
        "_snapshots",
        "_storage",
        "_unsynced",
        "_verifications",
        "config",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "offline_error",
        "producer_id_expiration_ms",
        "producer_state",
        "recovered_bytes_cut",
        "recovered_damage",
        "recovery_point",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        storage: Storage,
        folder: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        loaded: LoadedLog,
        files: OpenFiles,
        producer_id_expiration_ms: int,
        producer_ids: ProducerIdBound | None = None,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self.tp = tp
        self.topic_id = topic_id
        self.config = config
        self._files = files
        self._segments: Segments = loaded.segments
        self._snapshots: SnapshotFiles = loaded.snapshots
        self._snapshot_due: SnapshotWork | None = None
        self.producer_state: ProducerState = loaded.producers
        self.epochs: LeaderEpochs = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.recovered_bytes_cut = loaded.truncated_bytes
        self.recovered_damage = loaded.damage
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._producer_ids = producer_ids
        self.offline_error: SemelError | None = None
        self._verifications: Verifications | None = None
        self._deleted: DeletedFiles | None = None
        # Recovery may have built indexes again below the recovery point, too: from the newest snapshot on.
        self._unsynced: list[Segment] = [
            segment
            for segment in loaded.segments.inactive()
            if self._end_of(segment) > self.recovery_point or segment.has_unsynced_indexes
        ]
        self._folder_changed = loaded.names_unsynced
        self._generation = 0
        # Base offsets of segments whose indexes misled a reader, and what is known to be broken.
        self._rebuilt: set[int] = set()
        self._broken: set[str] = set()
        self._closed = False

    @classmethod
    def open(
        cls,
        storage: Storage,
        folder: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        *,
        now_ms: int,
        log_start_offset: int | None = None,
        recovery_point: int = 0,
        clean: bool = False,
        start_is_final: bool | None = None,
        max_producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        files: OpenFiles | None = None,
        producer_ids: ProducerIdBound | None = None,
    ) -> Self:
        """Open the log in `folder`, creating it if it is not there.

        log_start_offset: where it starts, as far as that was noted; without it, with its first segment
        start_is_final:   that was noted by a clean stop, so that a first segment behind it means loss (D6); without it,
                          as `clean`

        `clean`: the last close was a clean one, so only the last batches of each segment are looked at. Otherwise all
        from `recovery_point` on is validated and what follows the first broken batch is cut (D2). `files` bounds the
        open files and `producer_ids` the producers, both shared by all logs of a node. Raises `OSError`, or
        `SemelError` for a log that cannot be made sense of.
        """
        files = files if files is not None else OpenFiles()
        loader = LogLoader(
            storage, folder, tp, config, files,
            now_ms=now_ms, log_start_offset=log_start_offset, recovery_point=recovery_point, clean=clean,
            start_is_final=clean if start_is_final is None else start_is_final,
        )  # fmt: skip
        loaded = loader.load()
        return cls(storage, folder, tp, topic_id, config, loaded, files, max_producer_id_expiration_ms, producer_ids)

    @property
    def size_bytes(self) -> int:
        """Bytes of batches in all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def folder(self) -> str:
        return self._folder

    @property
    def generation(self) -> int:
        """Grows with each truncation: what was found out about bytes before it may not hold any more."""
        return self._generation

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def segments(self) -> Segments:
        """The segments, for compaction and tools. Not to be changed."""
        return self._segments

    def _end_of(self, segment: Segment) -> int:
        return self._segments.end_of(segment, self.log_end_offset)

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Begin a new active segment at the end of the log. Raises `OSError`."""
        active = self._segments.active
        base = self.log_end_offset if base_offset is None else base_offset
        if active.size == 0:
            if active.base_offset == base:
                return active
            self._discard([active], now_ms)
        else:
            active.close_indexes()
            active.offsets.release_file()
            active.times.release_file()
            if active not in self._unsynced:  # a roll that failed is done again
                self._unsynced.append(active)
        self.producer_state.end_offset = base
        large = self._snapshots.work_for(self.producer_state)
        if large is None:
            self._snapshots.write(self.producer_state, sync=False)
            self._snapshots.remove(self._snapshots.strays([*self._segments.base_offsets, base], before=base))
        segment = Segment(self._storage, self._folder, base, self._files, created_ms=now_ms, new=True)
        self._segments.add(segment)
        self._folder_changed = True
        # The next flush writes it (S3), and takes nothing from recovery: that reads no snapshot that was not flushed.
        self._snapshot_due = large
        return segment

    # --- When the disk fails ---------------------------------------------------------------------------------------

    def _refuse_offline(self) -> NoReturn:
        if self.offline_error is not None:
            raise error_for(self.offline_error.code, self.offline_error.message) from self.offline_error
        raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: the log is closed")

    def _go_offline(self, doing: str, error: BaseException) -> NoReturn:
        """Trust the disk no more with this log: a restart, which validates it, is the way back."""
        if self.offline_error is None:
            logger.error("%s goes offline: %s failed: %s", self.tp, doing, error)
            self.offline_error = error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.tp} is offline, because {doing} in {self._folder} failed ({error}). What was acknowledged is "
                f"kept; {remedy(error)}, and restart the node to recover",
            )
        raise self.offline_error from error

    def _no_room(self, error: OSError) -> SemelError:
        """Nothing is lost by what a full disk did not take: it is in memory, and done again."""
        return error_for(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} could not be flushed now ({error}): {remedy(error)}"
        )

    def rebuild_misleading_indexes(self, offset: int, error: CorruptBatchError) -> None:
        """Build the indexes of the segments from `offset` on again, where a look-up failed: each once, because what
        fails then is in the batches. Raises `CorruptBatchError` where it is, and `OSError`.
        """
        self._segments.forget_hints()
        for segment in self._segments.from_offset(offset):
            if segment.base_offset in self._rebuilt or not segment.size:
                continue
            fault = walk_fault(segment)
            if fault is not None:
                raise CorruptBatchError(f"segment {segment.path(LOG_SUFFIX)}: {fault}")
            self._rebuilt.add(segment.base_offset)
            logger.warning(
                "%s: building the indexes of segment %020d again: %s", self.tp, segment.base_offset, error.message
            )
            segment.rebuild_indexes(self.config.index_interval_bytes)
            if self._end_of(segment) > offset:
                return

    def report_broken(self, offset: int, error: CorruptBatchError) -> SemelError:
        """Return what a reader is told who met broken batches, and tell the operator once about each place."""
        message = (
            f"the records of {self.tp} at offset {offset} can't be read: {error.message}. Stop the node and restore "
            f"{self._folder} from a backup; or, to continue without them, let readers begin behind them"
        )
        if error.message not in self._broken and len(self._broken) < _BROKEN_PLACES_MAX:
            self._broken.add(error.message)
            logger.error("%s", message)
        return error_for(ErrorCode.CORRUPT_MESSAGE, message)

    # --- Cutting ---------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Let the log begin at `before_offset` (KIP-107). Its segments go with the next retention. Returns the start.

        The caller has checked the high watermark. Raises `SemelError` (OFFSET_OUT_OF_RANGE).
        """
        if before_offset > self.log_end_offset:
            raise error_for(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp}: records before offset {before_offset} cannot be deleted: the log ends at "
                f"{self.log_end_offset}",
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
            self.epochs.truncate_from_start(before_offset)
            self.producer_state.forget_below(before_offset)
        return self.log_start_offset

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> int:
        """Apply retention by log start offset, size and age, and remove files renamed earlier. Returns the segments
        gone.

        Those stay whose end has no producer snapshot yet: it is all that tells of producers that have written nothing
        since (P7). Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        if self.offline_error is not None or self._closed:
            return 0
        due = segments_to_delete(
            self._segments,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
            recovery_point=self.recovery_point,
        )
        try:
            if due and due[-1] is self._segments.active:
                try:
                    self.roll(now_ms)
                except OSError as error:
                    if is_full(error):
                        raise self._no_room(error) from error
                    raise
                self._storage.sync_folder(self._folder)  # or a crash could leave no segment to tell the end
            while due and len(self.producer_state) and self._end_of(due[-1]) not in self._snapshots.offsets:
                due.pop()
            if due:
                self.delete_records(self._end_of(due[-1]))
                self._discard(due, now_ms)
            if self._deleted is not None:
                self._deleted.remove_due(now_ms)
                if not self._deleted:
                    self._deleted = None
        except OSError as error:
            self._go_offline("deleting old segments", error)
        return len(due)

    def _discard(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Take segments out of the log and rename their files for later removal. Raises `OSError`."""
        for segment in segments:
            self._segments.remove(segment)
            if segment in self._unsynced:
                self._unsynced.remove(segment)
        self.retire_files(segments, now_ms)
        self._snapshots.remove([segment.base_offset for segment in segments])

    def retire_files(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Rename the files of segments that are out of the log. Raises `OSError`.

        The logs' own files first, and durably: a log that came back without its transaction index would show aborted
        records.
        """
        paths = []
        for segment in segments:
            segment.release_files()
            path = segment.path(LOG_SUFFIX)
            self._storage.rename(path, path + DELETED_SUFFIX)
            paths.append(path + DELETED_SUFFIX)
        if segments:
            self._storage.sync_folder(self._folder)
        for segment in segments:
            for path in segment.paths()[1:]:
                if self._storage.exists(path):
                    self._storage.rename(path, path + DELETED_SUFFIX)
                    paths.append(path + DELETED_SUFFIX)
        if self._deleted is None:
            self._deleted = DeletedFiles(self._storage)
        self._deleted.add(paths, now_ms + self.config.file_delete_delay_ms)
        self._folder_changed = True

    def replace_segments(self, sources: Sequence[Segment], cleaned: Segment, now_ms: int) -> None:
        """Let a compacted segment, synced under its `.cleaned` names, take the place of its sources (see `cleaner`).

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline: a restart finishes or undoes what was begun.
        """
        try:
            cleaned.rename(SWAP_SUFFIX)
            self._storage.sync_folder(self._folder)
            for segment in sources:
                self._segments.remove(segment)
            self._unsynced = [segment for segment in self._unsynced if segment not in sources]
            self.retire_files(sources, now_ms)
            self._storage.sync_folder(self._folder)
            cleaned.rename("")
            self._storage.sync_folder(self._folder)
            self._segments.add(
                Segment(
                    self._storage, self._folder, cleaned.base_offset, self._files,
                    created_ms=now_ms, has_transactions=cleaned.transactions.exists,
                )
            )  # fmt: skip
            self._snapshots.remove([segment.base_offset for segment in sources[1:]])
        except OSError as error:
            self._go_offline("compacting", error)

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove all from `offset` on, and what the state learnt from it (R3, R6). Returns whether anything went.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        if offset >= self.log_end_offset:
            return False
        try:
            self._truncate_segments(offset, now_ms)
            end = self.log_end_offset
            self.log_start_offset = min(self.log_start_offset, end)
            self.recovery_point = min(self.recovery_point, end)
            self.epochs.truncate_from_end(end)
            self._snapshots.remove(self._snapshots.beyond(end))
            self._verifications = None
            if self._snapshot_due is not None and self._snapshot_due.offset > end:
                self._snapshot_due = None
            self._reload_producers(now_ms)
            self._generation += 1
        except (OSError, CorruptBatchError) as error:
            self._go_offline("truncating", error)
        return True

    def _truncate_segments(self, offset: int, now_ms: int) -> None:
        self._segments.forget_hints()
        first = self._segments.first
        going = [segment for segment in self._segments if segment.base_offset >= offset and segment is not first]
        if offset < first.base_offset:
            going = list(self._segments)
        self._discard(going, now_ms)
        if offset < first.base_offset:
            self._segments.add(Segment(self._storage, self._folder, offset, self._files, created_ms=now_ms, new=True))
            self.log_end_offset = offset
            return
        active = self._segments.active
        if active in self._unsynced:
            self._unsynced.remove(active)
        self.log_end_offset = active.truncate_to(offset)
        for file in active.files_to_sync():
            file.sync()

    def _reload_producers(self, now_ms: int) -> None:
        end = self.log_end_offset
        first = self._segments.first.base_offset
        start = self._snapshots.restore(self.producer_state, at_most=end, at_least=first, now_ms=now_ms)
        if start is None:
            start = first
            self.producer_state.restore((), start)
        if start < end:
            replay_headers(self._segments, self.producer_state, start, end, now_ms)
        self.producer_state.end_offset = end

    def update_config(self, config: LogConfig) -> None:
        """Take new settings from the next append on."""
        self.config = config

    # --- To the disk -----------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushWork:
        """Return what is to be synced for all appended so far to survive a power cut: `run` it anywhere, then
        `end_flush`.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline; on a full disk it stays online, and is flushed later.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        end = self.log_end_offset
        segments = list(self._unsynced)
        if self.recovery_point < end or self._folder_changed:
            segments.append(self._segments.active)
        epochs = self.epochs.entries() if self.epochs.changed else None
        try:
            for segment in segments:
                segment.write_indexes()
            files = [file for segment in segments for file in segment.files_to_sync()]
        except OSError as error:
            if is_full(error):
                raise self._no_room(error) from error
            self._go_offline("writing indexes", error)
        # A transaction index whose name a power cut takes would leave aborted records readable (L3).
        new_names = [segment for segment in segments if segment.take_new_names()]
        folder_changed = self._folder_changed or bool(new_names)
        self._folder_changed = False
        self.epochs.changed = False
        snapshot, self._snapshot_due = self._snapshot_due, None
        return FlushWork(
            self._storage, self._folder, end, self._generation, files, tuple(segments), folder_changed, epochs, snapshot
        )

    def end_flush(self, work: FlushWork, error: OSError | None = None) -> int:
        """Take note of what `FlushWork.run` did. Returns the recovery point.

        With the error that it raised, the log goes offline: after a failed sync nobody knows what the disk holds.
        Raises `SemelError` (KAFKA_STORAGE_ERROR).
        """
        if error is not None:
            self._go_offline("syncing", error)
        if work.snapshot is not None:
            try:
                self._end_snapshot(work.snapshot, work.generation)
            except OSError as second:
                self._go_offline("removing old producer snapshots", second)
        if work.no_room is not None:
            self.epochs.changed = True
            raise self._no_room(work.no_room) from work.no_room
        if work.generation == self._generation:
            self.recovery_point = max(self.recovery_point, work.end_offset)
            self._unsynced = [segment for segment in self._unsynced if segment not in work.segments]
        return self.recovery_point

    @property
    def needs_flush(self) -> bool:
        """Whether a snapshot waits for the next flush."""
        return self._snapshot_due is not None

    def _end_snapshot(self, work: SnapshotWork, generation: int) -> None:
        """Take note of a snapshot that a flush wrote, and remove what it makes superfluous. Raises `OSError`."""
        snapshots, offset = self._snapshots, work.offset
        if generation != self._generation:
            if offset not in snapshots.offsets:
                snapshots.remove([offset])  # of what was cut meanwhile
        elif work.no_room is not None:
            self._snapshot_due = self._snapshot_due or work
        else:
            snapshots.written(work)
            snapshots.remove(snapshots.strays(self._segments.base_offsets, before=offset))
            snapshots.remove(
                snapshots.crowding(work.size_bytes, self._segments.first.base_offset, self._segments.bytes_between)
            )

    def flush(self) -> int:
        """Make all appended so far survive a power cut; returns the recovery point. Waits for the disk.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        work = self.begin_flush()
        try:
            work.run()
        except OSError as error:
            return self.end_flush(work, error)
        return self.end_flush(work)

    def close(self) -> None:
        """Close cleanly: with a snapshot named for the end of the log, so that the next start reads no batches.

        Raises `SemelError` (KAFKA_STORAGE_ERROR); the files are closed even then.
        """
        if self._closed:
            return
        try:
            if self.offline_error is None and not self._is_blank:
                try:
                    self._segments.active.close_indexes()
                    write_aborts(self._storage, self._folder, self._segments)
                    self._snapshots.write(self.producer_state, sync=True)
                    strays = self._snapshots.strays(self._segments.base_offsets, before=self.log_end_offset)
                    self._snapshots.remove(strays)  # the newest one tells where the log ends
                except OSError as error:
                    self._go_offline("closing", error)
                self._folder_changed = True
            if self.offline_error is None:
                self.flush()
        finally:
            self._closed = True
            self.release_files()

    @property
    def _is_blank(self) -> bool:
        """Whether there is nothing that a snapshot or an index could tell: many a partition is never used."""
        return len(self._segments) == 1 and self._segments.active.size == 0 and not len(self.producer_state)

    def release_files(self) -> None:
        """Close all files until they are needed again: for a log that is idle, or about to be deleted."""
        for segment in self._segments:
            segment.release_files()
        self._segments.forget_hints()
