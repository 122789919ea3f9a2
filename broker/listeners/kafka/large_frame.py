"""A frame that does not fit in the block it began in: its buffer grows as its bytes come (S2)."""

from __future__ import annotations

from typing import Final

BLOCK_BYTES: Final = 64 << 10
"""What a connection may hold without taking room for it: its block, or the beginning of a large frame."""

_ZEROS: Final = memoryview(bytes(256 << 10))
"""What a buffer grows by: so it grows where it lies, and is copied only where the allocator has to move it."""


class LargeFrame:
    """The buffer of one frame while it is received. At most three times what has come is allocated."""

    __slots__ = ("_begun", "_buffer", "capacity", "received", "reserved", "size", "wanted")

    def __init__(self, size: int, begun: memoryview) -> None:
        """`begun` is what has come of it."""
        self.size: Final = size
        self._begun: memoryview | None = begun
        self._buffer = bytearray()
        self.received = len(begun)
        self.capacity = min(size, BLOCK_BYTES)
        """How far it may be filled. That much is allocated when the next bytes come."""
        self.reserved = 0
        """The room that it holds: nothing for its first block, later its capacity."""
        self.wanted = 0
        """The capacity for which it waits."""

    def sized_for(self, come: int) -> int:
        """Return the capacity for a frame of which `come` bytes have come: all of it where that is most of it."""
        return self.size if come + come // 2 >= self.size else come

    def grow(self) -> None:
        """Take over the capacity that was wanted, for which there is room now."""
        self.capacity = self.reserved = self.wanted

    def rest(self) -> memoryview:
        """Return where its next bytes go; views that were returned before must be gone. Raises `MemoryError`."""
        if self._begun is not None:
            self._buffer = bytearray(self.capacity)
            self._buffer[: self.received] = self._begun
            self._begun = None
        missing = self.capacity - len(self._buffer)
        while missing > 0:
            self._buffer += _ZEROS[:missing]
            missing = self.capacity - len(self._buffer)
        return memoryview(self._buffer)[self.received :]

    def whole(self) -> memoryview:
        """Return the frame, once all of it has come."""
        assert self.received == self.size == len(self._buffer)
        return memoryview(self._buffer)
