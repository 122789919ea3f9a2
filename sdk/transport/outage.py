"""What a log says while a client reaches no node: that it still tries, each few seconds, and when a node answers."""

from __future__ import annotations

import logging
from typing import Final

from semel.runtime.clock import Clock
from semel.sdk.transport.unreachable import Trouble

_log = logging.getLogger("semel.client")

WARN_EVERY_S: Final = 3.0
GAP_S: Final = 30.0
"""After so long without an attempt, the next failure begins a new outage: nobody knows what was in between."""


class Outage:
    """The time since which no node has answered a client. On the IO thread."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._since: float | None = None
        self._failed_at = 0.0
        self._warn_at = 0.0
        self._has_warned = False
        self._troubles: dict[str, Trouble] = {}

    @property
    def in_short(self) -> str:
        """What the addresses do; empty where there is no outage. From any thread."""
        if self._since is None:
            return ""
        return ", ".join(f"{address} {trouble.in_short}" for address, trouble in list(self._troubles.items()))

    def failed(self, address: str, trouble: Trouble) -> None:
        """An attempt at a node has failed. Warns when it is time to."""
        now = self._now()
        since = self._since
        if since is None or now - self._failed_at > GAP_S:
            since = self._since = now
            self._warn_at = now + WARN_EVERY_S
            self._has_warned = False
            self._troubles.clear()
        self._failed_at = now
        self._troubles[address] = trouble
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            self._has_warned = True
            _log.warning("%s, still trying (%.0f s)", self.in_short, now - since)

    def ended(self, address: str) -> None:
        """A node has answered."""
        if self._since is None:
            return
        if self._has_warned:
            # At the level of what it takes back: who saw the one sees the other.
            _log.warning("%s answers, after %.0f s", address, self._now() - self._since)
        self._since = None
