"""Reads what other nodes have changed of users and tokens, before somebody is refused who was added a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

_PAUSE_S: Final = 0.05
_PATIENCE_S: Final = 2.0
"""How long a login waits for what other nodes have changed."""


class NewestReader:
    """Strangers may ask for any name, so readings are rare, and all that come before one begins share it (S2)."""

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._next: asyncio.Task[None] | None = None
        """A reading that has not begun: what was made until now will be in it."""

    async def newest(self) -> None:
        """Wait until what others have changed until now is known, or can't be read in time."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._begin())
        await asyncio.shield(self._next)

    async def _begin(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        self._next = None
        with suppress(TimeoutError):  # while the metadata is away, what is known has to do
            async with asyncio.timeout(_PATIENCE_S):
                await self._read()
