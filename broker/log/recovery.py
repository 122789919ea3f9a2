"""Opening a partition's folder: finish what a crash interrupted, cut what it tore, rebuild what was not kept (D1, D2,
P7).

After a clean close the newest snapshot is named for the end of the log, and only what follows each segment's last index
entry is looked at (`clean_check`). Otherwise, and from a segment on that is not as it was left, everything from the
recovery point on is walked, and before it what no snapshot covers: indexes and state are built again. Behind the
recovery point the first bad batch and all that follows go, as a torn tail. What lies before it was synced, and no crash
tears it: there a bad batch is damage, which is said, and costs no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from semel.broker.log.abort_checkpoint import ABORTED_TRANSACTIONS_FILE, checksum, read_aborts
from semel.broker.log.batch_runs import following
from semel.broker.log.batch_scan import WALK_BYTES, scan_headers, scan_runs
from semel.broker.log.checkpoints import read_epochs
from semel.broker.log.clean_check import (
    CUT_SUFFIX,
    TORN_SUFFIX,
    broken_tail_batch,
    indexes_are_sane,
    is_intact,
    put_aside,
    stand_in,
    tail_fault,
    transactions_are_sane,
    walk_fault,
)
from semel.broker.log.config import LogConfig
from semel.broker.log.leader_epochs import LeaderEpochs
from semel.broker.log.log_directory import LogDirectory, parse_name
from semel.broker.log.losses import UNSYNCED, Losses
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_snapshot import SNAPSHOT_SUFFIX, SnapshotFiles
from semel.broker.log.producer_state import ProducerState
from semel.broker.log.replay import apply_batch, apply_run
from semel.broker.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from semel.broker.log.segments import Segments
from semel.protocol.batch_header import BatchHeader, validate_batches
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import SemelError, error_for
from semel.protocol.ids import NO_TIMESTAMP, ProducerIdAndEpoch, TopicPartition
from semel.protocol.int_bounds import INT32_MAX
from semel.runtime.storage import Storage

_log = logging.getLogger(__name__)

LEADER_EPOCHS_FILE: Final = "leader-epoch-checkpoint"


@dataclass(slots=True)
class LoadedLog:
    """A partition's folder, open. `truncated_bytes` is what recovery had to cut; below `recovery_point` all is on the
    disk. `damage` says which records that had been synced are gone or can't be read; empty: none. `damaged_from` is the
    first of their offsets.
    """

    segments: Segments
    snapshots: SnapshotFiles
    producers: ProducerState
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    truncated_bytes: int
    names_unsynced: bool
    damage: str
    damaged_from: int | None


class LogLoader:
    """Opens one folder. One use."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        tp: TopicPartition,
        config: LogConfig,
        files: OpenFiles,
        *,
        now_ms: int,
        log_start_offset: int | None,
        recovery_point: int,
        clean: bool,
        start_is_final: bool,
        is_untouched: bool,
        is_only_replica: bool,
        high_watermark: int,
        on_loss: Callable[[int], None],
    ) -> None:
        """log_start_offset: None where nothing says where the log starts.

        start_is_final: it was noted by a clean stop, so that nothing was deleted from the log after that
        is_untouched: a start after a clean stop was killed before it noted what it had found of the logs
        on_loss: is called with the first offset of a stretch that is lost, before the log is repaired
        """
        self._storage = storage
        self._folder = folder
        self._tp = tp
        self._config = config
        self._files = files
        self._now_ms = now_ms
        self._log_start_offset = log_start_offset or 0
        self._start_is_noted = log_start_offset is not None
        self._start_is_final = start_is_final
        self._recovery_point = recovery_point
        self._clean = clean
        self._truncated = 0
        self._aborts: dict[int, int] | None = None
        """What the last stop left in the lists of aborted transactions. None: it did not say."""
        self._stopped_clean = clean
        is_never_cut = is_only_replica or clean or is_untouched
        self._kept_end = recovery_point if is_never_cut else min(recovery_point, high_watermark)
        """Up to here nothing is a torn tail, because a clean stop left it whole or a flush synced it: what is missing
        of it is lost. A follower may have been cut just before, but not below what is committed.
        """
        self._synced_end = recovery_point
        """Up to here a flush had synced the log, and so far compaction may have gone: past `_kept_end`, too."""
        self._on_loss = on_loss
        self._losses = Losses(tp, folder)
        self._directory = LogDirectory(storage, folder, tp, files, now_ms=now_ms)
        # After a killed process names may be there that no sync has made durable.
        self._created = not clean

    def load(self) -> LoadedLog:
        """Return the log. Raises `OSError`, or `SemelError` for a log that cannot be made sense of.

        Either names the file that it is about.
        """
        try:
            return self._load()
        except SemelError as error:
            if self._directory.looking_at in error.message:
                raise
            raise error_for(error.code, f"{self._directory.looking_at}: {error.message}") from error
        except OSError as error:
            if error.filename is not None:
                raise
            raise OSError(error.errno, error.strerror or str(error), self._directory.looking_at) from error

    def _load(self) -> LoadedLog:
        # What it made, or gave a name, is there under a name that no sync has made durable.
        self._created |= self._directory.tidy_up()
        self._segments = self._open_segments()
        # What is not in the files of a log with remote storage is there: its leader looks it up.
        if self._start_is_final and len(self._segments) and not self._config.has_remote:
            self._check_first_segment(self._segments.first.base_offset)
        self._snapshots = SnapshotFiles(self._storage, self._folder, self._directory.offsets_with(SNAPSHOT_SUFFIX))
        self._producers = ProducerState(self._tp)
        self._epochs = self._read_epochs()
        self._epochs_read = self._epochs.entries()
        end = 0
        if self._clean:
            # Both were written by the stop; with a damaged checkpoint the newest snapshot is left.
            self._kept_end = self._synced_end = self._recovery_point or max(self._snapshots.offsets, default=0)
        if len(self._segments):
            end = self._load_clean() if self._clean else self._recover()
            if end < self._log_start_offset:
                _log.warning(
                    "%s ends at offset %d, below its start offset %d: it starts again there, empty",
                    self._tp, end, self._log_start_offset,
                )  # fmt: skip
                self._drop(list(self._segments))
        if not len(self._segments):
            end = max(self._log_start_offset, self._kept_end)
            if end > self._log_start_offset:
                self._lost(self._log_start_offset, end)
                _log.warning("%s: %s has no segment, and had some that were synced", self._tp, self._folder)
            self._snapshots.remove(list(self._snapshots.offsets))
            self._producers.restore((), end)
            self._epochs.truncate_from_end(0)
            self._segments.add(self._new_segment(end))
            # Later segments must never survive a power cut that this one does not: the log would begin at them.
            self._storage.sync_folder(self._folder)
        self._losses.say_lost()
        start = first = max(self._log_start_offset, self._segments.first.base_offset)
        if self._config.has_remote and self._start_is_noted:
            start = self._log_start_offset
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(start, end)
        self._complete_epochs(first, end)
        for epoch, begins in self._epochs_read:
            # A leader noted them, also one that wrote nothing then (R7). What is before may be in the journal.
            if begins >= end and epoch > self._epochs.latest:
                self._epochs.assign(epoch, begins)
        self._producers.forget_below(start)
        # What is in the file was synced before it got its name, and the name is synced with the folder.
        self._epochs.changed = self._epochs.entries() != self._epochs_read
        # After a crash nobody knows which names were synced.
        unsynced = self._created or not self._clean
        point = end if self._clean else min(self._recovery_point, end)
        return LoadedLog(
            self._segments, self._snapshots, self._producers, self._epochs, start, end, point, self._truncated,
            unsynced,
            self._losses.summary(), self._losses.first_offset,
        )  # fmt: skip

    # --- Files --------------------------------------------------------------------------------------------------------

    def _open_segments(self) -> Segments:
        bases = set(self._directory.offsets_with(LOG_SUFFIX))
        self._directory.remove(
            [
                name
                for name in self._directory.names
                for parsed in [parse_name(name)]
                if parsed is not None and parsed[1] in SEGMENT_SUFFIXES and parsed[0] not in bases
            ]
        )
        transactions = set(self._directory.offsets_with(TXN_INDEX_SUFFIX))
        return Segments(
            Segment(
                self._storage,
                self._folder,
                base,
                self._files,
                created_ms=self._now_ms,
                has_transactions=base in transactions,
            )
            for base in bases
        )

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(self._storage, self._folder, base_offset, self._files, created_ms=self._now_ms, new=True)

    def _drop(self, segments: list[Segment], *, keep: bool = False) -> None:
        for segment in segments:
            self._segments.remove(segment)
            self._truncated += segment.size
            if keep and segment.size:
                self._put_aside(segment, 0, is_synced=False)
            segment.release_files()
            for path in segment.paths():
                if self._storage.exists(path):
                    self._storage.remove(path)

    def _read_epochs(self) -> LeaderEpochs:
        try:
            return LeaderEpochs(read_epochs(self._storage, f"{self._folder}/{LEADER_EPOCHS_FILE}"))
        except SemelError as error:
            # Written atomically, so only a foreign hand breaks it.
            _log.warning("%s: %s; its leader epochs are read from its batches", self._tp, error)
            return LeaderEpochs()

    def _complete_epochs(self, start: int, end: int) -> None:
        """Read from the batches which epochs they are of, where the file does not cover them, because it was lost.

        Else all before the next leader's epoch would be told to end where that begins, and logs could fork (R7).
        """
        known = self._epochs.entries()
        upto = known[0][1] if known else end
        if upto <= start:
            return
        found = LeaderEpochs()
        try:
            for _, _, header in headers_between(self._segments, start, upto):
                found.assign(header.leader_epoch, max(header.base_offset, start) if found.entries() else start)
        except CorruptBatchError as error:
            _log.warning("%s: its leader epochs can't be read from its batches: %s", self._tp, error.message)
            return
        self._epochs = LeaderEpochs((*found.entries(), *known))

    # --- After a clean close ------------------------------------------------------------------------------------------

    def _load_clean(self) -> int:
        if ABORTED_TRANSACTIONS_FILE in self._directory.names:
            self._aborts = read_aborts(self._storage, self._folder)
        self._repair_indexes(list(self._segments))
        expected = list(self._segments.base_offsets[1:])
        active = self._segments.active
        # Without a snapshot behind the active segment's beginning nobody noted where it ends.
        known = self._kept_end > active.base_offset or not active.size
        for segment, end in zip(self._segments, [*expected, self._kept_end if known else None], strict=True):
            fault = self._find_fault(segment, end)
            if fault is not None:
                return self._recover_damaged(segment, fault)
        end = active.base_offset
        if active.size:
            end = self._kept_end if known else active.next_offset()
        self._snapshots.remove(self._snapshots.beyond(end))
        self._restore_state(end, upto=end)
        return end

    def _find_fault(self, segment: Segment, end: int | None) -> str | None:
        """Say why a segment is to be validated again, or None. Indexes that are wrong are built again from it."""
        self._directory.looking_at = segment.path(LOG_SUFFIX)
        if not segment.size:
            return None if end is None or end <= segment.base_offset else f"it is empty, and ended at offset {end}"
        if self._aborts is not None:
            if checksum(segment) != self._aborts.get(segment.base_offset, 0):
                return f"{segment.path(TXN_INDEX_SUFFIX)} is not as it was"
        elif not transactions_are_sane(segment, end):
            return f"{segment.path(TXN_INDEX_SUFFIX)} cannot be true"
        fault = None if indexes_are_sane(segment, end) else "its indexes cannot be true"
        fault = fault or tail_fault(segment, end)
        if fault is not None and walk_fault(segment, end) is None:
            # The batches are where they should be, so it is the indexes that mislead.
            self._rebuild_indexes(segment, fault)
            fault = tail_fault(segment, end)
        if fault is None and segment is self._segments.active:
            broken = broken_tail_batch(segment)
            if broken is not None:
                self._losses.say_broken(segment, broken[1], broken[0])
        return fault

    def _recover_damaged(self, segment: Segment, fault: str) -> int:
        _log.warning(
            "%s: segment %020d is not as the last stop left it: %s. The log is validated again from offset %d on",
            self._tp, segment.base_offset, fault, segment.base_offset,
        )  # fmt: skip
        self._clean = False
        self._created = True
        self._recovery_point = segment.base_offset
        return self._recover()

    def _check_first_segment(self, base_offset: int) -> None:
        """Find the loss of the first segments (D6).

        Only retention takes first segments away, and it moves the log's start with them. A kill can come before that
        is noted; a clean stop notes it. Compaction keeps the first segment's base offset.
        """
        if base_offset <= self._log_start_offset:
            return
        if self._start_is_noted:
            self._losses.first_lost = base_offset
            self._lost(self._log_start_offset, base_offset)
        elif self._clean:
            _log.warning(
                "%s: the first segment in %s begins at offset %d, and no checkpoint says where the log began when the "
                "node stopped: it begins there now. If earlier segments were deleted by hand, their records are lost",
                self._tp, self._folder, base_offset,
            )  # fmt: skip

    def _restore_state(self, at_most: int, *, upto: int) -> int:
        """Restore from the newest snapshot at or below `at_most`, and replay headers from there up to `upto`."""
        first = self._segments.first.base_offset
        start = self._snapshots.restore(self._producers, at_most=at_most, at_least=first, now_ms=self._now_ms)
        if start is None:
            start = first
            self._producers.restore((), start)
        if start < upto:
            replay_headers(self._segments, self._producers, start, upto, self._now_ms)
        self._producers.end_offset = upto
        return start

    def _complete_indexes(self, segment: Segment, end: int) -> None:
        """Complete the indexes of the last segment that is not read again (L2, D6).

        It may have been rolled, and the entry for its largest timestamp written, while a flush ran that covered all of
        its batches: the recovery point is behind them, and nothing says that the entry is on the disk.
        """
        try:
            segment.complete_indexes(end)
        except CorruptBatchError as error:
            _log.warning("%s: segment %020d: %s", self._tp, segment.base_offset, error)

    def _repair_indexes(self, segments: list[Segment], *, suspicious: bool = False) -> None:
        """Build missing (and, where `suspicious`, impossible) indexes of whole segments again, from their batches."""
        for segment in segments:
            self._directory.looking_at = segment.path(LOG_SUFFIX)
            base = f"{segment.base_offset:020d}"
            missing = not self._directory.names >= {base + INDEX_SUFFIX, base + TIME_INDEX_SUFFIX}
            if missing and segment.size:
                self._build_missing_indexes(segment)
            elif suspicious and not indexes_are_sane(segment, None):
                self._rebuild_indexes(segment, "they cannot be true")

    def _build_missing_indexes(self, segment: Segment) -> None:
        """Where the batches can't be walked the log is not opened, and the next attempt is to find it as it was."""
        try:
            self._rebuild_indexes(segment, "they are missing")
        except CorruptBatchError:
            segment.release_files()
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                path = segment.path(suffix)
                if path.rpartition("/")[2] not in self._directory.names and self._storage.exists(path):
                    self._storage.remove(path)
            raise

    def _rebuild_indexes(self, segment: Segment, why: str) -> None:
        _log.warning("%s: building the indexes of segment %020d again: %s", self._tp, segment.base_offset, why)
        segment.rebuild_indexes(self._config.index_interval_bytes)

    # --- After a crash ------------------------------------------------------------------------------------------------

    def _recover(self) -> int:
        first = self._segments.first.base_offset
        point = max(self._recovery_point, first)
        for segment in self._segments:
            # Which transactions were aborted is found again only where the state is built again, too (L3).
            if segment.base_offset < point and not transactions_are_sane(segment, None):
                _log.warning("%s: %s cannot be true: it is built again", self._tp, segment.path(TXN_INDEX_SUFFIX))
                point = segment.base_offset
                break
        self._snapshots.remove(self._snapshots.beyond(point))
        start = self._snapshots.restore(self._producers, at_most=point, at_least=first, now_ms=self._now_ms)
        if start is None:
            start = first
            self._producers.restore((), start)
        self._epochs.truncate_from_end(start)
        segments = self._segments.from_offset(start)
        whole_ones = [one for one in self._segments if one not in segments]
        self._repair_indexes(whole_ones, suspicious=True)
        if whole_ones:
            self._complete_indexes(whole_ones[-1], segments[0].base_offset)
        end = start
        for number, segment in enumerate(segments):
            # A gap is the end of a segment that the power cut took: what follows it was never answered.
            whole = number == 0 or segment.base_offset == end
            if whole:
                end, whole = self._recover_segment(segment, start)
                number += 1
                until = segments[number].base_offset if number < len(segments) else self._kept_end
                until = min(until, self._kept_end)
                if end < until and until - segment.base_offset <= INT32_MAX:
                    again = end < start
                    self._fill(segment, end, until)
                    if again:
                        # The snapshot knows of what is lost, and the state is to be the log's (P7).
                        return self._recover()
                    end, whole = until, True
            if not whole:
                self._drop(segments[number:], keep=True)
                break
            if number < len(segments):
                segment.close_indexes()  # nothing is appended to it: the next clean start looks for its last entry
        if end < start:
            _log.error("%s: the log ends at %d, below what was synced (%d)", self._tp, end, start)
            self._restore_state(end, upto=end)
        return end

    def _put_aside(self, segment: Segment, position: int, *, is_synced: bool) -> None:
        """Keep what is about to be cut. A torn tail is let go where a full disk would keep the node from starting."""
        size = segment.size - position
        if not is_synced:
            of_earlier_starts = [name for name in self._directory.names if name.endswith(TORN_SUFFIX)]
            self._directory.remove(of_earlier_starts)
        try:
            path = put_aside(self._storage, segment, position, CUT_SUFFIX if is_synced else TORN_SUFFIX)
        except OSError as error:
            if is_synced:
                raise
            _log.info("%s: the %d bytes of a torn tail that are cut can't be kept: %s", self._tp, size, error)
            return
        level = logging.WARNING if is_synced else logging.INFO
        _log.log(level, "%s: the %d bytes that are cut are kept in %s", self._tp, size, path)

    def _is_synced(self, end: int) -> bool:
        """Whether a sync, or a clean stop, had covered what lies at `end`."""
        return end < self._kept_end or self._stopped_clean

    def _known_aborts(self, segment: Segment) -> dict[int, int]:
        """What the segment's list of aborted transactions said that a flush had synced: producer by marker's offset."""
        if self._kept_end <= segment.base_offset or not transactions_are_sane(segment, None):
            return {}
        return {one.last_offset: one.producer_id for one in segment.transactions if one.last_offset < self._kept_end}

    def _end_from_abort_index(self, segment: Segment, header: BatchHeader, known_aborts: dict[int, int]) -> None:
        """A marker that can't be read ended its transaction all the same: the list of aborted ones says how (L3).

        Left open, it would be ended by the producer's next marker, and committed records be taken for aborted ones.
        """
        entry = self._producers.entry(header.producer_id)
        # Whatever is broken in the batch must not make it look like a marker: no data has such a sequence (KIP-98).
        if not header.is_control or header.base_sequence >= 0 or entry is None or entry.transaction_first_offset < 0:
            return
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        if not 0 <= producer.producer_epoch - entry.epoch <= 1:  # the newer protocol ends one with the next (KIP-890)
            return
        aborted_by = known_aborts.get(header.base_offset)
        if aborted_by is not None and aborted_by != header.producer_id:
            return
        completed = self._producers.apply_marker(
            producer, -1, aborted_by is None, header.base_offset, header.max_timestamp_ms, self._now_ms
        )
        if completed is not None:
            segment.transactions.note_completed(completed)

    def _recover_segment(self, segment: Segment, start: int) -> tuple[int, bool]:
        """Validate a segment from offset `start`. Returns the offset it ends at, and whether it was whole."""
        self._directory.looking_at = segment.path(LOG_SUFFIX)
        position, end = self._position_of(segment, start)
        known_aborts = self._known_aborts(segment)
        segment.restart_indexes(position, start)
        size = segment.size
        try:
            for chunk_at, headers, chunk, are_right in scan_runs(segment.file, position, size):
                taken = 0
                while taken < len(headers):
                    run = self._right_run(segment, headers, taken, end, start) if are_right else []
                    is_broken = not run and self._is_broken(segment, headers[taken], chunk, end)
                    first = headers[taken]
                    run = run or [first]
                    if is_broken:
                        # All had been written well: what one batch suffered says nothing about those behind it.
                        self._losses.say_broken(segment, first, position)
                        if first.base_offset >= start:
                            self._end_from_abort_index(segment, first, known_aborts)
                    elif first.base_offset >= start:
                        self._take_in(segment, run, chunk)
                    segment.note_run(position, run, self._config.index_interval_bytes)
                    end = run[-1].next_offset
                    position = chunk_at + run[-1].position + run[-1].size_bytes
                    taken += len(run)
        except SemelError as error:
            _log.warning(
                "%s: segment %020d is cut at position %d of %d, offset %d: %s",
                self._tp, segment.base_offset, position, size, end, error,
                extra={UNSYNCED: not self._is_synced(end)},
            )  # fmt: skip
        self._producers.end_offset = end
        if position < size:
            self._put_aside(segment, position, is_synced=self._is_synced(end))
            segment.cut(position, end)
            segment.transactions.truncate_to(end)
            self._truncated += size - position
        segment.offsets.trim()
        segment.times.trim()
        return end, position == size

    def _right_run(
        self, segment: Segment, headers: list[BatchHeader], begin: int, end: int, start: int
    ) -> list[BatchHeader]:
        """Return those of the right batches from number `begin` on that a segment that ends at `end` takes in together:
        none, where the first one is to be judged alone.
        """
        upto = segment.base_offset + INT32_MAX + 1
        if end < start:
            upto = min(upto, start)
        if end < self._kept_end:
            upto = min(upto, self._synced_end)
        return headers[begin : begin + following(headers, begin, end, upto)]

    def _is_broken(self, segment: Segment, header: BatchHeader, chunk: memoryview, end: int) -> bool:
        """Say whether a batch behind `end` that had been synced is broken. Raises `SemelError` where it can't be the
        next one.
        """
        batch = chunk[header.position : header.position + header.size_bytes]
        is_synced = end < self._kept_end
        is_broken = (self._kept_end > 0 if self._stopped_clean else is_synced) and not is_intact(batch)
        if not is_broken:
            validate_batches(batch, max_batch_bytes=INT32_MAX, strict_count=False)
        if header.base_offset < end or header.last_offset - segment.base_offset > INT32_MAX:
            raise CorruptBatchError(f"offset {header.base_offset} follows offset {end - 1}")
        if is_synced and header.next_offset > self._synced_end:
            # A flush ends between two batches, and compaction, which goes no further, leaves the last one.
            raise CorruptBatchError(
                f"a batch says that its offset is {header.base_offset}, and lies where {end} was synced"
            )
        return is_broken

    def _lost(self, first: int, end: int) -> None:
        self._losses.lost.append((first, end))
        self._on_loss(first)

    def _fill(self, segment: Segment, end: int, until: int) -> None:
        """Let a batch without records stand for what is lost between `end` and `until`."""
        self._lost(end, until)
        self._recovery_point = min(self._recovery_point, end)  # what is fixed is to be synced
        batch = stand_in(end, until, self._epochs.latest)
        segment.append((batch,), len(batch), until - 1, NO_TIMESTAMP, self._config.index_interval_bytes)
        self._producers.end_offset = until

    def _take_in(self, segment: Segment, run: list[BatchHeader], chunk: memoryview) -> None:
        for completed in apply_run(self._producers, run, chunk, self._now_ms):
            segment.transactions.note_completed(completed)
        self._epochs.assign_run(run)

    @staticmethod
    def _position_of(segment: Segment, offset: int) -> tuple[int, int]:
        """Return from where to validate, so that all from `offset` on is: a position, and the offset it begins at.

        Where the index misleads, or the log breaks off before, the whole segment.
        """
        if offset <= segment.base_offset:
            return 0, segment.base_offset
        end = None
        try:
            for at, header in scan_headers(segment.file, segment.offsets.position_for(offset), segment.size):
                if header.base_offset >= offset:
                    return at, offset
                end = header.next_offset
        except CorruptBatchError:
            return 0, segment.base_offset
        # An entry may be there for a batch that is not: a power cut takes of each file what it likes.
        return (0, segment.base_offset) if end is None else (segment.size, end)


def replay_headers(segments: Segments, producers: ProducerState, start: int, upto: int, now_ms: int) -> None:
    """Take the batches with offsets in [start, upto) into the producers' state, reading no more of them than needed."""
    for segment, at, header in headers_between(segments, start, upto):
        batch = segment.file.read_at(header.size_bytes, at) if header.is_control else b""
        try:
            apply_batch(producers, header, batch, now_ms)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{segment.path(LOG_SUFFIX)}: {error.message}") from error


def headers_between(segments: Segments, start: int, upto: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Yield the batches with offsets in [start, upto): the segment, the position in it, and the header.

    Raises `CorruptBatchError` naming the segment, and `OSError`.
    """
    for segment in segments.between(start, upto):
        if not segment.size:
            continue
        position = segment.offsets.position_for(start)
        file = segment.file
        try:
            for at, header in scan_headers(file, position, segment.size, chunk_bytes=WALK_BYTES):
                if header.last_offset < start:
                    continue
                if header.base_offset >= upto:
                    break
                yield segment, at, header
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{segment.path(LOG_SUFFIX)}: {error.message}") from error
