"""Which batch is sent when, under which sequence number, and what its answer means: the machine behind the IO thread.

No IO, clock or randomness: `poll` gives the requests to send, `answered` and `lost` take what became of them.

- A partition's batches are numbered without gaps (P2) and have at most `max_in_flight` unanswered, which is as many as
  the node remembers (P1): whatever was sent may be sent again with the same numbers until it is answered.
- They are sent in order, and again in order. A batch refused as out of order behind one that has to be repeated is
  repeated after it. Refused though everything before it was acknowledged, the node has lost the producer's state: the
  partition continues under the next epoch with new numbers from 0 (KIP-360). Epochs are checked by partition and the id
  is this client's alone, so this needs no coordinator until the epochs run out. In a transaction it aborts the
  transaction instead.
- A node that does not know a producer takes any first number (P3), so that a refused first batch could be overtaken by
  the second: until a partition has acknowledged something lately, one batch at a time is sent to it.
- A batch whose number is in doubt (sent, never answered, given up) is never renumbered: it could be there twice (E1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.batch_header import ATTRIBUTES_AT, TRANSACTIONAL, set_producer
from semel.protocol.compression import Compression
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    RetriableError,
    SemelError,
    error_for,
)
from semel.protocol.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.protocol.wording import counted
from semel.runtime.backoff import Backoff
from semel.sdk.producer.accumulator import Accumulator, PartitionBuffer
from semel.sdk.producer.delivery import ProducerBatch

IN_FLIGHT_MAX: Final = 5
"""As many batches of a producer as a node remembers (P1)."""

_PROVEN_MS: Final = 600_000
"""How long after an acknowledgement a partition is believed to know the producer. Nodes forget after a day (P8)."""

_SEQUENCE_MASK: Final = 0x7FFFFFFF

_LOST_STATE: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_MAYBE_APPENDED: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,  # of the journal: the log may have it
    }
)


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """How to send. `max_in_flight` counts batches of a partition, `request_bytes_max` those of one request together."""

    idempotent: bool = True
    transactional: bool = False
    max_in_flight: int = IN_FLIGHT_MAX
    request_bytes_max: int = 4 << 20
    linger_ms: int = 5
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1_000


@dataclass(slots=True)
class Attempt:
    """One Produce request: at most one batch of each partition."""

    node_id: int
    batches: list[ProducerBatch] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a node answered for one batch. `base_offset` with an error: it was appended, and is in doubt."""

    error: ErrorCode
    base_offset: int = -1
    append_time_ms: int = -1
    message: str | None = None


class PartitionQueue:
    """A partition on the IO thread: its buffer, and a window of the batches taken from it, in order.

    The window begins with the oldest batch that is not done. Batches done behind it stay: the node remembers as many as
    the window holds (P1), so one that is to be repeated must not fall behind more than that.
    """

    __slots__ = (
        "buffer",
        "gap",
        "next_sequence",
        "producer",
        "proven_until_ms",
        "refusal",
        "renumber",
        "tp",
        "window",
    )

    def __init__(self, buffer: PartitionBuffer) -> None:
        self.tp = TopicPartition(buffer.topic, buffer.partition)
        self.buffer = buffer
        self.window: deque[ProducerBatch] = deque()
        self.producer = NO_PRODUCER
        self.next_sequence = 0
        self.proven_until_ms = 0
        self.renumber = False  # a number is missing: once nothing is in flight, continue under the next epoch
        self.gap = False  # a batch in doubt was given up: a missing number may yet turn up
        self.refusal: SemelError | None = None  # the last one: the error where time runs out

    @property
    def in_flight(self) -> bool:
        return any(batch.in_flight and not batch.done for batch in self.window)

    def leave(self) -> None:
        """Move the window on, after a batch was done."""
        while self.window and self.window[0].done:
            self.window.popleft()


class Sender:
    """The machine. Every method runs on the IO thread; times are of the monotonic clock in ms."""

    def __init__(
        self,
        accumulator: Accumulator,
        options: SenderOptions,
        leader_of: Callable[[TopicPartition], int | None],
        on_failure: Callable[[ProducerBatch, SemelError], object] = lambda batch, error: None,
    ) -> None:
        """`leader_of` gives a partition's node, or None if that is not known. `on_failure` hears of failed batches."""
        self._accumulator = accumulator
        self._options = options
        self._leader_of = leader_of
        self._on_failure = on_failure
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._producer: ProducerIdAndEpoch | None = None
        self._wake_ms: int | None = None
        self.flush_serial = 0
        """Batches up to this serial don't linger."""
        self.sent_any = False
        """Whether anything was sent since `set_producer`."""
        # What the shell is to get: reset by it.
        self.wants_metadata = False
        self.wants_producer = False
        self.wanted_nodes: set[int] = set()

    @property
    def producer(self) -> ProducerIdAndEpoch | None:
        """The identity under which new numbers are given, or None where there is none yet."""
        return self._producer

    @property
    def next_wake_ms(self) -> int | None:
        """When to poll again if nothing happens before, as of the last poll."""
        return self._wake_ms

    def set_producer(self, producer: ProducerIdAndEpoch) -> None:
        """Number what comes from now on under this identity (each partition once its window is empty)."""
        self._producer = producer
        self.wants_producer = False
        self.sent_any = False

    def poll(self, now_ms: int, room_at: Callable[[int], int]) -> list[Attempt]:
        """Return the requests to send now, in this order for each node.

        `room_at` says how many more requests a node takes; 0 where it isn't connected. The shell must send them all.
        """
        self._take_listed()
        self._wake_ms = None
        plans: dict[int, list[Attempt]] = {}
        rooms: dict[int, int] = {}
        for tp, queue in list(self._active.items()):
            self._expire(queue, now_ms)
            if queue.renumber:
                self._renumber(queue)
            if not queue.window and self._accumulator.unlist(queue.buffer):
                del self._active[tp]
                continue
            self._plan(queue, now_ms, plans, rooms, room_at)
        return [attempt for attempts in plans.values() for attempt in attempts if attempt.batches]

    def _take_listed(self) -> None:
        for buffer in self._accumulator.take_listed():
            tp = TopicPartition(buffer.topic, buffer.partition)
            queue = self._queues.get(tp)
            if queue is None or queue.buffer is not buffer:
                queue = self._queues[tp] = self._begun(queue, buffer)
            self._active[tp] = queue

    def answered(self, attempt: Attempt, outcomes: Mapping[TopicPartition, Outcome], now_ms: int) -> None:
        """Take a node's answer to a request."""
        for batch in attempt.batches:
            batch.in_flight = False
        for batch in attempt.batches:
            if batch.done:  # given up, or of an aborted transaction
                continue
            queue = self._queues[TopicPartition(batch.topic, batch.partition)]
            outcome = outcomes.get(queue.tp)
            if outcome is None:
                self._retry(queue, batch, _network_error("the node's answer left it out"), now_ms)
            elif outcome.error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._succeed(queue, batch, outcome, now_ms)
            else:
                self._refused(queue, batch, outcome, now_ms)

    def lost(self, attempt: Attempt, error: RetriableError, now_ms: int) -> None:
        """Take note that no answer to a request will come: whether it had an effect is unknown."""
        for batch in attempt.batches:
            batch.in_flight = False
        for batch in attempt.batches:
            if not batch.done:
                self._retry(self._queues[TopicPartition(batch.topic, batch.partition)], batch, error, now_ms)

    def abandon(self, error: SemelError) -> None:
        """Fail everything that is not acknowledged: of an aborted transaction."""
        for batch in self._take_unacknowledged():
            self._end(batch, error)

    def close(self) -> None:
        """Fail everything that is not acknowledged, as the producer is closed: each delivery says what is known."""
        for batch in self._take_unacknowledged():
            batch.in_doubt = batch.in_doubt or batch.in_flight
            message = f"{counted(batch.record_count, 'record')} not acknowledged before the producer was closed"
            self._end(batch, self._error_of(batch, message))

    def _take_unacknowledged(self) -> list[ProducerBatch]:
        """Return what there is, and forget it.

        Also what waits for a topic that the accumulator has let go, because it was deleted: only its queue knows of it.
        """
        self._take_listed()
        taken = list(self._accumulator.take_all())
        for queue in self._queues.values():
            taken += [batch for batch in queue.window if not batch.done]
            queue.window.clear()
            while (waiting := self._accumulator.take(queue.buffer)) is not None:
                taken.append(waiting)
            queue.renumber = queue.gap = False
        return taken

    def fail_topic(self, topic: str, error: SemelError) -> None:
        """Fail everything for a topic that does not exist any more, and forget its sequence numbers."""
        for tp, queue in list(self._queues.items()):
            if tp.topic != topic:
                continue
            self._drop(queue, error)
            if self._accumulator.unlist(queue.buffer):
                self._active.pop(tp, None)
                del self._queues[tp]

    # --- Choosing -----------------------------------------------------------------------------------------------------

    def _plan(
        self,
        queue: PartitionQueue,
        now_ms: int,
        plans: dict[int, list[Attempt]],
        rooms: dict[int, int],
        room_at: Callable[[int], int],
    ) -> None:
        if not self._anything_due(queue, now_ms):
            return
        if self._options.idempotent and self._producer is None:
            self.wants_producer = True
            return
        node_id = self._leader_of(queue.tp)
        if node_id is None:
            self.wants_metadata = True
            self._wake_at(now_ms + self._options.retry_backoff_ms)
            return
        if node_id not in rooms:
            rooms[node_id] = room_at(node_id)
            plans[node_id] = []
            self.wanted_nodes.add(node_id)
        attempts = plans[node_id]
        index = 0  # one batch of a partition a request, and in order
        while True:
            if index >= len(attempts) and len(attempts) >= rooms[node_id]:
                return
            batch = self._next(queue, now_ms)
            if batch is None:
                return
            assert batch.data is not None
            size = len(batch.data)
            limit = self._options.request_bytes_max
            while index < len(attempts) and attempts[index].size_bytes + size > limit and attempts[index].batches:
                index += 1
            if index == len(attempts):
                if len(attempts) >= rooms[node_id]:
                    return
                attempts.append(Attempt(node_id))
            batch.in_flight = True
            batch.attempts += 1
            batch.first_in_line = queue.window[0] is batch
            self.sent_any = True
            attempts[index].batches.append(batch)
            attempts[index].size_bytes += size
            index += 1

    def _anything_due(self, queue: PartitionQueue, now_ms: int) -> bool:
        """Whether there is something to send now; otherwise note when there may be."""
        if queue.renumber:
            return False  # as soon as what is in flight has been answered
        repeated = self._to_repeat(queue, now_ms)
        if repeated is not None:
            return repeated.not_before_ms <= now_ms
        return self._fresh_is_due(queue, now_ms)

    def _to_repeat(self, queue: PartitionQueue, now_ms: int) -> ProducerBatch | None:
        """Return the first batch of the window that waits to be sent, if it may be now or soon."""
        # A split makes the window longer than what the node remembers, or takes from a new producer.
        for batch in islice(queue.window, self._window_max(queue, now_ms)):
            if not batch.in_flight and not batch.done:
                if batch.not_before_ms > now_ms:
                    self._wake_at(batch.not_before_ms)
                return batch
        return None

    def _fresh_is_due(self, queue: PartitionQueue, now_ms: int) -> bool:
        if len(queue.window) >= self._window_max(queue, now_ms):
            return False
        ready_ms = self._accumulator.ready_at_ms(queue.buffer, self._options.linger_ms, self.flush_serial)
        if ready_ms < 0:
            return False
        if ready_ms > now_ms:
            self._wake_at(ready_ms)
            return False
        return True

    def _next(self, queue: PartitionQueue, now_ms: int) -> ProducerBatch | None:
        """Return the next batch of a partition to send: first what must be repeated, then something new."""
        repeated = self._to_repeat(queue, now_ms)
        if repeated is not None:
            return repeated if repeated.not_before_ms <= now_ms else None
        if not self._fresh_is_due(queue, now_ms):
            return None
        if self._options.idempotent:
            producer = self._producer
            if producer is None:
                self.wants_producer = True
                return None
            if not self._same_identity(queue.producer, producer):
                if queue.window:
                    return None
                if queue.producer.producer_id != producer.producer_id:
                    queue.proven_until_ms = 0
                queue.producer, queue.next_sequence, queue.gap = producer, 0, False
        fresh = self._accumulator.take(queue.buffer)
        if fresh is not None:
            self._stamp(queue, fresh)
            queue.window.append(fresh)
        return fresh

    def _same_identity(self, mine: ProducerIdAndEpoch, current: ProducerIdAndEpoch) -> bool:
        """Whether a partition continues as it is: without transactions its epoch may be ahead of the client's."""
        if self._options.transactional:
            return mine == current
        return mine.producer_id == current.producer_id

    def _window_max(self, queue: PartitionQueue, now_ms: int) -> int:
        if self._options.idempotent and queue.proven_until_ms <= now_ms:
            return 1
        return self._options.max_in_flight

    def _stamp(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if self._options.idempotent:
            batch.producer_id, batch.producer_epoch = queue.producer
            batch.base_sequence = queue.next_sequence
            queue.next_sequence = (queue.next_sequence + batch.record_count) & _SEQUENCE_MASK
        if batch.builder is not None:
            batch.data = batch.builder.build(
                0, batch.producer_id, batch.producer_epoch, batch.base_sequence, self._options.transactional
            )
            batch.builder = None
            return
        assert batch.data is not None  # it came ready-made
        flags_at = ATTRIBUTES_AT + 1
        flags = batch.data[flags_at] & ~TRANSACTIONAL
        batch.data[flags_at] = flags | (TRANSACTIONAL if self._options.transactional else 0)
        self._identify(batch)

    def _identify(self, batch: ProducerBatch) -> None:
        assert batch.data is not None
        set_producer(
            batch.data,
            0,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _succeed(self, queue: PartitionQueue, batch: ProducerBatch, outcome: Outcome, now_ms: int) -> None:
        queue.proven_until_ms = now_ms + _PROVEN_MS
        queue.refusal = None
        self._accumulator.release(batch)
        batch.succeed(outcome.base_offset, outcome.append_time_ms)
        queue.leave()
        if not queue.window:
            queue.gap = False

    def _refused(self, queue: PartitionQueue, batch: ProducerBatch, outcome: Outcome, now_ms: int) -> None:
        code = outcome.error
        detail = outcome.message or "refused"
        if outcome.base_offset >= 0:
            batch.in_doubt = True  # it was appended: the next leader may have it, and commit it
        if self._options.idempotent and self._means_lost_state(code):
            self._out_of_order(queue, batch, code, detail, now_ms)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1 and not batch.in_doubt:
            self._split(queue, batch)  # in doubt it may be there whole, and its halves would not be known as duplicates
        else:
            error = error_for(code, f"{counted(batch.record_count, 'record')} to {queue.tp}: {detail}")
            if self._options.transactional and code is ErrorCode.INVALID_PRODUCER_EPOCH:
                # The coordinator may have timed the transaction out, which bumps the epoch, too (KIP-588). Whether
                # another instance has taken over is for the coordinator to say, when the transaction is aborted.
                error = AbortTransactionError(error.message, code)
            if isinstance(error, RetriableError):
                self._retry(queue, batch, error, now_ms)
            else:
                self._give_up(queue, batch, error)

    def _means_lost_state(self, code: ErrorCode) -> bool:
        # Without transactions nobody else has this id, so a higher epoch than its own can only be one of its own.
        return code in _LOST_STATE or (code is ErrorCode.INVALID_PRODUCER_EPOCH and not self._options.transactional)

    def _out_of_order(
        self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode, detail: str, now_ms: int
    ) -> None:
        if not batch.first_in_line:
            batch.not_before_ms = 0  # it waits for its turn behind what is repeated before it
            return
        if self._options.transactional:
            self._give_up(queue, batch, AbortTransactionError(f"{queue.tp} lost the producer's state: {detail}", code))
        elif queue.gap and batch.in_doubt:
            message = (
                f"{counted(batch.record_count, 'record')} to {queue.tp} may be written or not: an earlier batch was "
                "given up after its delivery timeout, and the node answers out of order"
            )
            self._give_up(queue, batch, FatalError(message, code))
        else:
            queue.renumber = True

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, error: RetriableError, now_ms: int) -> None:
        queue.refusal = error
        if error.code in _MAYBE_APPENDED:
            batch.in_doubt = True
        if error.code in _STALE_METADATA:
            self.wants_metadata = True
        if now_ms >= batch.created_ms + self._options.delivery_timeout_ms:
            self._give_up(queue, batch, self._timeout_error(queue, batch))
            return
        backoff = Backoff(self._options.retry_backoff_ms, self._options.retry_backoff_max_ms)
        batch.not_before_ms = now_ms + backoff.pause_ms(batch.attempts, error.code)

    def _expire(self, queue: PartitionQueue, now_ms: int) -> None:
        """Give up what was not acknowledged within the delivery timeout, and note when the next is due."""
        timeout_ms = self._options.delivery_timeout_ms
        while queue.window and queue.window[0].created_ms + timeout_ms <= now_ms:
            batch = queue.window[0]
            batch.in_doubt = batch.in_doubt or batch.in_flight
            self._give_up(queue, batch, self._timeout_error(queue, batch))
        while not queue.window:
            waiting = self._accumulator.first(queue.buffer)
            if waiting is None or waiting.created_ms + timeout_ms > now_ms:
                break
            taken = self._accumulator.take(queue.buffer)
            assert taken is waiting
            error = self._timeout_error(queue, taken)
            self._end(taken, error)
            self._on_failure(taken, error)
        head = queue.window[0] if queue.window else self._accumulator.first(queue.buffer)
        if head is not None:
            self._wake_at(head.created_ms + timeout_ms)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: SemelError) -> None:
        self._end(batch, error)
        queue.leave()
        if self._options.idempotent and batch.base_sequence >= 0:
            if batch.in_doubt:
                queue.gap = True
            elif not queue.window:
                # Otherwise the others are resolved under their old numbers first: one of them may be there already. The
                # first of them behind the missing number will be refused as out of order, which proves that none is.
                queue.renumber = True
        self._on_failure(batch, error)

    def _end(self, batch: ProducerBatch, error: SemelError) -> None:
        self._accumulator.release(batch)
        batch.fail(error)

    def _timeout_error(self, queue: PartitionQueue, batch: ProducerBatch) -> SemelError:
        why = f"; the last answer: {queue.refusal}" if queue.refusal is not None else ""
        message = (
            f"{counted(batch.record_count, 'record')} to {queue.tp} not acknowledged within delivery_timeout_ms "
            f"({self._options.delivery_timeout_ms})"
        )
        return self._error_of(batch, message, why)

    def _error_of(self, batch: ProducerBatch, message: str, why: str = "") -> SemelError:
        """Return what a delivery fails with that was not acknowledged. Repeated, one in doubt could be there twice."""
        message += f": {'may be written or not' if batch.in_doubt else 'not written'}{why}"
        if self._options.transactional:
            return AbortTransactionError(message, ErrorCode.REQUEST_TIMED_OUT)
        if batch.in_doubt:
            return FatalError(message, ErrorCode.REQUEST_TIMED_OUT)
        return RetriableError(message, ErrorCode.REQUEST_TIMED_OUT)

    # --- Numbers ------------------------------------------------------------------------------------------------------

    def _renumber(self, queue: PartitionQueue) -> None:
        """Continue under the next epoch, from 0, with everything that is left of a partition."""
        if queue.in_flight:
            return
        if self._options.transactional:
            queue.renumber = False  # the transaction aborts, and the next one has an epoch of its own
            return
        old = queue.producer
        if old.producer_epoch < MAX_PRODUCER_EPOCH:
            queue.producer = ProducerIdAndEpoch(old.producer_id, old.producer_epoch + 1)
        elif self._producer is None or self._producer.producer_id == old.producer_id:
            self._producer = None  # the epochs have run out: a new id
            self.wants_producer = True
            return
        else:
            queue.producer = self._producer
        queue.renumber = queue.gap = False
        queue.proven_until_ms = 0
        queue.next_sequence = 0
        queue.window = deque(batch for batch in queue.window if not batch.done)
        for batch in queue.window:
            batch.producer_id, batch.producer_epoch = queue.producer
            batch.base_sequence = queue.next_sequence
            queue.next_sequence = (queue.next_sequence + batch.record_count) & _SEQUENCE_MASK
            self._identify(batch)
            batch.in_doubt = False
            batch.not_before_ms = 0

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Send a batch that is too large for its topic as two, under the same sequence numbers."""
        assert batch.data is not None
        records = decode_records(batch.data)
        compression = Compression(batch.data[22] & 7)
        parts: list[tuple[int, ProducerBatch]] = []
        half = len(records) // 2
        for first, some in ((0, records[:half]), (half, records[half:])):
            builder = BatchBuilder(compression)
            for record in some:
                builder.append(record.timestamp_ms, record.key, record.value, record.headers)
            part = ProducerBatch(batch.serial, batch.topic, batch.partition, builder, batch.created_ms)
            part.record_count = len(some)
            part.producer_id, part.producer_epoch = batch.producer_id, batch.producer_epoch
            part.base_sequence = -1 if batch.base_sequence < 0 else (batch.base_sequence + first) & _SEQUENCE_MASK
            part.data = builder.build(
                0, part.producer_id, part.producer_epoch, part.base_sequence, self._options.transactional
            )
            part.builder = None
            parts.append((first, part))
        at = queue.window.index(batch)
        queue.window.remove(batch)
        for offset, (_, part) in enumerate(parts):
            queue.window.insert(at + offset, part)
        self._accumulator.replaced(batch, [part for _, part in parts])
        batch.split(parts)

    def _begun(self, old: PartitionQueue | None, buffer: PartitionBuffer) -> PartitionQueue:
        """Begin a partition; `old` is the one of a topic with the same name that was deleted."""
        if old is not None:
            error = FatalError(f"topic {old.tp.topic!r} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._drop(old, error)
        return PartitionQueue(buffer)

    def _drop(self, queue: PartitionQueue, error: SemelError) -> None:
        left = [batch for batch in queue.window if not batch.done]
        queue.window.clear()
        for batch in left:
            self._end(batch, error)
            self._on_failure(batch, error)
        while (waiting := self._accumulator.take(queue.buffer)) is not None:
            self._end(waiting, error)
            self._on_failure(waiting, error)

    def _wake_at(self, at_ms: int) -> None:
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms


def _network_error(message: str) -> RetriableError:
    return RetriableError(message, ErrorCode.NETWORK_EXCEPTION)
