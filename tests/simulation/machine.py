"""What a simulated process has of a machine: executors, a clock, and a loop for its clients' I/O."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, TypeVar

from semel.protocol.errors import UsageError
from simulation.loop import Process, Scheduler, current_process

T = TypeVar("T")

START_MS = 1_700_000_000_000


class SkewedClock:
    """A machine's clock. Its wall time may be off and jump; its monotonic time is the loop's."""

    def __init__(self, scheduler: Scheduler, off_ms: int = 0) -> None:
        self.off_ms = off_ms
        self.jumped_ms = 0
        """How far it has jumped, in all, either way."""
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return START_MS + self.off_ms + int(self._scheduler.now * 1000)

    def monotonic(self) -> float:
        return self._scheduler.now

    def jump(self, by_ms: int) -> None:
        self.off_ms += by_ms
        self.jumped_ms += abs(by_ms)


class SimulatedExecutor(Executor):
    """Does work a while after it was submitted, in the process that submitted it, and says so a while later."""

    def __init__(self, scheduler: Scheduler, chance: random.Random, longest_s: float = 0.004) -> None:
        self._scheduler = scheduler
        self.chance = chance
        self.longest_s = longest_s
        self.slow: dict[str, float] = {}
        """How long work takes at most where it takes longer, by place."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        process = current_process()
        future: _Work[T] = _Work(process, lambda: fn(*args, **kwargs))
        self._later(process, self._work, future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...

    def _later(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        longest_s = max(self.longest_s, self.slow.get(process.place, 0.0))
        delay_s = longest_s * self.chance.random() ** 3
        process.post_at(self._scheduler.now + delay_s, callback, *args)

    def _work(self, work: _Work[Any]) -> None:
        if work.begin() and not work.process.is_dead:
            self._later(work.process, work.say)


class _Work(Future[T]):
    """What an executor was given to do. Who waits for it without giving way has it done at once: as a thread would."""

    def __init__(self, process: Process, call: Callable[[], T]) -> None:
        super().__init__()
        self.process = process
        self._call = call
        self._outcome: tuple[Any, BaseException | None] | None = None

    def begin(self) -> bool:
        """Do it. Returns whether that was still to be done."""
        if self._outcome is not None or not self.set_running_or_notify_cancel():
            return False
        try:
            self._outcome = self._call(), None
        except BaseException as error:
            self._outcome = None, error
        return True

    def say(self) -> None:
        if self._outcome is None or self.done():
            return
        result, error = self._outcome
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._finish()
        return super().exception(timeout)

    def result(self, timeout: float | None = None) -> T:
        self._finish()
        return super().result(timeout)

    def _finish(self) -> None:
        if not self.done():
            self.begin()
            self.say()


class LoopIo:
    """A client's I/O on the one loop of the world, in place of a thread (`ClientIo`)."""

    def __init__(self, process: Process, owner: str) -> None:
        self._process = process
        self._owner = owner
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.closed = False

    @property
    def forked(self) -> bool:
        return self._process.is_dead

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        self.check()
        return self._process

    def check(self) -> None:
        if self.closed:
            raise UsageError(f"this {self._owner} is closed; make a new one")

    def on_thread(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._process.call_soon(callback, *args)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self.check()
        except UsageError:
            coroutine.close()
            raise
        future: Future[T] = Future()
        task = self._process.create_task(coroutine)
        self._tasks[task] = None

        def ended(done: asyncio.Task[T]) -> None:
            self._tasks.pop(done, None)
            if done.cancelled():
                future.cancel()
                future.set_running_or_notify_cancel()
                return
            error = done.exception()
            if future.cancelled() or not future.set_running_or_notify_cancel():
                return
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        task.add_done_callback(ended)
        future.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
        return future

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T:
        """Run what waits for nothing: nobody may block in a world of one thread."""
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        with suppress(RuntimeError):
            coroutine.close()
        raise AssertionError(f"a call of a {self._owner} would block")

    def close_aside(self, close: Callable[[], object]) -> None:
        """Do nothing: a world has one thread. What is dropped without a close ends with its process."""

    def close(self) -> None:
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
