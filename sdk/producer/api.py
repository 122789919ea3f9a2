"""The producer: sends records into the log, idempotently by default, in transactions with a `transactional_id`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.api.shared_transactions import CommitDecision
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.base import Buffer, ProducerBase, checked_batch
from semel.sdk.producer.delivery import Delivery, DeliveryCallback
from semel.sdk.producer.serialization import HeadersArgument
from semel.sdk.producer.transaction import (
    CommitSource,
    CommitToken,
    GroupMetadata,
    PreparedTransaction,
    Transaction,
    as_prepared,
    check_commits,
)
from semel.sdk.transport.arguments import check_seconds


class RecordSender(ProducerBase):
    """What is sent with, and waited for on the thread that calls: a `Producer`, or a writer of a shared transaction."""

    _blocking = True

    def _prepare(self) -> None:
        # The compiled method itself, without a call of Python's in between: this is the hot path.
        self.__dict__["send"] = self._core.accumulator.send

    def send(
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
        """Send a record: buffer it, and return the future of its acknowledgement at once.

        value, key:   bytes, str (as UTF-8) or None; anything else needs a serializer
        headers:      a mapping or pairs of names and bytes, str or None
        partition:    a number from 0; None lets the partitioner choose
        timestamp_ms: since 1970; None: now
        on_delivery:  called as on_delivery(metadata, None) or on_delivery(None, error) on the IO thread; must not block

        Waits, up to max_block_ms, for an unknown topic's metadata and for memory. Raises `UsageError` for what can't be
        sent, `FatalError` (UNKNOWN_TOPIC_OR_PARTITION) for a topic that does not exist, `RetriableError` where waiting
        took too long, and in a transaction `AbortTransactionError` or `FencedError` once it can't commit any more.
        """
        return self._core.accumulator.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            on_delivery=on_delivery,
        )

    def send_batch(self, topic: str, partition: int, data: Buffer) -> Delivery:
        """Send a record batch that is encoded already, without an object per record; the future is its first record's.

        data: one batch, as `encode_batches_from_arrow` makes them, with or without compression. A bytearray is the
              producer's from then on and must not be used again; bytes and memoryviews are copied

        The producer writes its id, epoch and sequence numbers into it, and repeats it as any other batch. Order in the
        partition is that of the calls, those of `send` among them. Waits as `send` does when buffer_memory_bytes are
        not acknowledged yet. Raises what `send` raises, and `UsageError` for bytes that are no whole batch.
        """
        batch, record_count = checked_batch(data)
        return self._core.accumulator.send_batch(topic, partition, batch, record_count)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has. Raises `FatalError` (UNKNOWN_TOPIC_OR_PARTITION) if there is none."""
        return self._core.client.run(self._core.partition_count(topic))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is acknowledged, for up to `timeout` seconds (None: delivery_timeout_ms).

        Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer, and the first error of records that have
        failed since the last flush, whoever else was told of it.
        """
        seconds = check_seconds("timeout", timeout)
        self._core.client.run(self._core.flush(), None if seconds is None else seconds * 1000)
        failure = self._core.take_failures()
        if failure is not None:
            raise failure


class Producer(RecordSender):
    """Sends records to topics. Thread-safe; make one and share it.

        with semel.Producer("localhost:9094") as producer:
            producer.send("orders", b"...", key=b"customer-7")

    Whatever is retried inside, each record that is acknowledged is in the log once, and a partition's records are in
    the order of their sending. With a `transactional_id`, records are sent in transactions (`transaction()`).
    """

    def close(self, timeout: float | None = None) -> None:
        """Flush, and close. An open transaction is aborted. Does nothing the second time, and in a forked child.

        What is not acknowledged within `timeout` seconds (None: delivery_timeout_ms) fails. Raises what `flush` raises.
        """
        check_seconds("timeout", timeout)
        self._dropped.detach()
        self._core.close(timeout)

    def transaction(
        self,
        commits: CommitSource | None = None,
        *,
        token: str | None = None,
        payload: bytes = b"",
        sequence: int | None = None,
    ) -> Transaction:
        """Return a transaction to be used in a with-block: it commits at the end, and aborts when the block raises.

        `commits` is a batch of a consumer, whose offsets commit with the transaction. The block raises
        `AbortTransactionError` when nothing of it took effect (run it again from its input), `FencedError` when another
        instance has taken over, `RetriableError` when whether it committed could not be learnt in time: then
        `commit_transaction()` asks again.

        With a `token`, the commit is recorded under the transactional id, with up to 64 KiB of `payload` and a
        `sequence`, which is larger than that of the last commit (T13). Where the token was committed before, this
        transaction is aborted, and `already_committed` says so after the block. Raises `FatalError` when the token was
        committed with another payload, or the sequence is not after the last one.
        """
        check_commits(commits)
        return Transaction(self, commits, CommitToken.checked(token, payload, sequence))

    def init_transactions(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get this instance's identity, which fences older ones and ends what they left open.

        Entering `with Producer(...)`, or the first transaction, does it on its own, but not for a two-phase producer:
        there `keep_prepared` leaves what is prepared as it is, and returns its name, to be ended by
        `complete_transaction`, `commit_transaction` or `abort_transaction`. Returns None where nothing was left.
        """
        transactions = self._core.two_phase() if keep_prepared else self._core.transactional()
        return self._core.client.run(transactions.initialize(keep_prepared=keep_prepared))

    def begin_transaction(self) -> None:
        """Open a transaction. Raises `UsageError` if one is open."""
        if self._core.needs_initializing:
            self.init_transactions()
        self._core.begin()

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata) -> None:
        """Commit a group's offsets with the open transaction: the offset of the next record to read for each partition.

        Raises `AbortTransactionError` when the group refuses them (a rebalance has taken the partitions away, O4).
        """
        transactions = self._core.transactional()
        positions = {
            tp: OffsetAndMetadata(position) if isinstance(position, int) else position
            for tp, position in offsets.items()
        }
        self._core.client.run(transactions.send_offsets(positions, group))

    def prepare_transaction(self, *, commits: CommitSource | None = None) -> PreparedTransaction:
        """Flush, and leave the decision to somebody outside (KIP-939). Nothing can be added to the transaction then.

        Store the name that is returned with the decision, for example in a row of the database transaction that this
        one is to follow. Then `commit_transaction()`, or after a restart `init_transactions(keep_prepared=True)` and
        `complete_transaction(stored)`. Raises `AbortTransactionError` when the transaction can't commit.
        """
        check_commits(commits)
        return self._core.client.run(self._core.two_phase().prepare(commits))

    def complete_transaction(self, prepared: PreparedTransaction | str | None) -> None:
        """Commit the prepared transaction if it is the one that was decided to commit, and abort it otherwise.

        prepared: the last one whose decision was stored, or its text; None, if there never was one

        Does nothing where nothing is prepared: it was completed before. Safe to call again after a `RetriableError`.
        """
        transactions = self._core.two_phase()
        self._core.client.run(transactions.complete(as_prepared(prepared)))

    def commit_transaction(
        self,
        *,
        commits: CommitSource | None = None,
        token: str | None = None,
        payload: bytes = b"",
        sequence: int | None = None,
    ) -> bool:
        """Flush and commit. Raises as `transaction()` does; safe to call again after a `RetriableError`.

        Returns whether this transaction committed; False only where its token had been committed before, so that this
        one was aborted. A repeated call asks about the commit that was not answered, whatever its arguments.
        """
        check_commits(commits)
        calls = self._core.transactional()
        return self._core.client.run(calls.commit(commits, CommitToken.checked(token, payload, sequence)))

    def abort_transaction(self) -> None:
        """Abort: what was sent since the begin never happened. Safe to call again after a `RetriableError`."""
        self._core.client.run(self._core.transactional().abort())

    def last_commit(self) -> CommitDecision | None:
        """Return the last commit with a token under this transactional id, also of earlier instances; None: none (T13).

        The answer to "did my transaction commit?" after any crash (E5). Call `init_transactions` first: what an older
        instance has under way is over then.
        """
        return self._core.client.run(self._core.transactional().last_commit())

    def __enter__(self) -> Self:
        if self._core.needs_initializing:
            self.init_transactions()
        else:
            self._core.client.io.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except SemelError as while_closing:
            error.add_note(f"and closing the producer failed: {while_closing}")
