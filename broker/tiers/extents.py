"""What was read from the remote storage, in memory: stretches of whole, checked batches, and the indexes of segments.

Bounded in bytes. What was used longest ago goes first, but not what somebody has just asked for and did not get yet: of
more readers than there is room for, each gets on in turn.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final

from semel.broker.log.log_types import LogRange
from semel.broker.tiers.segment_object import SegmentIndex
from semel.protocol.batch_header import BatchHeader, leading_batches
from semel.runtime.storage import Buffer, FileRange

_UNREAD_S: Final = 5.0
"""So long a stretch waits for the reader that it was fetched for."""
_INDEX_SHARE: Final = 4
"""Indexes have this part of the room."""
_INDEXES_MIN: Final = 8


class BytesFile:
    """Bytes as a `StorageFile` that is only read."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read_at(self, size: int, position: int) -> bytes:
        return bytes(self._data[position : position + size])

    def map(self, size: int) -> memoryview:
        return self._data[:size]

    def size(self) -> int:
        return len(self._data)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """There is nothing to close."""

    def append(self, buffers: object) -> int:
        raise OSError("bytes in memory are only read")

    def write_at(self, data: Buffer, position: int) -> None:
        raise OSError("bytes in memory are only read")

    def write_many_at(self, buffers: object, position: int) -> None:
        raise OSError("bytes in memory are only read")

    def truncate(self, size: int) -> None:
        raise OSError("bytes in memory are only read")

    def sync(self) -> None:
        """There is no disk."""


class Extent:
    """Whole batches of one segment, one behind the other, that were found right.

    It covers the offsets from `first_offset` to below `end_offset`: also those of no batch, which lie before its first
    one, between two, or behind the segment's last.
    """

    __slots__ = ("_bases", "_ends", "_nexts", "end_offset", "end_position", "file", "first_offset", "position")

    def __init__(self, data: bytes, position: int, headers: list[BatchHeader]) -> None:
        """`position`: of the first batch in the segment."""
        self.file = BytesFile(data)
        self.position = position
        self._bases = array("q", [header.base_offset for header in headers])
        self._nexts = array("q", [header.next_offset for header in headers])
        self._ends = array("q", [header.position + header.size_bytes for header in headers])
        self.first_offset = self._bases[0]
        self.end_offset = self._nexts[-1]
        self.end_position = position + self._ends[-1]

    @classmethod
    def of(cls, data: bytes, position: int) -> Extent | None:
        """Return the whole batches that `data` begins with, None where there is none. In any thread."""
        headers = leading_batches(data)
        return cls(data, position, headers) if headers else None

    @property
    def size_bytes(self) -> int:
        return self.file.size()

    def cover(self, first_offset: int, end_offset: int) -> None:
        """Say that between the batches here and these offsets there is no other one in the segment."""
        self.first_offset = min(self.first_offset, first_offset)
        self.end_offset = max(self.end_offset, end_offset)

    def read(self, offset: int, max_bytes: int, upto_offset: int, *, min_one_batch: bool) -> LogRange | None:
        """Return the batches from the one that holds `offset` on; None where no batch is behind it."""
        first = bisect_right(self._nexts, offset)
        if first == len(self._nexts):
            return None
        begins = self._ends[first - 1] if first else 0
        last = bisect_right(self._ends, begins + max_bytes) - 1
        last = min(last, bisect_left(self._nexts, upto_offset + 1) - 1)
        if last < first:
            if not min_one_batch or self._nexts[first] > upto_offset:
                return LogRange(None, offset, offset)
            last = first
        records = FileRange(self.file, begins, self._ends[last] - begins)
        next_offset = self._nexts[last] if last + 1 < len(self._nexts) else max(self._nexts[last], self.end_offset)
        return LogRange(records, self._bases[first], next_offset)

    def is_past_middle(self, offset: int) -> bool:
        """Say whether a reader that is there will soon need what comes next."""
        return offset >= self._bases[len(self._bases) // 2]


class ExtentCache:
    """Stretches and indexes of segments, by segment. Indexes have a part of the room, and some whatever their size."""

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        self.size_bytes = 0
        """Of the stretches."""
        self.index_bytes = 0
        self.reserved_bytes = 0
        """For stretches that are being fetched."""
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._extents: OrderedDict[tuple[str, int], Extent] = OrderedDict()
        self._by_segment: dict[str, list[int]] = {}
        """The positions of the stretches of each segment, sorted."""
        self._unread: dict[tuple[str, int], float] = {}
        """Those that nobody has read yet, and when they came."""

    def __len__(self) -> int:
        return len(self._extents)

    def index(self, segment_id: str) -> SegmentIndex | None:
        found = self._indexes.get(segment_id)
        if found is not None:
            self._indexes.move_to_end(segment_id)
        return found

    def add_index(self, segment_id: str, index: SegmentIndex) -> None:
        if segment_id not in self._indexes:
            self._indexes[segment_id] = index
            self.index_bytes += index.size_bytes
            while len(self._indexes) > _INDEXES_MIN and self.index_bytes > self.size_bytes_max // _INDEX_SHARE:
                _, oldest = self._indexes.popitem(last=False)
                self.index_bytes -= oldest.size_bytes

    def find(self, segment_id: str, offset: int) -> Extent | None:
        """Return the stretch that covers an offset, and note that it is used."""
        for position in self._by_segment.get(segment_id, ()):
            extent = self._extents[segment_id, position]
            if extent.first_offset <= offset < extent.end_offset:
                self._extents.move_to_end((segment_id, position))
                self._unread.pop((segment_id, position), None)
                return extent
        return None

    def at(self, segment_id: str, position: int) -> Extent | None:
        """Return the stretch that begins at a position."""
        return self._extents.get((segment_id, position))

    def before(self, segment_id: str, offset: int) -> Extent | None:
        """Return the stretch that ends at an offset, where the next one begins."""
        for position in self._by_segment.get(segment_id, ()):
            extent = self._extents[segment_id, position]
            if extent.end_offset == offset:
                return extent
        return None

    def add(self, segment_id: str, extent: Extent, now_s: float) -> None:
        """Take a stretch in. `reserve` comes before, and what was reserved is given back behind it."""
        key = segment_id, extent.position
        if key in self._extents:
            self._remove(key)
        self._extents[key] = extent
        self._unread[key] = now_s
        positions = self._by_segment.setdefault(segment_id, [])
        positions.insert(bisect_left(positions, extent.position), extent.position)
        self.size_bytes += extent.size_bytes

    def release(self, segment_id: str, position: int) -> None:
        """Say that nobody waits for a stretch."""
        self._unread.pop((segment_id, position), None)

    def reserve(self, size_bytes: int, now_s: float) -> bool:
        """Remove what is over `size_bytes_max` with so much more, and reserve that. Returns whether there is room now.

        Where there can't be, nothing is removed: others wait for what is here.
        """
        excess = self.size_bytes + self.reserved_bytes + size_bytes - self.size_bytes_max
        going: list[tuple[str, int]] = []
        for key, extent in self._extents.items():
            if excess <= 0:
                break
            unread_since = self._unread.get(key)
            if unread_since is None or now_s - unread_since > _UNREAD_S:
                going.append(key)
                excess -= extent.size_bytes
        if excess > 0:
            return False
        for key in going:
            self._remove(key)
        self.reserved_bytes += size_bytes
        return True

    def forget(self, segment_id: str) -> None:
        """Remove what is here of a segment that was deleted."""
        for position in list(self._by_segment.get(segment_id, ())):
            self._remove((segment_id, position))
        index = self._indexes.pop(segment_id, None)
        if index is not None:
            self.index_bytes -= index.size_bytes

    def _remove(self, key: tuple[str, int]) -> None:
        extent = self._extents.pop(key)
        self._unread.pop(key, None)
        self.size_bytes -= extent.size_bytes
        positions = self._by_segment[key[0]]
        positions.remove(key[1])
        if not positions:
            del self._by_segment[key[0]]
