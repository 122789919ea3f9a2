"""`<base>.txnindex`: the aborted transactions whose markers are in a segment (L3). Kafka's format, 34 bytes an entry:
int16 version 0, int64 producer id, first offset, last offset (the marker's), last stable offset at the marker."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from semel.broker.log.disk_errors import is_full
from semel.broker.log.log_types import AbortedTransaction
from semel.broker.log.open_files import OpenFiles, SharedFile
from semel.broker.log.producer_state import CompletedTransaction
from semel.protocol.corruption import CorruptBatchError
from semel.runtime.storage import Storage

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
_UNKNOWN: Final = -1


class TransactionIndex:
    """The file exists only where a transaction was aborted. Entries are in order of their markers, and wait in memory
    only where the disk is full: readers depend on them."""

    __slots__ = ("_count", "_file", "_files", "_storage", "_waiting", "created", "path", "unsynced")

    def __init__(self, storage: Storage, path: str, files: OpenFiles, *, exists: bool) -> None:
        self._storage = storage
        self._files = files
        self._file: SharedFile | None = None
        self._count = _UNKNOWN if exists else 0
        self.path = path
        self.unsynced = False
        """Whether the file was written since it was last synced. The one that syncs it resets it."""
        self.created = False
        """Whether the file may be new, so that its name is to be synced too. The one that does resets it."""

        self._waiting: list[AbortedTransaction] = []
        """Entries that a full disk had no room for, behind those of the file."""

    @property
    def exists(self) -> bool:
        """Whether there is a file: an index without entries may have none."""
        return self._count != 0 or bool(self._waiting)

    def __len__(self) -> int:
        if self._count < 0:
            self._open()
        return self._count + len(self._waiting)

    def _open(self) -> SharedFile:
        file = self._file
        if file is None:
            file = self._file = SharedFile(self._storage.open(self.path, create=True))
            self._files.opened(self)
            self.created = self.created or self._count == 0
            if self._count < 0:
                self._count = file.size() // _ENTRY.size
        return file

    def add(self, transaction: AbortedTransaction) -> None:
        """Add one. On a full disk it waits in memory, where readers find it: no flush ends before it is in the file,
        so a recovery writes it again. Raises any other `OSError`.
        """
        self._waiting.append(transaction)
        try:
            self.write_waiting()
        except OSError as error:
            if not is_full(error):
                self._waiting.pop()
                raise

    def note_completed(self, completed: CompletedTransaction) -> None:
        """Add a transaction that a marker in this segment has ended, if it was aborted (L3). Raises as `add`."""
        if not completed.committed:
            self.add(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
                )
            )

    def write_waiting(self) -> None:
        """Bring all entries into the file. Raises `OSError`; the entries continue waiting then."""
        while self._waiting:
            file = self._open()
            self.unsynced = True
            file.write_at(_ENTRY.pack(_VERSION, *self._waiting[0]), self._count * _ENTRY.size)
            self._count += 1
            del self._waiting[0]

    def entry(self, number: int) -> AbortedTransaction:
        if self._waiting and number >= self._count:
            return self._waiting[number - self._count]
        data = self._open().read_at(_ENTRY.size, number * _ENTRY.size)
        if len(data) < _ENTRY.size:
            raise CorruptBatchError(f"{self.path} is damaged: it ends within entry {number}")
        return self._checked(_ENTRY.unpack(data))

    def _checked(self, fields: tuple[int, ...]) -> AbortedTransaction:
        version, producer_id, first_offset, last_offset, last_stable_offset = fields
        if version != _VERSION or not 0 <= first_offset <= last_offset:
            raise CorruptBatchError(f"{self.path} is damaged: it has an entry {fields}")
        return AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return self._from(0)

    def _from(self, number: int) -> Iterator[AbortedTransaction]:
        count = len(self) - len(self._waiting)
        first = number
        while number < count:
            data = self._open().read_at(min(count - number, 1024) * _ENTRY.size, number * _ENTRY.size)
            if not data:
                return
            for fields in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
                yield self._checked(fields)
            number += len(data) // _ENTRY.size
        yield from self._waiting[max(first - count, 0) :]

    def _first_ending_at(self, offset: int) -> int:
        """Return the number of the first entry whose marker is at or after `offset`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def collect(self, first_offset: int, upto_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add to `found` those that overlap [first_offset, upto_offset). Returns whether later segments have none.

        Once the last stable offset at a marker has passed the range, no transaction decided later can reach into it.
        """
        if not self.exists:
            return False
        for transaction in self._from(self._first_ending_at(first_offset)):
            if transaction.first_offset < upto_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= upto_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drop those whose markers are at `offset` or beyond."""
        if self.exists:
            self.truncate_entries(self._first_ending_at(offset))

    def growing_prefix(self, before_offset: int) -> int:
        """Return how many entries from the first on are in order, with their markers below `before_offset`.

        Behind what was synced a power cut leaves anything, which no binary search can be trusted with.
        """
        last = -1
        number = 0
        with suppress(CorruptBatchError):
            for _, first_offset, last_offset, _ in self:
                if not (last < last_offset < before_offset and 0 <= first_offset <= last_offset):
                    break
                last = last_offset
                number += 1
        return number

    def truncate_entries(self, count: int) -> None:
        if count < len(self):
            del self._waiting[max(count - self._count, 0) :]
        if count < self._count:
            self.unsynced = True
            self._open().truncate(count * _ENTRY.size)
            self._count = count

    def is_sane(self, base_offset: int, end_offset: int | None = None) -> bool:
        """Say whether the entries can be true: whole, in order, and of markers in this segment."""
        if self._open().size() % _ENTRY.size:
            return False
        before = base_offset - 1
        try:
            for _, first_offset, last_offset, _ in self:
                if not (before < last_offset and 0 <= first_offset <= last_offset):
                    return False
                before = last_offset
        except CorruptBatchError:
            return False
        return end_offset is None or before < end_offset

    @property
    def file(self) -> SharedFile:
        """The open file, created if need be. As long as it is kept, it stays open."""
        return self._open()

    def release_file(self) -> None:
        if self._file is not None:
            self._file = None
            self._files.closed(self)
