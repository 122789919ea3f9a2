"""Giving logs back what a crash took from them and the journal has (D1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from semel.broker.log.journal import Journal
from semel.broker.log.journal_format import EntryType, JournalEntry, by_place, parse_place
from semel.broker.log.journal_recovery import JournalCut
from semel.broker.log.journal_runs import compare_entries, count_following
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.batch_header import iter_batches
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.wording import counted

_PIECE_BYTES: Final = 1 << 20
"""So much of a log is read at a time to be compared with the journal."""
_READ_BYTES_EACH: Final = 8 << 10
_READ_BYTES_MIN: Final = 4 << 20
_READ_BYTES_MAX: Final = 8 << 20
"""So much of the journal is read at a time, for each log and in sum: each log takes its share at once."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening had to do."""

    clean: bool
    partitions: int
    journal_entries: int = 0
    restored_batches: int = 0
    """Batches that a log had lost, or had otherwise, and that the journal gave back."""
    skipped_entries: int = 0
    """Entries of partitions that were deleted since."""
    kept_entries: int = 0
    """Entries of partitions that could not be opened, kept until they can be."""
    damage: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Of each log in which records that had been synced are lost or can't be read: which ones."""

    def __str__(self) -> str:
        if self.clean:
            return f"{counted(self.partitions, 'partition')}, after a clean stop"
        if not self.partitions and not self.journal_entries:
            return "none yet"
        return (
            f"{counted(self.partitions, 'partition')}, recovered after a crash: "
            f"{counted(self.journal_entries, 'entry', 'entries')} of the journal read, "
            f"{counted(self.restored_batches, 'batch', 'batches')} restored, "
            f"{self.skipped_entries} of deleted partitions skipped"
            + (f", {self.kept_entries} kept for partitions that are offline" if self.kept_entries else "")
        )


class EntriesAside(Protocol):
    """What becomes of entries whose log could not be opened, or can't take them."""

    def is_wanted(self, key: tuple[TopicId, int]) -> bool:
        """Say whether there is such a partition, so that its entries are to be kept."""
        ...

    def log_failed(self, log: PartitionLog, error: Exception) -> bool:
        """Take a log offline. Returns whether what it has got so far is on the disk, and need not be kept."""
        ...

    def keep(self, key: tuple[TopicId, int], entry: JournalEntry) -> None: ...


def replay_journal(
    journal: Journal,
    logs: Mapping[tuple[TopicId, int], PartitionLog],
    recovery_points: Mapping[TopicPartition, int],
    cuts: Mapping[tuple[TopicId, int], Sequence[JournalCut]],
    now_ms: int,
    aside: EntriesAside | None = None,
) -> RecoveryReport:
    """Bring the logs, already validated, to what the journal says. They are not flushed by this.

    cuts: what `Journal.cuts` has found

    Repeating it changes nothing more. Raises `SemelError` where something that was acknowledged is gone; with `aside`
    that takes the one log offline, and its entries are kept.
    """
    entries = restored = skipped = kept = 0
    failed: dict[tuple[TopicId, int], bool] = {}
    """Logs that can't take their entries, and whether what they took is on the disk."""
    begun = {key: log.epochs.entries()[-1:] for key, log in logs.items()}
    read_bytes = min(max(len(logs) * _READ_BYTES_EACH, _READ_BYTES_MIN), _READ_BYTES_MAX)
    for part in journal.replay_parts(read_bytes):
        entries += len(part)
        for place, found in by_place(part).items():
            key = parse_place(place)
            log = logs.get(key)
            left = found
            if log is not None and key not in failed:
                taking = _Taking(log, found, recovery_points.get(log.tp, 0), cuts.get(key, ()), now_ms)
                try:
                    taking.run()
                except (SemelError, OSError) as error:
                    if aside is None:
                        raise
                    failed[key] = aside.log_failed(log, error)
                restored += taking.restored
                left = found[taking.done :]
            if not failed.get(key, True):
                continue
            if aside is not None and aside.is_wanted(key):
                for entry in left:
                    aside.keep(key, entry)
                kept += len(left)
            else:
                skipped += len(left)
    if aside is not None and not all(failed.values()):
        # From the first one on: what the log took in before it failed may never get to the disk.
        for entry in journal.durable_entries():
            key = entry.topic_id, entry.partition
            if not failed.get(key, True):
                aside.keep(key, entry)
                kept += 1
    for key, log in logs.items():
        for epoch, begins in begun[key]:
            # A leader noted it, and wrote nothing (R7). Batches that the journal cuts later have contradicted it.
            if begins == log.log_end_offset and epoch > log.epochs.latest:
                log.epochs.assign(epoch, begins)
    return RecoveryReport(
        clean=False,
        partitions=len(logs),
        journal_entries=entries,
        restored_batches=restored,
        skipped_entries=skipped,
        kept_entries=kept,
        damage=damage_of(logs.values()),
    )


def damage_of(logs: Iterable[PartitionLog]) -> dict[TopicPartition, str]:
    """Say what opening found damaged in these logs, though it had been synced."""
    return {log.tp: log.recovered_damage for log in logs if log.recovered_damage}


class _Taking:
    """Brings a log to what some entries of the journal say of it, together where they can be: `done` are through."""

    __slots__ = ("_bytes", "_cuts", "_entries", "_log", "_now_ms", "_recovery_point", "done", "restored")

    def __init__(
        self,
        log: PartitionLog,
        entries: list[JournalEntry],
        recovery_point: int,
        cuts: Sequence[JournalCut],
        now_ms: int,
    ) -> None:
        self._log = log
        self._cuts = cuts
        self._entries = entries
        self._recovery_point = recovery_point
        self._now_ms = now_ms
        self._bytes = sum([entry.length for entry in entries])
        self.done = 0
        self.restored = 0
        """Batches that the log had lost, or had otherwise."""

    def run(self) -> None:
        """Raises `SemelError` and `OSError` for the entry after `done`."""
        alone_until = 0
        while self.done < len(self._entries):
            if self.done >= alone_until:
                self._pass_over_same()
                alone_until = self._append_following()
            if self.done < len(self._entries):
                self.restored += self._take_in(self._entries[self.done])
                self.done += 1

    def _pass_over_same(self) -> None:
        """Pass over the entries that the log has, byte for byte, or that end at the recovery point or before."""
        log, entries = self._log, self._entries
        floor = self._floor()
        piece = b""
        while True:
            count, offset, size = compare_entries(entries, self.done, floor, piece)
            self.done += count
            if offset < 0 or offset >= log.log_end_offset or (piece and not count):
                return
            left = self._bytes * (len(entries) - self.done) // len(entries)  # about, which is enough
            piece = log.bytes_from(offset, max(size, min(left, _PIECE_BYTES)))
            if not piece:
                return

    def _append_following(self) -> int:
        """Append the entries that follow the log's end with one call. Where some are broken, each is to be taken by
        itself, so that those before them are in the log: returns up to which.
        """
        log = self._log
        count, batches = count_following(self._entries, self.done, log.log_end_offset)
        end = self.done + count
        if count > 1:
            try:
                payloads = b"".join([entry.payload for entry in self._entries[self.done : end]])
                log.replay_append(None, payloads, now_ms=self._now_ms, one_by_one=True)
            except CorruptBatchError:
                return end  # found before anything was written
            except (SemelError, OSError):
                self._pass_over_written(end)
                raise
            self.done = end
            self.restored += batches
        return 0

    def _pass_over_written(self, upto: int) -> None:
        """Count what is in the log of entries that did not all get there: it was written in parts."""
        while self.done < upto:
            for header in iter_batches(self._entries[self.done].payload):
                if header.next_offset > self._log.log_end_offset:
                    return
                self.restored += 1
            self.done += 1

    def _take_in(self, entry: JournalEntry) -> int:
        if entry.type is not EntryType.TRUNCATE:
            return self._restore(entry)
        self._log.replay_cut(entry.base_offset, now_ms=self._now_ms)
        return 0

    def _floor(self) -> int:
        log = self._log
        return max(log.local_start_offset, min(self._recovery_point, log.log_end_offset))

    def _restore(self, entry: JournalEntry) -> int:
        """Bring the log to what one entry says, and return how many batches it had lost or had otherwise.

        Up to the recovery point a log is on the disk, and may have been compacted since. From there on the journal is
        the truth: a log's bytes can be whole and yet not those that were acknowledged, where the disk kept an older
        write that had been taken back.
        """
        log = self._log
        restored = 0
        follows = entry.base_offset
        """Where the log ended before the next batch: there may be a gap between them, left by the leader's compaction.
        """
        payload = entry.payload
        view = memoryview(payload)
        for header in iter_batches(payload):
            batch = view[header.position : header.position + header.size_bytes]
            start, end = log.log_start_offset, log.log_end_offset
            is_next, follows = follows <= end, header.next_offset
            if header.next_offset <= self._floor():
                continue
            if header.base_offset < end:
                if log.bytes_from(header.base_offset, len(batch)) == batch:
                    continue
                log.truncate_to(header.base_offset, now_ms=self._now_ms)
            elif header.base_offset > end and not is_next:
                if not log.is_only_replica:
                    return restored  # it was being cut to follow its leader, which has what it needs next
                if self._is_cut_later(entry, header.base_offset):
                    return restored  # the log has taken in that cut already, and did not get further
                raise FatalError(
                    f"the log of {log.tp} ends at {end}, and the journal continues at {header.base_offset}: the "
                    "records between were flushed and are gone. Restore the log's directory from a backup",
                    ErrorCode.KAFKA_STORAGE_ERROR,
                )
            log.replay_append(header.base_offset, batch, now_ms=self._now_ms)
            if log.log_start_offset < start:
                # The batch that holds the start is whole again; what was deleted of it stays deleted.
                log.delete_records(start)
            restored += 1
        return restored

    def _is_cut_later(self, entry: JournalEntry, offset: int) -> bool:
        """Say whether the journal has a cut at `offset` or before it, behind `entry`."""
        return any(cut.position > entry.end_position and cut.offset <= offset for cut in self._cuts)
