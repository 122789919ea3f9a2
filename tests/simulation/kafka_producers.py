"""Producers as Kafka's clients are, on the wire: idempotent ones, and transactional ones of both versions.

A batch that was sent keeps its sequence until it is answered or given up. Where a promise of the protocol is broken,
the ledger hears of it: the next batch in line is refused, a duplicate is not known any more, somebody is fenced whose
place nobody took.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_calls import request_body

from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import AbortTransactionError, ErrorCode
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
from simulation.kafka_wire import REQUEST_TIMEOUT_MS, RETRIED, Echo, NewerInstanceError, Party, Wire, code_of
from simulation.kept_producers import expiring_settings

IN_FLIGHT: Final = 5
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

_NO_EFFECT: Final = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT}
)
"""What is refused before anything is done."""
_MAYBE_DONE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""What is said, or seen, where something may have been done."""

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
        # Not before it has arrived: a partition that does not know the producer would begin with it (P3).
        self._echo.sent(ApiKey.PRODUCE, version, body, lambda: batch.was_answered)
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
            # is long gone: so with Kafka, whose clients then take another epoch.
            if not expiring_settings(self._party.world):
                self._party.wrong("P2", f"{place} is next in line, and refused with {code.name}")
        elif self._transactional_id is None:
            self._party.wrong("refused", f"{place}: {code.name}")
        self.refusal = code


async def ask(wire: Wire, key: ApiKey, read: Callable[[Any], ErrorCode], **values: Any) -> tuple[Any, ErrorCode, int]:
    """Ask until there is an answer that is not one to ask again after.

    Returns it, and how many requests before it may have had an effect, or may still have.
    """
    before = 0
    while True:
        try:
            answer = await wire.call(key, **values)
        except ConnectionLostError:
            before += 1
            await wire.party.pause()
            continue
        code = read(answer)
        if code not in RETRIED:
            return answer, code, before
        before += code not in _NO_EFFECT
        await wire.party.pause(0.1)


class IdempotentProducer:
    """Keeps the order of each partition without transactions. `worker` changes where the order can't be promised."""

    def __init__(self, party: Party, echo: Echo, acknowledged: Acknowledged, delivery_s: float) -> None:
        self._party = party
        self._wire = party.wire()
        self.sender = BatchSender(party, self._wire, echo, acknowledged, None, delivery_s)
        self.ids = 0

    async def begin(self) -> None:
        """Get a producer id of our own."""
        answer, code, _ = await ask(
            self._wire,
            ApiKey.INIT_PRODUCER_ID,
            lambda found: code_of(found.error_code),
            transactional_id=None,
            transaction_timeout=60_000,
            producer_id=self.sender.producer.producer_id,
            producer_epoch=self.sender.producer.producer_epoch,
        )
        if code is not ErrorCode.NONE:
            self._party.wrong("refused", f"InitProducerId without a transactional id: {code.name}")
        self.ids += 1
        self.sender.begin_epoch(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))

    async def settle(self) -> None:
        """Send everything, or give up what was sent and took too long."""
        await self.sender.settle()
        if self.sender.gave_up or self.sender.refusal is not None:
            self.sender.forget_all()
            if self._party.dialect.is_java:
                held = self.sender.producer
                self.sender.begin_epoch(ProducerIdAndEpoch(held.producer_id, held.producer_epoch + 1))
            else:
                await self.begin()

    def close(self) -> None:
        self._wire.close()


@dataclass(slots=True)
class Place:
    """What all lives of one transactional id have in common: whether anybody may have been fenced."""

    inits: int = 0
    unanswered: int = 0
    """How many requests of new instances got no answer: they may arrive yet, and take the place."""
    held: int = 0
    """How many instances got an epoch."""
    may_end_early: bool = False
    """An operator may have aborted a transaction of this id, or an old request may have begun one that nobody ends."""


class TransactionalProducer:
    """One instance of a transactional id. Its methods raise `AbortTransactionError` and `NewerInstanceError`."""

    def __init__(
        self, party: Party, place: Place, echo: Echo, acknowledged: Acknowledged, name: str, timeout_ms: int
    ) -> None:
        self._party = party
        self._place = place
        self._echo = echo
        self._name = name
        self._timeout_ms = timeout_ms
        self._wire = party.wire()
        self.sender = BatchSender(party, self._wire, echo, acknowledged, name, 8.0)
        self._number = 0
        """How many instances there were when it became one."""
        self._added: set[tuple[str, int]] = set()
        self._begun_at = 0.0
        self._needs_epoch = False
        self._sent_any = False
        self._answered: list[ErrorCode] = []
        """What each EndTxn was answered."""
        self._offsets_frame: tuple[int, bytes] | None = None
        """The version and the body of the last TxnOffsetCommit of this transaction."""
        self.repeats_offsets = True
        """Whether one may come once more while its transaction ends: only where nobody else moves the group then."""
        self.gives_up = 0.0
        """How often it does not wait for the answer to its offsets, and aborts."""
        self._late_offsets: asyncio.Future[bool] | None = None
        """One that is on its way; True once it has been answered."""

    @property
    def party(self) -> Party:
        return self._party

    @property
    def _held(self) -> dict[str, int]:
        held = self.sender.producer
        return {"producer_id": held.producer_id, "producer_epoch": held.producer_epoch}

    async def init(self) -> None:
        """Take the place of every earlier instance."""
        await self._init(NO_PRODUCER)

    async def _init(self, held: ProducerIdAndEpoch) -> None:
        is_new = held == NO_PRODUCER
        self._place.inits += is_new
        number = self._place.inits
        self._place.unanswered += is_new  # for as long as nobody was answered, who may have died
        answer, code, lost = await ask(
            self._wire,
            ApiKey.INIT_PRODUCER_ID,
            lambda found: code_of(found.error_code),
            transactional_id=self._name,
            transaction_timeout=self._timeout_ms,
            producer_id=held.producer_id,
            producer_epoch=held.producer_epoch,
        )
        if is_new:
            self._place.unanswered += lost - 1
            self._number = number
        if code is not ErrorCode.NONE:
            self._refused("InitProducerId", code)
        self.sender.begin_epoch(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
        self._place.held += 1
        if not self._party.dialect.is_newer:
            self._party.ledger.several_an_epoch.add(answer.producer_id)
        self._needs_epoch = False

    def begin(self) -> None:
        self._added.clear()
        self._sent_any = False
        self._offsets_frame = None
        self.sender.succeeded = 0
        self._begun_at = self._party.world.scheduler.now

    async def send(self, batches: Mapping[tuple[str, int], Sequence[Sequence[str]]]) -> None:
        """Write batches of values to partitions, and wait until all of them are acknowledged."""
        new = [place for place in batches if place not in self._added]
        if new and not self._party.dialect.is_newer:
            await self._add_partitions(new)
        self._sent_any = True
        for (topic, partition), values_of in batches.items():
            for values in values_of:
                self.sender.put(topic, partition, values)
        await self.sender.settle()
        if self.sender.refusal is not None:
            self._refused("Produce", self.sender.refusal)
        if self.sender.gave_up:
            raise AbortTransactionError("a batch was not delivered in time")

    async def _add_partitions(self, new: Sequence[tuple[str, int]]) -> None:
        held = self.sender.producer
        topics: dict[str, list[int]] = {}
        for topic, partition in new:
            topics.setdefault(topic, []).append(partition)
        values = {
            "v3_and_below_transactional_id": self._name,
            "v3_and_below_producer_id": held.producer_id,
            "v3_and_below_producer_epoch": held.producer_epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }
        self._sent_any = True
        if self._echoes(ApiKey.ADD_PARTITIONS_TO_TXN, values):
            self._place.may_end_early = True  # it may begin a transaction that nobody ends
        _, code, lost = await ask(self._wire, ApiKey.ADD_PARTITIONS_TO_TXN, _worst_of_partitions, **values)
        self._was_lost(lost)
        if code is not ErrorCode.NONE:
            self._refused("AddPartitionsToTxn", code)
        self._added.update(new)

    def _echoes(self, key: ApiKey, values: Mapping[str, Any], only_if: Callable[[], bool] | None = None) -> bool:
        version = self._party.dialect.versions[key]
        return self._echo.sent(key, version, (request_body(key, version, **values),), only_if)

    async def renew(self) -> None:
        """Take another epoch: nothing that was sent before takes effect any more."""
        await self._init(self.sender.producer)

    async def repeat_last(self) -> bool:
        """Let the last batch arrive once more. Returns whether it was refused for good.

        Where it was to be sent again, a log that does not know the producer waits for it before it takes a later one.
        """
        assert self.sender.last_frame is not None
        version, body = self.sender.last_frame
        answer = await self._echo.repeat(ApiKey.PRODUCE, version, b"".join(bytes(part) for part in body))
        return answer is not None and ProduceResponse.parse(answer, version).partitions[0].error not in RETRIED

    def _was_lost(self, lost: int) -> None:
        """A request without an answer may arrive in the next transaction, which has the same epoch in version 1.

        That is version 1's weakness (KIP-890): only another epoch protects the next transaction from it.
        """
        if lost and not self._party.dialect.is_newer:
            self._needs_epoch = True
            self._place.may_end_early = True

    async def send_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], generation: int, member: str
    ) -> int:
        """Add offsets of a group to the transaction. Returns how many requests before may still arrive, or have."""
        self._sent_any = True
        if not self._party.dialect.is_newer:
            _, code, lost = await ask(
                self._wire,
                ApiKey.ADD_OFFSETS_TO_TXN,
                lambda found: code_of(found.error_code),
                transactional_id=self._name,
                group_id=group,
                **self._held,
            )
            self._was_lost(lost)
            if code is not ErrorCode.NONE:
                self._refused("AddOffsetsToTxn", code)
        values = {
            "transactional_id": self._name,
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "topics": [
                {"name": topic, "partitions": [{"partition_index": number, "committed_offset": offset}]}
                for (topic, number), offset in offsets.items()
            ],
            **self._held,
        }
        # Not before the epoch has ended, and its transactions with it: then nothing may come of it (T8).
        producer = self.sender.producer
        self._echoes(ApiKey.TXN_OFFSET_COMMIT, values, lambda: self.sender.producer != producer)
        version = self._party.dialect.versions[ApiKey.TXN_OFFSET_COMMIT]
        frame = version, request_body(ApiKey.TXN_OFFSET_COMMIT, version, **values)
        if self._party.chance.random() < self.gives_up:
            self._late_offsets = asyncio.ensure_future(self._offsets_arrive(*frame, 0.0))
            await self._party.pause(self._party.chance.choice((0.01, 0.1)))
            raise AbortTransactionError("the program does not wait for its offsets")
        _, code, lost = await ask(self._wire, ApiKey.TXN_OFFSET_COMMIT, _worst_of_offsets, **values)
        self._was_lost(lost)
        if code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
            raise AbortTransactionError(f"the group has moved on: {code.name}")
        if code is not ErrorCode.NONE:
            self._refused("TxnOffsetCommit", code)
        self.sender.succeeded += 1
        self._offsets_frame = frame
        return lost

    def give_up(self) -> None:
        """Whatever is under way in the transaction is not waited for any more."""
        self.sender.gave_up = True
        self._was_lost(1)

    async def end(self, commit: bool, *, patience_ms: int | None = None) -> bool:
        """End the transaction; ask with the same request until there is an answer. Returns whether it committed.

        patience_ms: a program that waits no longer for its commit, and aborts then: it learns whether it was too late.

        Raises `NotCommittedError` where it can't have committed, and `NewerInstanceError` where nobody knows.
        """
        late, self._late_offsets = self._late_offsets, None
        if late is None and self.repeats_offsets and self._offsets_frame is not None and self._echo.draws():
            delay_s = self._party.chance.choice((0.01, 0.1, 0.5)) * self._party.chance.random()
            late = asyncio.ensure_future(self._offsets_arrive(*self._offsets_frame, delay_s))
        is_done = False
        try:
            committed = await self._end(commit, patience_ms)
            is_done = True
        finally:
            # In version 1 the next transaction has the same epoch, which would take it for its own: none begins before.
            if late is not None and not await late:
                self._was_lost(1)
        if is_done and self._needs_epoch:
            await self._init(self.sender.producer)
        return committed

    async def _offsets_arrive(self, version: int, frame: bytes, delay_s: float) -> bool:
        """Let offsets arrive while the transaction ends, or after it. Returns whether they are not on their way yet."""
        await asyncio.sleep(delay_s)
        return await self._echo.repeat(ApiKey.TXN_OFFSET_COMMIT, version, frame) is not None

    async def _end(self, commit: bool, patience_ms: int | None) -> bool:
        if not commit:
            self.sender.forget_all()
        dialect = self._party.dialect
        needs_epoch = self.sender.gave_up or self._needs_epoch
        if not self._sent_any:
            return commit
        if not commit and self._needs_epoch and not self.sender.gave_up and not dialect.is_java:
            # librdkafka: the next epoch aborts what is open; where a batch got no answer, it ends it by request.
            await self._init(self.sender.producer)
            return False
        values = {"transactional_id": self._name, "committed": commit, **self._held}
        held, asked = self._place.held, len(self._answered)
        # Not before the first has arrived. In version 1, the same request ends the next transaction of the epoch, too.
        self._echoes(
            ApiKey.END_TXN,
            values,
            (lambda: len(self._answered) > asked) if dialect.is_newer else (lambda: self._place.held > held),
        )
        regrets, answer, code, lost = False, None, ErrorCode.NETWORK_EXCEPTION, 0
        if commit and patience_ms is not None:
            try:
                answer = await self._wire.call(ApiKey.END_TXN, timeout_ms=patience_ms, **values)
                code = code_of(answer.error_code)
            except ConnectionLostError:
                regrets = True
                values["committed"] = commit = False
        if code in RETRIED:
            before = regrets or (answer is not None and code not in _NO_EFFECT)
            answer, code, lost = await ask(self._wire, ApiKey.END_TXN, _code_of_answer, **values)
            lost += before
        self._answered.append(code)
        self._was_lost(lost)
        if regrets and code is ErrorCode.INVALID_TXN_STATE:
            raise NewerInstanceError("it is too late to abort the commit")
        if regrets and code is ErrorCode.NONE and not dialect.is_newer and self._place.may_end_early:
            # In version 1 a late request may have begun another transaction of the same epoch: that was aborted then.
            raise NewerInstanceError("nobody knows which transaction was aborted")
        if code is not ErrorCode.NONE:
            try:
                self._refused(f"EndTxn ({'commit' if commit else 'abort'})", code)
            except AbortTransactionError:
                raise
            except NewerInstanceError:
                if lost:
                    raise
                raise NotCommittedError(code.name) from None
        if dialect.is_newer:
            self.sender.begin_epoch(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
            self._needs_epoch = False
        elif needs_epoch or self._needs_epoch:
            await self._init(self.sender.producer)
        return commit

    @property
    def may_have_been_ended(self) -> bool:
        """Whether somebody else may have ended the present transaction: its timeout, or who took its place."""
        world, place = self._party.world, self._place
        clocks = [node.clock for node in world.nodes.values()]
        # One node measures by its own clock, however wrong: but of several, each goes on by its own.
        off_ms = clocks[0].jumped_ms if len(clocks) == 1 else max(abs(clock.off_ms) for clock in clocks)
        age_ms = (world.scheduler.now - self._begun_at) * 1000 + off_ms
        is_replaced = place.inits > self._number or place.unanswered > 0
        return age_ms > self._timeout_ms * 0.8 or is_replaced or place.may_end_early

    def _refused(self, what: str, code: ErrorCode) -> None:
        """Raise what a client makes of a refusal, and say where nobody gave a reason for it."""
        world = self._party.world
        age_s = world.scheduler.now - self._begun_at
        if not self.may_have_been_ended:
            self._party.wrong(
                "refused",
                f"{what} of {self._name!r} {self.sender.producer}: {code.name}, after {age_s:.2f} s of "
                f"{self._timeout_ms} ms, and nobody took its place",
            )
        # librdkafka ends where a batch is refused for its epoch, too; Java's clients abort, and hear of it then.
        aborts = what == "Produce" and self._party.dialect.is_java
        if (code in _FENCED and not aborts) or code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            raise NewerInstanceError(f"{what}: {code.name}")
        if what.startswith(("EndTxn", "InitProducerId")):
            if code is ErrorCode.TRANSACTION_ABORTABLE:
                raise AbortTransactionError(f"{what}: {code.name}")
            raise NewerInstanceError(f"{what}: {code.name}")
        self._needs_epoch = True
        raise AbortTransactionError(f"{what}: {code.name}")

    def close(self) -> None:
        self._wire.close()


class NotCommittedError(NewerInstanceError):
    """Refused at the first time of asking: it has had no effect."""


def _code_of_answer(answer: Any) -> ErrorCode:
    return code_of(answer.error_code)


def _worst_of_partitions(answer: Any) -> ErrorCode:
    codes = [
        code_of(item.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for item in topic.results_by_partition
    ]
    return _worst(codes)


def _worst_of_offsets(answer: Any) -> ErrorCode:
    return _worst([code_of(item.error_code) for topic in answer.topics for item in topic.partitions])


def _worst(codes: Sequence[ErrorCode]) -> ErrorCode:
    """Return what decides: a refusal for good, then one to ask again after."""
    refused = [code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    for code in refused:
        if code not in RETRIED:
            return code
    return refused[0] if refused else ErrorCode.NONE
