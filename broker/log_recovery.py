"""Giving logs back what a crash took from them and the journal has (D1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from semel.broker.log.journal import Journal
from semel.broker.log.journal_format import EntryType, JournalEntry
from semel.broker.log.partition_log import PartitionLog
from semel.broker.node_log import counted
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.record_batch import iter_batches

_PIECE_BYTES: Final = 64 << 10
_PIECES_MAX: Final = 256


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
        )


def replay_journal(
    journal: Journal,
    logs: Mapping[tuple[TopicId, int], PartitionLog],
    recovery_points: Mapping[TopicPartition, int],
    now_ms: int,
) -> RecoveryReport:
    """Bring the logs, already validated, to what the journal says. They are not flushed by this.

    Repeating it changes nothing more. Raises `SemelError` where something that was acknowledged is gone.
    """
    entries = restored = skipped = 0
    compare = _Comparison()
    for entry in journal.replay():
        entries += 1
        log = logs.get((entry.topic_id, entry.partition))
        if log is None:
            skipped += 1
        elif entry.type is EntryType.TRUNCATE:
            if entry.base_offset < log.log_end_offset:
                compare.forget(log)
                log.truncate_to(entry.base_offset, now_ms=now_ms)
        else:
            restored += _restore(log, entry, recovery_points.get(log.tp, 0), now_ms, compare)
    return RecoveryReport(
        clean=False,
        partitions=len(logs),
        journal_entries=entries,
        restored_batches=restored,
        skipped_entries=skipped,
        damage=damage_of(logs.values()),
    )


def damage_of(logs: Iterable[PartitionLog]) -> tuple[str, ...]:
    """Say what opening found damaged in these logs, though it had been synced."""
    return tuple(log.recovered_damage for log in logs if log.recovered_damage)


def _restore(log: PartitionLog, entry: JournalEntry, recovery_point: int, now_ms: int, compare: _Comparison) -> int:
    """Bring a log to what an entry says, and return how many batches it had lost or had otherwise.

    Up to the recovery point a log is on the disk, and may have been compacted since. From there on the journal is the
    truth: a log's bytes can be whole and yet not those that were acknowledged, where the disk kept an older write that
    had been taken back.
    """
    restored = 0
    position = 0
    view = memoryview(entry.payload)
    for header in iter_batches(entry.payload):
        batch = view[position : position + header.size_bytes]
        position += header.size_bytes
        start, end = log.log_start_offset, log.log_end_offset
        if header.next_offset <= max(start, min(recovery_point, end)):
            continue
        if header.base_offset < end:
            if compare.has_batch(log, header.base_offset, header.next_offset, batch):
                continue
            compare.forget(log)
            log.truncate_to(header.base_offset, now_ms=now_ms)
        elif header.base_offset > end:
            raise FatalError(
                f"the log of {log.tp} ends at {end}, and the journal goes on at {header.base_offset}: the records "
                "between were flushed and are gone. Restore the log's folder from a backup; or, to go on without them, "
                "move the journal's folder away and start again.",
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

    __slots__ = ("_places",)

    def __init__(self) -> None:
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
            found = log.read(readable, max(size, _PIECE_BYTES), log.log_end_offset, True)
            if found.file is None or found.first_offset != offset:
                return False
            place = offset, found.file.read_at(found.size, found.position), 0
        _, piece, at = place
        if piece[at : at + size] != batch:
            return False
        if len(self._places) >= _PIECES_MAX:
            del self._places[next(iter(self._places))]
        self._places[log.tp] = next_offset, piece, at + size
        return True
