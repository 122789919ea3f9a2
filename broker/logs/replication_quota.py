"""How many bytes of throttled replicas a node may copy: a rate, measured over the last seconds (KIP-73).

A machine without a clock: callers give the time. Bytes count from when they are recorded, so one fetch may go beyond
what is left, and the next ones wait for it. What is older than the window is forgotten, as in Kafka: a rate that is
lower than one fetch in a window can't be held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SAMPLE_S: Final = 1.0
"""Kafka's replication.quota.window.size.seconds."""
SAMPLES: Final = 11
"""Kafka's replication.quota.window.num: ten whole ones, and the one that has begun."""
WINDOW_S: Final = SAMPLE_S * SAMPLES
_SOON_S: Final = 0.001
"""Clocks are not more exact. A caller that waited a little less would find nothing left, and retry at once."""


class ReplicationQuota:
    """One node's bytes of throttled replicas in one direction.

    max_rate:    gives the bytes per second that are allowed now
    total_bytes: all that were recorded
    """

    __slots__ = ("_max_rate", "_samples", "_used_bytes", "total_bytes")

    def __init__(self, max_rate: Callable[[], int]) -> None:
        self._max_rate = max_rate
        self._samples: deque[tuple[float, int]] = deque()
        """When each one began, and its bytes."""
        self._used_bytes = 0
        self.total_bytes = 0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Count bytes that were copied now."""
        self._forget(now_s)
        self.total_bytes += size_bytes
        self._used_bytes += size_bytes
        if self._samples and now_s < self._samples[-1][0] + SAMPLE_S:
            begun_s, before = self._samples[-1]
            self._samples[-1] = (begun_s, before + size_bytes)
        else:
            self._samples.append((now_s, size_bytes))

    def left_bytes(self, now_s: float) -> int:
        """Return what may be copied now; 0 where the quota is used up. A window without any bytes has some left."""
        self._forget(now_s)
        if not self._samples:
            return max(round(self._max_rate() * SAMPLE_S), 1)
        elapsed_s = max(now_s - self._samples[0][0], SAMPLE_S)
        return max(int(self._max_rate() * elapsed_s) - self._used_bytes, 0)

    def is_exceeded(self, now_s: float) -> bool:
        return not self.left_bytes(now_s)

    def free_in_s(self, now_s: float) -> float:
        """Return after how long there is something left again, if nothing is recorded until then; 0: there is now."""
        if not self.is_exceeded(now_s):
            return 0.0
        used_bytes, rate, from_s = self._used_bytes, self._max_rate(), now_s
        for begun_s, size_bytes in self._samples:
            forgotten_s = begun_s + WINDOW_S
            # One byte more than was used is allowed then.
            free_s = max(begun_s + (used_bytes + 1) / rate, from_s) if rate else forgotten_s
            if free_s < forgotten_s:
                return max(free_s - now_s, _SOON_S)
            used_bytes -= size_bytes
            from_s = forgotten_s
        return max(from_s - now_s, _SOON_S)

    def _forget(self, now_s: float) -> None:
        while self._samples and self._samples[0][0] + WINDOW_S <= now_s:
            self._used_bytes -= self._samples.popleft()[1]


@dataclass(frozen=True, slots=True)
class ReplicationQuotas:
    """Those of a node: for what it sends of partitions that it leads, and for what it fetches of others."""

    leader: ReplicationQuota
    follower: ReplicationQuota
