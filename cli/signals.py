"""What SIGINT (Ctrl-C) and SIGTERM do to a command. Imports next to nothing: it is in force before all else is loaded.

Until a command has something to finish, a signal ends the process at once: nothing is half done, and an exception in
the midst of an import would be printed as a traceback. Commands that report what they did, abort a transaction or
delete a topic of their own work inside of `finishing_on_signals`, where a signal is an exception.
"""

from __future__ import annotations

import os
import signal
import threading
import time

SAME_SIGNAL_S = 0.3
"""`timeout` sends each signal twice, to its child and to its group: a second one this soon is the same."""


class Terminated(KeyboardInterrupt):
    """SIGTERM. What a command does about Ctrl-C, it does about this."""


def end_at_once_on_signals() -> None:
    """Let SIGINT and SIGTERM end this process, without a word. One that is ignored (nohup, `&`) stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)


def _end_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)


class finishing_on_signals:  # noqa: N801 (used as a function; contextlib is not loaded yet where this is)
    """Inside, SIGINT raises KeyboardInterrupt and SIGTERM `Terminated`; a later signal ends the process at once."""

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._first_at = 0.0

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._raise)

    def _raise(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if not self._first_at:
            self._first_at = now
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        if now - self._first_at > SAME_SIGNAL_S:
            os._exit(128 + number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
