"""Ends that nobody waits for: clients that are closed beside the requests that go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from semel.aio import Consumer, Producer
from semel.protocol.errors import SemelError

_log = logging.getLogger("semel.http")

_CLOSE_S = 5.0


class Background:
    """Tasks that are waited for when the gateway ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def close_quietly(client: Producer | Consumer) -> None:
    """Close a client. What it still had open was answered as an error, or is ended by its successor."""
    try:
        await client.close(_CLOSE_S)
    except SemelError as error:
        _log.debug("closing %r: %s", client, error)
