"""Pauses between attempts, the same for all of a client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from semel.protocol.errors import ErrorCode
from semel.protocol.randomness import source
from semel.runtime.clock import Clock

MARKERS_FIRST_MS: Final = 1
"""The first pause where the last transaction has yet to end: that is a matter of its markers, about to be written."""

_DOUBLINGS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_ms` after the first failure, twice as long after each further one, and `longest_ms` at most."""

    first_ms: int
    longest_ms: int

    def pause_ms(self, failures: int, code: ErrorCode | None = None) -> int:
        """Return the pause after so many failures in a row, the last one with `code`. For machines: no jitter."""
        first_ms = MARKERS_FIRST_MS if code is ErrorCode.CONCURRENT_TRANSACTIONS else self.first_ms
        return min(first_ms << min(max(failures - 1, 0), _DOUBLINGS_MAX), self.longest_ms)

    def jittered_s(self, failures: int, code: ErrorCode | None = None) -> float:
        """Return the same in seconds, a fifth more or less, so that many clients do not come at one time."""
        return self.pause_ms(failures, code) * source().uniform(0.8, 1.2) / 1000

    async def pause(self, failures: int, clock: Clock, deadline: float) -> bool:
        """Wait before another attempt; return False at once where there is no time for one before `deadline`.

        deadline: by `clock`, whose monotonic time is compared with it
        """
        pause_s = self.jittered_s(failures)
        if clock.monotonic() + pause_s >= deadline:
            return False
        await asyncio.sleep(pause_s)
        return True
