"""`<base>.timeindex`: from which offset to begin looking for a timestamp.

Kafka's format, 12 bytes an entry: int64 timestamp, int32 offset relative to the base. No record up to the offset has a
larger timestamp.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from semel.broker.log.sparse_index import SparseIndex
from semel.protocol.ids import NO_TIMESTAMP

_TIMESTAMP: Final = 0
_OFFSET: Final = 1


class TimeIndex(SparseIndex):
    """Entries (largest timestamp so far, last offset of the batch that has it), both growing."""

    __slots__ = ()

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">qi")
    SECOND_AT: ClassVar[int] = 8

    def add(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry, unless no timestamp is larger than the last entry's."""
        count = len(self)
        if timestamp_ms >= 0 and (not count or timestamp_ms > self.entry(count - 1)[_TIMESTAMP]):
            self._add(timestamp_ms, offset - self.base_offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """Return an offset from which to look for the first record at or after `timestamp_ms`."""
        if timestamp_ms < 0:  # as small as a client likes: no entry has one
            return self.base_offset
        return self.base_offset + self.floor(_TIMESTAMP, timestamp_ms - 1)[2]

    def last(self) -> tuple[int, int]:
        """Return the last entry as (timestamp, offset), or (-1, base offset)."""
        count = len(self)
        if not count:
            return NO_TIMESTAMP, self.base_offset
        timestamp_ms, relative = self.entry(count - 1)
        return timestamp_ms, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of `offset` and beyond."""
        self.truncate_entries(self.floor(_OFFSET, offset - self.base_offset - 1)[0] + 1)

    def is_sane(self, end_offset: int | None = None) -> bool:
        """Say whether the entries can be true, by some of them: a cheap check where the file is trusted."""
        last = self.sample()
        if not last:
            return last is not None
        return end_offset is None or self.base_offset + last[_OFFSET] < end_offset
