"""Deadlines by key, cheap for any number of keys."""

from __future__ import annotations

from heapq import heappop, heappush


class Timers:
    """Deadlines by key in a heap, at most one live entry per key, so that no scan and no growth is needed.

    A deadline that moved later stays where it is: its entry comes up early, and its owner asks again. One that moved
    earlier gets another entry, and the one before it is stale.
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

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> str | None:
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, key = heappop(self._heap)
            if self._deadlines.get(key) == deadline_ms:
                del self._deadlines[key]
                return key
        return None
