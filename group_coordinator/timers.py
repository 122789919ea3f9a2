"""Many deadlines, most of which are pushed back before they come: one heap entry for each, moved lazily.

A heartbeat moves its member's deadline. Pushing a new heap entry for every heartbeat would grow the heap with requests,
so the entry stays where it is, and when it comes up it is pushed back to where the deadline is by then.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """Deadlines by key. A key has at most one deadline, and at most a few heap entries."""

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Key) -> bool:
        return key in self._deadlines

    def schedule(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of `key`, whether it had one or not."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or queued_ms > deadline_ms:
            self._push(key, deadline_ms)

    def hasten(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of `key`, unless it has an earlier one."""
        if deadline_ms < self._deadlines.get(key, deadline_ms + 1):
            self.schedule(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Forget `key`, whether it had a deadline or not."""
        self._deadlines.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        """Return a time before which nothing is due, or None where nothing is scheduled."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Key | None:
        """Take one key whose deadline has passed, the earliest first."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._deadlines[key]
        return key

    def _settle(self) -> None:
        """Make the head of the heap a deadline that stands."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            if self._queued.get(key) != queued_ms:
                heapq.heappop(self._heap)
                continue
            deadline_ms = self._deadlines.get(key)
            if deadline_ms == queued_ms:
                return
            heapq.heappop(self._heap)
            del self._queued[key]
            if deadline_ms is not None:
                self._push(key, deadline_ms)

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        self._sequence += 1
        heapq.heappush(self._heap, (deadline_ms, self._sequence, key))
