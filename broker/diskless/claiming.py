"""Claims diskless partitions for this node: those that come together in one transaction of the database.

A node that takes many over, because another one has died or a topic is new, would wait for a transaction of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from semel.broker.diskless.rows import Claimed, NewClaim, PartitionKey
from semel.protocol.errors import SemelError

AT_ONCE: Final = 500
"""So many partitions one transaction has at most."""

ClaimAll = Callable[[list[NewClaim]], Awaitable[dict[PartitionKey, Claimed]]]


class Claiming:
    """What waits to be claimed, and the task that does it."""

    def __init__(self, claim_all: ClaimAll) -> None:
        self._claim_all = claim_all
        self._waiting: list[tuple[NewClaim, asyncio.Future[Claimed | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def claim(self, wanted: NewClaim) -> Claimed | None:
        """Claim a partition. None: a later leader has, or another call of this node. Raises `SemelError`."""
        answer: asyncio.Future[Claimed | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="claim partitions")
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # for all that come in this turn of the loop
                part, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                await self._claim_part(part)
        finally:
            self._task = None
            for _, answer in self._waiting:
                answer.cancel()
            self._waiting = []

    async def _claim_part(self, part: list[tuple[NewClaim, asyncio.Future[Claimed | None]]]) -> None:
        asked = {wanted.key: wanted for wanted, answer in part if not answer.done()}
        try:
            found = await self._claim_all(list(asked.values()))
        except SemelError as error:
            for _, answer in part:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for wanted, answer in part:
                if not answer.done():
                    answer.set_result(found.get(wanted.key) if asked[wanted.key] is wanted else None)
        finally:
            for _, answer in part:
                answer.cancel()  # where this task was

    def cancel(self) -> None:
        """Claim nothing more."""
        if self._task is not None:
            self._task.cancel()
