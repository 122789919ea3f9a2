"""What the producers' two faces, sync and asyncio, have in common: their options, and what needs no waiting."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from semel.protocol.batch_header import check_crc32c, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import UsageError
from semel.sdk.producer.core import ProducerCore
from semel.sdk.producer.lifetime import close_when_dropped
from semel.sdk.producer.partitioner import Partitioner
from semel.sdk.producer.sender import IN_FLIGHT_MAX
from semel.sdk.producer.serialization import Serializer
from semel.sdk.producer.settings import ProducerOptions, producer_options
from semel.sdk.transport.options import NotPicklable, checked_names

Buffer: TypeAlias = bytes | bytearray | memoryview


class ProducerBase(NotPicklable):
    """A producer without a way to wait."""

    _in_place_of_pickling = "it owns a thread and connections; make one in each process or worker, where it is used"

    _blocking: ClassVar[bool]
    """Whether `send` may wait on the thread that calls it."""

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
        connect_timeout_ms: int = 3_000,
        max_block_ms: int = 60_000,
        transaction_timeout_ms: int = 60_000,
        two_phase: bool = False,
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
        connect_timeout_ms:     how long to try where no node has ever answered: it is more likely a wrong address
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

    def _prepare(self) -> None:
        """Make what sending needs besides."""

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


def checked_batch(data: Buffer) -> tuple[bytearray, int]:
    """Return a ready-made batch, with its number of records. A bytearray is taken over, anything else is copied.

    Raises `UsageError` unless it is exactly one record batch with records.
    """
    if not isinstance(data, bytearray):
        if not isinstance(data, (bytes, memoryview)):
            raise UsageError(f"send_batch() takes the bytes of a record batch, not {type(data).__name__}")
        data = bytearray(data)
    try:
        header = read_header(data)
        if header.size_bytes == len(data):
            check_crc32c(data, header)
    except CorruptBatchError as error:
        raise UsageError(f"send_batch() takes a record batch as encode_batch() makes it: {error}") from None
    count = header.record_count
    if header.size_bytes != len(data):
        raise UsageError(
            f"send_batch() takes exactly one record batch: the first of these {len(data)} bytes are one of "
            f"{header.size_bytes} bytes"
        )
    if count < 1 or header.last_offset_delta != count - 1 or header.is_control:
        raise UsageError(f"send_batch() takes a batch of records without gaps, not one of {count} records")
    return data, count
