"""A barrier for reads that a test holds, opens, and refuses at (R9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from enum import Enum

from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import TopicPartition


class Passing(Enum):
    AT_ONCE = "as on one node"
    HELD = "not before the test says so"
    REFUSED = "somebody else leads the partition"


class HeldBarrier:
    """A `ReadBarrier` that does what the test says."""

    def __init__(self) -> None:
        self.passing = Passing.AT_ONCE
        self.asked: list[tuple[TopicPartition, int]] = []
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self, tp: TopicPartition, leader_epoch: int) -> Awaitable[None] | None:
        self.asked.append((tp, leader_epoch))
        if self.passing is Passing.AT_ONCE:
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.passing is Passing.REFUSED:
            waiting.set_exception(RetriableError(f"{tp} is led elsewhere", ErrorCode.NOT_COORDINATOR))
        else:
            self._waiting.append(waiting)
        return waiting

    def open(self) -> None:
        """Let all pass that wait."""
        self.passing = Passing.AT_ONCE
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
