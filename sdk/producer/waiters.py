"""Who waits for a producer: for its memory, on any thread or as a coroutine, and for everything sent to be done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from semel.protocol.errors import ErrorCode, RetriableError
from semel.sdk.producer.accumulator import Accumulator
from semel.sdk.transport.surroundings import ClientIo


class Waiters:
    """Those who wait for one producer. Coroutines and `settle` run on the IO thread.

    hurry: on the IO thread, lets nothing linger that is buffered.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        io: ClientIo,
        hurry: Callable[[], None],
        buffer_memory_bytes: int,
        max_block_ms: int,
    ) -> None:
        self._accumulator = accumulator
        self._io = io
        self._hurry = hurry
        self._buffer_memory_bytes = buffer_memory_bytes
        self._max_block_ms = max_block_ms
        self._room = threading.Condition()
        self._room_threads = 0
        self._room_futures: list[asyncio.Future[None]] = []
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []

    def wait_room_blocking(self, size_bytes: int) -> None:
        """Wait on this thread until a record of this size would be taken. Raises `RetriableError` in the end."""
        if self._io.on_thread():
            raise self._no_room(0)
        with self._room:
            self._room_threads += 1
            try:
                self._io.call_soon(self._hurry)
                if not self._room.wait_for(lambda: self._may_continue(size_bytes), self._max_block_ms / 1000):
                    raise self._no_room(self._max_block_ms)
            finally:
                self._room_threads -= 1

    async def wait_room(self, size_bytes: int) -> None:
        """Wait until a record of this size would be taken. Raises `RetriableError` after max_block_ms."""
        try:
            async with asyncio.timeout(self._max_block_ms / 1000):
                self._hurry()
                while not self._may_continue(size_bytes):
                    future = asyncio.get_running_loop().create_future()
                    self._room_futures.append(future)
                    await future
        except TimeoutError:
            raise self._no_room(self._max_block_ms) from None

    def _may_continue(self, size_bytes: int) -> bool:
        return self._accumulator.has_room(size_bytes) or self._accumulator.gate_closed

    def _no_room(self, waited_ms: int) -> RetriableError:
        return RetriableError(
            f"buffer_memory_bytes ({self._buffer_memory_bytes}) is full of unacknowledged records, and no room came "
            f"free within {waited_ms} ms: the node is slower than the sending, or away; try again",
            ErrorCode.REQUEST_TIMED_OUT,
        )

    async def flush(self) -> None:
        """Wait until everything sent before is acknowledged or has failed."""
        serial = self._accumulator.last_serial
        self._hurry()
        first = self._accumulator.first_incomplete()
        if first is None or first > serial:
            return
        future = asyncio.get_running_loop().create_future()
        self._flushes.append((serial, future))
        await future

    def settle(self) -> None:
        """Wake those who have what they wait for."""
        if self._flushes:
            first = self._accumulator.first_incomplete()
            waiting = []
            for serial, future in self._flushes:
                if first is not None and first <= serial:
                    waiting.append((serial, future))
                elif not future.done():
                    future.set_result(None)
            self._flushes = waiting
        if self._room_threads:
            with self._room:
                self._room.notify_all()
        if self._room_futures:
            futures, self._room_futures = self._room_futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)
