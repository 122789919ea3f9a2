"""What the journal has of partitions that could not be opened: kept apart until they can be, so it can be cut (D1).

Each partition has a small journal of its own, `kept/<topic id>-<partition>/`, in the journal's format. Writing the same
entries into it again, after a crash, changes nothing: replaying them twice comes to the same log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from semel.broker.log.disk_errors import remedy
from semel.broker.log.journal import Journal
from semel.broker.log.journal_format import EntryType, JournalEntry
from semel.broker.log.journal_recovery import JournalCut
from semel.broker.log.partition_log import PartitionLog
from semel.broker.logs.journal_replay import RecoveryReport, replay_journal
from semel.broker.logs.known_partitions import PartitionKey
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition, format_topic_id
from semel.runtime.clock import Clock
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.storage import Storage, make_lasting_folder

KEPT_FOLDER: Final = "kept"


class KeptEntries:
    """The kept journals of one data folder."""

    def __init__(self, storage: Storage, path: str, clock: Clock) -> None:
        self._storage = storage
        self._path = path
        self._clock = clock
        self._open: dict[PartitionKey, Journal] = {}
        self._made: set[PartitionKey] = set()
        """Of which partitions nothing was kept before these."""
        self._names: set[str] | None = None

    def folder(self, key: PartitionKey) -> str:
        """Return where what is kept of a partition is."""
        return f"{self._path}/{_name(key)}"

    def has(self, key: PartitionKey) -> bool:
        return _name(key) in self._all_names()

    def keep(self, key: PartitionKey, entry: JournalEntry) -> None:
        """Write an entry behind what is kept of its partition. Durable after `finish`. Raises as that."""
        journal = self._open.get(key)
        if journal is None:
            make_lasting_folder(self._storage, self._path)
            if not self.has(key):
                self._made.add(key)
            journal = self._open[key] = self._journal(key)
            for _ in journal.replay():
                pass  # appends continue behind them
            self._names = None
        if entry.type is EntryType.TRUNCATE:
            journal.append_truncation(entry.topic_id, entry.partition, entry.base_offset)
        else:
            journal.append(entry.topic_id, entry.partition, entry.base_offset, (entry.payload,))
        if (full := journal.full) is not None:
            # Not held in memory until there is room: that may be as much as the node's journal has.
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"what the journal has of an offline partition can't be kept in {self.folder(key)} ({full}): "
                f"{remedy(full)}",
            )

    def abandon(self) -> None:
        """Give up what is not finished, because writing it failed. It is still in the node's journal.

        What takes room, and was not there before, is removed, where the disk lets it.
        """
        journals, made = list(self._open.values()), list(self._made)
        self._open.clear()
        self._made.clear()
        for journal in journals:
            with suppress(SemelError, OSError):
                journal.close()
        for key in made:
            with suppress(OSError):
                self.discard(key)

    def finish(self) -> None:
        """Make what was kept durable. Raises `SemelError`, `OSError`."""
        journals = list(self._open.values())
        self._open.clear()
        for journal in journals:
            journal.close()
        self._made.clear()

    def replay(self, key: PartitionKey, log: PartitionLog, recovery_point: int) -> RecoveryReport:
        """Give a log what is kept of it. `discard` it once the log is flushed. Raises as `replay_journal`."""
        journal = self._journal(key)
        points: Mapping[TopicPartition, int] = {log.tp: recovery_point}
        report = replay_journal(journal, {key: log}, points, journal.cuts(), self._clock.now_ms())
        log.write_again()
        journal.close()
        return report

    def cuts(self, key: PartitionKey) -> list[JournalCut]:
        """Return where the log was cut, by what is kept of it. Raises as `Journal.cuts`."""
        return self._journal(key).cuts().get(key, []) if self.has(key) else []

    def offsets(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return the first offset of what is kept of a partition, and the offset behind it; None where nothing is."""
        first, end = -1, -1
        if self.has(key):
            for entry in self._journal(key).replay():
                if entry.type is EntryType.TRUNCATE:
                    end = min(end, entry.base_offset)
                    continue
                for header in iter_batches(entry.payload):
                    first = header.base_offset if first < 0 else min(first, header.base_offset)
                    end = header.next_offset
        return None if end < 0 else (first, end)

    def discard(self, key: PartitionKey) -> None:
        """Remove what is kept of a partition. Raises `OSError`."""
        if self.has(key):
            self._storage.remove_tree(self.folder(key))
            self._storage.sync_folder(self._path)
            self._names = None

    def discard_all_but(self, keys: Collection[PartitionKey]) -> None:
        """Remove what is kept of partitions that are not among these, because they were deleted. Raises `OSError`."""
        wanted = {_name(key) for key in keys}
        gone = sorted(self._all_names() - wanted)
        for name in gone:
            self._storage.remove_tree(f"{self._path}/{name}")
        if gone:
            self._storage.sync_folder(self._path)
            self._names = None

    def _all_names(self) -> set[str]:
        if self._names is None:
            self._names = set(self._storage.list_folder(self._path)) if self._storage.exists(self._path) else set()
        return self._names

    def _journal(self, key: PartitionKey) -> Journal:
        return Journal.open(self._storage, self.folder(key), clock=self._clock, executor=InlineExecutor())


def _name(key: PartitionKey) -> str:
    return f"{format_topic_id(key[0])}-{key[1]}"
