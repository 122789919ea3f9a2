"""Long work on the event loop is done in turns, between which everybody else has theirs (S3).

    async for item in in_turns(items):
        work(item)

Work for a caller whose connection is gone ends at the end of a turn, unless it must be done to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

TURN_SECONDS: Final = 0.005

_WAITING: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]]] = WeakKeyDictionary()

_IS_GONE: Final[ContextVar[Callable[[], bool] | None]] = ContextVar("is_gone", default=None)

_Item = TypeVar("_Item")


class CallerGoneError(Exception):
    """The work is for a connection that is gone. Caught where requests are begun; nobody waits for an answer."""


def seconds() -> float:
    """The time by which turns are measured."""
    return time.perf_counter()


def set_is_gone(is_gone: Callable[[], bool]) -> None:
    """Say how to learn that the caller of the current task is gone."""
    _IS_GONE.set(is_gone)


class Turns:
    """The turns of one piece of work. The first one begins when this is made."""

    __slots__ = ("_ends", "_is_gone")

    def __init__(self, *, ends_with_caller: bool = True) -> None:
        """Without `ends_with_caller` the work is done to its end: it is not for the caller alone."""
        self._is_gone = _IS_GONE.get() if ends_with_caller else None
        self._ends = seconds() + TURN_SECONDS

    async def give_way(self) -> None:
        """Let others have the event loop if this turn is over. Raises `CallerGoneError` where nobody waits any more."""
        if seconds() >= self._ends:
            await _next_turn()
            if self._is_gone is not None and self._is_gone():
                raise CallerGoneError
            self._ends = seconds() + TURN_SECONDS


async def _next_turn() -> None:
    """Wait for a turn. All work that is done in turns has one between it in a round of the event loop."""
    loop = asyncio.get_running_loop()
    waiting = _WAITING.get(loop)
    if waiting is None:
        waiting = _WAITING[loop] = deque()
    turn = loop.create_future()
    waiting.append(turn)
    if len(waiting) == 1:
        loop.call_soon(_give_turn, loop, waiting)
    await turn


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


async def in_turns(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield the items, and give way in between: `[work(item) async for item in in_turns(items)]`."""
    turns = Turns()
    for item in items:
        yield item
        await turns.give_way()
