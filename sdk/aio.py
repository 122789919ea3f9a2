"""The asyncio faces of the clients: the same cores as the sync ones, awaited in place of waited for.

async with semel.aio.Producer("localhost:9094") as producer:
    delivery = await producer.send("orders", b"...")   # buffered
    metadata = await delivery                          # acknowledged
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.errors import AbortTransactionError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk import tracing
from semel.sdk.aio_admin import Admin
from semel.sdk.aio_consumer import Consumer, RebalanceListener
from semel.sdk.delivery import Delivery, DeliveryCallback
from semel.sdk.producer_base import ProducerBase
from semel.sdk.producer_core import NoRoomError, NoTopicError
from semel.sdk.serialization import HeadersArgument
from semel.sdk.transaction import CommitSource, GroupMetadata, check_commits

__all__ = ["Admin", "Consumer", "Producer", "RebalanceListener", "Transaction"]

T = TypeVar("T")


class Producer(ProducerBase):
    """Sends records to topics, from asyncio. See `semel.Producer` for what it guarantees and for its options."""

    _blocking = False

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Buffer a record, waiting for memory if there is none; await what is returned for its acknowledgement.

        Arguments and errors are those of `semel.Producer.send`.
        """
        while True:
            try:
                return self._core.accumulator.send(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    on_delivery=on_delivery,
                )
            except NoTopicError:
                await self._run(self._core.open_topic(topic))
            except NoRoomError as full:
                await self._run(self._core.wait_room(full.size_bytes))

    async def flush(self) -> None:
        """Wait until everything sent before is acknowledged. Raises as `semel.Producer.flush`."""
        await self._run(self._core.flush())
        failure = self._core.take_failures()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, and close. An open transaction is aborted. Raises as `semel.Producer.close`."""
        self._dropped.detach()
        if not self._core.begin_close():
            return
        failure: SemelError | None = None
        try:
            await self._run(self._core.finish())
        except SemelError as error:
            failure = error
        finally:
            await asyncio.to_thread(self._core.end_close)
        failure = self._core.take_failures() or failure
        if failure is not None:
            raise failure

    def transaction(self, commits: CommitSource | None = None) -> Transaction:
        """Return a transaction to be used with `async with`. See `semel.Producer.transaction`."""
        check_commits(commits)
        return Transaction(self, commits)

    async def init_transactions(self) -> None:
        """Get this instance's identity, which fences older ones. See `semel.Producer.init_transactions`."""
        await self._run(self._core.transactional().initialize())

    async def begin_transaction(self) -> None:
        """Open a transaction. Raises `UsageError` if one is open."""
        if self._core.needs_initializing:
            await self.init_transactions()
        self._core.begin()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with the open transaction. See `semel.Producer.send_offsets`."""
        positions = {
            tp: OffsetAndMetadata(position) if isinstance(position, int) else position
            for tp, position in offsets.items()
        }
        await self._run(self._core.transactional().send_offsets(positions, group))

    async def commit_transaction(self, *, commits: CommitSource | None = None) -> None:
        """Flush and commit. See `semel.Producer.commit_transaction`."""
        check_commits(commits)
        await self._run(self._core.transactional().commit(commits))

    async def abort_transaction(self) -> None:
        """Abort: what was sent since the begin never happened. See `semel.Producer.abort_transaction`."""
        await self._run(self._core.transactional().abort())

    async def __aenter__(self) -> Self:
        if self._core.needs_initializing:
            await self.init_transactions()
        else:
            self._core.client.io.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except SemelError as while_closing:
            error.add_note(f"and closing the producer failed: {while_closing}")

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._core.client.io.submit(coroutine))


class Transaction:
    """One transaction of an asyncio `Producer`: commits when its `async with` ends, aborts when it raises."""

    def __init__(self, producer: Producer, commits: CommitSource | None) -> None:
        self._producer = producer
        self._commits = commits
        self._attached: AbstractContextManager[None] = nullcontext()
        self._used = False
        self._open = False

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Send a record inside the transaction. See `Producer.send`."""
        self._check()
        return await self._producer.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            on_delivery=on_delivery,
        )

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with the transaction. See `Producer.send_offsets`."""
        self._check()
        await self._producer.send_offsets(offsets, group)

    async def __aenter__(self) -> Self:
        if self._used:
            raise UsageError("a Transaction is used once; call producer.transaction() for the next one")
        self._used = True
        if self._commits is not None:
            self._commits.begin()
        await self._producer.begin_transaction()
        self._attached = tracing.attached(self._producer._core.transactional().context)
        self._attached.__enter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._attached.__exit__(None, None, None)
        if error is not None:
            await self._abort_after(error)
            return
        try:
            await self._producer.commit_transaction(commits=self._commits)
        except BaseException as failure:
            await self._abort_after(failure)  # unless the commit was asked for already and may have happened
            raise

    async def _abort_after(self, error: BaseException) -> None:
        calls = self._producer._core.transactions
        is_open = calls is not None and calls.is_open
        if self._commits is not None and (is_open or isinstance(error, AbortTransactionError)):
            self._commits.rewind()
        try:
            if is_open:
                await self._producer.abort_transaction()
        except SemelError as while_aborting:
            if calls is not None and calls.has_stopped and isinstance(error, Exception):
                raise while_aborting from error
            error.add_note(f"and the transaction could not be aborted: {while_aborting}")

    def _check(self) -> None:
        if not self._open:
            raise UsageError(
                "this transaction is not open: send inside its block, `async with producer.transaction() as txn: "
                "await txn.send(...)`"
            )
