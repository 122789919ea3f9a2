"""Programs of the SDK that feed the input, and that make the output of it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, ClassVar

from history import Outcome, Read, Send

import semel
import semel.aio
from semel.protocol.errors import (
    AbortTransactionError,
    RetriableError,
    SemelError,
)
from simulation.actors import INPUT, OUTPUT, Actor
from simulation.ledger import Ledger

if TYPE_CHECKING:
    from simulation.world import World

SESSION_MS = 6_000
EARLY_LEAVER_SHARE = 0.5
"""How many programs leave their group now and then before they commit: who gets their partitions has to wait (O2)."""
LEFT_OPEN_S = 3.0
"""How long their transactions stay open after that, at most."""


HURRIED_SHARE = 0.4
"""How many feeders give up a delivery after a second or three: what they are told then must be true, too."""


class Feeder(Actor):
    """Sends values with an idempotent producer, and writes down which were acknowledged, and which were not written."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._partitions = partitions
        self._think_s = think_s
        self._count = 0
        own = random.Random(f"hurry of {name} of {world.seed}")
        self._delivery_timeout_ms = own.choice((1_000, 3_000)) if own.random() < HURRIED_SHARE else 20_000

    async def live(self, worker: str) -> None:
        async with semel.aio.Producer(
            self.bootstrap,
            linger_ms=self.chance.choice((0, 5)),
            request_timeout_ms=min(2_000, self._delivery_timeout_ms),
            delivery_timeout_ms=self._delivery_timeout_ms,
        ) as producer:
            while not self.is_stopping:
                for _ in range(self.chance.randint(1, 6)):
                    await self._send(worker, producer)
                await self.think(self._think_s)
            try:
                await producer.flush()
            except SemelError as error:
                self.world.told(f"{worker}: {error.message}")

    async def _send(self, worker: str, producer: semel.aio.Producer) -> None:
        self._count += 1
        send = Send(INPUT, self.chance.randrange(self._partitions), f"{worker}-{self._count}")
        number = self.ledger.intend(worker, send)
        try:
            delivery = await producer.send(INPUT, send.value.encode(), partition=send.partition)
        except RetriableError:
            return

        def settled(_: semel.RecordMetadata | None, error: BaseException | None) -> None:
            if error is None:
                self.ledger.settle(number, Outcome.COMMITTED)
            elif isinstance(error, RetriableError):
                self.ledger.settle(number, Outcome.ABORTED)  # it says that nothing was written

        delivery.add_done_callback(settled)


class Transformer(Actor):
    """Reads the input, writes what it makes of it to the output, exactly once: `Consumer.run`."""

    group: ClassVar = "transformers"

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int) -> None:
        super().__init__(world, ledger, name)
        self._partitions = partitions
        self._attempts = 0
        self._consumer: semel.aio.Consumer | None = None
        self.handled = 0

    def _transformed(self, worker: str, record: semel.Record) -> semel.ProducerRecord:
        self._attempts += 1
        self.handled += 1
        seen = (record.offset, (record.value or b"").decode())
        self.ledger.reads.append(Read(worker, INPUT, record.partition, (seen,)))
        place = (record.partition + record.offset) % self._partitions
        value = f"{record.partition}@{record.offset}/{worker}/{self._attempts}"
        self.ledger.intend(worker, Send(OUTPUT, place, value, (INPUT, record.partition, record.offset)))
        return semel.ProducerRecord(OUTPUT, value.encode(), partition=place)

    def _member(self) -> semel.aio.Consumer:
        return semel.aio.Consumer(
            self.bootstrap,
            group=self.group,
            topics=[INPUT],
            session_timeout_ms=SESSION_MS,
            request_timeout_ms=3_000,
            max_wait_ms=1_000,
        )

    async def _handle(self, worker: str, record: semel.Record) -> semel.ProducerRecord | None:
        return self._transformed(worker, record)

    async def live(self, worker: str) -> None:
        async with self._member() as self._consumer:
            if self.is_stopping:
                return
            await self._consumer.run(
                lambda record: self._handle(worker, record),
                transactional_id=self.name,
                producer={"transaction_timeout_ms": 8_000, **self.patience},
                max_records=self.chance.randint(1, 30),
                commit_interval_ms=self.chance.choice((50, 500)),
                handle_signals=False,
                progress_interval_s=None,
            )

    def stop(self) -> None:
        super().stop()
        if self._consumer is not None:
            self._consumer.stop()


class HandTransformer(Transformer):
    """The same as a loop of one's own, with `poll` and `transaction`: a program that now and then fails at a record.

    After that it ends, and commits where it stands before it leaves: what was rewound must not be committed.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int) -> None:
        super().__init__(world, ledger, name, partitions)
        self._own_chance = random.Random(f"{name} of {world.seed}")
        self._leaves_early = 0.1 if self._own_chance.random() < EARLY_LEAVER_SHARE else 0.0

    async def live(self, worker: str) -> None:
        while not self.is_stopping:
            await self._take_part(worker)

    async def _take_part(self, worker: str) -> None:
        """Be a member of the group once."""
        async with (
            self._member() as consumer,
            semel.aio.Producer(
                self.bootstrap,
                transactional_id=self.name,
                transaction_timeout_ms=8_000,
                request_timeout_ms=2_000,
                delivery_timeout_ms=15_000,
                **self.patience,
            ) as producer,
        ):
            while not self.is_stopping:
                batch = await consumer.poll(0.5, self.chance.randint(1, 30))
                if batch is None:
                    continue
                if self._own_chance.random() < self._leaves_early:
                    await self._leave_early(worker, consumer, producer, batch)
                    return
                try:
                    await self._transact(worker, producer, batch)
                except AbortTransactionError as error:
                    self.world.told(f"{worker} ends with its transaction: {error.message}")
                    await consumer.commit()
                    raise

    async def _transact(self, worker: str, producer: semel.aio.Producer, batch: semel.aio.Batch) -> None:
        fails = self.chance.random() < 0.05
        try:
            async with producer.transaction(commits=batch) as transaction:
                for record in batch:
                    made = self._transformed(worker, record)
                    await transaction.send(made.topic, made.value, partition=made.partition)
                if fails:
                    raise AbortTransactionError("the program fails at a record")
        except RetriableError:
            # Whether it committed is not known: this asks until it is.
            await self._commit(producer)

    async def _leave_early(
        self, worker: str, consumer: semel.aio.Consumer, producer: semel.aio.Producer, batch: semel.aio.Batch
    ) -> None:
        """Do the same call by call, and leave the group in between: what it has committed by then stays so."""
        batch.begin()
        await producer.begin_transaction()
        for record in batch:
            made = self._transformed(worker, record)
            await producer.send(made.topic, made.value, partition=made.partition)
        await producer.send_offsets(batch.next_offsets, batch.group_metadata)
        await consumer.close()
        await asyncio.sleep(LEFT_OPEN_S * self._own_chance.random())
        await self._commit(producer)

    async def _commit(self, producer: semel.aio.Producer) -> None:
        while True:
            try:
                await producer.commit_transaction()
                return
            except RetriableError:
                await self.think(0.2)
