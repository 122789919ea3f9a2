"""The topic `_schemas`: followed into memory, and written in transactions that one gateway at a time can commit.

Every gateway writes with the same transactional id. One that initializes it fences all others (T2), and ends what they
left open; so a gateway that still owns it knows that nobody has written since it read to the end, and that its decision
is made on all there is. A gateway that was fenced reads to the end and decides again. No lock, no election and no lease
is needed, and no clock is compared: the log itself refuses a gateway that decided on less than everything. Confluent's
registry elects a leader among its instances and forwards writes to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias

from semel import aio
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, FencedError, RetriableError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.randomness import source
from semel.sdk.producer.delivery import Delivery
from semel.web.gateway import Caller, Clients, Gateway
from semel.web.problems import Problem
from semel.web.registry.records import Encoded, Event, decode, encode

_log = logging.getLogger("semel.http.registry")

TOPIC: Final = "_schemas"
PARTITION: Final = TopicPartition(TOPIC, 0)
TRANSACTIONAL_ID: Final = "semel-schema-registry"
_POLL_S: Final = 0.25
_READ_S_MAX: Final = 30.0
_CHANGE_S_MAX: Final = 40.0
_PAUSE_S: Final = 0.01
_PAUSE_S_MAX: Final = 1.0
Decide: TypeAlias = Callable[[], Awaitable[Sequence[Event]]]
_RETRY_S: Final = 1.0
_TRANSACTION_MS: Final = 20_000
_API_MS: Final = 10_000


class Follower:
    """Reads the topic from its start on and applies each record. One that was made again is read from its own start."""

    def __init__(
        self,
        clients: Clients,
        replay: Callable[[Event], None],
        clear: Callable[[], None],
        topic_id: Callable[[], Awaitable[TopicId]],
    ) -> None:
        self._clients = clients
        self._replay = replay
        self._clear = clear
        self._id_of_topic = topic_id
        self._topic_id: TopicId | None = None
        self._turn = asyncio.Lock()
        self._applied = 0
        self._moved = asyncio.Condition()
        self._consumer: aio.Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[TopicId] | None = None

    async def check_topic(self) -> TopicId:
        """Read the topic that there is now, and return its id. What was read of one before it is forgotten."""
        async with self._turn:
            topic_id = await self._id_of_topic()
            if topic_id != self._topic_id:
                await self._begin_again()
                self._topic_id = topic_id
        return topic_id

    async def _begin_again(self) -> None:
        if self._topic_id is not None:
            _log.warning("the topic %s was deleted and made again: what was read of the old one is forgotten", TOPIC)
        self._topic_id = None  # also where this is cancelled in the middle: then it begins again
        await self._stop()
        async with self._moved:
            self._applied = 0
            self._clear()
            self._moved.notify_all()
        self._consumer = self._clients.consumer(isolation="read_committed", offset_reset="earliest")
        self._consumer.assign([PARTITION])
        self._task = asyncio.get_running_loop().create_task(self._follow(self._consumer), name="follow _schemas")

    async def wait_for(self, offset: int, topic_id: TopicId) -> None:
        """Wait until all before `offset` of a topic is applied.

        Raises `RetriableError` after a while, and where the topic was made again meanwhile.
        """
        try:
            async with asyncio.timeout(_READ_S_MAX), self._moved:
                await self._moved.wait_for(lambda: self._applied >= offset or self._topic_id != topic_id)
                if self._topic_id != topic_id:
                    raise RetriableError(f"{TOPIC} was deleted and made again", ErrorCode.UNKNOWN_TOPIC_ID)
        except TimeoutError:
            raise RetriableError(
                f"{TOPIC} was not read up to offset {offset} in {_READ_S_MAX:g} s", ErrorCode.REQUEST_TIMED_OUT
            ) from None

    async def read_to_end(self) -> TopicId:
        """Wait until all that is committed now is applied. Return the id of the topic."""
        topic_id = await self.check_topic()
        assert self._consumer is not None
        ends = await self._consumer.end_offsets([PARTITION])
        await self.wait_for(ends[PARTITION], topic_id)
        return topic_id

    async def refresh(self) -> None:
        """Read to the end, once for all who ask meanwhile."""
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.shield(self._refreshing)  # it may have begun before what is looked for was written
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self.read_to_end(), name="read _schemas")
        await asyncio.shield(self._refreshing)

    async def close(self) -> None:
        """Stop reading."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait((self._refreshing,))
        await self._stop()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            with suppress(SemelError):
                await consumer.close(1.0)

    async def _follow(self, consumer: aio.Consumer) -> None:
        while True:
            try:
                batch = await consumer.poll(_POLL_S)
            except SemelError as error:
                _log.warning("reading %s failed, and is tried again: %s", TOPIC, error)
                await asyncio.sleep(_RETRY_S)
                continue
            for record in batch or ():
                self._apply(record.offset, record.key, record.value, dict(record.headers or ()))
            position = consumer.position(PARTITION)
            if position is not None and position > self._applied:
                async with self._moved:
                    self._applied = position
                    self._moved.notify_all()

    def _apply(self, offset: int, key: bytes | None, value: bytes | None, headers: dict[str, bytes | None]) -> None:
        try:
            event = decode(key or b"", value, headers)
        except ValueError as error:
            _log.warning(
                "the record at offset %d of %s is passed over, because it can't be read: %s", offset, TOPIC, error
            )
            return
        if event is None:
            return
        try:
            self._replay(event)
        except Exception:  # what stops here would stop every gateway for good: the record stays in the topic
            _log.exception("the record at offset %d of %s is passed over, because it can't be applied", offset, TOPIC)


class SchemaLog:
    """Changes of the registry: decided on all there is, written in one transaction, and seen by reads that follow."""

    def __init__(self, gateway: Gateway, replay: Callable[[Event], None], clear: Callable[[], None]) -> None:
        """replay: applies a record; clear: forgets all records, where the topic is another one."""
        self._gateway = gateway
        self._follower = Follower(gateway.own, replay, clear, self._topic_id)
        self._written: TopicId | None = None
        self._checked: TopicId | None = None
        self._lock = asyncio.Lock()
        self._start_lock = asyncio.Lock()
        self._started = asyncio.Event()
        self._producer: aio.Producer | None = None
        self._owner = Caller()
        self._random: Random = source()
        self._ends: set[asyncio.Task[None]] = set()
        gateway.at_end(self.close)

    async def ready(self) -> None:
        """Have the topic read to the end, the first time; make it where it does not exist."""
        if self._started.is_set():
            return
        async with self._start_lock:
            if self._started.is_set():
                return
            await self._follower.read_to_end()
            self._started.set()

    async def refresh(self) -> None:
        """See what other gateways have written until now."""
        await self._follower.refresh()

    async def change(self, caller: Caller, decide: Decide) -> None:
        """Write what `decide` returns, in the name of a caller. Afterwards it is applied.

        decide: looks at the state, which is complete, and returns the records, or none; called again where another
                gateway has written meanwhile. What it raises is raised
        Raises `Problem` and `SemelError`.
        """
        await self.ready()
        async with self._lock:
            try:
                async with asyncio.timeout(_CHANGE_S_MAX):
                    await self._change(caller, decide)
            except TimeoutError:
                self._drop()
                raise Problem(
                    503,
                    f"{TOPIC} could not be written in {_CHANGE_S_MAX:g} s. Whether this took effect is not known: it "
                    "is safe to ask for it again",
                    error_code=50002,
                    retry_after_s=1,
                ) from None
            except BaseException:
                self._drop()
                raise

    async def _change(self, caller: Caller, decide: Decide) -> None:
        pause_s = _PAUSE_S
        while True:
            try:
                await self._own(caller)
                events = await decide()
                if events:
                    await self._write(events)
            except (AbortTransactionError, FencedError, RetriableError) as error:
                # What was written may have taken effect: the next attempt reads it, and decides on it.
                _log.info("a change of %s is decided again: %s", TOPIC, error)
                await self._give_up()
                await asyncio.sleep(self._random.uniform(0, pause_s))
                pause_s = min(pause_s * 2, _PAUSE_S_MAX)
            else:
                return

    async def close(self) -> None:
        """Stop reading and writing."""
        async with self._lock:
            await self._give_up()
        if self._ends:
            await asyncio.wait(self._ends)
        await self._follower.close()

    async def _own(self, caller: Caller) -> None:
        """Be the one who writes: fence all others, and know all that they have written."""
        if self._producer is not None and caller == self._owner:
            read = await self._follower.read_to_end()  # what it is to answer, another gateway may have changed
            if read == self._written:
                return
        await self._give_up()
        await self._follower.check_topic()  # which makes it where it is missing: a producer would wait for it
        self._producer = self._gateway.clients(caller).producer(
            transactional_id=TRANSACTIONAL_ID,
            linger_ms=0,
            transaction_timeout_ms=_TRANSACTION_MS,
            max_block_ms=_API_MS,
            delivery_timeout_ms=_API_MS,
            request_timeout_ms=_API_MS,
        )
        self._owner = caller
        await self._producer.init_transactions()
        self._written = await self._follower.read_to_end()

    async def _write(self, events: Sequence[Event]) -> None:
        assert self._producer is not None
        assert self._written is not None
        last = -1
        async with self._producer.transaction() as transaction:
            deliveries = [await self._send(transaction, encode(event)) for event in events]
            for delivery in deliveries:
                last = max(last, (await delivery).offset)
        await self._follower.wait_for(last + 1, self._written)

    async def _send(self, transaction: aio.Transaction, record: Encoded) -> Delivery:
        return await transaction.send(TOPIC, record.value, key=record.key, headers=record.headers, partition=0)

    async def _give_up(self) -> None:
        """Let the producer go. Its open transaction is aborted, here or by the gateway that initializes next."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await _closed(producer)

    def _drop(self) -> None:
        """Let the producer go, without waiting for it."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            task = asyncio.get_running_loop().create_task(_closed(producer), name="close a producer of _schemas")
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _topic_id(self) -> TopicId:
        """Return the id of the topic, which is made where there is none."""
        admin = self._gateway.own.admin()
        found = await self._found(admin)
        if found is None:
            try:
                await admin.create_topic(TOPIC, partitions=1, configs={"cleanup.policy": "compact"})
            except FatalError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            found = await self._found(admin)
        if found is None:
            raise RetriableError(f"{TOPIC} was made, and is not there yet", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if found != self._checked:
            await self._check_topic(admin)
            self._checked = found
        return found

    async def _found(self, admin: aio.Admin) -> TopicId | None:
        try:
            return (await admin.topic(TOPIC)).topic_id
        except FatalError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None

    async def _check_topic(self, admin: aio.Admin) -> None:
        topic = await admin.topic(TOPIC)
        policy = next(entry.value for entry in await admin.topic_configs(TOPIC, ["cleanup.policy"]))
        if len(topic.partitions) != 1 or policy != "compact":
            raise Problem(
                500,
                f"the topic {TOPIC} has {len(topic.partitions)} partitions and cleanup.policy={policy}: the registry "
                "needs one partition and compact",
                error_code=50001,
            )


async def _closed(producer: aio.Producer) -> None:
    with suppress(SemelError):
        await producer.close(1.0)
