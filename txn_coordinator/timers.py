"""Deadlines by key, cheap for any number of keys."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

_STALE_MAX: Final = 64
"""So many stale entries are not worth a new heap."""


class Timers:
    """Deadlines by key in a heap, at most one live entry per key, so that no scan and no growth is needed.

    A deadline that moved later stays where it is: its entry comes up early, and its owner asks again. One that moved
    earlier gets another entry, and the one before it is stale. Where stale entries prevail, the heap is rebuilt: keys
    that come and go, each once, would fill it otherwise.
    """

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._deadlines: dict[str, int] = {}

    def want(self, key: str, deadline_ms: int) -> None:
        current_ms = self._deadlines.get(key)
        if current_ms is None or deadline_ms < current_ms:
            self._deadlines[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))
            self._compact()

    def forget(self, key: str) -> None:
        """Drop the deadline of a key that is no more."""
        if self._deadlines.pop(key, None) is not None:
            self._compact()

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> str | None:
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, key = heappop(self._heap)
            if self._deadlines.get(key) == deadline_ms:
                del self._deadlines[key]
                return key
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._deadlines) + _STALE_MAX:
            self._heap = [(deadline_ms, key) for key, deadline_ms in self._deadlines.items()]
            heapify(self._heap)
