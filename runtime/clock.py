"""Time, handed in to all that decides by it, so that tests choose it. Measurements read the machine's clocks."""

from __future__ import annotations

import time
from typing import Final, Protocol


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


class ClockWatch:
    """Finds out when a clock's wall time jumps, by its monotonic time.

    A machine that was suspended counts as one whose clock jumped.
    """

    TOLERATED_MS: Final = 1_000
    """Clocks drift, and are corrected by so little at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._difference_ms()

    def _difference_ms(self) -> int:
        return self._clock.now_ms() - int(self._clock.monotonic() * 1000)

    def jumped_ms(self) -> int:
        """Return how far wall time has jumped since this was asked last; negative: back; 0: it has not."""
        difference_ms = self._difference_ms()
        jump_ms = difference_ms - self._ahead_ms
        if abs(jump_ms) <= self.TOLERATED_MS:
            return 0
        self._ahead_ms = difference_ms
        return jump_ms

    def now_ms(self) -> int:
        """Return the wall time, or what it would be without a jump that `jumped_ms` has not told, if that is less."""
        return min(self._clock.now_ms(), self._ahead_ms + int(self._clock.monotonic() * 1000) + self.TOLERATED_MS)


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

    def jump(self, *, ms: int) -> None:
        """Set the wall clock forward, or back where `ms` is negative, as somebody who corrects it does."""
        self._now_ms += ms
