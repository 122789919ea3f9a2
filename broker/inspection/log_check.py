"""Walks over all batches of one log, and holds everything that was derived from them against it (D2, D3, L3, P7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semel.broker.inspection.abort_check import AbortCheck
from semel.broker.inspection.dry_run_outcome import DryRunOutcome
from semel.broker.inspection.findings import Check, Findings, Severity
from semel.broker.inspection.index_check import OffsetIndexCheck, TimeIndexCheck
from semel.broker.inspection.producer_check import SnapshotCheck
from semel.broker.log.batch_scan import scan_batches
from semel.broker.log.checkpoints import read_epochs
from semel.broker.log.config import LogConfig
from semel.broker.log.leader_epochs import LeaderEpochs
from semel.broker.log.log_directory import parse_name
from semel.broker.log.producer_snapshot import SNAPSHOT_SUFFIX, SnapshotFiles
from semel.broker.log.producer_state import ProducerState
from semel.broker.log.recovery import LEADER_EPOCHS_FILE
from semel.broker.log.replay import apply_batch
from semel.broker.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, segment_path
from semel.protocol.batch_header import COMPRESSION_MASK, BatchHeader, check_crc32c, read_header, validate_batches
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.record_decoder import decode_records
from semel.runtime.storage import Storage

Progress = Callable[[str, int], None]
"""Told of the file that is read, and how many more bytes of it were."""

_PROGRESS_BYTES: Final = 8 << 20
_RESTORE: Final = "restore the directory from a backup"


@dataclass(slots=True)
class WalkedLog:
    """What a walk found: where the log begins and ends, and how much there is."""

    tp: TopicPartition
    start_offset: int = 0
    end_offset: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    markers: int = 0
    empty_markers: int = 0
    """Markers of transactions that wrote nothing here, which is legal (T11)."""


class LogCheck:
    """Checks the log in one folder. One use."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        name: str,
        tp: TopicPartition,
        config: LogConfig,
        findings: Findings,
        outcome: DryRunOutcome,
        *,
        is_clean: bool,
        was_compacted: bool,
        log_start_offset: int,
        recovery_point: int,
        now_ms: int,
        deep: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """`name` is the folder as the findings call it. With `deep` each batch is decompressed and its records read.

        is_clean:       the last stop left everything whole.
        was_compacted:  though its topic's settings do not say so: they were changed, or the node's own said so.
        recovery_point: up to here everything was synced, so that no crash can have torn it.
        """
        self._storage = storage
        self._folder = folder
        self._name = name
        self._is_compacted = config.is_compacted or was_compacted
        self._findings = findings
        self._outcome = outcome
        self._is_clean = is_clean
        self._log_start_offset = log_start_offset
        self._recovery_point = recovery_point
        self._now_ms = now_ms
        self._deep = deep
        self._progress = progress
        self._names = storage.list_folder(folder)
        self._state = ProducerState(tp)
        self._walked = WalkedLog(tp)
        self._is_complete = True
        self._epoch_fault = ""
        self._epoch_fault_offset = 0
        self._epoch_fault_epoch = NO_LEADER_EPOCH
        self._last_epoch = NO_LEADER_EPOCH
        self._epochs: LeaderEpochs | None = None

    def run(self) -> WalkedLog:
        """Walk. What is wrong is in the findings; raises `OSError` alone."""
        walked = self._walked
        bases = self._offsets_with(LOG_SUFFIX)
        snapshots = SnapshotFiles(self._storage, self._folder, self._offsets_with(SNAPSHOT_SUFFIX))
        check = SnapshotCheck(self._storage, snapshots, self._now_ms, is_compacted=self._is_compacted)
        self._leftovers(set(bases))
        if not bases:
            return walked
        walked.segments = len(bases)
        walked.start_offset = end = bases[0]
        self._is_complete = check.begin(self._state, end)
        self._state.end_offset = end
        self._epochs = self._read_epochs()
        for number, base in enumerate(bases):
            if base != end:
                self._misplaced(base, end)
            end = self._walk_segment(base, check, is_closed=number + 1 < len(bases) or self._is_clean)
        check.come_to(end, self._state, is_complete=self._is_complete, is_end=True)
        check.end(end)
        self._tell_of_snapshots(snapshots, check)
        if self._epoch_fault:
            path = f"{self._name}/{LEADER_EPOCHS_FILE}"
            # After a crash the file need not know more than up to the recovery point, and a start adds the rest. Of a
            # replica that was cut below that to follow its leader it knows less, and a start reads it from the batches.
            is_left = self._epoch_fault_offset < self._recovery_point and not self._is_older_than_a_cut()
            self._findings.add(
                Severity.WARNING if self._is_clean or is_left else Severity.NOTE, Check.LEADER_EPOCHS, path,
                self._epoch_fault,
                on_start=self._outcome.of_index(f"{self._folder}/{LEADER_EPOCHS_FILE}"),
            )  # fmt: skip
        walked.end_offset = end
        return walked

    # --- Files --------------------------------------------------------------------------------------------------------

    def _offsets_with(self, suffix: str) -> list[int]:
        return sorted(parsed[0] for parsed in map(parse_name, self._names) if parsed and parsed[1] == suffix)

    def _leftovers(self, bases: set[int]) -> None:
        for name in self._names:
            parsed = parse_name(name)
            if name.endswith((".deleted", ".tmp", ".cleaned", ".swap")):
                what = "a compaction, deletion or rewriting was interrupted, or is under way"
            elif name.endswith(".cut"):
                what = "bytes that an earlier start has cut from the log, kept for those who may save records from them"
            elif parsed is not None and parsed[1] in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                if parsed[0] in bases:
                    continue
                what = f"an index without its segment: {parsed[0]:020d}{LOG_SUFFIX} is not there"
                is_of_crash = self._is_of_crash(parsed[0])
                self._findings.add(
                    Severity.NOTE if is_of_crash else Severity.WARNING, Check.LEFTOVERS, f"{self._name}/{name}", what,
                    on_start=self._outcome.of_index(f"{self._folder}/{name}"),
                    command="" if is_of_crash else f"if the segment is gone, {_RESTORE}",
                )  # fmt: skip
                continue
            else:
                continue
            kept = self._outcome.refused or self._outcome.dry_run.storage.exists(f"{self._folder}/{name}")
            self._findings.add(
                Severity.NOTE, Check.LEFTOVERS, f"{self._name}/{name}", what,
                on_start="leaves it" if kept else "brings it to its end, and removes the file",
            )  # fmt: skip

    def _read_epochs(self) -> LeaderEpochs | None:
        path = f"{self._folder}/{LEADER_EPOCHS_FILE}"
        try:
            return LeaderEpochs(read_epochs(self._storage, path))
        except SemelError as error:
            self._epoch_fault = error.message
            return None

    def _is_older_than_a_cut(self) -> bool:
        """Whether the file is of before a cut, after which there are batches of a later epoch, and a start finds it."""
        fault, epoch = self._epoch_fault_offset, self._epoch_fault_epoch
        if self._epochs is None or not self._epochs.epoch_for(fault) >= 0 or self._epochs.latest >= epoch:
            return False
        try:
            after = read_epochs(self._outcome.dry_run.storage, f"{self._folder}/{LEADER_EPOCHS_FILE}")
        except (OSError, SemelError):
            return False
        return not self._outcome.refused and LeaderEpochs(after).epoch_for(fault) == epoch

    # --- Batches ------------------------------------------------------------------------------------------------------

    def _misplaced(self, base: int, end: int) -> None:
        path = segment_path(self._folder, base, LOG_SUFFIX)
        what = (
            f"the segment before ends at offset {end}: offsets {end} to {base - 1} are missing"
            if base > end
            else f"the segment before ends at offset {end}, so offsets {base} to {end - 1} are there twice"
        )
        if self._is_of_crash(min(base, end)):
            # A power cut takes files in any order, and a start reads on behind the first that it took.
            self._findings.add(
                Severity.NOTE, Check.OFFSETS, self._relative(path), what, offset=base, position=0,
                on_start="lets the log end there, and gives back what the journal has",
            )  # fmt: skip
            return
        self._add_batch_finding(Severity.ERROR, Check.OFFSETS, path, what, base, 0, 1)

    def _walk_segment(self, base: int, snapshots: SnapshotCheck, *, is_closed: bool) -> int:
        path = segment_path(self._folder, base, LOG_SUFFIX)
        offsets = OffsetIndexCheck(self._storage, segment_path(self._folder, base, INDEX_SUFFIX), base)
        times = TimeIndexCheck(self._storage, segment_path(self._folder, base, TIME_INDEX_SUFFIX), base)
        aborts = AbortCheck(
            self._storage,
            segment_path(self._folder, base, TXN_INDEX_SUFFIX),
            is_exact=self._is_complete and not self._is_compacted,
        )
        file = self._storage.open(path)
        end, position, told = base, 0, 0
        is_whole = True
        try:
            size = file.size()
            for position, header, batch in scan_batches(file, 0, size):
                self._check_offsets(path, base, end, position, header)
                snapshots.come_to(header.base_offset, self._state, is_complete=self._is_complete)
                offsets.take(position, header)
                times.take(header)
                if self._check_batch(path, position, header, batch):
                    self._take_in(header, batch, aborts)
                else:
                    snapshots.is_replay_broken = True
                end = self._state.end_offset = header.next_offset
                position += header.size_bytes
                if self._progress is not None and position - told >= _PROGRESS_BYTES:
                    self._progress(path, position - told)
                    told = position
        except CorruptBatchError as error:
            is_whole = False
            snapshots.is_replay_broken = True
            self._torn(path, end, position, size, error)
        finally:
            file.close()
        if self._progress is not None:
            self._progress(path, size - told)
        self._walked.size_bytes += size
        aborts.end()
        offsets.end(position)
        times.end(end, is_closed=is_closed and is_whole)
        self._tell_of_index(Check.OFFSET_INDEX, offsets.path, offsets.faults, base, end)
        self._tell_of_index(Check.TIME_INDEX, times.path, times.faults, base, end)
        self._tell_of_aborts(aborts, base, end)
        self._state.end_offset = end
        return end

    def _check_offsets(self, path: str, base: int, end: int, position: int, header: BatchHeader) -> None:
        first, size = header.base_offset, header.size_bytes
        if first < end:
            what = f"offset {first} follows offset {end - 1}"
            self._add_batch_finding(Severity.ERROR, Check.OFFSETS, path, what, first, position, size)
        elif header.last_offset - base > INT32_MAX:
            what = f"offset {header.last_offset} is too far from the segment's first, {base}"
            self._add_batch_finding(Severity.ERROR, Check.OFFSETS, path, what, first, position, size)
        elif first > end and not self._is_compacted:
            what = f"offsets {end} to {first - 1} are missing before this batch, in a log that is not compacted"
            self._add_batch_finding(Severity.WARNING, Check.OFFSETS, path, what, first, position, size)
        if header.leader_epoch < self._last_epoch:
            what = (
                f"a batch of leader epoch {header.leader_epoch} follows one of {self._last_epoch}: one of them is "
                "damaged, since epochs never become lower, and no checksum covers them"
            )
            self._add_batch_finding(Severity.WARNING, Check.LEADER_EPOCHS, path, what, first, position, size)
        self._last_epoch = header.leader_epoch
        if header.record_count == 0 and not self._is_compacted and not header.has_producer:
            self._findings.add(
                Severity.NOTE, Check.OFFSETS, self._relative(path),
                f"a batch without records stands for offsets {first} to {header.last_offset}: an earlier start found "
                "them lost, or the log was compacted once",
                offset=first, position=position,
            )  # fmt: skip

    def _check_batch(self, path: str, position: int, header: BatchHeader, batch: memoryview) -> bool:
        """Count a batch, and say whether its content can be believed."""
        walked = self._walked
        walked.batches += 1
        walked.records += header.record_count
        try:
            check_crc32c(batch, read_header(batch))
        except CorruptBatchError:
            what = (
                f"the checksum of the batch is wrong: the {header.record_count} records at offsets "
                f"{header.base_offset} to {header.last_offset} can't be read"
            )
            self._add_batch_finding(
                Severity.ERROR, Check.BATCHES, path, what, header.base_offset, position, header.size_bytes
            )
            return False
        try:
            if header.attributes & COMPRESSION_MASK > 4 or header.record_count > header.last_offset_delta + 1:
                validate_batches(batch, max_batch_bytes=INT32_MAX, strict_count=False)
            if header.is_control and header.record_count:
                decode_control(decode_records(batch, check_crc=False)[0])
        except SemelError as error:
            what = f"the checksum of the batch is right, and its records can't be read: {error.message}"
            self._add_batch_finding(
                Severity.ERROR, Check.BATCHES, path, what, header.base_offset, position, header.size_bytes
            )
            return False
        if self._deep and header.record_count and not header.is_control:
            self._read_records(path, position, header, batch)
        knows_epochs = (
            self._epochs is not None and not self._epoch_fault and header.base_offset >= self._log_start_offset
        )
        if knows_epochs and header.leader_epoch >= 0:
            assert self._epochs is not None
            known = self._epochs.epoch_for(header.base_offset)
            if known != header.leader_epoch:
                self._epoch_fault_offset = header.base_offset
                self._epoch_fault_epoch = header.leader_epoch
                self._epoch_fault = (
                    f"it says that offset {header.base_offset} was written in leader epoch {known} (-1: none); the "
                    f"batch there is of epoch {header.leader_epoch}"
                )
        return True

    def _read_records(self, path: str, position: int, header: BatchHeader, batch: memoryview) -> None:
        """Tell of records that no reader can read though they are as they were sent: nothing is damaged (S4)."""
        try:
            decode_records(batch, check_crc=False)
        except SemelError as error:
            first, last = header.base_offset, header.last_offset
            self._findings.add(
                Severity.NOTE, Check.BATCHES, self._relative(path),
                f"the batch of offsets {first} to {last} is as it was sent, and no reader can read its records: "
                f"{error.message}. Its producer sent what are no records; nodes refuse such batches now",
                command=f"readers continue at offset {last + 1}, or pass over it (on_unreadable_batch='skip', "
                f"semel consume --skip-unreadable); to look at it: semel log dump {path} --from {first}",
                offset=first, position=position,
            )  # fmt: skip

    def _take_in(self, header: BatchHeader, batch: memoryview, aborts: AbortCheck) -> None:
        completed = apply_batch(self._state, header, batch, self._now_ms)
        if header.is_control and header.record_count:
            self._walked.markers += 1
            if completed is None:
                self._walked.empty_markers += 1
            if decode_control(decode_records(batch, check_crc=False)[0]).type is ControlType.ABORT:
                aborts.take(header.producer_id, header.base_offset, completed)

    def _torn(self, path: str, end: int, position: int, size: int, error: CorruptBatchError) -> None:
        """No whole batch: a crash tore the tail, or the rest of the segment is lost."""
        what = (
            f"no whole batch at position {position} (offset {end}), and {size - position} bytes are left: "
            f"{error.message}"
        )
        # To the file's end, whatever follows: the journal may have the same bytes, and those that are missing behind.
        self._add_batch_finding(Severity.ERROR, Check.BATCHES, path, what, end, position, -1)

    def _add_batch_finding(
        self, severity: Severity, check: Check, path: str, what: str, offset: int, position: int, size: int
    ) -> None:
        """What a crash can have torn had not been acknowledged, or the journal has it: a start fixes that."""
        fixed = self._is_of_crash(offset) and not self._outcome.is_kept(path, position, size)
        self._findings.add(
            Severity.NOTE if fixed else severity, check, self._relative(path), what,
            on_start=self._outcome.of_batch(path, position, size),
            command="" if fixed else f"{_RESTORE}; to look at it: semel log dump {path} --from {offset}",
            offset=offset, position=position,
        )  # fmt: skip

    def _is_of_crash(self, offset: int) -> bool:
        """Whether no sync had covered what is at `offset` when the node was killed: a start looks at all of that."""
        return not self._is_clean and not self._outcome.refused and offset >= self._recovery_point

    # --- What was derived ---------------------------------------------------------------------------------------------

    def _tell_of_index(self, check: Check, path: str, faults: list[str], base: int, end: int) -> None:
        """`base`, `end`: the segment's. A start builds all behind the last sync again, perhaps just as it was."""
        is_of_crash = self._is_of_crash(base)
        if faults and not is_of_crash:
            is_of_crash = self._is_of_crash(end) and not self._outcome.is_kept(path)
        for fault in faults:
            on_start = self._outcome.of_index(path)
            severity = Severity.NOTE if is_of_crash else Severity.WARNING
            self._findings.add(severity, check, self._relative(path), fault, on_start=on_start)

    def _tell_of_aborts(self, aborts: AbortCheck, base: int, end: int) -> None:
        """A list without an entry shows readers aborted records; one with too many hides committed ones (L3)."""
        path = aborts.path
        fixed = bool(aborts.faults) and not self._outcome.refused and not self._outcome.is_kept(path)
        for fault, offset in aborts.faults:
            # It is written behind the marker, and synced by the next flush. What has no place in the segment is torn.
            is_torn = not base <= offset < end
            is_of_crash = self._is_of_crash(max(offset, base)) or (is_torn and fixed and self._is_of_crash(end))
            severity = Severity.NOTE if is_of_crash else Severity.WARNING if fixed else Severity.ERROR
            self._findings.add(
                severity, Check.TRANSACTION_INDEX, self._relative(path), fault,
                on_start=self._outcome.of_index(path), offset=offset,
                command="" if fixed or is_of_crash
                else f"{_RESTORE}; or, with the node stopped, remove the file's partition from "
                "recovery-point-offset-checkpoint and .kafka_cleanshutdown: the next start builds it again",
            )  # fmt: skip

    def _tell_of_snapshots(self, snapshots: SnapshotFiles, check: SnapshotCheck) -> None:
        for offset, fault in check.faults:
            path = snapshots.path(offset)
            is_damaged, is_last = fault.startswith("it is damaged"), offset == max(snapshots.offsets)
            # Only a clean stop syncs one: a power cut may tear others, and a start passes over those (P7). After a
            # crash it reads none behind the last sync of the log.
            is_of_crash = self._is_of_crash(offset - 1) or (is_damaged and not (is_last and self._is_clean))
            gone = not self._outcome.refused and not self._outcome.dry_run.storage.exists(path)
            severity = Severity.WARNING if gone or is_damaged or not is_last else Severity.ERROR
            if is_of_crash:
                severity = Severity.NOTE
            self._findings.add(
                severity, Check.PRODUCER_SNAPSHOT, self._relative(path), fault,
                on_start=(
                    "removes it, and reads an older one or the log" if gone or (is_of_crash and is_last)
                    else "believes it, for what comes behind it" if is_last
                    else "does not read it; a start after a crash might"
                ),
                command="" if gone or is_of_crash
                else f"with the node stopped, remove {path}: the log gives the state again",
                offset=offset,
            )  # fmt: skip

    def _relative(self, path: str) -> str:
        return f"{self._name}/{path.rpartition('/')[2]}"
