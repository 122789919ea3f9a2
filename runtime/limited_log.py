"""Log lines about what strangers did, at most so many a minute: nobody fills the disk by misbehaving (S2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Final

LINES_MAX: Final = 50
PERIOD_S: Final = 60.0


class LimitedLog:
    """Writes the first `lines_max` lines of a period, and at its end how many there were besides."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        lines_max: int = LINES_MAX,
        period_s: float = PERIOD_S,
        level: int = logging.WARNING,
    ) -> None:
        """`level`: of its lines, but for errors."""
        self._logger = logger
        self._level = level
        self._lines_max = lines_max
        self._period_s = period_s
        self._lines = 0
        self._traced: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def warning(self, message: str, *args: object) -> None:
        """Write a line, or count it. Call on the event loop."""
        if self._counts():
            # Of the caller's line: `FloodGuard` counts by the place in the code.
            self._logger.log(self._level, message, *args, stacklevel=2)

    def write(self, message: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Do that, with attributes of the record."""
        if self._counts():
            self._logger.log(self._level, message, *args, extra=extra, stacklevel=2)

    def exception(self, error: BaseException, message: str, *args: object) -> None:
        """Write an error that nobody expected; with its traceback where it is the first of its kind in the period."""
        kind = f"{type(error).__name__} at {_call_site(error.__traceback__)}"
        # A kind of its own is told even where the period has had its lines: there are as many as places in the code.
        is_first = kind not in self._traced
        if not self._counts() and not is_first:
            return
        if is_first:
            self._traced.add(kind)
            self._logger.error(message, *args, exc_info=error)
        else:
            self._logger.error(f"{message}: %s again", *args, kind)

    def close(self) -> None:
        """Say what was not written so far, and begin no other period."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_period()

    def _counts(self) -> bool:
        """Count a line. Returns whether it may be written."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._end_period)
        self._lines += 1
        return self._lines <= self._lines_max

    def _end_period(self) -> None:
        self._timer = None
        left_out = self._lines - self._lines_max
        self._lines = 0
        self._traced.clear()
        if left_out > 0:
            self._logger.log(
                self._level,
                "left out: lines=%d like these, after the first %d of the last %.0f s",
                left_out,
                self._lines_max,
                self._period_s,
            )


def _call_site(traceback: TracebackType | None) -> str:
    """Return where an error was raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "?" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
