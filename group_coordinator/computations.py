"""Assignments that are too much for one turn of the event loop are computed in a thread beside it (S3, KIP-1263).

    the machine: an effect --> the shell: a thread --> the machine: a request of its own, with the result

What is computed works on immutable values, one computation at a time for the whole node. A group has at most one, and
after it a pause. A machine takes the result of its own latest computation for a group and drops every other: so one
that comes after the group was deleted, or after the coordinator has moved or has read its log again, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from semel.protocol.errors import SemelError
from semel.runtime.clock import Clock
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.groups")

PAUSE_FACTOR: Final = 10
"""A group pauses for so many times what its computation took: it has at most a tenth of a processor."""


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """An effect: what a thread is to do for a group. Each is only equal to itself, which tells late results apart."""

    group_id: str
    work: Callable[[], Any]
    """Looks at immutable values alone."""
    epoch: int
    """The epoch, or the generation, that the result is for."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A request: what a computation gave. Answered with None, whatever becomes of it."""

    of: Computation
    result: Any
    """None where it failed."""
    took_ms: int = 0


class Computing:
    """The shell's part: runs computations one after the other, and gives the machines their results.

    After each one the thread rests for as long as it worked, so all groups together take half of a processor at most.
    """

    def __init__(
        self, submit: Callable[[int, Computed], Awaitable[Any]], clock: Clock, executor: Executor | None = None
    ) -> None:
        self._submit = submit
        self._clock = clock
        self._executor = executor or Threads(1, "semel-assignments")
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, partition: int, computation: Computation) -> None:
        task = asyncio.get_running_loop().create_task(self._run(partition, computation), name="compute an assignment")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run(self, partition: int, computation: Computation) -> None:
        async with self._turn:
            begun_s = self._clock.monotonic()
            result = None
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._executor, computation.work)
            except Exception:
                _log.exception("an assignment could not be computed group=%s", computation.group_id)
            took_s = self._clock.monotonic() - begun_s
            try:
                await self._submit(partition, Computed(computation, result, int(took_s * 1000)))
            except SemelError as error:
                _log.info("an assignment came too late group=%s error=%s", computation.group_id, error)
            await asyncio.sleep(took_s)
