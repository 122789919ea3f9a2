"""A lane: one transactional id, under which the requests of some of a user's keys are done, one after the other.

A key has one lane on every gateway, and a transactional id has one live producer: a gateway that takes over a lane
fences the gateway that had it, ends what that had open, and reads the answers of the lane before its first own
transaction. So between "this key has no answer yet" and the commit of its answer nobody else can have committed it:
that would have taken the lane, and this commit would be refused (T5, T6). The key is the commit's token besides (T13).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from semel.aio import Producer
from semel.protocol.api.group_offsets import GroupMetadata
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.web.problems import Problem
from semel.web.rest.background import Background, close_quietly
from semel.web.rest.bounds import LET_OTHERS_END_S, TRANSACTION_TIMEOUT_MS
from semel.web.rest.once.answers import TOPIC, Answer, Answers, topic_may_be_gone

if TYPE_CHECKING:
    from semel.web.gateway import Caller, Gateway
    from semel.web.rest.once.keys import RequestKey
    from semel.web.rest.once.work import Work

_PATIENCE_MS: Final = 8_000
_LOOK_AGAIN_S: Final = 0.02


class Lane:
    """The producer of one lane, made when it is needed. Its owner sees to it that one request at a time is in here."""

    def __init__(self, gateway: Gateway, caller: Caller, number: int, answers: Answers, background: Background) -> None:
        self._gateway = gateway
        self._caller = caller
        self._number = number
        self._answers = answers
        self._background = background
        self._producer: Producer | None = None
        self.transactional_id = f"semel-rest/{caller.user}/{number}"

    async def attempt(self, key: RequestKey, fingerprint: str, work: Work) -> Answer:
        """Do the work, unless its key has an answer; return the answer.

        Raises `Problem` 409 for a key whose answer is not kept any more, and `SemelError`: after a `FencedError` or a
        `RetriableError` the next attempt finds out what became of this one.
        """
        producer = await self._own()
        found = await self._answers.find(self._number, key.digest)
        if found is not None:
            return found
        await self._answers.check_room()
        await self._check_offsets(work)
        is_over = False
        try:
            answer, offset = await self._transact(producer, key, fingerprint, work)
            is_over = True
        finally:
            if not is_over:
                await self._end(producer)
        if answer is None:
            raise Problem(
                409,
                "a request with this key took effect before, and its answer is not kept any more: use another key for "
                "another request",
                error_code=409,
            )
        await self._answers.written(self._number, key.digest, offset)
        return answer

    async def _check_offsets(self, work: Work) -> None:
        """Raise `FatalError` where a partition of the offsets is not there: the group's node would be asked in vain."""
        admin = self._gateway.clients(self._caller).admin()
        for topic in sorted({partition.topic for partition in work.offsets}):
            count = len((await admin.topic(topic)).partitions)
            wrong = [
                partition for partition in work.offsets if partition.topic == topic and partition.partition >= count
            ]
            if wrong:
                raise FatalError(
                    f"offsets name {wrong[0]}, and the partitions of this topic are 0 to {count - 1}",
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )

    async def _transact(
        self, producer: Producer, key: RequestKey, fingerprint: str, work: Work
    ) -> tuple[Answer | None, int]:
        """Run one transaction. Returns its answer, None where the key was committed before, and the answer's offset."""
        await producer.begin_transaction()
        if work.offsets:  # first: while others hold the group open, no record of this transaction is in anybody's way
            await producer.send_offsets(work.offsets, GroupMetadata(work.group), expected_offsets=work.expected)
        deliveries = [
            await producer.send(
                record.topic,
                record.value.data,
                key=record.key.data,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in work.records
        ]
        answer = Answer(fingerprint, 200, work.told([await delivery for delivery in deliveries]))
        try:
            with topic_may_be_gone():
                written = await producer.send(TOPIC, answer.encoded(), key=key.digest, partition=self._number)
                offset = (await written).offset
        except (FatalError, RetriableError):
            self.drop()  # the next one to use the lane creates a topic that was deleted
            raise
        is_new = await producer.commit_transaction(token=key.text)
        return (answer if is_new else None), offset

    async def _own(self) -> Producer:
        """Return this lane's producer; a new one fences the one before it, and knows all of its answers."""
        if self._producer is not None:
            return self._producer
        producer = self._gateway.clients(self._caller).producer(
            transactional_id=self.transactional_id,
            linger_ms=0,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_block_ms=_PATIENCE_MS,
            delivery_timeout_ms=_PATIENCE_MS,
            request_timeout_ms=_PATIENCE_MS,
        )
        is_ready = False
        try:
            await self._let_others_end()
            await producer.init_transactions()
            await self._answers.catch_up(self._number)
            is_ready = True
        finally:
            if not is_ready:
                self._background.start(close_quietly(producer))
        self._producer = producer
        return producer

    async def _let_others_end(self) -> None:
        """Wait a while where another gateway has a transaction of this lane open: to fence it would undo its work."""
        admin = self._gateway.clients(self._caller).admin()
        with suppress(SemelError, TimeoutError):
            async with asyncio.timeout(LET_OTHERS_END_S):
                while (await admin.transaction(self.transactional_id)).state == "Ongoing":  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_AGAIN_S)

    async def _end(self, producer: Producer) -> None:
        """Abort what failed. Where that is not confirmed, the next attempt has a new producer, which settles it."""
        try:
            async with asyncio.timeout(_PATIENCE_MS / 1000):
                await producer.abort_transaction()
        except (SemelError, TimeoutError):
            self.drop()
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Let the producer go. The next gateway to use the lane begins with one of its own."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            self._background.start(close_quietly(producer))

    async def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await close_quietly(producer)
