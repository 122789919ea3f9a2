"""How the sync API waits: on the thread that calls. `awaiting.py` has the same names for the asyncio API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as Future
from time import sleep as sleep
from typing import Any, ParamSpec, TypeVar

from semel.sdk.transport.client import ClientCore

P = ParamSpec("P")
T = TypeVar("T")


def run(client: ClientCore, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run `coroutine` on the client's IO thread and wait for what it returns or raises.

    Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer than `timeout_s`, and `UsageError` on that thread.
    """
    return client.io.run(coroutine, None if timeout_s is None else timeout_s * 1000)


def work(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that blocks: here."""
    return function(*args, **kwargs)


def call(function: Callable[..., object], *args: object) -> object:
    """Call a function of the user's."""
    return function(*args)


def as_future(future: Future[T]) -> Future[T]:
    """Return the future of a call on the IO thread, as it is."""
    return future


class Signal:
    """Wakes the one thread that waits for it. Set from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.clear = self._event.clear
        self.set = self._event.set

    def wait(self, timeout_s: float) -> None:
        """Wait until it was set since it was cleared, or for so long."""
        self._event.wait(timeout_s)
