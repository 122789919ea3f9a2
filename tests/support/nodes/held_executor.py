"""An executor that runs what it is given when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class HeldExecutor(Executor):
    """Holds every call back until `run`; `drop` is for those that a crash overtakes."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[..., Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        """Run the call that has waited longest."""
        future, work = self.held.pop(0)
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def drop(self, error: BaseException) -> None:
        """Let all that is held fail without having run."""
        while self.held:
            self.held.pop(0)[0].set_exception(error)
