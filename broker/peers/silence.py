"""When a node whose heartbeats stay away counts as dead.

Heartbeats alone say little about a busy machine: they come late while the node serves its clients. So who is late is
asked at its peer address as well. A machine that refuses has no such process any more, and others lead at once. A
process that answers may be slow, or not reach the database while it still leads, and gets more time. Where there is no
answer, the session decides. A wrong decision does no harm to what was committed (R4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

LATE_HEARTBEATS: Final = 2
"""So many heartbeats that did not come make a node suspicious."""
SESSIONS_OF_WHO_RETURNED_MAX: Final = 4
"""So many times the session has a node at most that was taken for dead in error, again and again."""
STEADY_S: Final = 60.0
"""After so long without an error a node has one session again."""
SESSIONS_OF_WHO_ANSWERS: Final = 3
"""So many sessions may a node be silent that answers: then it is one that does not reach the database."""


class FalseAlarms:
    """Nodes that were taken for dead in error: the same run of them was heard of again.

    Each such error gives others more to lead, and the node more to read when it leads again. On machines that are too
    busy as it is that makes the next error likely. So the node has more time then: twice, and four times the session.
    """

    def __init__(self) -> None:
        self._noted: dict[tuple[int, int], tuple[int, float]] = {}

    def returned(self, run: tuple[int, int], now_s: float) -> None:
        """Note that a node is heard of again. run: its number and its broker epoch."""
        self._noted = {each: noted for each, noted in self._noted.items() if now_s - noted[1] < STEADY_S}
        self._noted[run] = self._noted.get(run, (0, 0.0))[0] + 1, now_s

    def session_ms(self, run: tuple[int, int], session_ms: int, now_s: float) -> int:
        """Return how long a session of this run of a node is now."""
        times, last_s = self._noted.get(run, (0, 0.0))
        if not times or now_s - last_s >= STEADY_S:
            return session_ms
        return session_ms * min(1 << times, SESSIONS_OF_WHO_RETURNED_MAX)


class Sign(Enum):
    """What the peer address of a node says."""

    NONE = "no answer"
    ANSWERED = "it answers"
    REFUSED = "nothing listens there"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node may be silent. Both in milliseconds: broker.session.timeout.ms, broker.heartbeat.interval.ms.

    Silence while the database could not be reached is none: nobody could be heard of.
    """

    session_ms: int
    heartbeat_ms: int

    def is_suspicious(self, silent_ms: float) -> bool:
        """Say whether to ask at its address."""
        return silent_ms >= min(self.session_ms, LATE_HEARTBEATS * self.heartbeat_ms)

    def is_dead(self, silent_ms: float, sign: Sign) -> bool:
        """Say whether a node that counts as alive is dead."""
        if sign is Sign.REFUSED:
            return self.is_suspicious(silent_ms)
        sessions = SESSIONS_OF_WHO_ANSWERS if sign is Sign.ANSWERED else 1
        return silent_ms >= sessions * self.session_ms

    def is_heard(self, silent_ms: float, sign: Sign) -> bool:
        """Say whether a node that counts as dead lives."""
        return silent_ms < self.session_ms and not self.is_dead(silent_ms, sign)
