"""Counts of measurements by size: a histogram that the hot path can afford.

OpenTelemetry's own `Histogram.record` costs 5 to 10 us in Python, one of these 0.15 us (measured by bench/metrics.py).
They are read when metrics are collected, and leave the process as OpenTelemetry's histograms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REQUEST_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds for what a request, an acknowledgement or a delay takes."""
TRANSACTION_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
)  # fmt: skip
"""Upper bounds for transactions, which may last as long as their timeouts."""


class Buckets:
    """How many values were at most each of `bounds`, with one count more for larger ones, and the sum of all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def record(self, value: float) -> None:
        """Count one value."""
        self.total += value
        self.counts[bisect_left(self.bounds, value)] += 1


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram's value: how many measurements were at most each bound (and how many larger), and their sum."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float

    @classmethod
    def of(cls, buckets: Buckets) -> Distribution:
        return cls(buckets.bounds, tuple(buckets.counts), buckets.total)
