"""The one thread on which a client does its IO: an asyncio loop of its own, so that sync and asyncio share one core.

A result is a `concurrent.futures.Future`: sync code waits for it, asyncio code wraps it with `asyncio.wrap_future`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple, Unpack

from semel.protocol.errors import ErrorCode, RetriableError, UsageError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Thread(threading.Thread):
    """A thread that must not wait for what only it, or another of its kind, can bring about."""


def on_any_io_thread() -> bool:
    """Whether the caller runs on the IO thread of any client: in a callback."""
    return isinstance(threading.current_thread(), _Thread)


def overdue(timeout_ms: float) -> RetriableError:
    """Return what a caller gets whose call took longer than it would wait."""
    return RetriableError(f"no result within {timeout_ms:.0f} ms; try again", ErrorCode.REQUEST_TIMED_OUT)


class IoThread:
    """A daemon thread with an asyncio loop. Starts at the first use; belongs to the process that made it."""

    def __init__(self, owner: str) -> None:
        """`owner` names the client in messages, for example "Producer"."""
        self._owner = owner
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that the client belongs to."""
        return os.getpid() != self._pid

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop; starts the thread. Raises `UsageError` after close or fork."""
        self.check()
        if self._loop is None:
            with self._lock:
                self.check()
                if self._loop is None:
                    self._loop = self._start()
        return self._loop

    def check(self) -> None:
        """Raise `UsageError` if the client was closed, or this is a forked child of the process that made it."""
        if self.forked:
            raise UsageError(
                f"this {self._owner} was made in process {self._pid} and can't be used in its forked child "
                f"{os.getpid()}: threads and connections don't survive a fork; make a new {self._owner} after forking"
            )
        if self._closed:
            raise UsageError(f"this {self._owner} is closed; make a new one")

    def on_thread(self) -> bool:
        """Whether the caller runs on this IO thread (a callback)."""
        return threading.current_thread() is self._thread

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Run `callback` on the IO thread soon. After close, does nothing."""
        loop = self._loop if self._loop is not None else self.loop
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback, *args)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` on the IO thread; cancelling the result cancels it. Raises `UsageError` as `check` does."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            # A Ctrl-C may fall in here, when the other thread runs it already: then it is not ours to close.
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                with suppress(ValueError):
                    coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run `coroutine` on the IO thread and wait for what it returns or raises.

        Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer than `timeout_ms`, and `UsageError` when
        called on the IO thread, where waiting would never end.
        """
        if self.on_thread():
            coroutine.close()
            raise UsageError(
                f"a blocking call of this {self._owner} was made inside one of its callbacks, where it could never "
                "end; hand the work to a thread of your own"
            )
        future = self.submit(coroutine)
        try:
            return future.result(None if timeout_ms is None else timeout_ms / 1000)
        except FutureTimeoutError:
            if timeout_ms is None or future.done():
                raise
            future.cancel()
            raise overdue(timeout_ms) from None
        except BaseException:
            future.cancel()
            raise

    def close_aside(self, close: Callable[[], object]) -> None:
        """Close what was dropped, on another thread: the collector may run on this one, which can't wait for itself."""
        threading.Thread(target=close, name="semel-close").start()

    def close(self) -> None:
        """Cancel what runs, stop the loop and the thread. Does nothing the second time, and in a forked child."""
        with self._lock:
            if self._closed or self.forked:
                self._closed = True
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = _Thread(target=self._run, args=(loop,), name=f"semel-{self._owner.lower()}", daemon=True)
        self._thread.start()
        return loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            while tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.sleep(0))  # lets aborted transports close their sockets
        finally:
            asyncio.set_event_loop(None)
            loop.close()
