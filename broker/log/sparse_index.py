"""What the offset and time indexes share: a file of fixed-size sorted entries, searched through a mapped view.

Entries gather in memory and reach the file some hundred at a time. Nothing is lost by that: after a crash the indexes
of every segment above the recovery point are built again from the log. The file is opened when it is first needed.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import ClassVar, Final

from semel.broker.log.index_search import last_at_most
from semel.broker.log.open_files import OpenFiles, SharedFile
from semel.runtime.storage import Storage

_PENDING_BYTES_MAX: Final = 4096
_UNKNOWN: Final = -1
_SAMPLES: Final = 32
_NO_ENTRY: Final = (-1, 0, 0)


class SparseIndex:
    """A file of sorted entries of one segment. Subclasses give the entry's layout and meaning."""

    __slots__ = (
        "_count",
        "_file",
        "_files",
        "_map",
        "_mapped",
        "_pending",
        "_storage",
        "_torn",
        "base_offset",
        "created",
        "path",
        "unsynced",
    )

    ENTRY: ClassVar[struct.Struct]
    """Two numbers."""
    SECOND_AT: ClassVar[int]
    """Where in an entry the second begins."""

    def __init__(self, storage: Storage, path: str, base_offset: int, files: OpenFiles, *, empty: bool = False) -> None:
        self._storage = storage
        self._files = files
        self._file: SharedFile | None = None
        self._map: memoryview | None = None
        self._mapped = 0
        self._pending: bytearray | None = None
        self._count = 0 if empty else _UNKNOWN
        """Entries in the file, or _UNKNOWN before it was opened."""
        self._torn = False
        """Whether the file ended within an entry when it was opened."""
        self.path = path
        self.base_offset = base_offset
        self.unsynced = False
        """Whether the file was written since it was last synced. The one that syncs it resets it."""
        self.created = False
        """Whether the file may be new, so that its name is to be synced too. The one that does resets it."""

    def __len__(self) -> int:
        if self._count < 0:
            self._open()
        if self._pending is None:
            return self._count
        return self._count + len(self._pending) // self.ENTRY.size

    @property
    def size_bytes(self) -> int:
        return len(self) * self.ENTRY.size

    def _open(self) -> SharedFile:
        file = self._file
        if file is None:
            file = self._file = SharedFile(self._storage.open(self.path, create=True))
            self._files.opened(self)
            self.created = self.created or self._count == 0
            if self._count < 0:
                # A torn last entry (a crash, a foreign file) is no entry.
                count, rest = divmod(file.size(), self.ENTRY.size)
                self._torn = rest > 0
                self._count = self._count_valid(count)
        return file

    def _count_valid(self, count: int) -> int:
        """Return how many of the file's `count` entries are real: Kafka leaves zeros in an index it did not close."""
        if count and not any(self._read_last(count)):
            assert self._file is not None
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if any(self._file.read_at(self.ENTRY.size, middle * self.ENTRY.size)):
                    low = middle + 1
                else:
                    high = middle
            return low
        return count

    def _read_last(self, count: int) -> bytes:
        assert self._file is not None
        return self._file.read_at(self.ENTRY.size, (count - 1) * self.ENTRY.size)

    def entry(self, number: int) -> tuple[int, int]:
        """Return the fields of an entry as stored."""
        if number >= self._mapped:
            if self._count < 0:
                self._open()
            if number >= self._count:
                assert self._pending is not None
                first, second = self.ENTRY.unpack_from(self._pending, (number - self._count) * self.ENTRY.size)
                return first, second
            self._map_all()
        assert self._map is not None
        first, second = self.ENTRY.unpack_from(self._map, number * self.ENTRY.size)
        return first, second

    def _map_all(self) -> None:
        self._map = self._open().map(self._count * self.ENTRY.size)
        self._mapped = self._count

    def _add(self, first: int, second: int) -> None:
        if self._pending is None:
            self._pending = bytearray()
        self._pending += self.ENTRY.pack(first, second)
        if len(self._pending) >= _PENDING_BYTES_MAX:
            # A full disk is for the next write of batches to report: entries can wait, and can be built again.
            with suppress(OSError):
                self.write_pending()

    def write_pending(self) -> None:
        """Bring all entries into the file. Raises `OSError`; the entries stay pending then."""
        pending = self._pending
        if pending:
            file = self._open()
            self.unsynced = True
            file.write_at(pending, self._count * self.ENTRY.size)
            self._count += len(pending) // self.ENTRY.size
        self._pending = None

    def floor(self, field: int, target: int) -> tuple[int, int, int]:
        """Return the number of the last entry whose `field` (0 or 1) is at or below `target`, and its fields as stored.

        Where there is none, the number is -1.
        """
        if self._count < 0:
            self._open()
        size, second_at = self.ENTRY.size, self.SECOND_AT
        pending = self._pending
        if pending:
            count = len(pending) // size
            number, first, second = last_at_most(memoryview(pending), count, size, second_at, field, target)
            if number >= 0:
                return self._count + number, first, second
        if self._mapped < self._count:
            self._map_all()
        view = self._map
        return _NO_ENTRY if view is None else last_at_most(view, self._count, size, second_at, field, target)

    def growing_prefix(self, field: int, limit: int) -> int:
        """Return how many entries from the first on grow in both fields and have `field` below `limit`.

        Behind what was synced a power cut leaves anything, which no binary search can be trusted with.
        """
        last_first = last_second = -1
        for number in range(len(self)):
            first, second = entry = self.entry(number)
            if first <= last_first or second <= last_second or entry[field] >= limit:
                return number
            last_first, last_second = entry
        return len(self)

    def sample(self) -> tuple[int, int] | tuple[()] | None:
        """Look at some entries, the first and the last among them, and return the last one as stored.

        Nothing () where there is none; None where the file ends within one, or they do not grow in both fields.
        """
        count = len(self)
        if self._torn:
            return None
        step = max(1, count // _SAMPLES)
        before: tuple[int, int] | tuple[()] = ()
        for number in sorted({*range(0, count, step), count - 1} - {-1}):
            entry = self.entry(number)
            if entry[0] < 0 or entry[1] < 0 or (before and (entry[0] <= before[0] or entry[1] <= before[1])):
                return None
            before = entry
        return before

    def truncate_entries(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count >= len(self):
            return
        if self._pending is not None and count >= self._count:
            del self._pending[(count - self._count) * self.ENTRY.size :]
            return
        self._pending = None
        self._map = None  # a view beyond the file's end would fault
        self._mapped = 0
        self.unsynced = True
        self._open().truncate(count * self.ENTRY.size)
        self._count = count

    @property
    def file(self) -> SharedFile:
        """The open file. As long as it is kept, it stays open."""
        return self._open()

    def trim(self) -> None:
        """Write what is pending, and cut a torn or preallocated tail, so that the file holds entries alone."""
        self.write_pending()
        size = len(self) * self.ENTRY.size
        file = self._open()
        if file.size() != size:
            self._map = None
            self._mapped = 0
            self.unsynced = True
            file.truncate(size)

    def release_file(self) -> None:
        """Close the file until it is needed again. Pending entries stay in memory."""
        self._map = None
        self._mapped = 0
        if self._file is not None:
            self._file = None
            self._files.closed(self)
