"""`<base>.index`: where in a segment's file to begin looking for an offset.

Kafka's format, 8 bytes an entry: int32 offset relative to the base, int32 position.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from semel.broker.log.sparse_index import SparseIndex

_OFFSET: Final = 0
_POSITION: Final = 1


class OffsetIndex(SparseIndex):
    """Entries (last offset of a batch, position of that batch), one about every `index.interval.bytes`."""

    __slots__ = ()

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">ii")
    SECOND_AT: ClassVar[int] = 4

    def add(self, offset: int, position: int) -> None:
        self._add(offset - self.base_offset, position)

    def position_for(self, offset: int) -> int:
        """Return a position at or before the batch that holds `offset`."""
        return self.place_for(offset)[1]

    def place_for(self, offset: int) -> tuple[int, int]:
        """Return the last entry at or before `offset` as (offset, position), or (base offset, 0)."""
        _, relative, position = self.floor(_OFFSET, offset - self.base_offset)
        return self.base_offset + relative, position

    def position_before(self, position: int) -> int:
        """Return the last indexed position that is at or before `position`."""
        return self.floor(_POSITION, position)[2]

    def last(self) -> tuple[int, int]:
        """Return the last entry as (offset, position), or (base offset, 0)."""
        count = len(self)
        if not count:
            return self.base_offset, 0
        relative, position = self.entry(count - 1)
        return self.base_offset + relative, position

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of `offset` and beyond."""
        self.truncate_entries(self.floor(_OFFSET, offset - self.base_offset - 1)[0] + 1)

    def truncate_positions(self, position: int) -> None:
        """Drop the entries of batches that begin at `position` or beyond."""
        self.truncate_entries(self.floor(_POSITION, position - 1)[0] + 1)

    def is_sane(self, file_size: int, end_offset: int | None = None) -> bool:
        """Say whether the entries can be true, by some of them: a cheap check where the file is trusted."""
        last = self.sample()
        if not last:
            return last is not None
        relative, position = last
        return 0 <= position < file_size and (end_offset is None or self.base_offset + relative < end_offset)
