"""Programs that speak Kafka's protocol, in the versions of librdkafka and of Java's clients, in the cast of a world."""

from __future__ import annotations

import asyncio
from typing import Final

from history import Outcome, Read, Send

import semel.aio
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from simulation.actors import INPUT, OUTPUT, Actor
from simulation.kafka_consumers import ClusterFetcher, Fetcher, Values, fetching
from simulation.kafka_group_members import ClassicMember, Member, NewMember
from simulation.kafka_producers import IdempotentProducer, NotCommittedError, Place, TransactionalProducer
from simulation.kafka_wire import DIALECTS, Echo, Party, learn_topic_ids
from simulation.ledger import Ledger
from simulation.world import World

GIVES_UP: Final = (0.0, 0.0, 0.2)
"""How many transactions abort while their batches or offsets are on their way, of one program: these may be verified
while the marker comes (T8).
"""
LINGERS: Final = 0.04
LINGER_S: Final = 12.0
"""How many transformers stop for a while before they commit, and how long at most: meanwhile the group may give their
partitions to another, who has to wait for what becomes of the transaction (O2).
"""
_OPERATOR_TIMEOUT_MS: Final = 2_000
_GUARD_S: Final = 2.0
_LITTLE_BYTES: Final = 200


class KafkaActor(Actor):
    """A program whose lives are the same client in the same version, but for an upgrade or downgrade in between."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self.partitions = partitions
        self.think_s = think_s
        self.dialect = self.chance.choice(DIALECTS)
        self.repeats = self.chance.choice((0.0, 0.2))
        """How many of its frames arrive again, later."""

    def party(self, worker: str) -> Party:
        if self.lives > 1 and self.chance.random() < 0.3:
            self.dialect = self.chance.choice(DIALECTS)
        return Party(self.world, self.ledger, worker, self.name, self.chance, self.dialect)

    def acknowledged(self, topic: str, partition: int, offset: int, value: str) -> None:
        if offset >= 0:
            self.ledger.acknowledged.append((topic, partition, offset, value))


class KafkaFeeder(KafkaActor):
    """Sends values with an idempotent producer, up to five requests at once."""

    @property
    def is_at_rest(self) -> bool:
        return self.is_done and not self.has_older_lives  # without transactions nobody fences an older one

    def __init__(
        self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float, topic: str = INPUT
    ) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self._topic = topic
        self._count = 0
        self._numbers: dict[str, int] = {}

    def acknowledged(self, topic: str, partition: int, offset: int, value: str) -> None:
        super().acknowledged(topic, partition, offset, value)
        self.ledger.settle(self._numbers[value], Outcome.COMMITTED)

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        delivery_s = self.chance.choice((3.0, 30.0))
        producer = IdempotentProducer(party, Echo(party, self.repeats), self.acknowledged, delivery_s)
        await producer.begin()
        while not self.is_stopping:
            for _ in range(self.chance.randint(1, 8)):
                partition = self.chance.randrange(self.partitions)
                producer.sender.put(
                    self._topic,
                    partition,
                    [self._next(f"{worker}/{producer.ids}", partition) for _ in range(self.chance.randint(1, 3))],
                )
            await producer.settle()
            await self.think(self.think_s)
        producer.close()

    def _next(self, worker: str, partition: int) -> str:
        self._count += 1
        value = f"{worker}-{self._count}"
        self._numbers[value] = self.ledger.intend(worker, Send(self._topic, partition, value))
        return value


class Transacting(KafkaActor):
    """What programs with a transactional producer have in common."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self._place = Place()
        self.pause_s = self.chance.choice((0.05, 0.05, 1.5))
        """How long a transaction is thought about, at most: some come near to their timeout."""
        self.gives_up = self.chance.choice(GIVES_UP)
        self._count = 0

    def transaction_aborted_by_operator(self) -> None:
        self._place.may_end_early = True

    async def producer(self, party: Party) -> TransactionalProducer:
        timeout_ms = self.chance.choice((1_500, 5_000, 10_000))
        producer = TransactionalProducer(
            party, self._place, Echo(party, self.repeats), self.acknowledged, self.name, timeout_ms
        )
        producer.gives_up = self.gives_up
        await producer.init()
        return producer

    async def ended(
        self, producer: TransactionalProducer, number: int, commit: bool, *, patience_ms: int | None = None
    ) -> bool:
        """End the transaction, and write down what became of it; return whether it committed."""
        try:
            commit = await producer.end(commit, patience_ms=patience_ms)
        except NotCommittedError:
            self.ledger.settle(number, Outcome.ABORTED)
            raise
        except AbortTransactionError:
            await producer.end(False)
            commit = False
        self.ledger.settle(number, Outcome.COMMITTED if commit else Outcome.ABORTED)
        return commit


class KafkaWriter(Transacting):
    """Writes transactions of its own, and commits or aborts them."""

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        producer = await self.producer(party)
        while not self.is_stopping:
            await self._transact(worker, producer)
            await self.think(self.think_s)
        producer.close()

    async def _transact(self, worker: str, producer: TransactionalProducer) -> None:
        self._count += 1
        sends = [
            Send(OUTPUT, self.chance.randrange(self.partitions), f"{worker}-{self._count}.{item}")
            for item in range(self.chance.randint(1, 5))
        ]
        number = self.ledger.intend(worker, *sends)
        producer.begin()
        hurry_s = self.chance.choice((0.01, 0.1)) if self.chance.random() < self.gives_up else None
        try:
            async with asyncio.timeout(hurry_s):
                for part in (sends[:2], sends[2:]):
                    if part:
                        await producer.send(batched(part))
                        await self.think(self.pause_s)
        except TimeoutError:
            producer.give_up()
            await self.ended(producer, number, False)
            return
        except AbortTransactionError as error:
            self.world.told(f"{worker} aborts: {error.message}")
            await self.ended(producer, number, False)
            return
        patience_ms = self.chance.choice((3, 30, 300)) if self.chance.random() < 0.15 else None
        await self.ended(producer, number, self.chance.random() > 0.25, patience_ms=patience_ms)


class KafkaRemaker(Transacting):
    """Writes transactions of version 1 into topics of its own, which an operator deletes and makes again.

    What it wrote before arrives once more afterwards, at a log that knows nothing of it. Nobody reads these topics.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self.dialect = self.chance.choice([one for one in DIALECTS if not one.is_newer])
        self.repeats = 0.0
        self._topics = 0
        self._topic = ""

    def acknowledged(self, topic: str, partition: int, offset: int, value: str) -> None:
        """Where a value was depends on the topic's life."""

    async def live(self, worker: str) -> None:
        party = Party(self.world, self.ledger, worker, self.name, self.chance, self.dialect)
        async with semel.aio.Admin(
            self.bootstrap, request_timeout_ms=_OPERATOR_TIMEOUT_MS, api_timeout_ms=10_000
        ) as admin:
            seen = self.world.database.failed_over  # before anything is made that a fail-over could take back
            topic = await self._another(admin)
            producer = await self.producer(party)
            guard = asyncio.create_task(self._guard(admin, seen))
            try:
                while not self.is_stopping:
                    self._topic = topic
                    is_settled = await self._transact(producer, topic)
                    self._topic = ""
                    if is_settled and not producer.sender.was_repeated:
                        topic = await self._remade(admin, producer, topic)
                    await self.think(self.think_s / 2)
            finally:
                guard.cancel()
                producer.close()

    async def _guard(self, admin: semel.aio.Admin, seen: int) -> None:
        """Make the topic that is written to once more, where the database has lost it. seen: earlier fail-overs"""
        while True:
            await asyncio.sleep(_GUARD_S)
            if self.world.database.failed_over > seen and self._topic:
                self._place.may_end_early = True  # what it has open may have written to the topic that was lost (R8)
                await self._make(admin, self._topic)

    async def _another(self, admin: semel.aio.Admin) -> str:
        self._topics += 1
        topic = f"again-{self._topics}"
        await self._make(admin, topic)
        return topic

    async def _make(self, admin: semel.aio.Admin, topic: str) -> None:
        while True:
            try:
                await admin.create_topic(topic, partitions=1)
            except RetriableError:
                await self.think(0.5)
            except FatalError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                return
            else:
                return

    async def _transact(self, producer: TransactionalProducer, topic: str) -> bool:
        """Write one transaction; return whether nothing of it can be on its way any more."""
        self._count += 1
        producer.begin()
        try:
            await producer.send({(topic, 0): [[f"{self._count}.{item}"] for item in range(self.chance.randint(1, 3))]})
        except AbortTransactionError:
            await producer.end(False)
            return False
        held = producer.sender.producer
        await producer.end(self.chance.random() > 0.2)
        return producer.sender.producer == held  # another epoch is taken where an answer was lost

    async def _remade(self, admin: semel.aio.Admin, producer: TransactionalProducer, topic: str) -> str:
        """Delete the topic, make it again, and let the last frame arrive once more; return where to write then."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.ledger.deleted.add(topic)
        try:
            await admin.delete_topic(topic)
        except SemelError:
            is_done = False
        else:
            is_done = loop.time() - begun < _OPERATOR_TIMEOUT_MS / 1000
        if not is_done:
            return await self._another(admin)  # an attempt may be on its way yet: it would delete what is made again
        await self._make(admin, topic)
        producer.remade_at = self.world.scheduler.now
        if producer.sender.last_frame is not None and not await producer.repeat_last():
            await producer.renew()
        return topic


class KafkaTransformer(Transacting):
    """Consume, transform, produce: a member of a classic group, whose offsets are in its transactions (KIP-447)."""

    group = "transformers"

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        ids = await learn_topic_ids(party.wire(), INPUT)
        producer = await self.producer(party)
        member = ClassicMember(party, self.group, {INPUT: (ids[INPUT], self.partitions)})
        # There are no transactions in its input, so that both levels are to give it the same.
        fetcher = fetching(party, ids, self.chance.choice(list(IsolationLevel)))
        await self._work(worker, producer, member, fetcher)
        await member.leave()
        await fetcher.end()
        for one in (producer, member):
            one.close()

    async def _work(
        self, worker: str, producer: TransactionalProducer, member: ClassicMember, fetcher: Fetcher | ClusterFetcher
    ) -> None:
        knows_positions, takes_little = False, False
        while not self.is_stopping:
            if await member.poll() or not knows_positions:
                fetcher.positions = await member.committed() or {}
                knows_positions = True
            max_bytes = self.chance.choice((_LITTLE_BYTES, 1 << 20))
            # All that has come meanwhile may be too much for the transaction's timeout, again and again.
            found = await fetcher.poll(_LITTLE_BYTES if takes_little else max_bytes)
            if found:
                knows_positions = await self._transform(worker, producer, member, fetcher, found)
                takes_little = not knows_positions
            elif not member.assigned:
                await self.think(1.0)

    async def _transform(
        self,
        worker: str,
        producer: TransactionalProducer,
        member: ClassicMember,
        fetcher: Fetcher | ClusterFetcher,
        found: dict[TopicPartition, Values],
    ) -> bool:
        sends = []
        for tp, values in found.items():
            for offset, _ in values:
                self._count += 1
                place = (tp.partition + offset) % self.partitions
                value = f"{tp.partition}@{offset}/{worker}/{self._count}"
                sends.append(Send(OUTPUT, place, value, (INPUT, tp.partition, offset)))
        number = self.ledger.intend(worker, *sends)
        generation, member_id = member.generation, member.member_id
        offsets = {(tp.topic, tp.partition): fetcher.positions[tp] for tp in found}
        producer.begin()
        try:
            await producer.send(batched(sends))
            await producer.send_offsets(self.group, offsets, generation, member_id)
        except AbortTransactionError as error:
            self.world.told(f"{worker} aborts: {error.message}")
            await self.ended(producer, number, False)
            return False
        if self.chance.random() < LINGERS:
            await self.think(LINGER_S)
        return await self.ended(producer, number, self.chance.random() > 0.05)


class KafkaReader(KafkaActor):
    """Reads the output read_committed, or the input, which has no transactions, without: all of it, or as a member of a
    group of either kind.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self.acknowledged_offsets: dict[TopicPartition, int | None] = {}
        self.kind: type[Member] | None = self.chance.choice((None, ClassicMember, NewMember))
        self.topic, self.isolation = self.chance.choice(
            ((OUTPUT, IsolationLevel.READ_COMMITTED), (INPUT, IsolationLevel.READ_UNCOMMITTED))
        )

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        ids = await learn_topic_ids(party.wire(), self.topic)
        fetcher = fetching(party, ids, self.isolation)
        member = None
        if self.kind is not None and self.lives > 1 and self.chance.random() < 0.3:
            self.kind = self.chance.choice((ClassicMember, NewMember))  # a group moves on to the new protocol, or back
        if self.kind is not None:
            topics = {self.topic: (ids[self.topic], self.partitions)}
            member = self.kind(party, "kafka-readers", topics, self.acknowledged_offsets)
        else:
            fetcher.positions = {TopicPartition(self.topic, number): 0 for number in range(self.partitions)}
        runs: dict[TopicPartition, Values] = {}
        while not self.is_stopping:
            if member is not None and await member.poll():
                runs.clear()
                fetcher.positions = (await member.committed() or {}) if member.assigned else {}
            found = await fetcher.poll(self.chance.choice((_LITTLE_BYTES, 1 << 20)))
            for tp, values in found.items():
                if tp not in runs:
                    runs[tp] = []
                    self.ledger.reads.append(Read(worker, tp.topic, tp.partition, runs[tp]))  # type: ignore[arg-type]
                runs[tp] += values
            if member is not None and found and self.chance.random() < 0.5:
                await member.commit({tp: fetcher.positions[tp] for tp in found}, fetcher.read_epochs)
        if member is not None:
            await member.leave()
            member.close()
        await fetcher.end()


def batched(sends: list[Send]) -> dict[tuple[str, int], list[list[str]]]:
    """Return the values of each partition in batches of two."""
    places: dict[tuple[str, int], list[list[str]]] = {}
    for send in sends:
        batches = places.setdefault((send.topic, send.partition), [[]])
        if len(batches[-1]) == 2:
            batches.append([])
        batches[-1].append(send.value)
    return places
