"""Many deadlines, most of which are pushed back or cancelled before they come.

A heartbeat moves its member's deadline. Pushing a new heap entry for every heartbeat would grow the heap with requests,
so the entry stays where it is, and when it comes up it is pushed back to where the deadline is by then. Keys that come
and go, each once, as writers of shared transactions do, leave entries that nothing brings up for long: where such stale
entries prevail, the heap is rebuilt.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_STALE_MAX: Final = 64
"""So many stale entries are not worth a new heap."""


class Deadlines(Generic[Key]):
    """Deadlines by key. A key has at most one deadline; the heap has at most twice as many entries, and a few more."""

    __slots__ = ("_deadlines", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}
        """The time of the heap entry that counts, by key. Any other entry of the key is stale."""
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
            self._compact()

    def hasten(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of `key`, unless it has an earlier one."""
        if deadline_ms < self._deadlines.get(key, deadline_ms + 1):
            self.schedule(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Forget `key`, whether it had a deadline or not."""
        if self._deadlines.pop(key, None) is not None:
            self._compact()

    def next_deadline_ms(self) -> int | None:
        """Return a time before which nothing is due, or None where nothing is scheduled."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Key | None:
        """Take one key whose deadline has passed, the earliest first."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heappop(self._heap)
        del self._queued[key]
        del self._deadlines[key]
        return key

    def _settle(self) -> None:
        """Make the head of the heap a deadline that stands."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            if self._queued.get(key) != queued_ms:
                heappop(self._heap)
                continue
            deadline_ms = self._deadlines.get(key)
            if deadline_ms == queued_ms:
                return
            heappop(self._heap)
            del self._queued[key]
            if deadline_ms is not None:
                self._push(key, deadline_ms)

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        self._sequence += 1
        heappush(self._heap, (deadline_ms, self._sequence, key))

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._deadlines) + _STALE_MAX:
            self._queued = dict(self._deadlines)
            self._heap = [(deadline_ms, number, key) for number, (key, deadline_ms) in enumerate(self._queued.items())]
            self._sequence = len(self._heap)
            heapify(self._heap)
