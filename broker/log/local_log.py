"""The files of one partition: a sequence of segments with the snapshots of its producers, in one folder.

Rolled, cut, retired, replaced, brought to the disk, closed. What may be appended, read or deleted is not decided here,
and neither is what a failing disk means: every `OSError` is raised to `partition_log`, which holds this.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from semel.broker.log.abort_checkpoint import write_aborts
from semel.broker.log.clean_check import walk_fault
from semel.broker.log.config import LogConfig
from semel.broker.log.epochs_file import EpochsFile, EpochsWrite
from semel.broker.log.flushing import FlushWork
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_snapshot import SnapshotWork
from semel.broker.log.producer_state import ProducerState
from semel.broker.log.recovery import LEADER_EPOCHS_FILE, LoadedLog
from semel.broker.log.retention import DeletedFiles
from semel.broker.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.ids import TopicPartition
from semel.runtime.invariants import BrokenInvariantError, check
from semel.runtime.storage import Storage

_log = logging.getLogger(__name__)


class LocalLog:
    """Held by one `PartitionLog`, which alone calls what changes it. Everything raises `OSError`."""

    __slots__ = (
        "_deleted",
        "_files",
        "_folder_changed",
        "_rebuilt",
        "_snapshot_due",
        "_tp",
        "_unsynced",
        "config",
        "epochs_file",
        "folder",
        "generation",
        "recovery_point",
        "segments",
        "snapshots",
        "storage",
    )

    def __init__(
        self, storage: Storage, folder: str, tp: TopicPartition, config: LogConfig, loaded: LoadedLog, files: OpenFiles
    ) -> None:
        self.storage = storage
        self.folder = folder
        self._tp = tp
        """Whose log it is, for what is logged."""
        self.config = config
        self.epochs_file = EpochsFile(storage, f"{folder}/{LEADER_EPOCHS_FILE}")
        self._files = files
        """Bounds the open files. Shared by all logs of a node."""
        self.segments = loaded.segments
        """At least one: the last is active. Always this object; what is in it changes."""
        self.segments.active.end_offset = loaded.log_end_offset
        self.snapshots = loaded.snapshots
        """The producers' snapshots that are in the folder."""
        self.recovery_point = loaded.recovery_point
        """All below this offset is on the disk."""
        self.generation = 0
        """Grows with each truncation: what was found out about bytes before it may not hold any more."""
        self._unsynced: list[Segment] = [
            segment
            for segment in self.segments.inactive()
            if self.end_of(segment) > self.recovery_point or segment.has_unsynced_indexes
        ]
        """Inactive segments that the next flush syncs. Recovery may have built indexes again below the recovery point,
        too: from the newest snapshot on.
        """
        self._folder_changed = loaded.names_unsynced
        """Whether names were created or changed that no sync of the folder has made durable."""
        self._snapshot_due: SnapshotWork | None = None
        """A snapshot that was too large to write at a roll: the next flush writes it."""
        self._deleted: DeletedFiles | None = None
        """Files renamed to `.deleted`. None: there are none."""
        self._rebuilt: set[int] = set()
        """Base offsets of segments whose indexes misled a reader, and were built again."""

    @property
    def size_bytes(self) -> int:
        """Bytes of batches in all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def needs_flush(self) -> bool:
        """Whether a snapshot waits for the next flush."""
        return self._snapshot_due is not None

    def end_of(self, segment: Segment) -> int:
        """Return the offset at which the next segment begins, or the end of the active one."""
        return self.segments.end_of(segment, self.segments.active.end_offset)

    # --- At the end ---------------------------------------------------------------------------------------------------

    def roll(self, base_offset: int, producers: ProducerState, now_ms: int) -> Segment:
        """Begin a new active segment at `base_offset`, and snapshot the producers there."""
        active = self.segments.active
        check(
            base_offset >= active.end_offset and base_offset == producers.end_offset, self._tp,
            "a new segment and its snapshot begin where the active segment ends, or behind a gap",
            base_offset=base_offset, segment_end_offset=active.end_offset, producers_end_offset=producers.end_offset,
        )  # fmt: skip
        if active.size == 0:
            if active.base_offset == base_offset:
                return active
            self.discard([active], now_ms)
        else:
            active.close_indexes()
            active.offsets.release_file()
            active.times.release_file()
            if active not in self._unsynced:  # a roll that failed is done again
                self._unsynced.append(active)
        large = self.snapshots.work_for(producers)
        if large is None:
            self.snapshots.write(producers, sync=False)
            self.snapshots.remove(self.snapshots.strays([*self.segments.base_offsets, base_offset], before=base_offset))
        segment = Segment(self.storage, self.folder, base_offset, self._files, created_ms=now_ms, new=True)
        self.segments.add(segment)
        self._folder_changed = True
        # The next flush writes it (S3), and takes nothing from recovery: that reads no snapshot that was not flushed.
        self._snapshot_due = large
        return segment

    def cut_failed_append(self, end_offset: int) -> None:
        """Remove what a failed write left behind `end_offset`. Raises `CorruptBatchError`, too."""
        segment = self.segments.active
        size = segment.size
        located = segment.locate(end_offset) if size else None
        keep = size if located is None else located[0]
        segment.cut(keep, end_offset)
        segment.offsets.truncate_positions(keep)

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Remove the batch that holds `offset` and all behind it, with the snapshots of it. Returns where the log ends
        now. Raises `CorruptBatchError`, too.
        """
        end = self._truncate_segments(offset, now_ms)
        active = self.segments.active
        if not (end <= offset and end == active.end_offset and active.has_nothing_from(end)):
            raise BrokenInvariantError(
                self._tp, "a truncation leaves nothing of its offset or behind it",
                truncated_to=offset, log_end_offset=end, segment_end_offset=active.end_offset,
                last_batch_ends=active.next_offset(), last_entry=active.offsets.last(),
            )  # fmt: skip
        self.recovery_point = min(self.recovery_point, end)
        self.snapshots.remove(self.snapshots.beyond(end))
        if self._snapshot_due is not None and self._snapshot_due.offset > end:
            self._snapshot_due = None
        self.generation += 1
        return end

    def _truncate_segments(self, offset: int, now_ms: int) -> int:
        segments = self.segments
        segments.forget_hints()
        first = segments.first
        going = [segment for segment in segments if segment.base_offset >= offset and segment is not first]
        if offset < first.base_offset:
            going = list(segments)
        self.discard(going, now_ms)
        if offset < first.base_offset:
            segments.add(Segment(self.storage, self.folder, offset, self._files, created_ms=now_ms, new=True))
            return offset
        active = segments.active
        if active in self._unsynced:
            self._unsynced.remove(active)
        end = active.truncate_to(offset)
        for file in active.files_to_sync():
            file.sync()
        return end

    # --- Taking segments out ------------------------------------------------------------------------------------------

    def keep_snapshot(self, offset: int) -> None:
        """Bring a snapshot to the disk: what comes before it is about to go, and nothing else will tell of it (P7)."""
        self.snapshots.sync(offset)
        self.sync_folder()

    def discard(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Take segments out of the log and rename their files for later removal."""
        for segment in segments:
            self.segments.remove(segment)
            if segment in self._unsynced:
                self._unsynced.remove(segment)
        self._retire_files(segments, now_ms)
        self.snapshots.remove([segment.base_offset for segment in segments])

    def _retire_files(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Rename the files of segments that are out of the log.

        The logs' own files first, and durably: a log that came back without its transaction index would show aborted
        records.
        """
        paths = []
        for segment in segments:
            segment.release_files()
            path = segment.path(LOG_SUFFIX)
            self.storage.rename(path, path + DELETED_SUFFIX)
            paths.append(path + DELETED_SUFFIX)
        if segments:
            self.sync_folder()
        for segment in segments:
            for path in segment.paths()[1:]:
                if self.storage.exists(path):
                    self.storage.rename(path, path + DELETED_SUFFIX)
                    paths.append(path + DELETED_SUFFIX)
        if self._deleted is None:
            self._deleted = DeletedFiles(self.storage)
        self._deleted.add(paths, now_ms + self.config.file_delete_delay_ms)
        self._folder_changed = True

    def remove_deleted(self, now_ms: int) -> None:
        """Remove the files renamed earlier whose time has come."""
        if self._deleted is not None:
            self._deleted.remove_due(now_ms)
            if not self._deleted:
                self._deleted = None

    def replace_segments(self, sources: Sequence[Segment], cleaned: Segment, now_ms: int) -> None:
        """Let a compacted segment, synced under its `.cleaned` names, take the place of its sources (see `cleaner`)."""
        cleaned.rename(SWAP_SUFFIX)
        self.sync_folder()
        end = self.end_of(sources[-1])
        for segment in sources:
            self.segments.remove(segment)
        self._unsynced = [segment for segment in self._unsynced if segment not in sources]
        self._retire_files(sources, now_ms)
        self.sync_folder()
        cleaned.rename("")
        self.sync_folder()
        replacement = Segment(
            self.storage, self.folder, cleaned.base_offset, self._files,
            created_ms=now_ms, has_transactions=cleaned.transactions.exists,
        )  # fmt: skip
        replacement.end_offset = end
        self.segments.add(replacement)
        self.snapshots.remove([segment.base_offset for segment in sources[1:]])

    def rebuild_misleading_indexes(self, offset: int, error: CorruptBatchError) -> None:
        """Build the indexes of the segments from `offset` on again, where a look-up failed: each once, because what
        fails then is in the batches. Raises `CorruptBatchError` where it is.
        """
        self.segments.forget_hints()
        for segment in self.segments.from_offset(offset):
            if segment.base_offset in self._rebuilt or not segment.size:
                continue
            fault = walk_fault(segment)
            if fault is not None:
                raise CorruptBatchError(f"segment {segment.path(LOG_SUFFIX)}: {fault}")
            self._rebuilt.add(segment.base_offset)
            _log.warning(
                "%s: building the indexes of segment %020d again: %s", self._tp, segment.base_offset, error.message
            )
            segment.rebuild_indexes(self.config.index_interval_bytes)
            if self.end_of(segment) > offset:
                return

    # --- To the disk --------------------------------------------------------------------------------------------------

    def sync_folder(self) -> None:
        """Make the names in the folder survive a power cut."""
        self.storage.sync_folder(self.folder)

    def write_again(self) -> None:
        """Write what is above the recovery point over itself, so that the next flush brings it to the disk for sure.

        After a failed sync the system takes what it could not write for written: what a reader is shown then is not
        what the disk has, and no later sync changes that. Raises `OSError`, `CorruptBatchError`.
        """
        for segment in (*self._unsynced, self.segments.active):
            if self.end_of(segment) > self.recovery_point:
                segment.write_again(max(self.recovery_point, segment.base_offset))

    def begin_flush(self, epochs: EpochsWrite | None) -> FlushWork:
        """Return what is to be synced for all appended so far to survive a power cut, and the leader epochs with it.

        After an error it can be called again.
        """
        active = self.segments.active
        segments = list(self._unsynced)
        if self.recovery_point < active.end_offset or self._folder_changed:
            segments.append(active)
        for segment in segments:
            segment.write_indexes()
        files = [file for segment in segments for file in segment.files_to_sync()]
        # A transaction index whose name a power cut takes would leave aborted records readable (L3).
        new_names = [segment for segment in segments if segment.take_new_names()]
        folder_changed = self._folder_changed or bool(new_names)
        self._folder_changed = False
        snapshot, self._snapshot_due = self._snapshot_due, None
        return FlushWork(
            self.storage, self.folder, active.end_offset, self.generation, files, tuple(segments), folder_changed,
            epochs, snapshot,
        )  # fmt: skip

    def end_flush(self, work: FlushWork) -> None:
        """Take note of what `FlushWork.run` did."""
        if work.snapshot is not None:
            self._end_snapshot(work.snapshot, work.generation)
        if work.no_room is None and work.generation == self.generation:
            self.recovery_point = max(self.recovery_point, work.end_offset)
            self._unsynced = [segment for segment in self._unsynced if not self._is_synced(segment, work)]

    def _is_synced(self, segment: Segment, work: FlushWork) -> bool:
        """Say whether a flush has brought a whole segment to the disk: one that was active may have grown meanwhile."""
        has_grown = self.end_of(segment) > work.end_offset or segment.has_unsynced_indexes
        return segment in work.segments and not has_grown

    def _end_snapshot(self, work: SnapshotWork, generation: int) -> None:
        """Take note of a snapshot that a flush wrote, and remove what it makes superfluous."""
        snapshots, offset = self.snapshots, work.offset
        if generation != self.generation:
            if offset not in snapshots.offsets:
                snapshots.remove([offset])  # of what was cut meanwhile
        elif work.no_room is not None:
            self._snapshot_due = self._snapshot_due or work
        else:
            snapshots.written(work)
            snapshots.remove(snapshots.strays(self.segments.base_offsets, before=offset))
            snapshots.remove(
                snapshots.crowding(work.size_bytes, self.segments.first.base_offset, self.segments.bytes_between)
            )

    def write_closing(self, producers: ProducerState) -> None:
        """Write what a clean close leaves, for the flush behind it to sync: the next start then reads no batches."""
        active = self.segments.active
        active.close_indexes()
        write_aborts(self.storage, self.folder, self.segments)
        self.snapshots.write(producers, sync=True)
        strays = self.snapshots.strays(self.segments.base_offsets, before=active.end_offset)
        self.snapshots.remove(strays)  # the newest one tells where the log ends
        self._folder_changed = True

    def release_files(self) -> None:
        """Close all files until they are needed again: for a log that is idle, or about to be deleted."""
        for segment in self.segments:
            segment.release_files()
        self.segments.forget_hints()
