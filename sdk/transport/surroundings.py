"""What a client needs of the machine: a clock, and a loop for its I/O. A simulator puts its own in their place.

Clients that are made in one context share its surroundings, also those that a client makes itself, as `Consumer.run`
makes a producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack

from semel.runtime.clock import Clock, SystemClock
from semel.sdk.transport.io_thread import IoThread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ClientIo(Protocol):
    """Where a client's coroutines run. See `IoThread` for each member."""

    @property
    def forked(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def check(self) -> None: ...

    def on_thread(self) -> bool: ...

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None: ...

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]: ...

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_ms: float | None = None) -> T: ...

    def close_aside(self, close: Callable[[], object]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """clock: where a client reads the time. make_io: makes its loop; the argument names the client in messages."""

    clock: Clock
    make_io: Callable[[str], ClientIo]


_MACHINE: Final = Surroundings(SystemClock(), IoThread)
_here: Final[ContextVar[Surroundings | None]] = ContextVar("surroundings", default=None)


def surroundings() -> Surroundings:
    """Return what clients get that are made now: the machine's, unless `live_in` was called in this context."""
    return _here.get() or _MACHINE


def live_in(chosen: Surroundings) -> None:
    """Let clients that are made in this context, and in those made from it, live in other surroundings."""
    _here.set(chosen)
