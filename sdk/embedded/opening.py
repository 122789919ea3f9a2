"""How a log is opened: at once in the sync API, and when it is awaited or entered in the asyncio one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, Self

from semel.sdk.embedded.core import EmbeddedCore


class Opening:
    """Of the sync API: a log is open when it has been made."""

    _core: EmbeddedCore

    def _begun(self) -> Self:
        self._core.start()
        return self

    def _entered(self) -> None:
        self._core.check()


class AsyncOpening:
    """Of the asyncio API: a log is opened by `await`, or by `async with`."""

    _core: EmbeddedCore

    def _begun(self) -> Self:
        return self

    def _entered(self) -> Coroutine[Any, Any, None]:
        return self._open()

    async def _open(self) -> None:
        if self._core.is_open:  # by an await before
            return
        await start_elsewhere(self._core)

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._open().__await__()
        return self


async def start_elsewhere(core: EmbeddedCore) -> None:
    """Start in a thread. A caller that is cancelled waits for the end of that, and nothing of it is left."""
    starting = asyncio.ensure_future(asyncio.to_thread(core.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _ended(starting)
        if core.is_open:
            await _ended(asyncio.ensure_future(asyncio.to_thread(core.stop)))
        raise


async def _ended(work: asyncio.Future[None]) -> None:
    """Wait for the end of what runs in a thread, however often the caller is cancelled. Its error is nobody's now."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()
