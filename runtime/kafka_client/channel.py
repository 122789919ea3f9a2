"""One place that is connected to when it is wanted, and again with backoff and jitter after that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from semel.runtime.backoff import Backoff
from semel.runtime.kafka_client.connection import Connection


class Channel:
    """At most one open connection. `connection` is the last one, which may have ended: see `Connection.is_open`."""

    __slots__ = ("_backoff", "_not_before", "_now", "_open", "_opening", "connection", "failures")

    def __init__(
        self, open_one: Callable[[], Awaitable[Connection]], backoff: Backoff, now: Callable[[], float]
    ) -> None:
        """`open_one` makes one attempt. now: seconds that never go back, by which it pauses"""
        self._open = open_one
        self._backoff = backoff
        self._now = now
        self._opening: asyncio.Task[Connection] | None = None
        self._not_before = 0.0
        self.connection: Connection | None = None
        self.failures = 0
        """How many attempts have failed since the last that did not."""

    async def get(self) -> Connection:
        """Return an open connection. One attempt, after the pause that earlier failures ask for.

        Raises `ConnectionLostError`.
        """
        connection = self.connection
        if connection is not None and connection.is_open:
            return connection
        task = self._opening
        if task is None:
            task = self._opening = asyncio.get_running_loop().create_task(self._connect())
            task.add_done_callback(self._opened)
        return await asyncio.shield(task)

    def close(self, reason: str = "closed by the client") -> None:
        """Close the connection; what is in flight fails as lost."""
        if self._opening is not None:
            self._opening.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close(reason)

    async def _connect(self) -> Connection:
        pause_s = self._not_before - self._now()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self.connection = await self._open()
        return self.connection

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self.failures = 0
            # A node that accepts and drops at once is asked again after a pause, too.
            failures = 1
        else:
            failures = self.failures = self.failures + 1
        self._not_before = self._now() + self._backoff.jittered_s(failures)
