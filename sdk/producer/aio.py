"""The producer: sends records into the log, idempotently by default, in transactions with a `transactional_id`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.errors import AbortTransactionError, RetriableError, SemelError, UsageError
from semel.sdk.producer.core import ProducerCore
from semel.sdk.producer.lifetime import close_when_dropped
from semel.sdk.producer.sender import IN_FLIGHT_MAX
from semel.sdk.producer.sending import AsyncSending, AsyncTransactionSending
from semel.sdk.producer.settings import producer_options
from semel.sdk.producer.transaction import (
    CommitToken,
    as_prepared,
    check_commits,
    nothing_took_effect,
    was_already_committed,
)
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import as_expected_offsets, check_seconds
from semel.sdk.transport.awaiting import run, work
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.options import checked_names

if TYPE_CHECKING:
    from semel.protocol.api.commit_decisions import CommitDecision
    from semel.protocol.api.group_offsets import GroupMetadata
    from semel.protocol.ids import TopicPartition
    from semel.sdk.producer.partitioner import Partitioner
    from semel.sdk.producer.settings import ProducerOptions
    from semel.sdk.producer.transaction import (
        CommitSource,
        PreparedTransaction,
    )
    from semel.sdk.transport.kafka_names import ProducerKafkaNames
    from semel.sdk.transport.serde import Serializer


@ends_tracebacks
class RecordSender(AsyncSending):
    """What records are sent with: a `Producer`, or a writer of a shared transaction."""

    _in_place_of_pickling = "it owns a thread and connections; make one in each process or worker, where it is used"

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        transactional_id: str | None = None,
        acks: str | int = "all",
        idempotent: bool | None = None,
        linger_ms: int = 5,
        batch_size_bytes: int = 1 << 18,
        compression: str | None = None,
        compression_level: int | None = None,
        buffer_memory_bytes: int = 64 << 20,
        record_bytes_max: int = 1_048_000,
        request_bytes_max: int = 4 << 20,
        max_in_flight: int = IN_FLIGHT_MAX,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | str | None = None,
        value_serializer: Serializer | str | None = None,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int | None = None,
        max_block_ms: int = 60_000,
        transaction_timeout_ms: int = 60_000,
        two_phase: bool = False,
        retry_backoff_ms: int = 20,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        auto_create_topics: bool = False,
        client_id: str = "semel",
        **kafka: Unpack[ProducerKafkaNames],  # `checked_names` has put them under the names above
    ) -> None:
        """Check the options; nothing connects yet. Raises `UsageError`.

        bootstrap:              the address of a node, "host:port", its gRPC port or its Kafka port; or several; None:
                                what the environment variable SEMEL_BOOTSTRAP says, else localhost:9094
        transactional_id:       a name for this instance that stays the same over restarts; a newer producer with
                                the same name fences this one
        acks:                   "all": safe on disk or on all in-sync replicas; 1: the leader has it; 0: not even asked
        idempotent:             retries never duplicate and never reorder; None: yes with acks="all"
        linger_ms:              how long a batch waits for more records before it is sent
        batch_size_bytes:       a batch is sent when it is this large (before compression)
        compression:            "gzip", "snappy", "lz4", "zstd", or None
        compression_level:      of the codec; None: its own default
        buffer_memory_bytes:    records not acknowledged yet; beyond it `send` waits, up to max_block_ms
        record_bytes_max:       the largest record
        request_bytes_max:      batches of several partitions travel together up to this size
        max_in_flight:          unanswered batches of a partition, 5 at most with idempotence
        partitioner:            (topic, key, value, partition_count) -> partition; None: murmur2 of the key as Kafka's
                                default, and without a key all to one partition until its batch is sent
        key_serializer, value_serializer: "json", "text", or a function: what is given to `send` -> bytes; None: bytes
                                and str (as UTF-8) only
        delivery_timeout_ms:    an unacknowledged record fails after this
        request_timeout_ms:     one attempt at a node
        connect_timeout_ms:     how long to try where no node has ever answered, to fail early; None: max_block_ms
        max_block_ms:           the longest wait in `send` for memory or for a topic, and in other calls for the cluster
        transaction_timeout_ms: the coordinator aborts a transaction that is open longer
        two_phase:              somebody outside decides about transactions, such as a database: they never time out
                                (KIP-939); the node must allow it (transaction.two.phase.commit.enable)
        auto_create_topics:     let the node create a missing topic, if its settings allow it
        """
        options = producer_options(
            bootstrap,
            transactional_id=transactional_id,
            acks=acks,
            idempotent=idempotent,
            linger_ms=linger_ms,
            batch_size_bytes=batch_size_bytes,
            compression=compression,
            compression_level=compression_level,
            buffer_memory_bytes=buffer_memory_bytes,
            record_bytes_max=record_bytes_max,
            request_bytes_max=request_bytes_max,
            max_in_flight=max_in_flight,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            max_block_ms=max_block_ms,
            transaction_timeout_ms=transaction_timeout_ms,
            two_phase=two_phase,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            auto_create_topics=auto_create_topics,
            client_id=client_id,
        )
        self._core = self._make_core(options)
        self._prepare()
        self._dropped = close_when_dropped(self, self._core)

    def _make_core(self, options: ProducerOptions) -> ProducerCore:
        return ProducerCore(options, blocking=self._blocking)

    @property
    def transactional_id(self) -> str | None:
        return self._core.options.transactional_id

    @property
    def client_id(self) -> str:
        return self._core.options.client.client_id

    def statistics(self) -> dict[str, int]:
        """Return what is buffered: records, batches and bytes that are not acknowledged."""
        accumulator = self._core.accumulator
        return {
            "records": accumulator.incomplete_records(),
            "batches": accumulator.incomplete_count(),
            "buffered_bytes": accumulator.buffered_bytes,
        }

    def __repr__(self) -> str:
        named = f", transactional_id={self.transactional_id!r}" if self.transactional_id else ""
        return f"Producer({','.join(self._core.options.client.addresses)!r}{named})"

    async def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has. Raises `FatalError` (UNKNOWN_TOPIC_OR_PARTITION) if there is none."""
        return await run(self._core.client, self._core.partition_count(topic))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent before is acknowledged, for up to `timeout_s` seconds (None: delivery_timeout_ms).

        Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer, and the first error of records that have
        failed since the last flush, also if an error was raised for it before.
        """
        check_seconds("timeout_s", timeout_s)
        await run(self._core.client, self._core.flush(), timeout_s)
        failure = self._core.take_failures()
        if failure is not None:
            raise failure

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, and close. An open transaction is aborted. Does nothing the second time, and in a forked child.

        What is not acknowledged within `timeout_s` seconds (None: delivery_timeout_ms) fails. Raises as `flush` does.
        """
        check_seconds("timeout_s", timeout_s)
        self._dropped.detach()
        if not self._core.begin_close():
            return
        failure: SemelError | None = None
        try:
            await run(self._core.client, self._core.finish(), timeout_s)
        except SemelError as error:
            failure = error
        finally:
            await work(self._core.end_close)
        failure = self._core.take_failures() or failure
        if failure is not None:
            raise failure


@ends_tracebacks
class Producer(RecordSender):
    """Sends records to topics. Thread-safe; make one and share it.

        async with semel.aio.Producer("localhost:9094") as producer:
            await producer.send("orders", b"...", key=b"customer-7")

    Whatever is retried inside, each record that is acknowledged is in the log once, and a partition's records are in
    the order of their sending. With a `transactional_id`, records are sent in transactions (`transaction()`).
    """

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

    async def init_transactions(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get this instance's identity, which fences older ones and ends what they left open.

        Entering `with Producer(...)`, or the first transaction, does it on its own, but not for a two-phase producer:
        there `keep_prepared` leaves what is prepared as it is, and returns its name, to be ended by
        `complete_transaction`, `commit_transaction` or `abort_transaction`. Returns None where nothing was left.
        """
        transactions = self._core.two_phase() if keep_prepared else self._core.transactional()
        return await run(self._core.client, transactions.initialize(keep_prepared=keep_prepared))

    async def begin_transaction(self) -> None:
        """Open a transaction. Raises `UsageError` if one is open."""
        if self._core.needs_initializing:
            await self.init_transactions()
        self._core.begin()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata,
        *,
        expected_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit a group's offsets with the open transaction: the offset of the next record to read for each partition.

        expected_offsets: where the group must stand before that, for partitions of `offsets`: where the work began, or
            -1 where it must have committed nothing. So of two programs that have read the same records one alone
            commits (rule O5); the other waits until the first has ended, and is refused

        Raises `AbortTransactionError` when the group refuses them: a rebalance has taken the partitions away (O4), or
        the group stands elsewhere than expected (INVALID_UPDATE_VERSION: somebody else has moved it).
        """
        transactions = self._core.transactional()
        positions = {
            tp: OffsetAndMetadata(position) if isinstance(position, int) else position
            for tp, position in offsets.items()
        }
        expected = as_expected_offsets(expected_offsets or {}, positions)
        await run(self._core.client, transactions.send_offsets(positions, group, expected))

    async def prepare_transaction(self, *, commits: CommitSource | None = None) -> PreparedTransaction:
        """Flush, and leave the decision to somebody outside (KIP-939). Nothing can be added to the transaction then.

        Store the name that is returned with the decision, for example in a row of the database transaction that this
        one is to follow. Then `commit_transaction()`, or after a restart `init_transactions(keep_prepared=True)` and
        `complete_transaction(stored)`. Raises `AbortTransactionError` when the transaction can't commit.
        """
        check_commits(commits)
        return await run(self._core.client, self._core.two_phase().prepare(commits))

    async def complete_transaction(self, prepared: PreparedTransaction | str | None) -> None:
        """Commit the prepared transaction if it is the one that was decided to commit, and abort it otherwise.

        prepared: the last one whose decision was stored, or its text; None, if there never was one

        Does nothing where nothing is prepared: it was completed before. Safe to call again after a `RetriableError`.
        """
        transactions = self._core.two_phase()
        await run(self._core.client, transactions.complete(as_prepared(prepared)))

    async def commit_transaction(
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
        return await run(self._core.client, calls.commit(commits, CommitToken.checked(token, payload, sequence)))

    async def abort_transaction(self) -> None:
        """Abort: what was sent since the begin never happened. Safe to call again after a `RetriableError`."""
        await run(self._core.client, self._core.transactional().abort())

    async def last_commit(self) -> CommitDecision | None:
        """Return the last commit with a token under this transactional id, also of earlier instances; None: none (T13).

        The answer to "did my transaction commit?" after any crash (E5). Call `init_transactions` first: what an older
        instance has under way is over then. Only the newest instance's answer is final: one that another has replaced
        may hear of the time before.
        """
        return await run(self._core.client, self._core.transactional().last_commit())

    async def __aenter__(self) -> Self:
        if self._core.needs_initializing:
            await self.init_transactions()
        else:
            self._core.check_open()
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


@ends_tracebacks
class Transaction(AsyncTransactionSending):
    """One transaction of a `Producer`: commits when its with-block ends, aborts when it raises.

        async with producer.transaction(commits=batch) as txn:
            await txn.send("enriched", key=key, value=value)

    An `AbortTransactionError` out of the block says that nothing of it took effect: run it again from its input.
    """

    def __init__(self, producer: Producer, commits: CommitSource | None, token: CommitToken | None = None) -> None:
        super().__init__(producer)
        self._producer = producer
        self._commits = commits
        self._token = token
        self._committed: bool | None = None
        self._attached: AbstractContextManager[None] = nullcontext()
        self._used = False

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata,
        *,
        expected_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit `offsets` of a group with the transaction. See `Producer.send_offsets`."""
        self._check_open()
        await self._producer.send_offsets(offsets, group, expected_offsets=expected_offsets)

    async def prepare(self) -> PreparedTransaction:
        """Flush, and leave the decision to somebody outside; the end of the block then commits. See `Producer`.

        When the block raises after this, the transaction stays prepared: the decision may have been taken.
        """
        self._check_open()
        return await self._producer.prepare_transaction(commits=self._commits)

    @property
    def already_committed(self) -> bool:
        """After the block: whether its token had been committed before, so that this transaction was aborted (T13).

        Raises `UsageError` as long as the block has not committed.
        """
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
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._attached.__exit__(None, None, None)
        if error is not None:
            await self._abort_after(error)
            return
        try:
            calls = self._producer._core.transactional()
            self._committed = await run(self._producer._core.client, calls.commit(self._commits, self._token))
        except BaseException as failure:
            await self._abort_after(failure)  # unless the commit was asked for already and may have happened
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """Abort. The caller gets what `error` says, unless it turns out that this instance can't continue at all.

        Raises `AbortTransactionError` in place of a `RetriableError` of a call inside the block. Out of a block, that
        means that the outcome is not known, and that `commit_transaction()` is to be asked.
        """
        calls = self._producer._core.transactions
        is_open = calls is not None and calls.is_open
        if self._commits is not None and (is_open or isinstance(error, AbortTransactionError)):
            self._commits.rewind()
        told = nothing_took_effect(error) if is_open and isinstance(error, RetriableError) else error
        try:
            if is_open:
                await self._producer.abort_transaction()
        except SemelError as while_aborting:
            if calls is not None and calls.has_stopped and isinstance(error, Exception):
                raise while_aborting from error
            told.add_note(f"and the transaction could not be aborted: {while_aborting}")
        if told is not error:
            raise told from error


def core_of(producer: RecordSender) -> ProducerCore:
    """Return what a producer works with, for parts of the SDK that need more than its public methods give."""
    return producer._core
