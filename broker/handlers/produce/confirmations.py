"""Asks whether this node still leads, before it refuses a batch for good as out of order (P2).

A node that was deposed and has not heard of it lacks what was appended since: to it, a producer's next batch looks out
of order, and the producer would give up. So the metadata is read first, once for all that ask at the same time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from semel.broker.handlers.partitions.leader_hints import current_leader, not_here
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ProducePartitionResponse

if TYPE_CHECKING:
    from semel.broker.services import Services

_LIMIT_S: Final = 5.0
"""How long the metadata may take. After that the batch is refused for now, and its producer sends it again."""


class Answering(Protocol):
    """A request whose answer for one partition is still to come."""

    def settle(self, index: int, response: ProducePartitionResponse) -> None: ...

    def fail(self, index: int, error: SemelError) -> None: ...


class Confirmations:
    """The refusals of one node that wait for the metadata."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._begun = 0

    def begin(self, run: Answering, index: int, refused: ProducePartitionResponse) -> None:
        """Answer one partition's batch once it is known whether this node leads there."""
        tp = TopicPartition(refused.topic, refused.partition)
        task = asyncio.get_running_loop().create_task(self._confirm(run, index, refused, tp))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Refuse for now what waits: the node stops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _confirm(self, run: Answering, index: int, refused: ProducePartitionResponse, tp: TopicPartition) -> None:
        led = current_leader(self._node, tp)
        error: SemelError = error_for(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"it can't be found out whether this node still leads {tp}: try again"
        )
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._read_after_now()
            if led == current_leader(self._node, tp) and led[0] == self._node.config.node_id:
                run.settle(index, refused)
                return
            error = not_here(self._node, tp)
        except (TimeoutError, SemelError):
            pass  # the metadata is away
        except asyncio.CancelledError:
            run.fail(index, error)
            raise
        run.fail(index, error)

    async def _read_after_now(self) -> None:
        """Wait for a look at the metadata that begins after this call. Raises what reading it raises."""
        before = self._begun
        while self._begun == before or self._reading is not None:
            if self._reading is None:
                self._begun += 1
                self._reading = asyncio.get_running_loop().create_task(self._read())
                self._reading.add_done_callback(self._was_read)
            reading, is_ours = self._reading, self._begun > before
            await asyncio.wait({reading})
            if is_ours:
                reading.result()
                return

    async def _read(self) -> None:
        await self._node.metadata.refresh()
        await self._node.caught_up()

    def _was_read(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # those that wait have it
