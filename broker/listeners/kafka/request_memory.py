"""Memory for large requests: who holds how much of the one bound, who waits, who goes first (S2).

Room is taken in steps, as bytes come. A connection may hold as much as would still be free beside it, so the more hold
room the smaller is the share of each, and a newcomer with a small request finds some. Half-received requests could
hold all of it and none of them be completed; therefore the size of one request is kept back as the last lane: one
connection at a time, the one that has waited longest, completes its request there.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final, Protocol

_STALE_ENTRIES_MAX: Final = 64


class RoomOwner(Protocol):
    """The one that a claim is for."""

    @property
    def unfinished_bytes(self) -> int:
        """What of its room is for requests that are not begun."""
        ...

    def room_made(self) -> None:
        """The step that was waited for has been given. It must not call the room."""
        ...

    def describe_room(self, now: float) -> str:
        """Return what it holds, for the log."""
        ...

    def leave_room_to_others(self) -> None:
        """Give back everything, since others wait."""
        ...


class MemoryClaim:
    """What one connection holds, and the step that it waits for."""

    __slots__ = ("_in_lane", "_is_last", "_key", "held", "moved_at", "owner", "waiting_since", "wanted")

    def __init__(self, owner: RoomOwner, now: float) -> None:
        self.owner: Final = owner
        self.held = 0
        self.wanted = 0
        self.waiting_since = 0.0
        self.moved_at = now
        """When it last was given room, or gave some back."""
        self._in_lane = False
        self._is_last = False
        self._key = 0


class RequestMemory:
    """The room of one listener. A machine: no clock, no IO."""

    def __init__(self, bytes_max: int, request_bytes_max: int) -> None:
        assert 0 < request_bytes_max <= bytes_max
        self.bytes_max: Final = bytes_max
        self._shared_max: Final = bytes_max - request_bytes_max
        self._lane_max: Final = request_bytes_max
        self.held = 0
        self.refused_steps = 0
        self._lane: MemoryClaim | None = None
        self._lane_held = 0
        self._claims: dict[MemoryClaim, None] = {}
        self._waiting: OrderedDict[MemoryClaim, None] = OrderedDict()
        # The same, those that need least first; entries whose key is not that of their claim any more are passed over.
        self._smallest: list[tuple[int, int, MemoryClaim]] = []
        self._pushed = 0

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def claims(self) -> list[MemoryClaim]:
        """Return those that hold room or wait for it."""
        return [claim for claim in self._claims if claim.held or claim.wanted]

    def enter(self, owner: RoomOwner, now: float) -> MemoryClaim:
        """Return the claim of a connection, which is to `leave`."""
        claim = MemoryClaim(owner, now)
        self._claims[claim] = None
        return claim

    def take(self, claim: MemoryClaim, size: int, now: float, *, last: bool, wait: bool = True) -> bool:
        """Give `size` bytes more, or let the claim wait until its owner is told. Returns whether it was given.

        `last`: the request needs no further step. Without `wait`, it is given now or not at all, and not in the lane.
        """
        assert size > 0
        assert not claim.wanted, "one step at a time"
        if self._lane is None and claim.held + 2 * size <= self._shared_max - self.held:
            # Nobody waits: the usual case, without any detour.
            claim.held += size
            self.held += size
            claim.moved_at = now
            return True
        claim.wanted, claim._is_last = size, last
        if claim._in_lane or (wait and self._lane is None) or _needed(claim) <= self._free():
            self._give(claim, now)
            return True
        if not wait:
            self.cancel(claim)
            return False
        self.refused_steps += 1
        claim.waiting_since = now
        self._waiting[claim] = None
        self._push(claim)
        return False

    def cancel(self, claim: MemoryClaim) -> None:
        """The claim waits no longer."""
        self._waiting.pop(claim, None)
        claim.wanted = 0

    def give_back(self, claim: MemoryClaim, size: int, now: float) -> None:
        """Give back what one request held, and let those continue who wait."""
        assert size <= claim.held, "given back twice"
        claim.held -= size
        claim.moved_at = now
        self.held -= size
        if self._lane is None:
            return
        if claim is self._lane:
            self._lane_held -= min(size, self._lane_held)
            self._leave_lane()
        if claim.wanted:
            self._push(claim)
        self._serve(now)

    def leave(self, claim: MemoryClaim, now: float) -> None:
        """The connection is gone: give back all that it holds, whatever it was for."""
        self._waiting.pop(claim, None)
        claim.wanted = 0
        claim._in_lane = False
        self._claims.pop(claim, None)
        if claim.held:
            self.give_back(claim, claim.held, now)
        else:
            self._leave_lane()
            self._serve(now)

    def crowding(self, now: float, patience_s: float) -> list[MemoryClaim]:
        """Return those who must go so that others can continue who have waited for `patience_s` seconds.

        It is those that hold most for requests that are not begun, as many as it takes, and none that moved in that
        time, or that waits itself.
        """
        wanted = 0
        for claim in self._waiting:
            if now - claim.waiting_since < patience_s:
                break
            wanted += _needed(claim)
        if not wanted:
            return []
        held = [
            (claim.owner.unfinished_bytes, claim)
            for claim in self._claims
            if not claim.wanted and now - claim.moved_at >= patience_s
        ]
        held.sort(key=lambda each: each[0], reverse=True)
        leaving = []
        for unfinished, claim in held:
            if wanted <= 0 or not unfinished:
                break
            leaving.append(claim)
            wanted -= unfinished
        return leaving

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _free(self) -> int:
        return self._shared_max - (self.held - self._lane_held)

    def _push(self, claim: MemoryClaim) -> None:
        if len(self._smallest) > 2 * len(self._waiting) + _STALE_ENTRIES_MAX:
            self._smallest = [each for each in self._smallest if self._is_current(each)]
            heapq.heapify(self._smallest)
        claim._key = _needed(claim)
        self._pushed += 1
        heapq.heappush(self._smallest, (claim._key, self._pushed, claim))

    def _is_current(self, entry: tuple[int, int, MemoryClaim]) -> bool:
        key, _, claim = entry
        return claim in self._waiting and key == claim._key

    def _give(self, claim: MemoryClaim, now: float) -> None:
        if _needed(claim) > self._free():
            if not claim._in_lane:
                assert self._lane is None
                self._lane, claim._in_lane = claim, True
            self._lane_held += claim.wanted
            assert self._lane_held <= self._lane_max, "a request is not larger than the lane"
        claim.held += claim.wanted
        self.held += claim.wanted
        claim.wanted = 0
        claim.moved_at = now
        if claim._is_last:
            claim._in_lane = False

    def _leave_lane(self) -> None:
        if self._lane is not None and not self._lane._in_lane and not self._lane_held:
            self._lane = None

    def _serve(self, now: float) -> None:
        while self._waiting:
            claim = self._next()
            if claim is None:
                return
            del self._waiting[claim]
            self._give(claim, now)
            claim.owner.room_made()
        self._smallest.clear()

    def _next(self) -> MemoryClaim | None:
        """Return who continues now: the one that needs least where it fits, and the oldest where the lane is free."""
        smallest = self._smallest
        while smallest:
            if self._is_current(smallest[0]):
                if smallest[0][0] > self._free():
                    break
                return heapq.heappop(smallest)[2]
            heapq.heappop(smallest)
        return next(iter(self._waiting)) if self._lane is None else None


def _needed(claim: MemoryClaim) -> int:
    """Return what must be free for the claim's next step: as much is free afterwards as it holds then."""
    return claim.held + 2 * claim.wanted
