# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""Sends the answers of connections that are busy at the same time one right after the other.

A `send` wakes the client that waits for it, and to wake a core that sleeps costs as much as all else of a small answer.
Answers that follow each other need it once: the client is awake when the next one comes. So while several connections
are busy, an answer waits for those of the connections that have their turn next. A connection that is busy alone is
answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

TOGETHER_MAX: Final = 16
"""So many connections wait for each other at most."""
TOGETHER_S: Final = 0.001
"""And so long, but for the turn of the one that comes behind it: what others ask for may take long (S3)."""
BUSY_S: Final = 0.0002
"""Requests of two connections that come within this time are busy at the same time."""


class Flushed(Protocol):
    """What is needed of a connection."""

    def flush(self) -> None:
        """Send what is answered."""
        ...


class Flushes:
    """Shared by the connections of a listener."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """`call_soon`: has a function called at the end of this turn of the event loop."""
        self._call_soon = call_soon
        self._waiting: list[Flushed] = []
        self._is_scheduled = False
        self._last = -1
        self._last_at = float("-inf")
        self._first_at = 0.0

    def flush(self, connection: Flushed, number: int, now: float) -> None:
        """Have `connection.flush` called: at once, or later in this turn where others are busy too.

        number: which connection it is
        now:    when its requests came, in seconds of the loop's clock
        """
        others = number != self._last and now - self._last_at < BUSY_S
        self._last = number
        self._last_at = now
        if not others and not self._waiting:
            connection.flush()
            return
        if not self._waiting:
            self._first_at = now
        self._waiting.append(connection)
        if not others or len(self._waiting) >= TOGETHER_MAX or now - self._first_at >= TOGETHER_S:
            self._flush_all()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._is_scheduled = False
        self._flush_all()

    def _flush_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.flush()
