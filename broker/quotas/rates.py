"""How much somebody took of late: by windows, as Kafka's Rate, and by a bucket that fills, as its TokenBucket."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_ROUNDED: Final = 1 + 1e-9
"""Sums of many numbers are not exact: nobody waits for that."""


class Windows(NamedTuple):
    """kept: how many are remembered, the one in progress with them. seconds: how long each is."""

    kept: int
    seconds: float

    @property
    def remembered_s(self) -> float:
        """How long something counts, at most."""
        return self.kept * self.seconds


class Rate:
    """What was taken per second. Times are in seconds of any monotonic clock."""

    __slots__ = ("_samples", "_total", "_windows", "used_at")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        # The beginning of each window that something was taken in, and how much that was.
        self._samples: deque[list[float]] = deque()
        self._total = 0.0
        self.used_at = 0.0

    def record(self, value: float, now: float) -> None:
        """Count what is taken now; less than nothing takes back what was counted at the same time."""
        self.used_at = now
        self._forget(now)
        samples = self._samples
        if not samples or now - samples[-1][0] >= self._windows.seconds:
            samples.append([now, 0.0])
        samples[-1][1] += value
        self._total += value

    def per_second(self, now: float) -> float:
        """Return the rate: over the windows there are, but no fewer than all but the one in progress."""
        self._forget(now)
        return max(self._total, 0.0) / self._elapsed(now)

    def wait_s(self, bound: float, now: float) -> float:
        """Return after how long without anything more the rate is within `bound`; 0 where it is now."""
        rate = self.per_second(now)
        return (rate - bound) / bound * self._elapsed(now) if rate > bound * _ROUNDED else 0.0

    def _forget(self, now: float) -> None:
        samples, oldest = self._samples, now - self._windows.remembered_s
        while samples and samples[0][0] <= oldest:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0  # what rounding has left

    def _elapsed(self, now: float) -> float:
        seconds = self._windows.seconds
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        missing = self._windows.kept - 1 - int(elapsed / seconds)
        if missing > 0:
            elapsed += missing * seconds
        return max(elapsed, 0.001)


class TokenBucket:
    """How many changes somebody may make: a full bucket at first, which fills again at the rate of the bound (KIP-599).

    It may be overdrawn by one request, however large; until that is made up for, the next ones are refused.
    """

    __slots__ = ("_filled_at", "_tokens", "_windows", "used_at")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._filled_at = 0.0
        self.used_at = 0.0

    def take(self, count: float, bound: float, now: float) -> None:
        """Take tokens, also where there are none left."""
        self._fill(bound, now)
        self._tokens -= count
        self.used_at = now

    def wait_s(self, bound: float, now: float) -> float:
        """Return after how long nothing is overdrawn any more; 0 where nothing is now."""
        self._fill(bound, now)
        return -self._tokens / bound if self._tokens < 0 else 0.0

    def is_full(self, bound: float, now: float) -> bool:
        """Whether it is as one that was never used."""
        self._fill(bound, now)
        return self._tokens >= self._windows.remembered_s * bound

    def _fill(self, bound: float, now: float) -> None:
        most = self._windows.remembered_s * bound
        self._tokens = min(self._tokens + bound * (now - self._filled_at), most)
        self._filled_at = now
