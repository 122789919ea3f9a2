"""Bounds what a process's log can grow by, whatever writes to it: so many lines a minute from each place in the code.

The last line of defence (S2): events that strangers cause are counted where they happen (`LimitedLog`), and what was
not thought of, libraries' own lines included, is bounded here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINES_MAX: Final = 200
TRACEBACKS_MAX: Final = 5
PERIOD_S: Final = 60.0
_SITES_TOLD_MAX: Final = 20


@dataclass(slots=True)
class _CallSite:
    """What one call of the log has written in this period."""

    logger: str
    lines: int = 0
    tracebacks: int = 0


class FloodGuard(logging.Filter):
    """A filter for handlers: passes the first lines of each place in the code in a period, and then says how many
    there were besides. Lines that are critical always pass."""

    def __init__(
        self,
        *,
        lines_max: int = LINES_MAX,
        tracebacks_max: int = TRACEBACKS_MAX,
        period_s: float = PERIOD_S,
        monotonic: Callable[[], float] = time.monotonic,
        exempt: frozenset[str] = frozenset(),
    ) -> None:
        """exempt: loggers whose lines all pass, because what strangers cause there is bounded where it happens"""
        super().__init__()
        self._exempt = exempt
        self._lines_max = lines_max
        self._tracebacks_max = tracebacks_max
        self._period_s = period_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sites: dict[tuple[str, int], _CallSite] = {}
        self._begun = monotonic()
        self.handler: logging.Handler | None = None
        """Where it is said what was left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.CRITICAL or record.name in self._exempt:
            return True
        with self._lock:
            told = self._end_period() if self._monotonic() - self._begun >= self._period_s else []
            site = self._sites.setdefault((record.pathname, record.lineno), _CallSite(record.name))
            site.lines += 1
            passes = site.lines <= self._lines_max
            if record.exc_info and passes:
                site.tracebacks += 1
                if site.tracebacks > self._tracebacks_max:
                    _shorten(record)
        self._tell(told)
        return passes

    def flush(self) -> None:
        """Say what was left out in the period so far, and begin another. Call it now and then, and at the end."""
        with self._lock:
            told = self._end_period()
        self._tell(told)

    def _end_period(self) -> list[_CallSite]:
        left_out = [site for site in self._sites.values() if site.lines > self._lines_max]
        self._sites = {}
        self._begun = self._monotonic()
        return left_out

    def _tell(self, sites: list[_CallSite]) -> None:
        if self.handler is None:
            return
        for site in sites[:_SITES_TOLD_MAX]:
            self.handler.emit(
                logging.LogRecord(
                    site.logger, logging.WARNING, __file__, 0,
                    "left out: lines=%d of one kind, after the first %d in %.0f s",
                    (site.lines - self._lines_max, self._lines_max, self._period_s), None,
                )
            )  # fmt: skip


def _shorten(record: logging.LogRecord) -> None:
    """Leave the error of a traceback, and not where it came from."""
    assert record.exc_info
    record.msg = f"{record.getMessage()}: {record.exc_info[1]!r} (its traceback was written before)"
    record.args = None
    record.exc_info = record.exc_text = None
