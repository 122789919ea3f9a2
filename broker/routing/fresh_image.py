"""Reads what is new in the metadata, once for all who ask at one time: when a node dies, thousands do."""

from __future__ import annotations

import asyncio
import logging

from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import SemelError

_log = logging.getLogger("semel.routing")


class FreshImage:
    """Brings a node's image up to date."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._running: asyncio.Task[SemelError | None] | None = None
        self._next: asyncio.Task[SemelError | None] | None = None

    async def read(self) -> None:
        """Wait until the metadata was read, by a reading that began after this call.

        Where it can't be read, the image stays as it is: who asks tries again anyway.
        """
        await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[SemelError | None]:
        """Do the same without waiting. The task's result says why the metadata could not be read, None if it was."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_after(self._running), name="fresh image")
        return self._next

    async def _read_after(self, running: asyncio.Task[SemelError | None] | None) -> SemelError | None:
        if running is not None:
            await asyncio.wait([running])
        # Who comes from here on may know of later changes, and waits for another reading.
        self._running, self._next = self._next, None
        try:
            await self._metadata.refresh()
        except SemelError as error:
            _log.info("the metadata could not be read again: %s", error.message)
            return error
        finally:
            self._running = None
        return None
