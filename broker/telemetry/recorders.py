"""What the hot path writes while metrics are on. Where they are off, none of it exists, and one look at None is all."""

from __future__ import annotations

from typing import Final

from semel.protocol.kafka.api import ApiKey
from semel.runtime.buckets import REQUEST_SECONDS, SIZE_BYTES, TRANSACTION_SECONDS, Buckets

_API_KEYS: Final = 128
_CALLS_MAX: Final = 1_000
"""Of gRPC, by method and outcome: more than there are."""


class RequestTimes:
    """Requests of one API."""

    __slots__ = ("durations", "sizes")

    def __init__(self) -> None:
        self.durations = Buckets(REQUEST_SECONDS)
        self.sizes = Buckets(SIZE_BYTES)


class Recorders:
    """All that is measured as it happens; everything else is read where it is counted anyway."""

    def __init__(self) -> None:
        self.requests: list[RequestTimes] = [RequestTimes() for _ in range(_API_KEYS)]
        """By API key."""
        self.acks = Buckets(REQUEST_SECONDS)
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
            if times.sizes.total and key in _API_NAMES
        ]


_API_NAMES: Final = frozenset(int(key) for key in ApiKey)
