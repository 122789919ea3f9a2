"""Warnings about what peers did, at most so many a minute: whoever misbehaves on purpose must not fill the disk."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

LINES_MAX: Final = 50
PERIOD_S: Final = 60.0


class RefusalLog:
    """Writes the first `lines_max` warnings of a period, and at its end how many there were besides."""

    def __init__(self, logger: logging.Logger, *, lines_max: int = LINES_MAX, period_s: float = PERIOD_S) -> None:
        self._logger = logger
        self._lines_max = lines_max
        self._period_s = period_s
        self._lines = 0
        self._timer: asyncio.TimerHandle | None = None

    def warning(self, message: str, *args: object) -> None:
        """Write a warning, or count it. Call on the event loop."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._end_period)
        self._lines += 1
        if self._lines <= self._lines_max:
            self._logger.warning(message, *args)

    def close(self) -> None:
        """Say what was not written so far, and begin no other period."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_period()

    def _end_period(self) -> None:
        self._timer = None
        left_out = self._lines - self._lines_max
        self._lines = 0
        if left_out > 0:
            self._logger.warning(
                "left out: lines=%d about closed connections, after the first %d of the last %.0f s",
                left_out,
                self._lines_max,
                self._period_s,
            )
