"""Large answers leave by two threads beside the event loop while several connections ask for them.

A connection that is busy alone is served by the loop: to hand an answer over takes longer than to send it. Where others
wait, the loop reads their requests meanwhile, and two cores send. Without compiled modules there are no such threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.protocol.kafka.wire import Part

if TYPE_CHECKING:
    from semel.broker.listeners.kafka.send_thread import SendThread

_log = logging.getLogger("semel.kafka")

THREADS: Final = 2
"""The loop has the rest of each request to do, and clients on the same machine want a core, too."""
BUSY_S: Final = 0.002
"""Large answers of two connections that begin within this time are busy at the same time."""
_AGAIN_S: Final = 60.0
"""After so long it is tried once more to start the threads, where the system had no room for them."""


class Sending(NamedTuple):
    """What a thread sends for a connection: `number` is its job."""

    thread: SendThread
    number: int


class SendThreads:
    """Shared by the connections of a listener. The threads start when they are first needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads: list[SendThread] = []
        self._starts_from = float("-inf") if _several_cores() else float("inf")
        self._last = -1
        self._last_at = float("-inf")

    def submit(self, socket: int, parts: Sequence[Part], now: float, when_told: Callable[[], None]) -> Sending | None:
        """Have a thread send to a socket. Returns None where the loop is to do it.

        now:       seconds of the loop's clock
        when_told: called when it is done, where `SendThread.finish` was asked before that, or when it failed
        """
        others = socket != self._last and now - self._last_at < BUSY_S
        self._last, self._last_at = socket, now
        if not self._threads and not (others and self._start(now)):
            return None
        thread = min(self._threads, key=_unfinished)
        if not (others or thread.unfinished or self._threads[0].unfinished):
            return None
        number = thread.submit(socket, parts, when_told)
        return Sending(thread, number) if number >= 0 else None

    def _start(self, now: float) -> bool:
        """Start the threads, if there may be any. Returns whether there are."""
        if now < self._starts_from:
            return False
        self._starts_from = float("inf")
        try:
            from semel.broker.listeners.kafka.send_thread import SendThread

            for _ in range(THREADS):
                thread = SendThread()
                self._threads.append(thread)
                self._loop.add_reader(thread.fileno(), _tell, thread)
        except ImportError:
            return False  # nothing is compiled
        except OSError as error:
            _log.warning("the event loop alone sends large answers for the next %d s: %s", _AGAIN_S, error)
            self.close()
            self._starts_from = now + _AGAIN_S
        return bool(self._threads)

    def close(self) -> None:
        """End the threads, and what they send. The loop sends for itself from now on."""
        threads, self._threads = self._threads, []
        self._starts_from = float("inf")
        for thread in threads:
            self._loop.remove_reader(thread.fileno())
            thread.close()


def _unfinished(thread: SendThread) -> int:
    return thread.unfinished


def _tell(thread: SendThread) -> None:
    for when_told in thread.finished():
        when_told()


def _several_cores() -> bool:
    """Whether a thread would have a core beside the loop's. Other systems than Linux have none of these calls."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
