"""A reader's side of a fetch session (KIP-227): each request names only the partitions that changed since the last one.

A machine without IO. One request at a time; `answered` or `lost` says what became of it before the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.kafka.fetch import INITIAL_SESSION_EPOCH, NO_SESSION_ID, FetchPartition, ForgottenPartition
from semel.sdk.consumer.subscription import PartitionState

Wanted = Mapping[PartitionState, FetchPartition]


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What to ask, and as which request of which session."""

    session_id: int
    epoch: int
    partitions: list[FetchPartition]
    forgotten: list[ForgottenPartition]


class FetchSession:
    """What one node remembers of one reader. Without a session there (it has no room), every request is whole.

    known:  what the node remembers. The same object in `ask` says that nothing has changed.
    """

    def __init__(self) -> None:
        self.known: Wanted = {}
        self._id = NO_SESSION_ID
        self._epoch = INITIAL_SESSION_EPOCH
        self._asked: Wanted = {}

    def ask(self, wanted: Wanted) -> SessionRequest:
        """Return the request for these partitions, and no others. Those of a topic stand together, as on the wire."""
        self._asked = wanted
        known = self.known
        changed = [item for state, item in wanted.items() if known.get(state) is not item]
        # One that was given away and came back is another object with the same name: it is not to be forgotten.
        names = {(item.topic_id, item.partition) for item in changed}
        forgotten = [
            ForgottenPartition(item.topic, item.topic_id, item.partition)
            for item in (known[state] for state in known.keys() - wanted.keys())
            if (item.topic_id, item.partition) not in names
        ]
        forgotten.sort(key=lambda item: item.topic)
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """The node answered, as part of this session (NO_SESSION_ID: it keeps none)."""
        if session_id == NO_SESSION_ID:
            self.lost()
            self._id = NO_SESSION_ID
            return
        self._id = session_id
        self._epoch = 1 if self._epoch >= INT32_MAX else self._epoch + 1
        self.known = self._asked

    def lost(self) -> None:
        """The request or its answer was lost, or refused: end the session with the next one, and begin another."""
        self._epoch = INITIAL_SESSION_EPOCH
        self.known = {}
