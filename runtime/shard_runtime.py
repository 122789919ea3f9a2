"""All shards of one internal topic: taken over, given up, found by their partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.machine import Machine
from semel.runtime.read_barrier import ONE_NODE, ReadBarrier
from semel.runtime.shard import Shard, ShardLog, ShardState

_log = logging.getLogger("semel.shard")

PREPARE_PAUSE_S: Final = 0.1
PREPARE_PAUSE_S_MAX: Final = 5.0

Submit: TypeAlias = Callable[[object], Awaitable[Any]]


class ShardRuntime:
    """All shards of one internal topic on this node.

    topic:        the internal topic's name.
    open_log:     gives the log of a partition number.
    make_machine: gives an empty machine for a partition number and the leader epoch it is led under.
    on_effects:   is called with the partition number and the effects, once the records they rest on are committed.
    barrier:      what answers pass that rest on no record (R9).
    """

    def __init__(
        self,
        topic: str,
        *,
        open_log: Callable[[int], ShardLog],
        make_machine: Callable[[int, int], Machine],
        on_effects: Callable[[int, Sequence[Any]], None],
        clock: Clock,
        barrier: ReadBarrier = ONE_NODE,
    ) -> None:
        self.topic = topic
        self._open_log = open_log
        self._make_machine = make_machine
        self._on_effects = on_effects
        self._clock = clock
        self._barrier = barrier
        self._shards: dict[int, Shard] = {}
        self._offline: dict[int, SemelError] = {}
        """Partitions that are to be held here and whose logs are not open."""
        self._preparing: dict[int, asyncio.Task[None]] = {}

    def load(
        self, partition: int, leader_epoch: int, prepare: Callable[[Submit], Awaitable[None]] | None = None
    ) -> asyncio.Future[None]:
        """Take over a partition: read its log into a fresh machine.

        The result is done when it is active, or could not be read: then it is refused, and tried again. Where its log
        is not open it is refused until it is loaded again.

        prepare: submits what comes before all requests of others, which are refused as if it were being read until
            this has ended. Tried again where it raises `SemelError`
        """
        self.unload(partition)
        loop = asyncio.get_running_loop()
        try:
            log = self._open_log(partition)
        except SemelError as error:
            self._offline[partition] = error
            nothing: asyncio.Future[None] = loop.create_future()
            nothing.set_result(None)
            return nothing
        shard = Shard(
            TopicPartition(self.topic, partition),
            log,
            lambda: self._make_machine(partition, leader_epoch),
            lambda effects: self._on_effects(partition, effects),
            self._clock,
            self._barrier,
            leader_epoch,
        )
        self._shards[partition] = shard
        loaded = shard.start()
        if prepare is None:
            return loaded
        ready: asyncio.Future[None] = loop.create_future()
        task = loop.create_task(self._prepare(shard, loaded, prepare, ready), name=f"prepare {shard.tp}")
        self._preparing[partition] = task
        task.add_done_callback(lambda _: self._prepared(partition, task, ready))
        return ready

    async def _prepare(
        self,
        shard: Shard,
        loaded: asyncio.Future[None],
        prepare: Callable[[Submit], Awaitable[None]],
        ready: asyncio.Future[None],
    ) -> None:
        await loaded
        pause_s = PREPARE_PAUSE_S
        while True:
            try:
                await prepare(shard.submit)
                return
            except SemelError as error:
                if shard.load_error is None:
                    _log.warning("%s could not be prepared, trying again: %s", shard.tp, error)
                elif not ready.done():
                    ready.set_result(None)  # the shard has said why, and answers with it
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PREPARE_PAUSE_S_MAX)

    def _prepared(self, partition: int, task: asyncio.Task[None], ready: asyncio.Future[None]) -> None:
        if self._preparing.get(partition) is task:
            del self._preparing[partition]
        if not ready.done():
            ready.set_result(None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s-%d could not be prepared", self.topic, partition, exc_info=error)

    def unload(self, partition: int) -> None:
        """Give a partition up; its callers are told to find the coordinator again."""
        self._offline.pop(partition, None)
        preparing = self._preparing.pop(partition, None)
        if preparing is not None:
            preparing.cancel()
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.close()

    def is_preparing(self, partition: int) -> bool:
        """Say whether others are refused until `prepare` of its loading has ended."""
        return partition in self._preparing

    def partitions(self) -> list[int]:
        """Return the numbers of the partitions held here, sorted."""
        return sorted(self._shards)

    def unreadable(self) -> Mapping[int, SemelError]:
        """Return the partitions whose logs could not be read, and why. What they coordinate is refused."""
        failed = {number: error for number, shard in self._shards.items() if (error := shard.load_error) is not None}
        return {**failed, **self._offline}

    def away(self) -> Mapping[int, str]:
        """Return the partitions held here that can't be used: why they can't be read, "" while they are being read."""
        loading = {
            number: "" if shard.load_error is None else shard.load_error.message
            for number, shard in self._shards.items()
            if shard.state is ShardState.LOADING or number in self._preparing
        }
        return {**loading, **{number: error.message for number, error in self._offline.items()}}

    def state(self, partition: int) -> ShardState:
        shard = self._shards.get(partition)
        return ShardState.CLOSED if shard is None else shard.state

    def machines(self) -> list[Machine]:
        """Return the machines of the partitions that are active, to look at.

        What they say passes no barrier: who answers a client from it calls `confirm` first (R9).
        """
        return [shard.machine for shard in self._shards.values() if shard.state is ShardState.ACTIVE]

    async def confirm(self) -> None:
        """Wait until it is shown that all partitions that are active are still led here; see `ReadBarrier`."""
        active = [shard for shard in self._shards.values() if shard.state is ShardState.ACTIVE]
        await asyncio.gather(*(passing for shard in active if (passing := shard.begin_confirming()) is not None))

    def state_counts(self) -> Mapping[str, int]:
        """Return how many of the partitions held here are active, loading, or unreadable: loading in vain."""
        counts = {"active": 0, "loading": 0, "unreadable": len(self._offline)}
        for number, shard in self._shards.items():
            state = ShardState.LOADING if number in self._preparing else shard.state
            counts["unreadable" if shard.load_error is not None else state.value] += 1
        return counts

    async def submit(self, partition: int, request: object) -> Any:
        """Return the machine's answer to `request`, once it is committed.

        Raises whatever the machine refuses with, NOT_COORDINATOR where the partition is not held here,
        COORDINATOR_LOAD_IN_PROGRESS while it loads, COORDINATOR_NOT_AVAILABLE where its log fails or can't be read.
        """
        return await self._shard(partition).submit(request)

    async def write_marker(
        self,
        partition: int,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion,
        *,
        forged_epoch: int = -1,
    ) -> None:
        """Write a transaction's marker into a partition of this topic, and apply it. Returns once committed."""
        await self._shard(partition).write_marker(producer, coordinator_epoch, committed, version, forged_epoch)

    def run_due_timers(self) -> None:
        """Give every machine whose deadline has passed its tick (for clocks that only a test moves)."""
        for shard in list(self._shards.values()):
            shard.run_due_timer()

    def close(self) -> None:
        """Give up every partition."""
        for partition in self.partitions():
            self.unload(partition)
        self._offline.clear()

    def _shard(self, partition: int) -> Shard:
        shard = self._shards.get(partition)
        if shard is None:
            offline = self._offline.get(partition)
            if offline is not None:
                raise RetriableError(offline.message, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            raise RetriableError(
                f"{self.topic}-{partition} is not led by this node; find its coordinator again",
                ErrorCode.NOT_COORDINATOR,
            )
        if partition in self._preparing and shard.state is ShardState.ACTIVE:
            raise RetriableError(
                f"{shard.tp} was read and is being prepared; try again shortly", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
        return shard
