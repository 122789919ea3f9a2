"""How far a run is: counted, logged every so often, and returned at its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

_log = logging.getLogger("semel.consumer")


@dataclass(slots=True)
class RunStatistics:
    """What a run of `Consumer.run` has done. Only what is committed counts as done.

    records:      records that were handled, dead letters among them
    sent:         records that were sent for them
    transactions: transactions that were committed
    aborted:      transactions of which nothing took effect; their records were handled again
    retries:      failures of the handler after which a record was to be tried again
    dead_letters: records that were sent to the topic for dead letters
    """

    records: int = 0
    sent: int = 0
    transactions: int = 0
    aborted: int = 0
    retries: int = 0
    dead_letters: int = 0


class Progress:
    """Counts, and writes a line to the log every `interval_s` seconds; None: none."""

    def __init__(self, group: str, interval_s: float | None, now: Callable[[], float]) -> None:
        self.counts = RunStatistics()
        self._group = group
        self._interval_s = interval_s
        self._now = now
        self._said = replace(self.counts)
        self._said_at = now()

    def report(self, lag: Callable[[], int]) -> None:
        """Write a line where it is time to."""
        now = self._now()
        if self._interval_s is None or now - self._said_at < self._interval_s:
            return
        self._line(f", lag {lag()}", now)

    def end(self, why: str) -> RunStatistics:
        """Write the last line, and return what was counted."""
        if self._interval_s is not None:
            self._line(f"; ended: {why}", self._now())
        return self.counts

    def _line(self, more: str, now: float) -> None:
        counts, seconds = self.counts, max(now - self._said_at, 0.001)
        _log.info(
            "group=%s records=%d (%.0f/s) sent=%d transactions=%d aborted=%d retries=%d dead_letters=%d%s",
            self._group, counts.records, (counts.records - self._said.records) / seconds, counts.sent,
            counts.transactions, counts.aborted, counts.retries, counts.dead_letters, more,
        )  # fmt: skip
        self._said, self._said_at = replace(counts), now
