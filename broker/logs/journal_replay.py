"""Giving logs back what a crash took from them and the journal has (D1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from semel.broker.log.journal import Journal
from semel.broker.log.journal_format import EntryType, JournalEntry
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.wording import counted

_PIECE_BYTES_MIN: Final = 2 << 10
_PIECE_BYTES_MAX: Final = 64 << 10
_PIECES_BYTES: Final = 16 << 20
"""About so much of all logs together is held beside the journal. A journal goes round all logs, so that each log that
has appends keeps a piece: with fewer places than logs, each entry would be looked up and read again.
"""


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
    damage: tuple[str, ...] = ()
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

    def log_failed(self, log: PartitionLog, error: Exception) -> None:
        """Bring what the log has got so far to the disk, and take it offline. Raises where that can't be done."""
        ...

    def keep(self, key: tuple[TopicId, int], entry: JournalEntry) -> None: ...


def replay_journal(
    journal: Journal,
    logs: Mapping[tuple[TopicId, int], PartitionLog],
    recovery_points: Mapping[TopicPartition, int],
    now_ms: int,
    aside: EntriesAside | None = None,
) -> RecoveryReport:
    """Bring the logs, already validated, to what the journal says. They are not flushed by this.

    Repeating it changes nothing more. Raises `SemelError` where something that was acknowledged is gone; with `aside`
    that takes the one log offline, and its entries are kept.
    """
    entries = restored = skipped = kept = 0
    compare = _Comparison(len(logs))
    failed: set[tuple[TopicId, int]] = set()
    begun = {key: log.epochs.entries()[-1:] for key, log in logs.items()}
    for entry in journal.replay():
        entries += 1
        key = entry.topic_id, entry.partition
        log = logs.get(key)
        if log is not None and key not in failed:
            try:
                restored += _take_in(log, entry, recovery_points.get(log.tp, 0), now_ms, compare)
                continue
            except (SemelError, OSError) as error:
                if aside is None:
                    raise
                aside.log_failed(log, error)
                failed.add(key)
        if aside is not None and aside.is_wanted(key):
            aside.keep(key, entry)
            kept += 1
        else:
            skipped += 1
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


def damage_of(logs: Iterable[PartitionLog]) -> tuple[str, ...]:
    """Say what opening found damaged in these logs, though it had been synced."""
    return tuple(log.recovered_damage for log in logs if log.recovered_damage)


def _take_in(log: PartitionLog, entry: JournalEntry, recovery_point: int, now_ms: int, compare: _Comparison) -> int:
    if entry.type is not EntryType.TRUNCATE:
        return _restore(log, entry, recovery_point, now_ms, compare)
    if entry.base_offset < log.log_end_offset:
        compare.forget(log)
    log.replay_cut(entry.base_offset, now_ms=now_ms)
    return 0


def _restore(log: PartitionLog, entry: JournalEntry, recovery_point: int, now_ms: int, compare: _Comparison) -> int:
    """Bring a log to what an entry says, and return how many batches it had lost or had otherwise.

    Up to the recovery point a log is on the disk, and may have been compacted since. From there on the journal is the
    truth: a log's bytes can be whole and yet not those that were acknowledged, where the disk kept an older write that
    had been taken back.
    """
    restored = 0
    position = 0
    follows = entry.base_offset
    """Where the log ended before the next batch: there may be a gap between them, left by the leader's compaction."""
    view = memoryview(entry.payload)
    for header in iter_batches(entry.payload):
        batch = view[position : position + header.size_bytes]
        position += header.size_bytes
        start, end = log.log_start_offset, log.log_end_offset
        is_next, follows = follows <= end, header.next_offset
        if header.next_offset <= max(start, min(recovery_point, end)):
            continue
        if header.base_offset < end:
            if compare.has_batch(log, header.base_offset, header.next_offset, batch):
                continue
            compare.forget(log)
            log.truncate_to(header.base_offset, now_ms=now_ms)
        elif header.base_offset > end and not is_next and not log.is_only_replica:
            return restored  # it was being cut to follow its leader, which has what it needs next
        elif header.base_offset > end and not is_next:
            raise FatalError(
                f"the log of {log.tp} ends at {end}, and the journal continues at {header.base_offset}: the records "
                "between were flushed and are gone. Restore the log's directory from a backup",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
        log.replay_append(header.base_offset, batch, now_ms=now_ms)
        if log.log_start_offset < start:
            # The batch that holds the start is whole again; what was deleted of it stays deleted.
            log.delete_records(start)
        restored += 1
    return restored


class _Comparison:
    """Reads logs forward, in pieces, beside the journal: most batches are where they should be, one after the other."""

    __slots__ = ("_piece_bytes", "_pieces_max", "_places")

    def __init__(self, logs: int) -> None:
        self._piece_bytes = min(max(_PIECES_BYTES // max(logs, 1), _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)
        self._pieces_max = _PIECES_BYTES // self._piece_bytes
        self._places: dict[TopicPartition, tuple[int, bytes, int]] = {}
        """Of each log lately read: the next offset, the piece that was read, and where in it that offset is."""

    def forget(self, log: PartitionLog) -> None:
        """The log is about to be changed."""
        self._places.pop(log.tp, None)

    def has_batch(self, log: PartitionLog, offset: int, next_offset: int, batch: memoryview) -> bool:
        """Say whether the log has exactly this batch at `offset`."""
        size = len(batch)
        place = self._places.pop(log.tp, None)
        if place is None or place[0] != offset or place[2] + size > len(place[1]):
            # Records may have been deleted up to the middle of the batch.
            readable = max(offset, log.log_start_offset)
            found = log.read(readable, max(size, self._piece_bytes), log.log_end_offset, True)
            if found.records is None or found.first_offset != offset:
                return False
            place = offset, found.read(), 0
        _, piece, at = place
        if piece[at : at + size] != batch:
            return False
        if len(self._places) >= self._pieces_max:
            del self._places[next(iter(self._places))]
        self._places[log.tp] = next_offset, piece, at + size
        return True
