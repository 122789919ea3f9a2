"""How a leader knows that a fetch was sent after a moment, and so that its follower knew of no other leader then (R9).

Every answer to a follower carries the number of a round, and the follower's next fetch carries it back. A fetch with a
number that nobody had been told at some moment was sent after it, however long it was on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.randomness import source

NO_ROUND: Final = 0
"""In a fetch that follows no answer: the first of a connection, or the one after an error."""


class FetchRounds:
    """The rounds of one node, for all followers of all that it leads."""

    __slots__ = ("_is_told", "_now")

    def __init__(self) -> None:
        # Numbers that an earlier start of this node told, and that come late, are most likely none of this one's.
        self._now = source().randint(1, INT32_MAX)
        self._is_told = False

    def begin(self) -> int:
        """Return the number of a round that nobody has been told yet."""
        if self._is_told:
            self._now = self._now % INT32_MAX + 1
            self._is_told = False
        return self._now

    def tell(self) -> int:
        """Return the number for an answer that is given now."""
        self._is_told = True
        return self._now

    def is_since(self, told: int, begun: int) -> bool:
        """Say whether `told` was first told in the round `begun`, or in a later one. Numbers begin again at 1."""
        if not NO_ROUND < told <= INT32_MAX or (told == self._now and not self._is_told):
            return False
        return (told - begun) % INT32_MAX <= (self._now - begun) % INT32_MAX


class Proof:
    """Followers that are to be heard of before it is shown that no other node leads.

    begun: the round in which it began. Fetches of former rounds do not count
    done: is called once all were heard of
    """

    __slots__ = ("begun", "done", "missing")

    def __init__(self, begun: int, missing: Collection[int], done: Callable[[], None]) -> None:
        self.begun = begun
        self.missing = set(missing)
        self.done = done
