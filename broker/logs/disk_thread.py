"""Waiting for the disk off the event loop, without ever leaving work behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final, TypeVar

from semel.runtime.threads import Threads

T = TypeVar("T")

_THREADS: Final = 10
"""One for flushing, one for compaction, and those that make many logs at once: none waits for another. Only as many are
started as are needed."""


class DiskThread:
    """Runs blocking calls elsewhere. A cancelled caller still waits for its call to end: nothing runs on behind it."""

    __slots__ = ("_executor", "_own")

    def __init__(self, executor: Executor | None = None) -> None:
        """Without an `executor` it has threads of its own, which `close` ends."""
        self._own = None if executor is not None else Threads(_THREADS, "semel-disk")
        self._executor: Executor = executor if executor is not None else self._own  # type: ignore[assignment]

    async def outcome(
        self, function: Callable[..., object], *arguments: object, on_cancel: Callable[[], None] | None = None
    ) -> tuple[OSError | None, asyncio.CancelledError | None]:
        """Run to the end, and return the disk's error and the cancellation that came meanwhile, if any.

        `on_cancel` may ask the call to end sooner. Any other exception is raised.
        """
        future = asyncio.wrap_future(self._executor.submit(function, *arguments))
        cancelled = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
                if on_cancel is not None:
                    on_cancel()
        failure = future.exception()
        if failure is None or isinstance(failure, OSError):
            return failure, cancelled
        if cancelled is not None:
            raise cancelled from failure
        raise failure

    async def run(
        self, function: Callable[..., object], *arguments: object, on_cancel: Callable[[], None] | None = None
    ) -> None:
        """Run to the end. Raises what the call raised, and `CancelledError` only after it has ended."""
        failure, cancelled = await self.outcome(function, *arguments, on_cancel=on_cancel)
        if cancelled is not None:
            raise cancelled
        if failure is not None:
            raise failure

    async def run_all(self, function: Callable[[T], object], parts: Iterable[T]) -> None:
        """Run a call for each part, side by side, as `run` does: all have ended when this returns or raises."""
        outcomes = await asyncio.gather(*(self.run(function, part) for part in parts), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def close(self) -> None:
        if self._own is not None:
            self._own.shutdown()
