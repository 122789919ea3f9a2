"""How many calls a gRPC listener serves now. The library bounds them, and tells nobody how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class CallsInFlight:
    """Calls and streams of semel.v1, by the connections that they came by. On the event loop."""

    def __init__(self) -> None:
        self._of_peers: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many there are."""
        return self._of_peers.total()

    @property
    def most_of_a_connection(self) -> int:
        return max(self._of_peers.values(), default=0)

    @contextmanager
    def one_of(self, peer: str) -> Iterator[None]:
        """Have one more while the context lasts. peer: the address and the port of its connection"""
        self._of_peers[peer] += 1
        try:
            yield
        finally:
            self._of_peers[peer] -= 1
            if not self._of_peers[peer]:
                del self._of_peers[peer]
