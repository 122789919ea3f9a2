"""Latencies in bounded memory, progress lines, and what a measurement came to."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROGRESS_EVERY_S: Final = 1.0
_GROWTH: Final = 1.01
"""Each bucket is this much wider than the one before: latencies are right to one percent."""
_FIRST_NS: Final = 1_000
_BUCKETS: Final = 2_400
"""Up to six hours."""
_LOG_GROWTH: Final = math.log(_GROWTH)


class Histogram:
    """Counts latencies. One thread adds at a time.

    >>> latencies = Histogram()
    >>> for ms in range(1, 101):
    ...     latencies.add(ms * 1_000_000)
    >>> round(latencies.percentile_ms(50)), round(latencies.percentile_ms(99)), latencies.max_ms
    (50, 99, 100.0)
    """

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._max_ns = 0
        self.count = 0

    def add(self, latency_ns: int) -> None:
        at = 0 if latency_ns <= _FIRST_NS else int(math.log(latency_ns / _FIRST_NS) / _LOG_GROWTH)
        self._counts[min(at, _BUCKETS - 1)] += 1
        self.count += 1
        self._max_ns = max(self._max_ns, latency_ns)

    @property
    def max_ms(self) -> float:
        return self._max_ns / 1e6

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that this share of all does not exceed, in milliseconds; 0 where there are none."""
        left = math.ceil(self.count * percent / 100)
        for at, count in enumerate(self._counts):
            left -= count
            if left <= 0 and self.count:
                return min(_FIRST_NS * math.pow(_GROWTH, at + 0.5), self._max_ns) / 1e6
        return 0.0

    def summary(self) -> dict[str, float] | None:
        """Return p50, p95, p99 and the largest in milliseconds; None where nothing was measured."""
        if not self.count:
            return None
        found = {f"p{percent}": round(self.percentile_ms(percent), 3) for percent in (50, 95, 99)}
        return {**found, "max": round(self.max_ms, 3)}


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run."""

    records: int
    bytes: int
    seconds: float
    latencies: Histogram
    transactions: int | None = None

    def as_json(self, about: Mapping[str, object]) -> dict[str, object]:
        found: dict[str, object] = {
            **about,
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self._each_second(self.records), 1),
            "mb_per_s": round(self._each_second(self.bytes / 1e6), 3),
            "latency_ms": self.latencies.summary(),
        }
        if self.transactions is not None:
            found["transactions"] = self.transactions
            found["transactions_per_s"] = round(self._each_second(self.transactions), 1)
        return found

    def _each_second(self, number: float) -> float:
        return number / self.seconds if self.seconds > 0 else 0.0

    def lines(self, latency_of: str) -> list[str]:
        """Return the lines for people. `latency_of`: from when to when the latencies are."""
        told = [
            f"  records      {self.records:,} in {self.seconds:.2f} s",
            f"  records/s    {self._each_second(self.records):,.0f}",
            f"  MB/s         {self._each_second(self.bytes / 1e6):,.2f}",
        ]
        if self.transactions is not None:
            told.insert(
                1, f"  transactions {self.transactions:,}, {self._each_second(self.transactions):,.1f} each second"
            )
        summary = self.latencies.summary()
        if summary is not None:
            shown = ", ".join(f"{name} {value:,.2f} ms" for name, value in summary.items())
            told.append(f"  latency      {shown}")
            told.append(f"               ({latency_of})")
        return told


class Progress:
    """Prints a line on standard error each second."""

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self._records = 0
        self._due = self.began + PROGRESS_EVERY_S

    def show(self, records: int, record_size: int, latencies: Histogram) -> None:
        """Print how far it is, where a second has passed."""
        now = time.perf_counter()
        if now < self._due:
            return
        rate = (records - self._records) / (now - self._last)
        told = [
            f"{records:,} records",
            f"{rate:,.0f} records/s",
            f"{rate * record_size / 1e6:,.2f} MB/s",
            *([f"p99 {latencies.percentile_ms(99):,.2f} ms so far"] if latencies.count else []),
        ]
        print(f"{now - self.began:6.1f} s: {', '.join(told)}", file=sys.stderr)
        self._records, self._last, self._due = records, now, now + PROGRESS_EVERY_S
