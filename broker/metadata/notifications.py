"""Is woken by PostgreSQL when another node has changed the metadata (LISTEN), so that polls may be rare.

Speed alone: a node that hears nothing finds the change at its next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from semel.protocol.randomness import source

_log = logging.getLogger(__name__)

CHANNEL: Final = "semel_metadata"
_PAUSE_S: Final = 2.0
_PAUSE_MAX_S: Final = 60.0


class Notifications:
    """A connection that listens."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], error: type[Exception], wake: Callable[[], None]) -> None:
        """`connect` makes an asynchronous connection of psycopg, whose errors are `error`."""
        self._connect = connect
        self._error = error
        self._wake = wake

    async def run(self) -> None:
        """Listen until cancelled; connect again where that ends."""
        pause_s = _PAUSE_S
        while True:
            try:
                async with await self._connect() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    pause_s = _PAUSE_S
                    self._wake()  # for what came before
                    async for _ in connection.notifies():
                        self._wake()
            except (self._error, OSError) as error:
                _log.debug("the metadata's database does not tell of changes, so they are found by polls: %s", error)
            await asyncio.sleep(pause_s * (0.5 + source().random()))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
