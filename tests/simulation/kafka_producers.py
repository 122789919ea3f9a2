"""Producers as Kafka's clients are, on the wire: idempotent ones, and transactional ones of both versions.

The ledger hears of it when somebody is fenced, or refused, whose place nobody took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_calls import request_body

from semel.protocol.errors import AbortTransactionError, ErrorCode
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.produce import ProduceResponse
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_batches import Acknowledged, BatchSender
from simulation.kafka_wire import RETRIED, Echo, NewerInstanceError, Party, Wire, code_of

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_NOT_IN_TRANSACTION: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""What a batch is refused with whose partition was not added: by its version."""

_NO_EFFECT: Final = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT}
)
"""What is refused before anything is done."""
REMADE_S: Final = 5.0
"""By then every node knows that a topic was made again."""


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
        self.remade_at = -REMADE_S
        """When a topic was made again that it writes to."""

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
            if self.sender.refusal in _NOT_IN_TRANSACTION and self._knows_former_topic:
                self._needs_epoch = True
                raise AbortTransactionError("the coordinator has added the topic of this name that was deleted (R8)")
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

    @property
    def _knows_former_topic(self) -> bool:
        """Whether the coordinator may not know yet that a topic was made again: version 1 adds it by its name."""
        return not self._party.dialect.is_newer and self._party.world.scheduler.now - self.remade_at < REMADE_S

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
        # One node measures by its own clock, however wrong: of several, each takes its own.
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
