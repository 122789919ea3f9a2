"""`send`, the hot path: written by hand for the sync and for the asyncio API, under the same names.

In the sync API it is the compiled method of the accumulator itself. For asyncio it raises where it would have to wait.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from semel.protocol.batch_header import check_crc32c, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import SemelError, UsageError
from semel.sdk.producer.core import NoRoomError, NoTopicError, ProducerCore
from semel.sdk.producer.delivery import Delivery, DeliveryCallback
from semel.sdk.producer.serialization import HeadersArgument
from semel.sdk.transport.awaiting import run
from semel.sdk.transport.border import cut_here, unseen
from semel.sdk.transport.options import NotPicklable

Buffer: TypeAlias = bytes | bytearray | memoryview


class Sending(NotPicklable):
    """What is sent with from any thread."""

    _core: ProducerCore
    _blocking: ClassVar = True
    """Whether `send` may wait on the thread that calls it."""

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
        """Send a record: buffer it, and return the future of its acknowledgement.

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
        try:
            batch, record_count = checked_batch(data)
            return self._core.accumulator.send_batch(topic, partition, batch, record_count)
        except SemelError as error:
            cut_here(error)
            raise


class AsyncSending(NotPicklable):
    """What is sent with from asyncio."""

    _core: ProducerCore
    _blocking: ClassVar = False

    def _prepare(self) -> None:
        """Nothing stands in for `send` here."""

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
        """Send a record: buffer it, and return the future of its acknowledgement.

        value, key:   bytes, str (as UTF-8) or None; anything else needs a serializer
        headers:      a mapping or pairs of names and bytes, str or None
        partition:    a number from 0; None lets the partitioner choose
        timestamp_ms: since 1970; None: now
        on_delivery:  called as on_delivery(metadata, None) or on_delivery(None, error) on the IO thread; must not block

        Waits, up to max_block_ms, for an unknown topic's metadata and for memory. Raises `UsageError` for what can't be
        sent, `FatalError` (UNKNOWN_TOPIC_OR_PARTITION) for a topic that does not exist, `RetriableError` where waiting
        took too long, and in a transaction `AbortTransactionError` or `FencedError` once it can't commit any more.
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
                missing_bytes = None
            except NoRoomError as full:
                missing_bytes = full.size_bytes
            except SemelError as error:
                cut_here(error)
                raise
            await self._wait(topic, missing_bytes)

    async def send_batch(self, topic: str, partition: int, data: Buffer) -> Delivery:
        """Send a record batch that is encoded already, without an object per record; the future is its first record's.

        data: one batch, as `encode_batches_from_arrow` makes them, with or without compression. A bytearray is the
              producer's from then on and must not be used again; bytes and memoryviews are copied

        The producer writes its id, epoch and sequence numbers into it, and repeats it as any other batch. Order in the
        partition is that of the calls, those of `send` among them. Waits as `send` does when buffer_memory_bytes are
        not acknowledged yet. Raises what `send` raises, and `UsageError` for bytes that are no whole batch.
        """
        try:
            batch, record_count = checked_batch(data)
        except SemelError as error:
            cut_here(error)
            raise
        while True:
            try:
                return self._core.accumulator.send_batch(topic, partition, batch, record_count)
            except NoTopicError:
                missing_bytes = None
            except NoRoomError as full:
                missing_bytes = full.size_bytes
            except SemelError as error:
                cut_here(error)
                raise
            await self._wait(topic, missing_bytes)

    @unseen
    async def _wait(self, topic: str, missing_bytes: int | None) -> None:
        """Wait for a topic to be known, or for memory."""
        core = self._core
        await run(core.client, core.open_topic(topic) if missing_bytes is None else core.wait_room(missing_bytes))


class TransactionSending:
    """What is sent with inside of a transaction, from any thread."""

    def __init__(self, producer: Sending) -> None:
        self._sending = producer
        self._is_open = False

    def _open(self) -> None:
        self._is_open = True
        # The compiled method itself, without a call of Python's in between: this is the hot path.
        self.__dict__["send"] = self._sending.send

    def _end(self) -> None:
        self._is_open = False
        del self.__dict__["send"]

    @unseen
    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                "this transaction is not open: send inside its with-block, "
                "`with producer.transaction() as txn: txn.send(...)`"
            )

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
        """Send a record inside the transaction. See `Producer.send`."""
        self._check_open()  # raises: while it is open, the producer's own method stands in this one's place
        return self._sending.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            on_delivery=on_delivery,
        )


class AsyncTransactionSending:
    """What is sent with inside of a transaction, from asyncio."""

    def __init__(self, producer: AsyncSending) -> None:
        self._sending = producer
        self._is_open = False

    def _open(self) -> None:
        self._is_open = True

    def _end(self) -> None:
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                "this transaction is not open: send inside its with-block, "
                "`async with producer.transaction() as txn: await txn.send(...)`"
            )

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
        try:
            self._check_open()
            return await self._sending.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
                on_delivery=on_delivery,
            )
        except SemelError as error:
            cut_here(error)
            raise


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
