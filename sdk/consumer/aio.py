"""The asyncio face of the consumer: the same core, waited for without blocking the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.base import CLOSE_TIMEOUT_S, DEFAULT_MAX_RECORDS, ConsumerBase
from semel.sdk.consumer.batch import Batch
from semel.sdk.transport.arguments import Offsets

T = TypeVar("T")


class RebalanceListener:
    """Told of changes of a consumer's partitions, inside of its polls. See `semel.RebalanceListener`."""

    async def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """These were added; reading them begins after this returns."""

    async def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """These go to another member after this returns; committing for them is still possible."""

    async def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """These may have gone already: the session ended. Committing for them fails."""


class Consumer(ConsumerBase[RebalanceListener]):
    """`semel.Consumer` for asyncio: the same options and meanings, with `await`. One task uses it at a time.

    There is no `commit_async`: `asyncio.create_task(consumer.commit())` is one.
    """

    # reading

    async def poll(self, timeout_s: float | None = None, max_records: int = DEFAULT_MAX_RECORDS) -> Batch | None:
        """Return the next records, waiting up to `timeout_s` seconds for some; None when there were none in time."""
        return await self._poll(timeout_s, max_records)

    async def batches(
        self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float | None = None
    ) -> AsyncIterator[Batch]:
        """Yield batch after batch; ends when none comes for `timeout_s` seconds (None: never)."""
        while True:
            batch = await self.poll(timeout_s, max_records)
            if batch is None:
                return
            yield batch

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield record after record, for ever. `commit()` then commits up to the record that was yielded last."""
        while True:
            for record in (await self._next_one_by_one()).iterator:
                yield record

    async def unsubscribe(self) -> None:
        """Read nothing, and leave the group; the listener is told first."""
        await self._unsubscribe()

    async def seek_to_timestamp(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first records at or after a time, in milliseconds since 1970; to the end where there are none."""
        await self._seek_to_timestamp(timestamp_ms, partitions)

    # offsets

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit for the group, until it is durable. Raises as `semel.Consumer.commit`."""
        await self._commit(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return where the group stands (None: nothing committed), once no transaction holds the offsets open (O2)."""
        return await self._committed(partitions)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._beginning_offsets(partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the offset after the last record that this consumer may see, of each partition."""
        return await self._end_offsets(partitions)

    async def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp (ms since 1970); None where there is none."""
        return await self._offsets_for_times(timestamps)

    # life

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit what auto-commit owes, tell the listener, leave the group, and close. Does nothing the second time."""
        await self._close(timeout_s, commits=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(CLOSE_TIMEOUT_S, commits=error is None)

    # how to wait: on the user's loop

    def _prepare(self) -> None:
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._core.client.io.submit(coroutine))

    async def _wait_ready(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return

    async def _call(self, function: Callable[..., object], *args: object) -> None:
        result = function(*args)
        if inspect.isawaitable(result):
            await result

    async def _end(self) -> None:
        await asyncio.to_thread(self._core.client.close)

    def _forget_ready(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.clear()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._ready.set)
