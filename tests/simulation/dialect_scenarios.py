"""The simulated clients go through the scenarios that real ones are recorded in, in a quiet world, and are recorded.

What they send is told by the same `RequestStory`. `tests/support/clients/librdkafka_scenarios.py` has the same steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from unittest.mock import patch

from request_recorder import PARTITIONS, SCENARIOS, SOURCE, SOURCE_VALUES, TARGET, Fate, Interference, Loss, Streams
from request_story import RequestStory

import semel.aio
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import AbortTransactionError
from semel.protocol.ids import TopicPartition
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect
from simulation import kafka_wire
from simulation.kafka_batches import BatchSender
from simulation.kafka_consumers import Fetcher, fetching
from simulation.kafka_group_members import ClassicMember, Member, NewMember
from simulation.kafka_producers import IdempotentProducer, Place, TransactionalProducer
from simulation.kafka_wire import Dialect, Echo, NewerInstanceError, Party, learn_topic_ids
from simulation.ledger import Ledger
from simulation.world import World

PLACE: Final = TopicPartition(SOURCE, 0)
GROUP: Final = "readers"
_ID: Final = "transactor"
_IDLE_S: Final = 3.0
"""Long enough for some heartbeats."""
_DELIVERY_S: Final = 30.0
_SHORT_DELIVERY_S: Final = 1.0


def simulated(dialect: Dialect, scenario: str) -> tuple[Streams, Ledger]:
    """Return what a dialect sends in a scenario, and the ledger with whatever a client found wrong."""
    world, ledger, story = World(1), Ledger(), RequestStory()
    world.network.weather.slow_share = 0.0
    try:
        node = world.add_node()
        node.start()
        assert world.run_until(lambda: node.is_up, 60.0)
        world.do(_prepare(world), world.client("admin"))
        steps = _Steps(world, ledger, dialect)
        with _tapped(story, SCENARIOS[scenario]):
            world.do(_STEPS[scenario](steps), world.client("client"))
            world.run_until(lambda: False, 0.1)  # what was sent last arrives
        assert not world.scheduler.errors, world.scheduler.errors
    finally:
        world.close()
    return story.streams(), ledger


async def _prepare(world: World) -> None:
    async with semel.aio.Admin(world.address("admin")) as admin:
        for topic, partitions in PARTITIONS.items():
            await admin.create_topic(topic, partitions=partitions)
    async with semel.aio.Producer(world.address("admin")) as producer:
        for value in SOURCE_VALUES:
            await (await producer.send(SOURCE, value))


@contextmanager
def _tapped(story: RequestStory, loss: Loss | None) -> Iterator[None]:
    """Tell of what the simulated clients send, and lose what the scenario says."""
    interference = Interference(loss)

    async def connect_tapped(*args: Any, client_id: str, **options: Any) -> Connection:
        connection = await connect(*args, client_id=client_id, **options)
        _Tap(story, interference, connection, client_id)
        return connection

    with patch.object(kafka_wire, "connect", connect_tapped):
        yield


class _Tap:
    """Stands between one client and its connection, as the recorder's proxy does."""

    def __init__(self, story: RequestStory, interference: Interference, connection: Connection, client_id: str) -> None:
        self._story = story
        self._interference = interference
        self._connection = connection
        self._client_id = client_id
        self._request = connection.request
        self._in_flight = 0
        """How many requests wait whose answers take long in this scenario."""
        connection.request = self.request  # type: ignore[assignment, method-assign]

    def request(
        self, key: int, version: int, body: Sequence[Any], *, timeout_ms: float, **options: Any
    ) -> asyncio.Future[memoryview]:
        loop = asyncio.get_running_loop()
        fate = self._interference.fate(key)
        delay_s = self._interference.delay_s(key)
        frame = b"".join(bytes(part) for part in body)
        asked = self._story.asked(self._client_id, key, version, frame, self._in_flight if delay_s else None)
        self._in_flight += bool(delay_s)
        answer: asyncio.Future[memoryview] = loop.create_future()
        if fate is Fate.SWALLOW:
            loop.call_later(timeout_ms / 1000, _fail, answer)
            return answer
        sent = self._request(key, version, body, timeout_ms=timeout_ms, **options)

        def arrived(done: asyncio.Future[memoryview]) -> None:
            if answer.done():
                return
            if done.exception() is not None:
                answer.set_exception(_lost())
            elif fate is not Fate.WITHHOLD:
                self._story.answered(asked, bytes(done.result()))
                answer.set_result(done.result())
            elif not self._interference.due.is_set():
                loop.call_later(0.01, arrived, done)
            else:
                answer.set_exception(_lost())
                self._connection.close()

        def answered(done: asyncio.Future[memoryview]) -> None:
            self._in_flight -= bool(delay_s)
            arrived(done)

        sent.add_done_callback(lambda done: loop.call_later(delay_s, answered, done))
        return answer


def _fail(answer: asyncio.Future[memoryview]) -> None:
    if not answer.done():
        answer.set_exception(_lost())


def _lost() -> ConnectionLostError:
    return ConnectionLostError("lost, as the scenario says")


class _Steps:
    """Makes the clients of one scenario."""

    def __init__(self, world: World, ledger: Ledger, dialect: Dialect) -> None:
        self._world = world
        self._ledger = ledger
        self._dialect = dialect
        self._place = Place(may_end_early=True)  # a refusal is part of the scenario

    def party(self, name: str) -> Party:
        return Party(self._world, self._ledger, name, "client", random.Random(name), self._dialect)

    async def idempotent_producer(self) -> IdempotentProducer:
        party = self.party("producer-1")
        made = IdempotentProducer(party, Echo(party, 0.0), lambda *_: None, _DELIVERY_S)
        await made.begin()
        return made

    async def producer(self, number: int = 1, delivery_s: float = _DELIVERY_S) -> TransactionalProducer:
        party = self.party(f"producer-{number}")
        echo, place = Echo(party, 0.0), self._place
        made = TransactionalProducer(party, place, echo, lambda *_: None, _ID, 60_000)
        made.sender = BatchSender(party, made._wire, echo, lambda *_: None, _ID, delivery_s)
        await made.init()
        return made

    async def member(self, number: int, kind: type[Member]) -> tuple[Member, Fetcher]:
        """Return a member that has joined, with what reads its partitions from where they are committed."""
        party = self.party(f"consumer-{number}")
        ids = await learn_topic_ids(party.wire(), SOURCE)
        member = kind(party, GROUP, {SOURCE: (ids[SOURCE], 1)})
        fetcher = fetching(party, ids, IsolationLevel.READ_COMMITTED)
        assert isinstance(fetcher, Fetcher)
        while not member.assigned:
            await member.poll()
        fetcher.positions = await member.committed() or {}
        return member, fetcher


async def _take(fetcher: Fetcher) -> list[str]:
    """Read what the source has, and ask for more once, as real clients do ahead of time."""
    values: list[str] = []
    while len(values) < len(SOURCE_VALUES):
        for found in (await fetcher.poll()).values():
            values += [value for _, value in found]
    assert await fetcher.poll() == {}
    return values


async def _idle(member: Member, fetcher: Fetcher) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _IDLE_S
    while loop.time() < until:
        await member.poll()
        assert await fetcher.poll() == {}


async def _send(producer: TransactionalProducer, *values: str, partition: int = 0) -> None:
    await producer.send({(TARGET, partition): [values]})


async def _send_plainly(producer: IdempotentProducer, *batches: Sequence[str], partition: int = 0) -> None:
    for values in batches:
        producer.sender.put(TARGET, partition, values)
    await producer.settle()


async def _transact(producer: TransactionalProducer, *values: str) -> None:
    producer.begin()
    await _send(producer, *values)
    await producer.end(True)


async def _idempotent(steps: _Steps) -> None:
    producer = await steps.idempotent_producer()
    await _send_plainly(producer, ["a"])
    await _send_plainly(producer, ["b"])
    await _send_plainly(producer, ["c", "d", "e"])
    await _send_plainly(producer, ["f"], partition=1)
    producer.close()


async def _lost_pipeline(steps: _Steps) -> None:
    producer = await steps.idempotent_producer()
    await _send_plainly(producer, ["a"])
    await _send_plainly(producer, ["b"], ["c"], ["d"])
    producer.close()


async def _transaction(steps: _Steps) -> None:
    producer = await steps.producer()
    producer.begin()
    await _send(producer, "a", "b")
    await _send(producer, "c", partition=1)
    await producer.end(True)
    producer.begin()
    await _send(producer, "d")
    await producer.end(False)
    producer.begin()
    await producer.end(True)
    await _transact(producer, "e")
    producer.close()


async def _transform(steps: _Steps) -> None:
    member, fetcher = await steps.member(1, ClassicMember)
    producer = await steps.producer()
    values = await _take(fetcher)
    producer.begin()
    await _send(producer, *values)
    await _send_offsets(producer, 3, member)
    await producer.end(True)
    producer.begin()
    await _send_offsets(producer, 2, member)
    await producer.end(False)
    await _idle(member, fetcher)
    await _leave(member, fetcher)
    producer.close()


async def _send_offsets(producer: TransactionalProducer, offset: int, member: Member) -> None:
    await producer.send_offsets(GROUP, {(SOURCE, 0): offset}, member.generation, member.member_id)


async def _leave(member: Member, fetcher: Fetcher) -> None:
    await fetcher.end()
    await member.leave()
    member.close()


def _group(kind: type[Member]) -> Callable[[_Steps], Coroutine[Any, Any, None]]:
    async def go(steps: _Steps) -> None:
        member, fetcher = await steps.member(1, kind)
        await _take(fetcher)
        await member.commit({PLACE: 3}, fetcher.read_epochs)
        await _idle(member, fetcher)
        await _leave(member, fetcher)
        member, fetcher = await steps.member(2, kind)
        await _idle(member, fetcher)
        await _leave(member, fetcher)

    return go


async def _fenced_end(steps: _Steps) -> None:
    first = await steps.producer(1)
    first.begin()
    await _send(first, "a")
    second = await steps.producer(2)
    second.begin()
    await _send(second, "b")
    with suppress(NewerInstanceError):
        await first.end(True)
    await second.end(True)


async def _fenced_produce(steps: _Steps) -> None:
    first = await steps.producer(1)
    first.begin()
    await _send(first, "a")
    second = await steps.producer(2)
    with suppress(NewerInstanceError):
        try:
            await _send(first, "b")
        except AbortTransactionError:
            await first.end(False)
    await _transact(second, "c")


async def _two_transactions(steps: _Steps) -> None:
    producer = await steps.producer()
    await _transact(producer, "a")
    await _transact(producer, "b")


async def _lost_produce(steps: _Steps) -> None:
    producer = await steps.producer()
    producer.begin()
    for value in ("a", "b", "c"):
        await _send(producer, value)
    await producer.end(True)


async def _lost_offsets(steps: _Steps) -> None:
    producer = await steps.producer()
    producer.begin()
    await producer.send_offsets(GROUP, {(SOURCE, 0): 2}, -1, "")
    await producer.end(True)
    await _transact(producer, "a")


async def _given_up(steps: _Steps) -> None:
    producer = await steps.producer(delivery_s=_SHORT_DELIVERY_S)
    producer.begin()
    await _send(producer, "a")
    try:
        await _send(producer, "b")
    except AbortTransactionError:
        await producer.end(False)
    await _transact(producer, "c")


_STEPS: Final[Mapping[str, Callable[[_Steps], Coroutine[Any, Any, None]]]] = {
    "idempotent": _idempotent,
    "transaction": _transaction,
    "transform": _transform,
    "classic-group": _group(ClassicMember),
    "new-group": _group(NewMember),
    "fenced-end": _fenced_end,
    "fenced-produce": _fenced_produce,
    "lost-produce": _lost_produce,
    "lost-pipeline": _lost_pipeline,
    "lost-add-partitions": _two_transactions,
    "lost-add-offsets": _lost_offsets,
    "lost-offset-commit": _lost_offsets,
    "lost-end": _two_transactions,
    "given-up": _given_up,
}
