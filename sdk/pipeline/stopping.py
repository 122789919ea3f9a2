"""How a run is stopped: by a call from any thread, or by SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_DEFAULTS: Final = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class StopRequest:
    """Whether a run is to stop, and why. A flag that a run looks at twice a second.

    It wakes nobody: a handler of a signal that sets an event can wait for ever for the event's own lock.
    """

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def is_set(self) -> bool:
        return self.reason is not None

    def set(self, reason: str = "stop()") -> None:
        self.reason = self.reason or reason

    def clear(self) -> None:
        """The next run begins without a request."""
        self.reason = None


@contextmanager
def stopped_by_signals(stop: Callable[[str], object], *, is_wanted: bool) -> Iterator[None]:
    """Call `stop` with the name of the signal, for SIGTERM and SIGINT. A second one does what it did before.

    That ends the process. Only in the main thread, and only for signals that have the handlers of Python or
    `asyncio.run`: a program's own are left alone.
    """
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    replaced: dict[signal.Signals, Any] = {
        number: handler
        for number, default in _DEFAULTS.items()
        if (handler := signal.getsignal(number)) == default or _is_of_asyncio(handler)
    }

    def handle(number: int, _: FrameType | None) -> None:
        restore()
        stop(signal.Signals(number).name)

    def restore() -> None:
        for one, before in replaced.items():
            if signal.getsignal(one) is handle:
                signal.signal(one, before)

    for number in replaced:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


def _is_of_asyncio(handler: object) -> bool:
    """Whether `asyncio.run` has set it, which cancels the main task."""
    return getattr(getattr(handler, "func", None), "__qualname__", "") == "Runner._on_sigint"
