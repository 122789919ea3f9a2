"""Threads for work that waits for the disk or takes long, for as long as their owner lives.

The standard library's pool takes no more work once the main thread has ended, though other threads still run, and
though the program's last callbacks (atexit) run even later. A node in a program of somebody else is closed that late.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Work: TypeAlias = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Threads(Executor):
    """An executor on daemon threads: up to `threads_max`, each started when it is first needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        """`name` is what the threads' names begin with."""
        self._threads_max = threads_max
        self._name = name
        self._is_shut_down = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        # The threads know the queue alone, so that they end with an executor that nobody shut down.
        weakref.finalize(self, self._queue.put, None).atexit = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call in a thread. Raises `RuntimeError` after `shutdown`."""
        if os.getpid() != self._pid:
            self._begin()  # in a forked child, which has none of the threads
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(f"the threads {self._name!r} were shut down: they take no more work")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._threads_max:
                self._start()
            if self._threads:
                self._queue.put((future, fn, args, kwargs))
                return future
        _run((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and end the threads after what they have. `wait`: until they have ended."""
        if os.getpid() != self._pid:
            self._is_shut_down = True
            return
        dropped: list[Future[Any]] = []
        with self._lock:
            self._is_shut_down = True
            if cancel_futures:
                with suppress(Empty):
                    while (work := self._queue.get_nowait()) is not None:
                        dropped.append(work[0])
            self._queue.put(None)
        for future in dropped:
            future.cancel()
        if wait:
            for thread in self._threads:
                thread.join()

    def _start(self) -> None:
        """Start a thread. At the very end of a program none can be: then those there are do the work, or the caller."""
        thread = threading.Thread(
            target=_serve, args=(self._queue, self._idle), name=f"{self._name}_{len(self._threads)}", daemon=True
        )
        with suppress(RuntimeError):
            thread.start()
            self._threads.append(thread)


def _serve(queue: SimpleQueue[_Work | None], idle: threading.Semaphore) -> None:
    while (work := queue.get()) is not None:
        _run(work)
        del work  # its result is not kept while the thread waits
        idle.release()
    queue.put(None)  # for the next thread


def _run(work: _Work) -> None:
    future, function, args, kwargs = work
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
