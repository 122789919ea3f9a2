"""What the hot path writes while metrics are on. Where they are off, none of it exists, and one look at None is all."""

from __future__ import annotations

from typing import Final

from semel.protocol.kafka.api import ApiKey
from semel.runtime.telemetry.buckets import REQUEST_SECONDS, TRANSACTION_SECONDS, Buckets, Distribution

_API_KEYS: Final = 128
SIZE_BITS: Final = 33
"""A request has at most 2**31 - 1 bytes."""
_CALLS_MAX: Final = 1_000
"""Of gRPC, by method and outcome: more than there are."""


class RequestTimes:
    """Requests of one API. Written by the connections themselves, without a call in between.

    `duration_counts` are by REQUEST_SECONDS; `size_counts` by the bits of the size in bytes, which is had fastest.
    `at_once`: for the connection that answers now, the requests of its turn that are counted together.
    """

    __slots__ = ("at_once", "duration_counts", "duration_total", "size_counts", "size_total")

    def __init__(self) -> None:
        self.duration_counts = [0] * (len(REQUEST_SECONDS) + 1)
        self.duration_total = 0.0
        self.size_counts = [0] * SIZE_BITS
        self.size_total = 0
        self.at_once = 0

    def durations(self) -> Distribution:
        return Distribution(REQUEST_SECONDS, tuple(self.duration_counts), self.duration_total)

    def sizes(self) -> Distribution:
        """Return the sizes by upper bounds from 63 bytes on, each four times the one before."""
        counts = self.size_counts
        merged = [sum(counts[:7]), *(counts[n] + counts[n + 1] for n in range(7, SIZE_BITS - 1, 2)), 0]
        return Distribution(tuple(float(2**n - 1) for n in range(6, SIZE_BITS, 2)), merged, self.size_total)


class Recorders:
    """All that is measured as it happens; everything else is read where it is counted anyway."""

    def __init__(self) -> None:
        self.requests: list[RequestTimes] = [RequestTimes() for _ in range(_API_KEYS)]
        """By API key."""
        self.commits = Buckets(REQUEST_SECONDS)
        """From an append to its being durable, once for each sync of the journal."""
        self.transactions = {True: Buckets(TRANSACTION_SECONDS), False: Buckets(TRANSACTION_SECONDS)}
        """Committed ones, and aborted ones."""
        self.loop_delay = Buckets(REQUEST_SECONDS)
        self.calls: dict[tuple[str, str], Buckets] = {}
        """Of gRPC: by method and by error, which is empty where there was none."""

    def call(self, method: str, error: str, seconds: float) -> None:
        """Count a call of gRPC."""
        found = self.calls.get((method, error))
        if found is None:
            if len(self.calls) >= _CALLS_MAX:
                return
            found = self.calls[method, error] = Buckets(REQUEST_SECONDS)
        found.record(seconds)

    def requests_by_api(self) -> list[tuple[str, RequestTimes]]:
        """Return the APIs that were asked for, by name."""
        return [
            (ApiKey(key).name, times)
            for key, times in enumerate(self.requests)
            if times.size_total and key in _API_NAMES
        ]


_API_NAMES: Final = frozenset(int(key) for key in ApiKey)
