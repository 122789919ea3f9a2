"""The asyncio face of the producer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.api.shared_transactions import CommitDecision
from semel.protocol.errors import AbortTransactionError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.base import Buffer, ProducerBase, checked_batch
from semel.sdk.producer.core import NoRoomError, NoTopicError
from semel.sdk.producer.delivery import Delivery, DeliveryCallback
from semel.sdk.producer.serialization import HeadersArgument
from semel.sdk.producer.transaction import (
    CommitSource,
    CommitToken,
    GroupMetadata,
    PreparedTransaction,
    as_prepared,
    check_commits,
    was_already_committed,
)
from semel.sdk.telemetry import tracing

T = TypeVar("T")


class RecordSender(ProducerBase):
    """What is sent with from asyncio: a `Producer`, or a writer of a shared transaction."""

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

    async def send_batch(self, topic: str, partition: int, data: Buffer) -> Delivery:
        """Send a record batch that is encoded already. See `semel.Producer.send_batch`."""
        batch, record_count = checked_batch(data)
        while True:
            try:
                return self._core.accumulator.send_batch(topic, partition, batch, record_count)
            except NoTopicError:
                await self._run(self._core.open_topic(topic))
            except NoRoomError as full:
                await self._run(self._core.wait_room(full.size_bytes))

    async def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has. See `semel.Producer.partition_count`."""
        return await self._run(self._core.partition_count(topic))

    async def flush(self) -> None:
        """Wait until everything sent before is acknowledged. Raises as `semel.Producer.flush`."""
        await self._run(self._core.flush())
        failure = self._core.take_failures()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, and close. What is open of a transaction is aborted. Raises as `semel.Producer.close`."""
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

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._core.client.io.submit(coroutine))


class Producer(RecordSender):
    """Sends records to topics, from asyncio. See `semel.Producer` for what it guarantees and for its options."""

    def transaction(
        self,
        commits: CommitSource | None = None,
        *,
        token: str | None = None,
        payload: bytes = b"",
        sequence: int | None = None,
    ) -> Transaction:
        """Return a transaction to be used with `async with`. See `semel.Producer.transaction`."""
        check_commits(commits)
        return Transaction(self, commits, CommitToken.checked(token, payload, sequence))

    async def init_transactions(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get this instance's identity, which fences older ones. See `semel.Producer.init_transactions`."""
        transactions = self._core.two_phase() if keep_prepared else self._core.transactional()
        return await self._run(transactions.initialize(keep_prepared=keep_prepared))

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

    async def prepare_transaction(self, *, commits: CommitSource | None = None) -> PreparedTransaction:
        """Flush, and leave the decision to somebody outside. See `semel.Producer.prepare_transaction`."""
        check_commits(commits)
        return await self._run(self._core.two_phase().prepare(commits))

    async def complete_transaction(self, prepared: PreparedTransaction | str | None) -> None:
        """Commit what is prepared, or abort it. See `semel.Producer.complete_transaction`."""
        transactions = self._core.two_phase()
        await self._run(transactions.complete(as_prepared(prepared)))

    async def commit_transaction(
        self,
        *,
        commits: CommitSource | None = None,
        token: str | None = None,
        payload: bytes = b"",
        sequence: int | None = None,
    ) -> bool:
        """Flush and commit. See `semel.Producer.commit_transaction`."""
        check_commits(commits)
        calls = self._core.transactional()
        return await self._run(calls.commit(commits, CommitToken.checked(token, payload, sequence)))

    async def abort_transaction(self) -> None:
        """Abort: what was sent since the begin never happened. See `semel.Producer.abort_transaction`."""
        await self._run(self._core.transactional().abort())

    async def last_commit(self) -> CommitDecision | None:
        """Return the last commit with a token. See `semel.Producer.last_commit`."""
        return await self._run(self._core.transactional().last_commit())

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


class Transaction:
    """One transaction of an asyncio `Producer`: commits when its `async with` ends, aborts when it raises."""

    def __init__(self, producer: Producer, commits: CommitSource | None, token: CommitToken | None = None) -> None:
        self._producer = producer
        self._commits = commits
        self._token = token
        self._committed: bool | None = None
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

    async def prepare(self) -> PreparedTransaction:
        """Flush, and leave the decision to somebody outside; the end of the block then commits. See `Producer`.

        When the block raises after this, the transaction stays prepared: the decision may have been taken.
        """
        self._check()
        return await self._producer.prepare_transaction(commits=self._commits)

    @property
    def already_committed(self) -> bool:
        """After the block: whether its token had been committed before. See `semel.Transaction.already_committed`."""
        return was_already_committed(self._committed)

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
            calls = self._producer._core.transactional()
            self._committed = await self._producer._run(calls.commit(self._commits, self._token))
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
