"""A node's clock that is off by as much as the test says at any time, in a file that both have open."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_OFF = struct.Struct("<q")


class ShiftedClock:
    """The machine's clock and what is in the file. Its monotonic time is the machine's."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self._shared = mmap.mmap(descriptor, _OFF.size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def now_ms(self) -> int:
        (off_ms,) = _OFF.unpack_from(self._shared)
        return time.time_ns() // 1_000_000 + int(off_ms)

    monotonic = staticmethod(time.monotonic)


def set_clock(path: Path, off_ms: int) -> None:
    """Let clocks that read this file be off by so much from now on."""
    with path.open("r+b" if path.exists() else "xb") as file:
        file.write(_OFF.pack(off_ms))
