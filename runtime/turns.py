"""Long work on the event loop is done in turns, between which everybody else has theirs (S3).

    async for item in in_turns(items):
        work(item)

Work in the task of a request whose connection is gone ends at the end of a turn, unless it must be done to its end.
Tasks that a request begins are not for its connection alone: they are done to their end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

TURN_SECONDS: Final = 0.005

_WAITING: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]]] = WeakKeyDictionary()

_Caller: TypeAlias = "tuple[ref[asyncio.Task[Any]], Callable[[], bool]]"

_CALLER: Final[ContextVar[_Caller | None]] = ContextVar("caller", default=None)
"""The task that works for a caller, and whether that is gone. Other tasks inherit it, and it is not about them."""

_Item = TypeVar("_Item")


class CallerGoneError(Exception):
    """The work is for a connection that is gone. Caught where requests are begun; nobody waits for an answer."""


_measure: Callable[[], float] = time.perf_counter


def seconds() -> float:
    """The time by which turns are measured."""
    return _measure()


def measure_by(clock: Callable[[], float]) -> None:
    """Measure turns by another clock, in all of this process: for tests, and for simulations, whose time does not
    pass while anything runs."""
    global _measure
    _measure = clock


def set_is_gone(is_gone: Callable[[], bool]) -> None:
    """Say how to learn that the caller of the current task is gone."""
    task = asyncio.current_task()
    assert task is not None
    _CALLER.set((ref(task), is_gone))


class Turns:
    """The turns of one piece of work. The first one begins when this is made."""

    __slots__ = ("_ends", "_is_gone")

    def __init__(self, *, ends_with_caller: bool = True) -> None:
        """Without `ends_with_caller` the work is done to its end: it is not for the caller alone."""
        self._is_gone: Callable[[], bool] | None = None
        caller = _CALLER.get()
        if caller is not None and ends_with_caller and caller[0]() is asyncio.current_task():
            self._is_gone = caller[1]
        self._ends = seconds() + TURN_SECONDS

    async def give_way(self) -> None:
        """Let others have the event loop if this turn is over. Raises `CallerGoneError` where nobody waits any more."""
        if seconds() >= self._ends:
            await next_turn()
            if self._is_gone is not None and self._is_gone():
                raise CallerGoneError
            self._ends = seconds() + TURN_SECONDS


async def next_turn() -> None:
    """Wait for a turn. All work that is done in turns has one between it in a round of the event loop.

    For work that is long from its beginning on, and that many callers may ask for at once.
    """
    await _queue_up()


def call_in_turn(callback: Callable[[], object]) -> None:
    """Call `callback` when it has a turn. For timers, of which many may be due at the same moment."""
    _queue_up().add_done_callback(lambda turn: None if turn.cancelled() else callback())


def _queue_up() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    waiting = _WAITING.get(loop)
    if waiting is None:
        waiting = _WAITING[loop] = deque()
    turn = loop.create_future()
    waiting.append(turn)
    if len(waiting) == 1:
        loop.call_soon(_give_turn, loop, waiting)
    return turn


def _give_turn(loop: asyncio.AbstractEventLoop, waiting: deque[asyncio.Future[None]]) -> None:
    while waiting:
        turn = waiting[0]
        if turn.done():  # cancelled
            waiting.popleft()
            continue
        turn.set_result(None)
        waiting.popleft()
        if waiting:
            loop.call_soon(_give_turn, loop, waiting)
        return


async def in_turns(items: Iterable[_Item], *, ends_with_caller: bool = True) -> AsyncIterator[_Item]:
    """Yield the items, and give way in between: `[work(item) async for item in in_turns(items)]`."""
    turns = Turns(ends_with_caller=ends_with_caller)
    for item in items:
        yield item
        await turns.give_way()
