"""Several simulated processes in one, each with an event loop of its own, and one virtual time for all.

Time does not pass while anything runs, and jumps to the next timer when nothing does. Callbacks of one process run in
the order of any asyncio loop; whose turn it is among the processes is drawn from the seed. A process can be paused, as
by SIGSTOP, and killed: then none of its callbacks ever runs again, and no `finally` either.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

from semel.protocol.randomness import draw_from
from semel.runtime.simulated_storage import SimulatedCrash
from simulation.logged_errors import programming_error

T = TypeVar("T")

MOST_STEPS = 150_000
MOST_STEPS_A_SECOND = 30_000
"""How many steps a world may take at its beginning, and for each virtual second. The busiest takes a third of it."""


class StuckError(Exception):
    """Nothing is left to do, and what was waited for has not come; or there is no end of things to do."""


class Scheduler:
    """The time of one world, and whose turn it is.

    steps:     callbacks run so far.
    errors:    what callbacks raised, with the process it happened in.
    connector: makes the connections of all processes; workplace does the work of all executors.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.steps = 0
        self.numbers = itertools.count()
        """Of the futures and tasks of this world."""
        self.errors: list[str] = []
        self.connector: Callable[..., Coroutine[Any, Any, Any]]
        self.acceptor: Callable[..., Coroutine[Any, Any, Any]]
        self.workplace: Executor
        self._timers: list[tuple[float, int, Process, events.TimerHandle]] = []
        self._order = 0
        self._active: list[Process] = []
        self.world = Process(self, "world")
        """What belongs to no process: the network, the disks, the one who plans faults."""

    def enqueue(self, process: Process, handle: events.Handle) -> None:
        if process.is_dead:
            return
        if not process.ready and not process.is_paused:
            self._active.append(process)
        process.ready.append(handle)

    def enqueue_at(self, when: float, process: Process, handle: events.TimerHandle) -> None:
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, process, handle))

    def activate(self, process: Process) -> None:
        if process not in self._active:
            self._active.append(process)

    def step(self) -> None:
        """Run one callback, or let time pass until there is one. Raises `StuckError` where there is none, or no end."""
        active = self._active
        while not active:
            self._let_time_pass()
        index = int(self.chance.random() * len(active)) if len(active) > 1 else 0
        process = active[index]
        if process.is_dead or process.is_paused or not process.ready:
            active[index] = active[-1]
            active.pop()
            return
        handle = process.ready.popleft()
        if not process.ready:
            active[index] = active[-1]
            active.pop()
        if handle._cancelled:  # type: ignore[attr-defined]
            return
        self.steps += 1
        if self.steps > MOST_STEPS and self.steps > MOST_STEPS + MOST_STEPS_A_SECOND * self.now:
            raise StuckError(
                f"{self.steps:,} steps in {self.now:.1f} virtual seconds: something has no end; the last one of "
                f"{process.name} is {handle!r}"
            )
        events._set_running_loop(process)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)
        if process.kill_in is not None:
            process.kill_in -= 1
            if process.kill_in <= 0:
                process.kill_in = None
                process.kill()

    def _let_time_pass(self) -> None:
        timers = self._timers
        while timers and (timers[0][3]._cancelled or timers[0][2].is_dead):  # type: ignore[attr-defined]
            heapq.heappop(timers)
        if not timers:
            raise StuckError("nothing is left to do")
        self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            _, _, process, handle = heapq.heappop(timers)
            if not handle._cancelled:  # type: ignore[attr-defined]
                self.enqueue(process, handle)

    def run_until(self, condition: Callable[[], bool], ends_at: float, after_step: Callable[[], None] | None) -> bool:
        """Run until `condition` holds; return whether it came to that before `ends_at`."""
        while not condition():
            if self.now >= ends_at:
                return False
            self.step()
            if after_step is not None:
                after_step()
        return True

    def close(self) -> None:
        self._timers.clear()
        self._active.clear()


class _Future(asyncio.Future[Any]):
    """Sets of futures have one order in every run: asyncio goes through some of them, and addresses differ."""

    def __init__(self, *, loop: Process) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.scheduler.numbers)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    """The same for tasks."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, loop: Process, **more: Any) -> None:
        self._number = next(loop.scheduler.numbers)
        super().__init__(coroutine, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class Process(asyncio.AbstractEventLoop):
    """A process: what runs, is paused and dies together. It is the event loop of all that runs in it.

    context: what its callbacks and tasks begin with.
    kill_in: after how many more callbacks it dies.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self.place = name.partition("#")[0]
        """Where it runs: what all lives of a program, or of a node, have in common."""
        self.scheduler = scheduler
        self.ready: deque[events.Handle] = deque()
        self.is_paused = False
        self.is_dead = False
        self.kill_in: int | None = None
        self.on_death: Callable[[], None] | None = None
        self.context = Context()
        self.context.run(draw_from, random.Random(scheduler.chance.getrandbits(64)))
        self._kept: dict[asyncio.Task[Any], None] = {}

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    # --- Life and death -----------------------------------------------------------------------------------------------

    def start(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as a task of this process. From anywhere."""
        return self.create_task(coroutine, name=name, context=self.context.copy())

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in this process. From anywhere."""
        self.scheduler.enqueue(self, events.Handle(callback, args, self, self.context))

    def post_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in this process at a time. From anywhere."""
        self.scheduler.enqueue_at(when, self, events.TimerHandle(when, callback, args, self, self.context))

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        if self.ready:
            self.scheduler.activate(self)

    def kill(self) -> None:
        """End without another step. Its tasks are kept: a collected one would run its `finally`, at any time."""
        if self.is_dead:
            return
        self.is_dead = True
        self.ready.clear()
        for task in self._kept:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        if self.on_death is not None:
            self.on_death()

    # --- What asyncio asks of a loop ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self.scheduler.enqueue(self, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.scheduler.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        self.scheduler.enqueue_at(when, self, handle)
        return handle

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        context = contextvars.copy_context() if context is None else context
        for variable, value in self.context.items():
            if variable not in context:  # an empty one, as of a task that is to be in no trace
                context.run(variable.set, value)
        task: asyncio.Task[T] = _Task(coro, loop=self, name=name, context=context)
        self._kept[task] = None
        task.add_done_callback(self._forget, context=self.context)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._kept.pop(task, None)
        # Not `exception()`, after which asyncio would not tell of one that nobody looks at.
        error = programming_error(task._exception)  # type: ignore[attr-defined]
        if error is not None:
            self.scheduler.errors.append(f"{self.name}: {task.get_name()}: {type(error).__name__}: {error}")

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return what is not done, oldest first: to see where a process stands."""
        return list(self._kept)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, SimulatedCrash):
            return  # the world ends the process whose disk it was
        self.scheduler.errors.append(f"{self.name}: {context.get('message')}: {type(error).__name__}: {error}")

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Whatever executor the work is meant for, it is done where the world says."""
        return asyncio.wrap_future(self.scheduler.workplace.submit(func, *args), loop=self)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        return await self.scheduler.connector(protocol_factory, host, port, **more)

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], sock: Any, **more: Any
    ) -> Any:
        return await self.scheduler.acceptor(protocol_factory, sock)


def current_process() -> Process:
    """Return the simulated process that runs now."""
    process = events._get_running_loop()
    assert isinstance(process, Process)
    return process
