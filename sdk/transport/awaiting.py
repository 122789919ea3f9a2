"""How the asyncio API waits: the caller's loop is never blocked. `blocking.py` has the same names for the sync API.

Hand-written, both: everything else of the sync API is generated (`sdk/sync_api.py`).
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Future as Future
from asyncio import sleep as sleep
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any, ParamSpec, TypeVar

from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.io_thread import overdue

P = ParamSpec("P")
T = TypeVar("T")


async def run(client: ClientCore, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run `coroutine` on the client's IO thread and wait for what it returns or raises.

    Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer than `timeout_s`.
    """
    result = asyncio.wrap_future(client.io.submit(coroutine))
    if timeout_s is None:
        return await result
    try:
        done, _ = await asyncio.wait([result], timeout=timeout_s)
    except BaseException:
        result.cancel()
        raise
    if not done:
        result.cancel()
        raise overdue(timeout_s * 1000)
    return result.result()


async def work(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that blocks: in a thread."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def call(function: Callable[..., object], *args: object) -> object:
    """Call a function of the user's, and await what it returns if that can be awaited."""
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


def as_future(future: futures.Future[T]) -> Future[T]:
    """Return the future of a call on the IO thread as one of this loop's. Nobody has to ask for its error."""
    result = asyncio.wrap_future(future)
    result.add_done_callback(lambda done: done.cancelled() or done.exception())
    return result


class Signal:
    """Wakes the one task that waits for it. Set from any thread; cleared and waited for in the loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def clear(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event.clear()

    def set(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> None:
        """Wait until it was set since it was cleared, or for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
