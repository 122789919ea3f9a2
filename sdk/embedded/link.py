"""The way from clients in this process to the node in it: bytes go from their threads to its event loop, and back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context

from semel.broker.listeners.in_process import InProcessListener
from semel.protocol.errors import ErrorCode, RetriableError
from semel.sdk.transport.in_process import SCHEME, NodeGoneError

Metadata = Sequence[tuple[str, str | bytes]]


class EmbeddedLink:
    """A `NodeLink` to one node, from `attach` to `close`."""

    def __init__(self, path: str) -> None:
        self.name = SCHEME + path
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: InProcessListener | None = None
        self._pending: set[Future[bytes]] = set()
        self._offered: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = f"{path} is not open yet"

    def attach(self, listener: InProcessListener) -> None:
        """Lead to a node that has started. On its event loop."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener

    def close(self, reason: str) -> None:
        """Lead nowhere from here on; calls under way fail with `reason`. From any thread."""
        with self._lock:
            self._listener, self._gone = None, reason
            pending, self._pending = self._pending, set()
            offered, self._offered = self._offered, set()
        for accepted in offered:
            accepted.close()
        for future in pending:
            with suppress(InvalidStateError):
                future.set_exception(NodeGoneError(reason))

    def call(self, path: str, request: bytes, metadata: Metadata) -> Future[bytes]:
        future: Future[bytes] = Future()
        with self._lock:
            loop, listener = self._way()
            self._pending.add(future)
        # An empty context: the caller's belongs to its thread. Its trace travels in the metadata, as on a wire.
        self._on_loop(loop, self._begin, listener, future, path, request, metadata)
        return future

    def connect(self) -> socket.socket:
        with self._lock:
            loop, listener = self._way()
            mine, accepted = socket.socketpair()
            self._offered.add(accepted)
        mine.setblocking(False)
        try:
            self._on_loop(loop, self._accept, listener, accepted)
        except BaseException:
            mine.close()
            if self._take(accepted):
                accepted.close()
            raise
        return mine

    def _take(self, accepted: socket.socket) -> bool:
        """Return whether one end of a pair is still there to be taken: `close` closes those that nobody has taken."""
        with self._lock:
            is_there = accepted in self._offered
            self._offered.discard(accepted)
        return is_there

    def to(self, _address: str) -> EmbeddedLink:
        return self  # its node is alone

    def _way(self) -> tuple[asyncio.AbstractEventLoop, InProcessListener]:
        if self._listener is None or self._loop is None:
            raise NodeGoneError(self._gone)
        return self._loop, self._listener

    def _on_loop(self, loop: asyncio.AbstractEventLoop, *call: object) -> None:
        try:
            loop.call_soon_threadsafe(*call, context=Context())  # type: ignore[arg-type]
        except RuntimeError:  # the loop is closed: it has ended between two looks
            raise NodeGoneError(self._gone) from None

    # --- On the node's event loop -------------------------------------------------------------------------------------

    def _begin(
        self, listener: InProcessListener, future: Future[bytes], path: str, request: bytes, metadata: Metadata
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(listener, future, path, request, metadata))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        future.add_done_callback(lambda done: self._cancel(task) if done.cancelled() else None)

    async def _answer(
        self, listener: InProcessListener, future: Future[bytes], path: str, request: bytes, metadata: Metadata
    ) -> None:
        try:
            answer = await listener.call(path, request, metadata)
        except asyncio.CancelledError:
            self._settle(future, RetriableError("the node stopped before it answered", ErrorCode.NETWORK_EXCEPTION))
            raise
        except Exception as error:
            self._settle(future, error)
        else:
            self._settle(future, answer)

    def _settle(self, future: Future[bytes], outcome: bytes | Exception) -> None:
        with self._lock:
            self._pending.discard(future)
        with suppress(InvalidStateError):  # its caller has left, or the link was closed
            if isinstance(outcome, bytes):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """On the caller's thread: it has left."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(task.cancel)

    def _accept(self, listener: InProcessListener, accepted: socket.socket) -> None:
        if not self._take(accepted):
            return
        task = asyncio.get_running_loop().create_task(listener.connect(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that is cancelled before its first step has not looked at the socket.
        task.add_done_callback(lambda done: accepted.close() if done.cancelled() else None)
