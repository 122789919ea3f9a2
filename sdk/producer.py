"""The producer: sends records into the log, idempotently by default, in transactions with a `transactional_id`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.compression import Compression
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.accumulator import AccumulatorOptions
from semel.sdk.delivery import Delivery, DeliveryCallback
from semel.sdk.options import (
    ClientOptions,
    check_bool,
    check_callable,
    check_choice,
    check_int,
    check_text,
    checked_names,
)
from semel.sdk.partitioner import Partitioner
from semel.sdk.producer_core import ProducerCore, ProducerOptions, close_when_dropped
from semel.sdk.sender import IN_FLIGHT_MAX, SenderOptions
from semel.sdk.serialization import HeadersArgument, Serializer
from semel.sdk.transaction import CommitSource, GroupMetadata, Transaction, check_commits

_ACKS = {"all": -1, -1: -1, "-1": -1, 0: 0, "0": 0, 1: 1, "1": 1}
_COMPRESSIONS = {codec.name.lower(): codec for codec in Compression}


def producer_options(
    bootstrap: str,
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
    key_serializer: Serializer | None = None,
    value_serializer: Serializer | None = None,
    delivery_timeout_ms: int = 120_000,
    request_timeout_ms: int = 30_000,
    max_block_ms: int = 60_000,
    transaction_timeout_ms: int = 60_000,
    retry_backoff_ms: int = 20,
    retry_backoff_max_ms: int = 1_000,
    metadata_max_age_ms: int = 300_000,
    auto_create_topics: bool = False,
    client_id: str = "semel-producer",
) -> ProducerOptions:
    """Return the options of a producer, each checked. Raises `UsageError`. See `Producer`."""
    if isinstance(acks, bool) or not isinstance(acks, (int, str)) or acks not in _ACKS:
        raise UsageError(f'option acks must be "all", 1 or 0, not {acks!r}')
    acks_number = _ACKS[acks]
    if idempotent is None:
        idempotent = acks_number == -1
    check_bool("idempotent", idempotent)
    if idempotent and acks_number != -1:
        raise UsageError(f'an idempotent producer needs acks="all", not {acks!r}; or set idempotent=False')
    if transactional_id is not None:
        check_text("transactional_id", transactional_id)
        if not idempotent:
            raise UsageError(
                'transactions need acks="all" and idempotence; leave acks and idempotent at their defaults'
            )
    check_int("max_in_flight", max_in_flight, 1, 1_000)
    if idempotent and max_in_flight > IN_FLIGHT_MAX:
        raise UsageError(
            f"max_in_flight is {IN_FLIGHT_MAX} at most for an idempotent producer, not {max_in_flight}: a node "
            "remembers that many batches of a producer"
        )
    codec = _COMPRESSIONS[check_choice("compression", compression or "none", tuple(_COMPRESSIONS))]
    if compression_level is not None:
        check_int("compression_level", compression_level, -(2**17), 22)
    check_int("linger_ms", linger_ms, 0)
    check_int("delivery_timeout_ms", delivery_timeout_ms, 1)
    check_int("record_bytes_max", record_bytes_max, 64, (1 << 30))
    check_int("buffer_memory_bytes", buffer_memory_bytes, 1, 2**63 - 1)
    if delivery_timeout_ms < linger_ms:
        raise UsageError(f"delivery_timeout_ms ({delivery_timeout_ms}) must be longer than linger_ms ({linger_ms})")
    return ProducerOptions(
        client=ClientOptions.checked(
            bootstrap,
            client_id=client_id,
            api_timeout_ms=max_block_ms,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
        ),
        accumulator=AccumulatorOptions(
            batch_size_bytes=check_int("batch_size_bytes", batch_size_bytes, 1, 1 << 30),
            linger_ms=linger_ms,
            buffer_memory_bytes=buffer_memory_bytes,
            record_bytes_max=record_bytes_max,
            compression=codec,
            compression_level=compression_level,
        ),
        sender=SenderOptions(
            idempotent=idempotent,
            transactional=transactional_id is not None,
            max_in_flight=max_in_flight,
            request_bytes_max=check_int("request_bytes_max", request_bytes_max, 1, 1 << 30),
            linger_ms=linger_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        ),
        transactional_id=transactional_id,
        acks=acks_number,
        max_block_ms=check_int("max_block_ms", max_block_ms, 1),
        auto_create_topics=check_bool("auto_create_topics", auto_create_topics),
        transaction_timeout_ms=check_int("transaction_timeout_ms", transaction_timeout_ms, 1),
        partitioner=check_callable("partitioner", partitioner),
        key_serializer=check_callable("key_serializer", key_serializer),
        value_serializer=check_callable("value_serializer", value_serializer),
    )


class Producer:
    """Sends records to topics. Thread-safe; make one and share it.

        with semel.Producer("localhost:9094") as producer:
            producer.send("orders", b"...", key=b"customer-7")

    Whatever is retried inside, each record that is acknowledged is in the log once, and a partition's records are in
    the order of their sending. With a `transactional_id`, records are sent in transactions (`transaction()`).
    """

    @checked_names
    def __init__(
        self,
        bootstrap: str,
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
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_block_ms: int = 60_000,
        transaction_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 20,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        auto_create_topics: bool = False,
        client_id: str = "semel-producer",
    ) -> None:
        """Check the options; nothing connects yet. Raises `UsageError`.

        bootstrap:              the address of a node's gRPC listener, "host:port"; several with commas between
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
        key_serializer, value_serializer: what is given to `send` -> bytes; None: bytes and str (as UTF-8) only
        delivery_timeout_ms:    an unacknowledged record fails after this
        request_timeout_ms:     one attempt at a node
        max_block_ms:           the longest wait in `send` for memory or for a topic, and in other calls for the cluster
        transaction_timeout_ms: the coordinator aborts a transaction that is open longer
        auto_create_topics:     let the node create a missing topic, if its settings allow it
        """
        self._core = ProducerCore(
            producer_options(
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
                max_block_ms=max_block_ms,
                transaction_timeout_ms=transaction_timeout_ms,
                retry_backoff_ms=retry_backoff_ms,
                retry_backoff_max_ms=retry_backoff_max_ms,
                metadata_max_age_ms=metadata_max_age_ms,
                auto_create_topics=auto_create_topics,
                client_id=client_id,
            ),
            blocking=True,
        )
        # The compiled method itself, without a call of Python's in between: this is the hot path.
        self.__dict__["send"] = self._core.accumulator.send
        self._dropped = close_when_dropped(self, self._core)

    @property
    def transactional_id(self) -> str | None:
        return self._core.options.transactional_id

    @property
    def client_id(self) -> str:
        return self._core.options.client.client_id

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

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is acknowledged, for up to `timeout` seconds (None: delivery_timeout_ms).

        Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer, and the first error of records that have
        failed since the last flush, whoever else was told of it.
        """
        self._core.client.run(self._core.flush(), None if timeout is None else timeout * 1000)
        failure = self._core.take_failures()
        if failure is not None:
            raise failure

    def close(self, timeout: float | None = None) -> None:
        """Flush, and close. An open transaction is aborted. Does nothing the second time, and in a forked child.

        What is not acknowledged within `timeout` seconds (None: delivery_timeout_ms) fails. Raises what `flush` raises.
        """
        self._dropped.detach()
        self._core.close(timeout)

    def transaction(self, commits: CommitSource | None = None) -> Transaction:
        """Return a transaction to be used in a with-block: it commits at the end, and aborts when the block raises.

        `commits` is a batch of a consumer, whose offsets commit with the transaction. The block raises
        `AbortTransactionError` when nothing of it took effect (run it again from its input), `FencedError` when another
        instance has taken over, `RetriableError` when whether it committed could not be learnt in time: then
        `commit_transaction()` asks again.
        """
        check_commits(commits)
        return Transaction(self, commits)

    def init_transactions(self) -> None:
        """Get this instance's identity, which fences older ones and ends what they left open.

        Entering `with Producer(...)`, or the first transaction, does it by itself.
        """
        self._core.client.run(self._core.transactional().initialize())

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

    def commit_transaction(self, *, commits: CommitSource | None = None) -> None:
        """Flush and commit. Raises as `transaction()` does; safe to call again after a `RetriableError`."""
        check_commits(commits)
        self._core.client.run(self._core.transactional().commit(commits))

    def abort_transaction(self) -> None:
        """Abort: what was sent since the begin never happened. Safe to call again after a `RetriableError`."""
        self._core.client.run(self._core.transactional().abort())

    def statistics(self) -> dict[str, int]:
        """Return what is buffered: records, batches and bytes that are not acknowledged."""
        accumulator = self._core.accumulator
        return {
            "records": accumulator.incomplete_records(),
            "batches": accumulator.incomplete_count(),
            "buffered_bytes": accumulator.buffered_bytes,
        }

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

    def __repr__(self) -> str:
        named = f", transactional_id={self.transactional_id!r}" if self.transactional_id else ""
        return f"Producer({','.join(self._core.options.client.addresses)!r}{named})"
