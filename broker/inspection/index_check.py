"""Whether the sparse indexes of a segment agree with its batches, entry by entry, while these are walked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.time_index import TimeIndex
from semel.protocol.batch_header import BatchHeader
from semel.protocol.ids import NO_TIMESTAMP
from semel.runtime.storage import Storage

INDEX_BYTES_MAX: Final = 256 << 20
"""Kafka lets an index have up to this with the largest setting that makes sense; a larger file is none."""
FAULTS_MAX: Final = 1000
"""So many faults of one file are noted: what is wrong with all of it need not be said of each entry."""


class IndexEntries:
    """The entries of an index, unpacked one by one: there may be a million."""

    __slots__ = ("_count", "_data", "_entry")

    def __init__(self, data: bytes, entry: struct.Struct) -> None:
        self._data = data
        self._entry = entry
        self._count = len(data) // entry.size
        # Kafka leaves zeros in an index that it did not close.
        while self._count and not any(self[self._count - 1]):
            self._count -= 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(self._data, number * self._entry.size)
        return first, second

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(self.__getitem__, range(self._count))


def read_entries(storage: Storage, path: str, entry: struct.Struct) -> tuple[IndexEntries, str | None]:
    """Return the entries of an index, and what is wrong with the file. A file that is not there has none."""
    try:
        file = storage.open(path)
    except FileNotFoundError:
        return IndexEntries(b"", entry), None
    try:
        size = file.size()
        if size > INDEX_BYTES_MAX:
            return IndexEntries(b"", entry), f"it has {size} bytes, more than any index has"
        data = file.read_at(size, 0)
    finally:
        file.close()
    rest = len(data) % entry.size
    fault = f"it ends within an entry: {rest} bytes follow the last whole one" if rest else None
    return IndexEntries(data, entry), fault


class OffsetIndexCheck:
    """`<base>.index`. Tell it of each batch in order, then ask `faults`."""

    def __init__(self, storage: Storage, path: str, base_offset: int) -> None:
        self.path = path
        self.faults: list[str] = []
        self._base_offset = base_offset
        self._entries, fault = read_entries(storage, path, OffsetIndex.ENTRY)
        self._next = 0
        if fault is not None:
            self.faults.append(fault)

    def take(self, position: int, header: BatchHeader) -> None:
        while self._next < len(self._entries):
            relative, named = self._entries[self._next]
            if named > position:
                return
            offset = self._base_offset + relative
            if named < position:
                self._fault(f"names position {named} for offset {offset}, where no batch begins")
            elif offset != header.last_offset:
                self._fault(
                    f"says that the batch at position {named} ends at offset {offset}; it ends at {header.last_offset}"
                )
            self._next += 1

    def end(self, size: int) -> None:
        """The batches end here: entries that are left name nothing."""
        while self._next < len(self._entries):
            relative, position = self._entries[self._next]
            self._fault(
                f"names position {position} for offset {self._base_offset + relative}, and the last batch ends at "
                f"position {size}"
            )
            self._next += 1

    def _fault(self, what: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(f"entry {self._next} {what}")


class TimeIndexCheck:
    """`<base>.timeindex`. Tell it of each batch in order, then ask `faults`."""

    def __init__(self, storage: Storage, path: str, base_offset: int) -> None:
        self.path = path
        self.faults: list[str] = []
        self.newest_ms = NO_TIMESTAMP
        self._base_offset = base_offset
        self._entries, fault = read_entries(storage, path, TimeIndex.ENTRY)
        self._next = 0
        if fault is not None:
            self.faults.append(fault)

    def take(self, header: BatchHeader) -> None:
        self.newest_ms = max(self.newest_ms, header.max_timestamp_ms)
        while self._next < len(self._entries):
            timestamp_ms, relative = self._entries[self._next]
            offset = self._base_offset + relative
            if offset > header.last_offset:
                return
            if offset < header.base_offset:
                self._fault(f"names offset {offset}, which is in no batch")
            elif timestamp_ms != self.newest_ms or header.max_timestamp_ms != timestamp_ms:
                self._fault(
                    f"says that the largest timestamp up to offset {offset} is {timestamp_ms}; it is {self.newest_ms}"
                )
            self._next += 1

    def end(self, end_offset: int, *, is_closed: bool) -> None:
        """The batches end here. A segment that was closed has its largest timestamp in the last entry."""
        while self._next < len(self._entries):
            timestamp_ms, relative = self._entries[self._next]
            self._fault(f"names offset {self._base_offset + relative} (timestamp {timestamp_ms}), behind {end_offset}")
            self._next += 1
        last_ms = self._entries[len(self._entries) - 1][0] if len(self._entries) else NO_TIMESTAMP
        if is_closed and not self.faults and last_ms < self.newest_ms:
            self.faults.append(f"it lacks the segment's largest timestamp, {self.newest_ms}")

    def _fault(self, what: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(f"entry {self._next} {what}")
