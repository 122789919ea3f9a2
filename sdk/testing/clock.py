"""The broker's clock in a test: it runs with the machine's, or is frozen, and `advance` moves it."""

from __future__ import annotations

import time


class BrokerClock:
    """A `Clock`. Wall time may be frozen; monotonic time always runs, because the node paces its own work by it."""

    def __init__(self, *, frozen: bool = False) -> None:
        self._frozen_ms = _machine_ms() if frozen else None
        self._moved_ms = 0

    def now_ms(self) -> int:
        return (_machine_ms() if self._frozen_ms is None else self._frozen_ms) + self._moved_ms

    def monotonic(self) -> float:
        return time.monotonic() + self._moved_ms / 1000

    def advance(self, *, ms: int) -> None:
        """Move both clocks forward. Raises `ValueError` for a step back."""
        if ms < 0:
            raise ValueError(f"time does not go back: ms={ms}")
        self._moved_ms += ms


def _machine_ms() -> int:
    return time.time_ns() // 1_000_000
