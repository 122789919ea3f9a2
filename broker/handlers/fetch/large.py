"""A fetch of very many partitions: they are read in parts, and others have their turns in between (S3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from semel.broker.handlers.fetch.call import FetchCall, Found, WaitingFetch
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchResponse
from semel.runtime.turns import Turns

_log = logging.getLogger("semel.fetch")

PART: Final = 200
"""Partitions that are read in one turn; a fetch of no more is read at once."""


class FetchRoom(Protocol):
    """Where what is read may be held in memory (S2)."""

    async def take(self) -> bool:
        """Wait for room. Returns whether there is any; there is none where the node stops."""
        ...

    def give_back(self) -> None:
        """Let others have it, since nothing is held now."""
        ...


class ReadsParts(Protocol):
    """What a large fetch needs of the handler."""

    def begin_reading(self, call: FetchCall) -> Found:
        """Return what `read` fills."""
        ...

    def read(self, call: FetchCall, found: Found, partitions: Sequence[FetchPartition]) -> None:
        """Read these partitions of a fetch."""
        ...

    def is_enough(self, call: FetchCall, found: Found) -> bool:
        """Return whether a fetch is to be answered with what was found."""
        ...

    def wait(
        self, call: FetchCall, responses: list[FetchPartitionResponse], enough: Callable[[], None]
    ) -> WaitingFetch:
        """Listen to a fetch's partitions, and call `enough` when there is enough to answer or the time is over."""
        ...

    def response(self, call: FetchCall, found: Found) -> FetchResponse:
        """Return the answer of a fetch."""
        ...


class LargeFetch:
    """One of them. `cancel` when nobody waits for it any more.

    It begins to read with the room that its caller has, gives it back while it waits, and takes it before it reads
    again.
    """

    def __init__(self, handler: ReadsParts, call: FetchCall, room: FetchRoom | None = None) -> None:
        self._handler = handler
        self._call = call
        self._room = room
        self._waiting: WaitingFetch | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="read a large fetch")

    def cancel(self) -> None:
        """Stop reading and listening. No answer is given any more."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._task.cancel()

    async def _run(self) -> None:
        handler, call = self._handler, self._call
        try:
            found = await self._read()
            if not handler.is_enough(call, found):
                woken = asyncio.get_running_loop().create_future()
                self._waiting = handler.wait(call, found.responses, lambda: woken.set_result(None))
                found = handler.begin_reading(call)  # nothing of what was read is held meanwhile
                if self._room is not None:
                    self._room.give_back()
                await woken
                if self._room is None or await self._room.take():
                    found = await self._read()
            response = handler.response(call, found)
        except Exception:
            _log.exception("a large fetch failed: partitions=%d", len(call.context.partitions))
            response = FetchResponse([], ErrorCode.UNKNOWN_SERVER_ERROR)
        call.done(response)

    async def _read(self) -> Found:
        handler, call = self._handler, self._call
        found = handler.begin_reading(call)
        turns = Turns()
        for start in range(0, len(call.context.partitions), PART):
            await turns.give_way()
            handler.read(call, found, call.context.partitions[start : start + PART])
        return found
