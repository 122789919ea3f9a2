"""Time, handed in to all that decides by it, so that tests choose it. Measurements read the machine's clocks."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Wall time stamps records, monotonic time measures waits."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # itself, not a method that calls it: hot paths read it


class ManualClock:
    """A clock that moves when told to, for tests and the simulator."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, *, ms: int) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        if ms < 0:
            raise ValueError(f"time does not go back: ms={ms}")
        self._now_ms += ms
        self._monotonic += ms / 1000
