# cython: annotation_typing=False
"""Collects records into batches: the part of a producer that runs on the threads that send.

`send` is the hot path: it picks the partition, appends to that partition's open batch and returns a future. The IO
thread takes batches out when they are full, have lingered, or are wanted by a flush. It is a machine: nothing here does
IO; where it must wait (an unknown topic, no memory left) it calls what the producer has given it.

Compiled with accumulator.pxd; every field shared between threads is changed under one lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.batch_header import BATCH_OVERHEAD
from semel.protocol.compression import Compression
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.runtime.clock import Clock, SystemClock
from semel.sdk.producer.delivery import Delivery, DeliveryCallback, ProducerBatch
from semel.sdk.producer.partitioner import Partitioner, murmur2
from semel.sdk.producer.record_tracing import record_tracer
from semel.sdk.producer.serialization import (
    HeadersArgument,
    header_pairs,
    headers_size,
    serialized,
    too_large,
)
from semel.sdk.telemetry.tracing import LINKS_MAX, end_span
from semel.sdk.transport.border import with_frames_of_the_program
from semel.sdk.transport.serde import Serializer

_RECORD_OVERHEAD_MAX = 36
"""Varints of a record at their longest: length, timestamp, offset, key and value size, header count; attributes."""
_FIRST_CAPACITY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class AccumulatorOptions:
    """Bounds and forms of batches. `record_bytes_max` bounds one record with its key and headers."""

    batch_size_bytes: int = 1 << 18
    linger_ms: int = 5
    buffer_memory_bytes: int = 64 << 20
    record_bytes_max: int = 1_048_000
    compression: Compression = Compression.NONE
    compression_level: int | None = None


class PartitionBuffer:
    """One partition's batches that are not sent yet: closed ones in order, then the one that is still filling."""

    __slots__ = ("capacity_bytes", "closed", "filling", "listed", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.closed: deque[ProducerBatch] = deque()
        self.filling: ProducerBatch | None = None
        self.capacity_bytes = _FIRST_CAPACITY_BYTES
        self.listed = False  # the sender knows that there is something here


class TopicBuffers:
    """A topic's partitions, and the one that records without a key go to for now."""

    __slots__ = ("buffers", "count", "sticky", "topic")

    def __init__(self, topic: str, count: int) -> None:
        self.topic = topic
        self.count = count
        self.buffers = [PartitionBuffer(topic, partition) for partition in range(count)]
        self.sticky = -1


class Accumulator:
    """Batches of every partition, within one bound of memory.

    The producer sets what is called where sending threads must wait, or must not continue:
    open_topic(topic): learn about a topic and call `add_topic`; raises what `send` is to raise
    wait_room(bytes):  return when as much memory may be free; raises what `send` is to raise
    wake():            there is something for the IO thread to do
    refuse():          raises what `send` is to raise, while `gate_closed`
    """

    __slots__ = (
        "_batch_size_bytes",
        "_buffered_bytes",
        "_buffered_max",
        "_clock",
        "_incomplete",
        "_is_machine_clock",
        "_key_serializer",
        "_listed",
        "_lock",
        "_options",
        "_partitioner",
        "_random",
        "_record_bytes_max",
        "_serial",
        "_topics",
        "_value_serializer",
        "_wake_pending",
        "client_id",
        "gate_closed",
        "open_topic",
        "refuse",
        "tracer",
        "transaction_context",
        "wait_room",
        "wake",
    )

    def __init__(
        self,
        options: AccumulatorOptions,
        clock: Clock,
        *,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str = "semel",
        seed: int = 1,
    ) -> None:
        """`seed` decides the partitions that records without a key go to."""
        self._options = options
        self._batch_size_bytes = options.batch_size_bytes
        self._buffered_max = options.buffer_memory_bytes
        self._record_bytes_max = options.record_bytes_max
        self._clock = clock
        self._is_machine_clock = type(clock) is SystemClock
        self._partitioner = partitioner
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._random = (seed * 2 + 1) & 0x7FFFFFFF
        self._buffered_bytes = 0
        self._serial = 0
        self._wake_pending = False
        self.tracer = record_tracer(client_id)
        self.transaction_context: Any = None
        self._topics: dict[str, TopicBuffers] = {}
        self._listed: list[PartitionBuffer] = []
        self._incomplete: dict[ProducerBatch, None] = {}
        self.client_id = client_id
        self.gate_closed = False
        self.open_topic: Callable[[str], object] = _unset
        self.wait_room: Callable[[int], object] = _unset
        self.wake: Callable[[], object] = _unset
        self.refuse: Callable[[], object] = _unset
        if not cython.compiled:
            self._lock = threading.Lock()

    # on the threads that send

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
        """Append a record to its partition's batch and return its future. See `Producer.send`."""
        try:
            if self.gate_closed:
                self.refuse()
            value_bytes: bytes | None
            key_bytes: bytes | None
            if self._value_serializer is None and (type(value) is bytes or value is None):
                value_bytes = value
            else:
                value_bytes = serialized(value, self._value_serializer, "value", topic)
            if self._key_serializer is None and (type(key) is bytes or key is None):
                key_bytes = key
            else:
                key_bytes = serialized(key, self._key_serializer, "key", topic)
            now_ms = self._wall_ms() if timestamp_ms is None else _checked_time(timestamp_ms)
            pairs: Any = () if headers is None else header_pairs(headers)
            if self.tracer is not None:
                return self._send_traced(topic, value_bytes, key_bytes, pairs, partition, now_ms, on_delivery)
            return self._append(topic, value_bytes, key_bytes, pairs, partition, now_ms, on_delivery, None)
        except SemelError as error:
            # The same error, without the frames of what is called here.
            raise with_frames_of_the_program(error)  # noqa: B904

    def _wall_ms(self) -> int:
        """Return the clock's time for a record. The machine's is read in C: a call for each record costs too much."""
        if cython.compiled and self._is_machine_clock:
            return realtime_ms()  # type: ignore[name-defined,no-any-return]  # noqa: F821
        return self._clock.now_ms()

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Any,
        partition: int | None,
        now_ms: int,
        on_delivery: DeliveryCallback | None,
        trace: Any,
    ) -> Delivery:
        size = _RECORD_OVERHEAD_MAX
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += headers_size(headers)
        if size > self._record_bytes_max:
            raise too_large(topic, size, self._record_bytes_max)
        buffers = self._topics.get(topic)
        if buffers is None:
            if not isinstance(topic, str) or not topic:
                raise _no_topic(topic)
            self.open_topic(topic)
            buffers = self._topics[topic]
        number = -1
        if partition is not None:
            number = _checked_partition(partition, buffers)
        elif self._partitioner is not None:
            number = _chosen_partition(self._partitioner, topic, key, value, buffers)
        elif key is not None:
            number = (murmur2(key) & 0x7FFFFFFF) % buffers.count
        while True:
            with self._lock:
                if self._buffered_bytes + size <= self._buffered_max or self._buffered_bytes == 0:
                    # The gate may have closed since: nothing may slip into a transaction that is ending.
                    if self.gate_closed:
                        break
                    buffer = self._sticky(buffers) if number < 0 else _buffer_at(buffers, number)
                    wake = False
                    batch = buffer.filling
                    if batch is not None and _size_of(batch) + size > self._batch_size_bytes:
                        self._close(buffer, batch)
                        batch = None
                        wake = True
                        if number < 0:
                            buffers.sticky = -1
                            buffer = self._sticky(buffers)
                            batch = buffer.filling
                    if batch is None:
                        batch = self._begin(buffer, size)
                        wake = True
                    delta = _add(batch, now_ms, key, value, headers)
                    batch.charged_bytes += size
                    self._buffered_bytes += size
                    if trace is not None:
                        if batch.traces is None:
                            batch.traces = [trace]
                        elif trace[0] is not None and len(batch.traces) < LINKS_MAX:
                            batch.traces.append(trace)
                    if on_delivery is not None:
                        if batch.callbacks is None:
                            batch.callbacks = []
                        batch.callbacks.append((delta, now_ms, on_delivery))
                    if self._wake_pending:
                        wake = False
                    elif wake:
                        self._wake_pending = True
                    delivery = _delivery(batch, delta, now_ms)
                    full = False
                else:
                    full = True
            if not full:
                if wake:
                    self.wake()
                return delivery
            self.wait_room(size)
        self.refuse()
        raise AssertionError("unreachable: `refuse` raises while the gate is closed")

    def send_batch(self, topic: str, partition: int, data: bytearray, record_count: int) -> Delivery:
        """Put a whole batch behind what was sent to its partition before. See `Producer.send_batch`.

        `data` is the accumulator's from now on: the sender writes the producer's identity into it.
        """
        if self.gate_closed:
            self.refuse()
        size = len(data)
        tracer = self.tracer = record_tracer(self.client_id)
        buffers = self._topics.get(topic)
        if buffers is None:
            if not isinstance(topic, str) or not topic:
                raise _no_topic(topic)
            self.open_topic(topic)
            buffers = self._topics[topic]
        buffer = _buffer_at(buffers, _checked_partition(partition, buffers))
        while True:
            with self._lock:
                if self._buffered_bytes + size <= self._buffered_max or self._buffered_bytes == 0:
                    if self.gate_closed:  # since it was looked at: as in `_append`
                        break
                    if buffer.filling is not None:
                        self._close(buffer, buffer.filling)
                    batch = self._new_batch(buffer, None)
                    if tracer is not None:
                        batch.traces = [tracer.in_context(self.transaction_context)]
                    batch.data = data
                    batch.record_count = record_count
                    batch.charged_bytes = size
                    buffer.closed.append(batch)
                    self._buffered_bytes += size
                    wake = not self._wake_pending
                    self._wake_pending = True
                    full = False
                else:
                    full = True
            if not full:
                if wake:
                    self.wake()
                return _delivery(batch, 0, -1)
            self.wait_room(size)
        self.refuse()
        raise AssertionError("unreachable: `refuse` raises while the gate is closed")

    def _sticky(self, buffers: TopicBuffers) -> PartitionBuffer:
        """Return the partition for records without a key: the same one until its batch was closed or taken."""
        current: PartitionBuffer
        if buffers.sticky >= 0:
            current = _buffer_at(buffers, buffers.sticky)
            if current.filling is not None:
                return current
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        if buffers.sticky < 0 or buffers.count == 1:
            buffers.sticky = (self._random >> 8) % buffers.count
        else:  # another one
            buffers.sticky = (buffers.sticky + 1 + (self._random >> 8) % (buffers.count - 1)) % buffers.count
        return _buffer_at(buffers, buffers.sticky)

    def _begin(self, buffer: PartitionBuffer, size: int) -> ProducerBatch:
        options = self._options
        capacity = max(buffer.capacity_bytes, min(size + BATCH_OVERHEAD, self._record_bytes_max))
        builder = BatchBuilder(options.compression, options.compression_level, capacity_bytes=capacity)
        batch = self._new_batch(buffer, builder)
        buffer.filling = batch
        self.tracer = record_tracer(self.client_id)
        return batch

    def _new_batch(self, buffer: PartitionBuffer, builder: BatchBuilder | None) -> ProducerBatch:
        self._serial += 1
        now_ms = int(self._clock.monotonic() * 1000)
        batch = ProducerBatch(self._serial, buffer.topic, buffer.partition, builder, now_ms)
        self._incomplete[batch] = None
        if not buffer.listed:
            buffer.listed = True
            self._listed.append(buffer)
        return batch

    def _close(self, buffer: PartitionBuffer, batch: ProducerBatch) -> None:
        batch.record_count = batch.builder.record_count if batch.builder is not None else 0
        buffer.closed.append(batch)
        buffer.filling = None
        # The next batch of a busy partition begins with all its memory, and need not grow.
        buffer.capacity_bytes = min(_size_of(batch) + _RECORD_OVERHEAD_MAX, self._batch_size_bytes)

    def _send_traced(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Any,
        partition: int | None,
        now_ms: int,
        on_delivery: DeliveryCallback | None,
    ) -> Delivery:
        tracer = self.tracer
        assert tracer is not None
        quick = tracer.quick
        if quick is not None and not headers and quick[0] is tracer.current() and quick[1] is self.transaction_context:
            return self._append(topic, value, key, quick[2], partition, now_ms, on_delivery, quick[3])
        created = tracer.create(str(topic), value, headers, self.transaction_context)
        span = created.span
        if span is None:
            return self._append(topic, value, key, created.headers, partition, now_ms, on_delivery, created.trace)
        try:
            delivery = self._append(topic, value, key, created.headers, partition, now_ms, on_delivery, created.trace)
        except BaseException as error:
            end_span(span, error)
            raise
        end_span(span, None, destination__partition__id=str(delivery.partition))
        return delivery

    # on the IO thread

    @property
    def buffered_bytes(self) -> int:
        """Memory held by records that are not acknowledged yet."""
        return self._buffered_bytes

    @property
    def last_serial(self) -> int:
        """The serial of the newest batch."""
        return self._serial

    def has_room(self, size_bytes: int) -> bool:
        """Whether a record of this size would be taken now."""
        return self._buffered_bytes + size_bytes <= self._buffered_max or self._buffered_bytes == 0

    def knows(self, topic: str) -> bool:
        """Whether `send` would not have to ask for this topic."""
        return topic in self._topics

    def partition_count(self, topic: str) -> int:
        """How many partitions a known topic has."""
        buffers = self._topics[topic]
        return buffers.count

    def add_topic(self, topic: str, partition_count: int) -> None:
        """Take records for a topic, or learn that it has more partitions now."""
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                self._topics[topic] = TopicBuffers(topic, partition_count)
            elif partition_count > known.count:
                known.buffers.extend([PartitionBuffer(topic, number) for number in range(known.count, partition_count)])
                known.count = partition_count

    def remove_topic(self, topic: str) -> None:
        """Ask for the topic again before its next record, because it was deleted. Its batches stay to be sent."""
        with self._lock:
            self._topics.pop(topic, None)

    def take_listed(self) -> list[PartitionBuffer]:
        """Return the partitions that got records since the last call. Says that the IO thread is awake."""
        with self._lock:
            self._wake_pending = False
            listed = self._listed
            if listed:
                self._listed = []
            return listed

    def unlist(self, buffer: PartitionBuffer) -> bool:
        """Stop looking at a partition, if there is nothing in it; the next record lists it again."""
        with self._lock:
            if buffer.filling is not None or buffer.closed:
                return False
            buffer.listed = False
            return True

    def ready_at_ms(self, buffer: PartitionBuffer, linger_ms: int, flush_serial: int) -> int:
        """Return when the partition's first batch may be taken: 0 for now, -1 where there is none."""
        with self._lock:
            if buffer.closed:
                return 0
            batch = buffer.filling
            if batch is None:
                return -1
            if batch.serial <= flush_serial:
                return 0
            return batch.created_ms + linger_ms

    def first(self, buffer: PartitionBuffer) -> ProducerBatch | None:
        """Return the partition's oldest batch, without taking it."""
        with self._lock:
            return buffer.closed[0] if buffer.closed else buffer.filling

    def take(self, buffer: PartitionBuffer) -> ProducerBatch | None:
        """Take the partition's oldest batch out; nothing is added to it any more."""
        with self._lock:
            if not buffer.closed and buffer.filling is not None:
                self._close(buffer, buffer.filling)
            return buffer.closed.popleft() if buffer.closed else None

    def take_all(self) -> list[ProducerBatch]:
        """Take every batch of every partition out."""
        taken: list[ProducerBatch] = []
        with self._lock:
            for buffers in self._topics.values():
                for buffer in buffers.buffers:
                    if buffer.filling is not None:
                        self._close(buffer, buffer.filling)
                    taken.extend(buffer.closed)
                    buffer.closed.clear()
        return taken

    def release(self, batch: ProducerBatch) -> None:
        """Give the memory of a batch that is done back."""
        with self._lock:
            self._buffered_bytes -= batch.charged_bytes
            batch.charged_bytes = 0
            self._incomplete.pop(batch, None)

    def replaced(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Let the parts of a batch that was split stand in for it, and take its memory over."""
        with self._lock:
            del self._incomplete[batch]
            for part in parts:
                self._incomplete[part] = None
            parts[0].charged_bytes += batch.charged_bytes
            batch.charged_bytes = 0

    def first_incomplete(self) -> int | None:
        """Return the lowest serial of a batch that is not done, or None."""
        with self._lock:
            return min([batch.serial for batch in self._incomplete], default=None)

    def incomplete_count(self) -> int:
        """How many batches are not done."""
        return len(self._incomplete)

    def incomplete_records(self) -> int:
        """How many records are not acknowledged."""
        with self._lock:
            return sum(
                batch.builder.record_count if batch.builder is not None else batch.record_count
                for batch in self._incomplete
            )


def _size_of(batch: ProducerBatch) -> int:
    builder = batch.builder
    assert builder is not None
    if cython.compiled:
        return builder._position
    else:  # noqa: RET505
        return builder.size_estimate


def _add(batch: ProducerBatch, now_ms: int, key: bytes | None, value: bytes | None, headers: Any) -> int:
    builder = batch.builder
    assert builder is not None
    return builder.append(now_ms, key, value, headers)


def _buffer_at(buffers: TopicBuffers, number: int) -> PartitionBuffer:
    return buffers.buffers[number]


def _delivery(batch: ProducerBatch, delta: int, timestamp_ms: int) -> Delivery:
    if not cython.compiled:
        return Delivery(batch, delta, timestamp_ms)
    delivery: Delivery = Delivery.__new__(Delivery)
    delivery._batch = batch
    delivery._delta = delta
    delivery._timestamp_ms = timestamp_ms
    return delivery


def _checked_time(timestamp_ms: Any) -> int:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms < 2**62:
        raise UsageError(
            f"timestamp_ms must be milliseconds since 1970 (int), not {type(timestamp_ms).__name__} {timestamp_ms!r}",
            ErrorCode.INVALID_TIMESTAMP,
        )
    return timestamp_ms


def _checked_partition(partition: Any, buffers: TopicBuffers) -> int:
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < buffers.count:
        raise UsageError(
            f"topic {buffers.topic!r} has partitions 0 to {buffers.count - 1}, not {partition!r}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    return partition


def _chosen_partition(
    partitioner: Any, topic: str, key: bytes | None, value: bytes | None, buffers: TopicBuffers
) -> int:
    partition = partitioner(topic, key, value, buffers.count)
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < buffers.count:
        raise UsageError(
            f"the partitioner returned {partition!r} for topic {topic!r}; it must return a number from 0 to "
            f"{buffers.count - 1}"
        )
    return partition


def _no_topic(topic: object) -> UsageError:
    return UsageError(f"a topic is given by its name (str), not {type(topic).__name__} {topic!r}")


def _unset(*_: Any) -> object:
    raise RetriableError("the producer is not ready yet")
