"""Asks whether this node still leads, before it refuses a batch as out of order, which ends its producer (P2).

A node that was deposed and has not heard of it lacks what was appended since: to it, a producer's next batch looks out
of order. So the metadata is read first: once for all that wait, after the last of them began to.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from semel.broker.handlers.partitions.leader_hints import current_leader, not_here
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.runtime.turns import Turns

if TYPE_CHECKING:
    from semel.broker.services import Services

_log = logging.getLogger("semel.produce")

_LIMIT_S: Final = 5.0
"""How long reading the metadata may take. Without it a batch is refused with an error that its producer retries."""


class Answering(Protocol):
    """A request whose answer for one partition is still to come."""

    def fail(self, index: int, error: SemelError) -> None: ...


class _Refused(NamedTuple):
    """One partition's batch: what it is refused with by a node that leads, and who led when that was found."""

    run: Answering
    place: int
    error: SemelError
    tp: TopicPartition
    led: tuple[int, int]


class Confirmations:
    """The refusals of one node that wait for the metadata, and the task that answers them."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._waiting: deque[_Refused] = deque()
        self._read: deque[_Refused] = deque()
        """Those for which the metadata is read, or was."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, run: Answering, place: int, error: SemelError, tp: TopicPartition) -> None:
        """Answer one partition's batch once it is known whether this node leads there."""
        self._waiting.append(_Refused(run, place, error, tp, current_leader(self._node, tp)))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="confirm refused batches")

    async def close(self) -> None:
        """Answer what waits with an error that its producer retries: the node stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for refused in (*self._read, *self._waiting):
            self._answer(refused, is_known=False)
        self._read.clear()
        self._waiting.clear()

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._read, self._waiting = self._waiting, self._read
                is_known = await self._has_read()
                turns = Turns(ends_with_caller=False)
                while self._read:
                    self._answer(self._read.popleft(), is_known=is_known)
                    await turns.give_way()
        finally:
            self._task = None

    async def _has_read(self) -> bool:
        """Read the metadata as it is now. Returns whether that could be done."""
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._node.metadata.refresh()
                await self._node.caught_up()
        except (TimeoutError, SemelError) as error:
            _log.info("whether this node still leads can't be found out: %s", error)
            return False
        except Exception:
            _log.exception("reading the metadata failed")
            return False
        return True

    def _answer(self, refused: _Refused, *, is_known: bool) -> None:
        tp, error = refused.tp, refused.error
        if not is_known:
            error = error_for(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"it can't be found out whether this node still leads {tp}: try again"
            )
        elif refused.led[0] != self._node.config.node_id or refused.led != current_leader(self._node, tp):
            error = not_here(self._node, tp)
        refused.run.fail(refused.place, error)
