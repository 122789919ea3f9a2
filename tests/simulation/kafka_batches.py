"""How a producer of Kafka's protocol sends batches: each keeps its sequence until it is answered or given up.

Where a promise of the protocol is broken, the ledger hears of it: the next batch in line is refused, or a duplicate is
not known any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_PRODUCER, ZERO_TOPIC_ID, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.produce import (
    ACKS_ALL,
    PRODUCE_TOPIC_ID_VERSION,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError
from simulation.kafka_wire import REQUEST_TIMEOUT_MS, RETRIED, Echo, Party, Wire
from simulation.kept_producers import expiring_settings

IN_FLIGHT: Final = 5
_MAYBE_DONE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,  # it was appended, and the sync failed
    }
)
"""What is said, or seen, where something may have been done."""

_REMEMBERED: Final = 5

Acknowledged = Callable[[str, int, int, str], object]
"""Called with topic, partition, offset and value of each record that was acknowledged."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Values with the sequence that they keep. `is_flying`: sent, and neither answered nor lost yet."""

    values: Sequence[str]
    deadline: float
    sequence: int = -1
    data: bytes = b""
    is_flying: bool = False
    was_answered: bool = False
    may_be_there: bool = False
    """Whether an attempt may have been appended that was not acknowledged: its answer was lost, or came too late."""
    newer: int = 0
    """How many batches were begun after it. A partition remembers the last five (P1)."""
    attempts: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class _Lane:
    """One partition: what waits, what was sent, oldest first, and the next sequence."""

    topic: str
    partition: int
    waiting: deque[_Batch] = field(default_factory=deque)
    sent: list[_Batch] = field(default_factory=list)
    sequence: int = 0
    connection: Connection | None = None
    """Where it was sent to last."""
    topic_id: TopicId = ZERO_TOPIC_ID
    """The topic's id, where the client writes by it."""
    is_known: bool = False
    """Whether a batch of this epoch was acknowledged: before that, its log may begin with any of them (P3)."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class BatchSender:
    """Sends batches in the order of each partition, up to five requests at once, until each is answered."""

    def __init__(
        self,
        party: Party,
        wire: Wire,
        echo: Echo,
        acknowledged: Acknowledged,
        transactional_id: str | None,
        delivery_s: float,
    ) -> None:
        self._party = party
        self._wire = wire
        self._echo = echo
        self._acknowledged = acknowledged
        self._transactional_id = transactional_id
        self._delivery_s = delivery_s
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._changed = asyncio.Event()
        self.producer = NO_PRODUCER
        self.refusal: ErrorCode | None = None
        """Why a transactional batch was refused for good: nothing is sent until `forget_all`."""
        self.gave_up = False
        """Whether a batch that was sent has no answer: only another epoch makes the sequences sure again."""
        self.succeeded = 0
        self.was_repeated = False
        """Whether a batch of this epoch was sent more than once, so that one of them may still be on its way."""
        self.last_frame: tuple[int, Sequence[Any]] | None = None
        """The version and the body of the last request."""

    def put(self, topic: str, partition: int, values: Sequence[str]) -> None:
        lane = self._lanes.setdefault((topic, partition), _Lane(topic, partition))
        lane.waiting.append(_Batch(values, self._party.world.scheduler.now + self._delivery_s))
        self._changed.set()

    @property
    def is_idle(self) -> bool:
        return not any(lane.sent or lane.waiting for lane in self._lanes.values())

    def begin_epoch(self, producer: ProducerIdAndEpoch) -> None:
        """What was sent before is given up; what was not begins at sequence 0."""
        self.producer = producer
        for lane in self._lanes.values():
            lane.sent.clear()
            lane.sequence = 0
            lane.is_known = False
        self.gave_up = self.was_repeated = False
        self._changed.set()

    def forget_all(self) -> None:
        """Give up everything: the transaction is to be aborted."""
        for lane in self._lanes.values():
            lane.waiting.clear()
            self.gave_up |= bool(lane.sent)
            lane.sent.clear()
        self.refusal = None
        self._changed.set()

    async def settle(self) -> None:
        """Send until everything is answered, or a batch is refused or given up for good."""
        while not self.is_idle and self.refusal is None and not self.gave_up:
            self._changed.clear()
            if self._expired():
                return
            batch_at = self._next()
            if batch_at is not None:
                await self._send_soon(*batch_at)
            else:
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(0.2):
                await self._changed.wait()
        except TimeoutError:
            return

    def _expired(self) -> bool:
        now = self._party.world.scheduler.now
        for lane in self._lanes.values():
            if lane.sent and lane.sent[0].deadline < now:
                self.gave_up = True
        return self.gave_up

    def _next(self) -> tuple[_Lane, _Batch] | None:
        lanes = list(self._lanes.values())
        self._party.chance.shuffle(lanes)
        for lane in lanes:
            batch = self._next_of(lane)
            if batch is not None:
                return lane, batch
        return None

    def _next_of(self, lane: _Lane) -> _Batch | None:
        now, together = self._party.world.scheduler.now, not self._party.dialect.is_java
        for place, batch in enumerate(lane.sent):
            if not batch.is_flying:
                if batch.not_before > now or (place and not together):
                    return None
                return batch
            if batch.attempts > 1 and not together:
                return None
        # A node that begins to lead may refuse one batch and take the next.
        in_flight_max = IN_FLIGHT if lane.is_known or not self._wire.leaders_change else 1
        if not lane.waiting or len(lane.sent) >= in_flight_max:
            return None
        return lane.waiting[0]

    async def _send_soon(self, lane: _Lane, batch: _Batch) -> None:
        producer = self.producer
        try:
            connection = await self._wire.opened_to(lane.tp)
            if self._party.dialect.versions[ApiKey.PRODUCE] >= PRODUCE_TOPIC_ID_VERSION:
                lane.topic_id = await self._wire.topic_id(lane.topic)
            has_moved = connection is not lane.connection and any(one.is_flying for one in lane.sent)
            if not connection.has_room or has_moved:  # a new leader gets nothing before the old one has answered
                await self._wait()
                return
        except ConnectionLostError:
            await self._party.pause()
            return
        if producer == self.producer and (batch in lane.sent or (lane.waiting and lane.waiting[0] is batch)):
            self._send(connection, lane, batch)

    def _send(self, connection: Connection, lane: _Lane, batch: _Batch) -> None:
        if batch.sequence < 0:
            lane.waiting.popleft()
            for older in lane.sent:
                older.newer += 1
            lane.sent.append(batch)
            batch.sequence = lane.sequence
            lane.sequence += len(batch.values)
            now_ms = self._party.now_ms()
            batch.data = encode_batch(
                [(now_ms, None, value.encode(), ()) for value in batch.values],
                producer_id=self.producer.producer_id,
                producer_epoch=self.producer.producer_epoch,
                base_sequence=batch.sequence,
                transactional=self._transactional_id is not None,
            )
        version = self._party.dialect.versions[ApiKey.PRODUCE]
        request = ProduceRequest(
            [ProducePartition(lane.topic, lane.partition, batch.data, lane.topic_id)],
            self._transactional_id,
            ACKS_ALL,
            1_500,
        )
        body = request.build_parts(version)
        try:
            future = connection.request(ApiKey.PRODUCE, version, body, timeout_ms=REQUEST_TIMEOUT_MS)
            self._party.note(
                f"asks PRODUCE {lane.topic}-{lane.partition} of {self.producer} from sequence {batch.sequence}"
            )
        except ConnectionLostError:
            return
        # Not before it has arrived: a partition that does not know the producer would begin with it (P3). Where it was
        # refused, its repetition may be what is appended.
        batch.may_be_there |= self._echo.sent(ApiKey.PRODUCE, version, body, lambda: batch.was_answered)
        self.last_frame = version, body
        batch.is_flying = True
        lane.connection = connection
        batch.attempts += 1
        self.was_repeated |= batch.attempts > 1
        producer = self.producer
        future.add_done_callback(lambda done: self._answered(producer, lane, batch, done))

    def _answered(
        self, producer: ProducerIdAndEpoch, lane: _Lane, batch: _Batch, done: asyncio.Future[memoryview]
    ) -> None:
        batch.is_flying = False
        self._changed.set()
        if done.cancelled() or producer != self.producer or batch not in lane.sent:
            return
        code, offset = ErrorCode.NETWORK_EXCEPTION, -1
        if done.exception() is None:
            version = self._party.dialect.versions[ApiKey.PRODUCE]
            (item,) = ProduceResponse.parse(done.result(), version).partitions
            self._party.note(
                f"is answered PRODUCE {lane.topic}-{lane.partition} sequence {batch.sequence}: {item.error.name}"
            )
            batch.was_answered = True
            code, offset = item.error, item.base_offset
        self._judge(lane, batch, code, offset)

    def _judge(self, lane: _Lane, batch: _Batch, code: ErrorCode, offset: int) -> None:
        place = f"{lane.topic}-{lane.partition} {self.producer} sequence {batch.sequence} attempt {batch.attempts}"
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._party.wrong("P1", f"{place}: a duplicate among the last five is not known any more")
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            missing = [one.sequence for one in lane.sent[: lane.sent.index(batch)] if not one.may_be_there]
            if missing:
                self._party.wrong("P2", f"{place} is acknowledged, and {missing} before it are not there")
            lane.sent.remove(batch)
            lane.is_known = True
            self.succeeded += 1
            for number, value in enumerate(batch.values):
                self._acknowledged(lane.topic, lane.partition, offset + number, value)
            return
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lane.sent[0] is not batch:
            code = ErrorCode.NETWORK_EXCEPTION  # what failed before it is sent first
        if code in RETRIED:
            self._wire.moved(lane.tp)
            batch.may_be_there |= code in _MAYBE_DONE
            batch.not_before = self._party.world.scheduler.now + 0.05 + 0.1 * self._party.chance.random()
            return
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            # A marker makes a producer that has expired known again, without a sequence, and a late batch with one that
            # is long gone: so with Kafka, whose clients then take another epoch. So they do where a batch is there, was
            # not acknowledged, and others behind it were: its repetition may find five newer ones remembered (P1).
            is_forgotten = batch.may_be_there and batch.newer >= _REMEMBERED
            if not expiring_settings(self._party.world) and not is_forgotten:
                self._party.wrong("P2", f"{place} is next in line, and refused with {code.name}")
        elif self._transactional_id is None:
            self._party.wrong("refused", f"{place}: {code.name}")
        self.refusal = code
