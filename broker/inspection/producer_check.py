"""Whether producer snapshots are what a replay of the log gives (P7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from semel.broker.log.producer_snapshot import (
    SNAPSHOT_BYTES_MAX,
    CorruptSnapshotError,
    SnapshotFiles,
    decode_snapshot,
)
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH, ProducerEntry, ProducerState
from semel.runtime.storage import Storage, read_whole

_TOLD_MAX: Final = 3


def read_snapshot(storage: Storage, path: str, now_ms: int) -> list[ProducerEntry]:
    """Return the producers of a snapshot. Raises `CorruptSnapshotError`, and `OSError`."""
    try:
        return decode_snapshot(read_whole(storage, path, size_bytes_max=SNAPSHOT_BYTES_MAX), now_ms=now_ms)
    except ValueError as error:
        raise CorruptSnapshotError(str(error)) from error


class SnapshotCheck:
    """The snapshots of one log, compared with the state when the walk comes by their offsets."""

    def __init__(self, storage: Storage, snapshots: SnapshotFiles, now_ms: int, *, is_compacted: bool) -> None:
        self._storage = storage
        self._snapshots = snapshots
        self._now_ms = now_ms
        self._is_compacted = is_compacted
        self._left = list(snapshots.offsets)
        self.faults: list[tuple[int, str]] = []
        """Offset of each snapshot that is not right, and what is wrong."""
        self.is_replay_broken = False
        """Whether a batch could not be read: from there on nobody knows what the state was."""

    def begin(self, state: ProducerState, first_offset: int) -> bool:
        """Start from the snapshot of the log's first segment, if there is one. Says whether the state is the whole one:
        it is not, where what came before was deleted and no snapshot tells of it.
        """
        if first_offset == 0:
            return True
        if first_offset not in self._snapshots.offsets:
            return False
        try:
            entries = read_snapshot(self._storage, self._snapshots.path(first_offset), self._now_ms)
        except (CorruptSnapshotError, FileNotFoundError):
            return False
        state.restore(entries, first_offset)
        return True

    def come_to(self, offset: int, state: ProducerState, *, is_complete: bool, is_end: bool = False) -> None:
        """Compare those up to `offset` with the state, which holds all batches below it.

        Compaction takes ended transactions, markers and all, so what a compacted log was in between nobody knows.
        """
        while self._left and self._left[0] <= offset:
            number = self._left.pop(0)
            try:
                entries = read_snapshot(self._storage, self._snapshots.path(number), self._now_ms)
            except FileNotFoundError:
                continue
            except CorruptSnapshotError as error:
                self.faults.append((number, f"it is damaged: {error}"))
                continue
            if number < state.end_offset or self.is_replay_broken or (self._is_compacted and not is_end):
                continue  # within a batch, or before the first: there is nothing to compare it with
            wrong = list(self._differences(entries, state, is_complete))
            if wrong:
                told = "; ".join(wrong[:_TOLD_MAX])
                rest = f"; and {len(wrong) - _TOLD_MAX} more" if len(wrong) > _TOLD_MAX else ""
                self.faults.append((number, f"it is not what the log says: {told}{rest}"))

    def end(self, end_offset: int) -> None:
        """The log ends here."""
        self.faults += [
            (number, f"it is of offset {number}, and the log ends at {end_offset}") for number in self._left
        ]
        self._left = []

    def _differences(self, entries: Iterable[ProducerEntry], state: ProducerState, is_complete: bool) -> Iterator[str]:
        """A producer may have expired and begun again (P8): then the snapshot knows less than the log says."""
        known = {entry.producer_id: entry for entry in entries}
        for replayed in state:
            if replayed.transaction_first_offset >= 0 and replayed.producer_id not in known:
                yield (
                    f"producer {replayed.producer_id} has a transaction open since offset "
                    f"{replayed.transaction_first_offset}, which it does not name"
                )
        for entry in known.values():
            found = state.entry(entry.producer_id)
            if found is None:
                if is_complete and not self._is_compacted:
                    yield f"it names producer {entry.producer_id}, of which the log has nothing"
            else:
                yield from self._differing(entry, found, is_complete)

    def _differing(self, entry: ProducerEntry, replayed: ProducerEntry, is_complete: bool) -> Iterator[str]:
        who = f"producer {entry.producer_id}"
        if entry.epoch != replayed.epoch:
            yield f"{who} has epoch {replayed.epoch}, not {entry.epoch}"
            return
        if entry.transaction_first_offset != replayed.transaction_first_offset and is_complete:
            yield (
                f"{who}'s open transaction begins at offset {replayed.transaction_first_offset}, not "
                f"{entry.transaction_first_offset} (-1: none)"
            )
        if entry.coordinator_epoch not in (replayed.coordinator_epoch, NO_COORDINATOR_EPOCH) and is_complete:
            known, found = entry.coordinator_epoch, replayed.coordinator_epoch
            yield f"{who}'s last marker has coordinator epoch {found}, not {known}"
        if self._is_compacted or not is_complete:
            return
        batches = list(entry.batches)
        if batches and batches != list(replayed.batches)[-len(batches) :]:
            yield f"{who}'s last batches are {list(replayed.batches)}, not {batches}"
