"""The clients of a world. Each has a life that it begins again when its process has died, as under a supervisor.

What an actor keeps on itself is what a program would have stored, or what the judge needs; the rest dies with it.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from history import Outcome, Read, Send

import semel
import semel.aio
from semel.protocol.errors import (
    AbortTransactionError,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from simulation.ledger import Ledger
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.world import World

INPUT, OUTPUT = "in", "out"
SESSION_MS = 6_000
REMEMBERED_COMMITS = 100
"""With so many commits of a key, a node forgets the oldest."""
DAWDLER_SHARE = 0.3
"""In how many worlds a program has transactions that take longer than their timeout."""
DAWDLED_MS = 2_000
EARLY_LEAVER_SHARE = 0.5
"""How many programs leave their group now and then before they commit: who gets their partitions has to wait (O2)."""
LEFT_OPEN_S = 3.0
"""How long their transactions stay open after that, at most."""
REPEATER_SHARE = 0.3
"""In how many worlds a writer uses tokens again."""
HURRY_S = 0.4
"""For how long somebody asks without a pause once a commit is asked for."""


class Actor(ABC):
    """One client program. `is_done` once it has nothing left to do; then nobody starts it again."""

    restart_s = 0.5

    def __init__(self, world: World, ledger: Ledger, name: str) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.chance = random.Random(world.chance.getrandbits(64))
        self.is_done = False
        self.is_stopping = False
        self.lives = 0
        self.process: Process | None = None
        self.bootstrap = ""
        own = random.Random(f"patience of {name} of {world.seed}")
        self.patience: dict[str, Any] = {"max_block_ms": own.choice((1_000, 3_000))} if own.random() < 0.3 else {}
        """For how long one call of the SDK may take: some programs are told that nothing is known, and ask again."""
        self.on_commit: list[Callable[[], object]] = []
        """Called when it is about to ask for a commit."""

    def start(self) -> None:
        """Begin a life. An older one that was not killed continues beside it."""
        if self.is_done:
            return
        self.lives += 1
        self.process = process = self.world.client(f"{self.name}#{self.lives}")
        nodes = list(self.world.nodes)
        self.bootstrap = self.world.address(self.name, self.chance.choice(nodes) if len(nodes) > 1 else nodes[0])
        process.start(self._live(process, f"{self.name}.{self.lives}"))

    def kill(self) -> None:
        """Kill the present life, and begin another."""
        if self.process is not None and not self.process.is_dead and not self.is_done:
            self.process.kill()
            self.world.network.gone(self.process, silently=False)
            self.start_later()

    def _tell_of_commit(self) -> None:
        for tell in self.on_commit:
            tell()

    def transaction_aborted_by_operator(self) -> None:  # noqa: B027  # most clients need not know
        """An operator aborts what this client has open, now or a little later."""

    def start_later(self) -> None:
        self.world.later(self.restart_s * (0.2 + self.chance.random()), self.start)

    async def _live(self, process: Process, worker: str) -> None:
        try:
            await self.live(worker)
        except UsageError as error:
            self.ledger.wrong("crash", f"{process.name}: {error.message}")
            self.is_done = True
        except SemelError as error:
            self.world.told(f"{process.name} ended: {type(error).__name__}: {error.message}")
            self.judge_end(worker, error)
            if process is self.process:
                self.world.scheduler.world.post(self.kill)
        except Exception as error:
            import traceback

            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            self.ledger.wrong("crash", f"{process.name}: {type(error).__name__}: {error}\n{where}")
            self.is_done = True
        else:
            if process is self.process:
                self.is_done = True

    def is_current(self, worker: str) -> bool:
        """Whether a life is the present one, and not an older one beside it."""
        return worker == f"{self.name}.{self.lives}"

    def judge_end(self, worker: str, error: SemelError) -> None:  # noqa: B027  # most may be told anything
        """Say what is wrong with the error that a life ended by."""

    @abstractmethod
    async def live(self, worker: str) -> None:
        """Do the work; `worker` names this life in the ledger."""

    async def think(self, longest_s: float) -> None:
        await asyncio.sleep(longest_s * self.chance.random())

    def stop(self) -> None:
        """Come to an end: what was begun is finished."""
        self.is_stopping = True


class Feeder(Actor):
    """Sends values with an idempotent producer, and writes down which were acknowledged."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._partitions = partitions
        self._think_s = think_s
        self._count = 0

    async def live(self, worker: str) -> None:
        async with semel.aio.Producer(
            self.bootstrap, linger_ms=self.chance.choice((0, 5)), request_timeout_ms=2_000, delivery_timeout_ms=20_000
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


class Writer(Actor):
    """Writes transactions of its own with tokens. After a crash it asks what became of the last one (E5)."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._partitions = partitions
        self._think_s = think_s
        self._pause_s = self.chance.choice((0.05, 0.05, 1.0))
        """For how long it thinks about each value, at most."""
        self._count = 0
        self._own_chance = random.Random(f"{name} of {world.seed}")
        self._dawdles = self._own_chance.random() < DAWDLER_SHARE
        """Whether some transactions take longer than they may."""
        self._repeats = self._own_chance.random() < REPEATER_SHARE
        """Whether some transactions have the token of an earlier one, and come to nothing if that was committed."""
        self._open: tuple[int, str] | None = None
        """The transaction that may have committed: its number in the ledger, and its token."""
        self.tokens: dict[str, list[int]] = {}
        """The numbers in the ledger of what was tried under each token."""
        self._took_place: list[str] = []
        """The lives that have taken the place of those before."""
        self._is_interfered = False

    def transaction_aborted_by_operator(self) -> None:
        self._is_interfered = True

    def judge_end(self, worker: str, error: SemelError) -> None:
        """Nobody is told to stop whose place nobody took: no other life, and no late request of one."""
        if not isinstance(error, (FencedError, FatalError)) or self._is_interfered or len(self.world.nodes) > 1:
            return
        if self._took_place[-1:] == [worker] and self.world.network.places_taken[self.name] == len(self._took_place):
            self.ledger.wrong("refused", f"{worker} had to end, and nobody took its place: {error.message}")

    async def live(self, worker: str) -> None:
        left = self._open  # not what a later life has open: only who came last gets an answer that is final
        async with semel.aio.Producer(
            self.bootstrap,
            transactional_id=self.name,
            transaction_timeout_ms=self.chance.choice((5_000, 10_000)) if not self._dawdles else DAWDLED_MS,
            request_timeout_ms=2_000,
            delivery_timeout_ms=15_000,
            **self.patience,
        ) as producer:
            self._took_place.append(worker)
            await self._learn(producer, left)
            while not self.is_stopping:
                await self._transact(worker, producer)
                await self.think(self._think_s)

    async def _learn(self, producer: semel.aio.Producer, mine: tuple[int, str] | None) -> None:
        """Ask about what an earlier life has left. None of its messages can take effect any more."""
        if mine is None:
            return
        last = await producer.last_commit()
        if self._open is not mine:
            return
        if len(self.tokens[mine[1]]) > 1:  # which of them has committed nobody can tell
            self._open = None
            return
        committed = last is not None and last.token == mine[1]
        self.ledger.settle(mine[0], Outcome.COMMITTED if committed else Outcome.ABORTED)
        self._open = None

    async def _transact(self, worker: str, producer: semel.aio.Producer) -> None:
        self._count += 1
        token = f"{self.name}-{self._count}"
        if self._repeats and self.tokens and self._own_chance.random() < 0.2:
            token = list(self.tokens)[-1 - self._own_chance.randrange(min(3, len(self.tokens)))]
        sends = [
            Send(OUTPUT, self.chance.randrange(self._partitions), f"{worker}-{self._count}.{item}")
            for item in range(self.chance.randint(1, 5))
        ]
        number = self.ledger.intend(worker, *sends)
        mine = (number, token)
        earlier = self.tokens.setdefault(token, [])
        known = {self.ledger.outcome(one) for one in earlier}
        earlier.append(number)
        if self.is_current(worker):
            self._open = mine
        try:
            await producer.begin_transaction()
            for send in sends:
                await producer.send(OUTPUT, send.value.encode(), partition=send.partition)
                await self.think(self._pause_s)
            if self._dawdles and self._own_chance.random() < 0.3:
                await asyncio.sleep(2 * DAWDLED_MS / 1000 * self._own_chance.random())
            if self.chance.random() < 0.2:
                await self._settled(producer.abort_transaction)
                outcome = Outcome.ABORTED
            else:
                self._tell_of_commit()
                committed = await self._settled(lambda: producer.commit_transaction(token=token))
                outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
                if (Outcome.COMMITTED in known and committed) or (known <= {Outcome.ABORTED} and not committed):
                    self.ledger.wrong("T13", f"{token} is committed: {committed}, and was known as {known}")
        except (AbortTransactionError, RetriableError):
            await self._settled(producer.abort_transaction)
            outcome = Outcome.ABORTED
        self.ledger.settle(number, outcome)
        if self._open is mine:
            self._open = None

    async def _settled(self, call: Callable[[], Any]) -> Any:
        """Ask until there is an answer."""
        while True:
            try:
                return await call()
            except AbortTransactionError:
                raise
            except RetriableError:
                await self.think(0.2)


class Sharer(Actor):
    """Writes shared transactions of several processes, as a Spark job does, and commits them by token."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._partitions = partitions
        self._think_s = think_s
        self._sequence = 0
        self._attempts: dict[str, int] = {}
        """The numbers in the ledger of the attempts at the present token, by their names."""
        self._attempt_count = 0
        self._own_chance = random.Random(f"{name} of {world.seed}")
        self._is_replaced = self._own_chance.random() < 0.3
        """Whether a supervisor takes it for dead now and then, while it is about to commit."""
        self._has_one_payload = self._own_chance.random() < 0.5
        """Whether all attempts at a token have one payload: then a later one may learn that an earlier committed."""
        self.tokens: dict[str, list[int]] = {}
        """The numbers in the ledger of the attempts at each token."""

    async def live(self, worker: str) -> None:
        while not self.is_stopping or self._attempts:
            try:
                await self._attempt(worker)
            except AbortTransactionError as error:
                self.world.told(f"{worker} runs an attempt again: {error.message}")
            except FencedError as error:
                self.world.told(f"{worker} was fenced: {error.message}")
                if not self.is_current(worker):
                    return
            except RetriableError:
                pass
            await self.think(self._think_s)

    async def _attempt(self, worker: str) -> None:
        sequence = self._sequence
        shared = await semel.aio.SharedTransaction.open(
            self.bootstrap,
            self.name,
            token=f"{self.name}-{sequence}",
            sequence=sequence,
            timeout_ms=10_000,
            request_timeout_ms=2_000,
            **self.patience,
        )
        if sequence != self._sequence:
            return  # another life has gone on meanwhile
        if shared.committed is not None:
            self._decided(sequence, shared.committed.attempt)
            return
        self._attempt_count += 1
        payload = f"attempt-{self._attempt_count}"
        parts = [
            [
                Send(OUTPUT, self.chance.randrange(self._partitions), f"{worker}-{payload}.{part}.{item}")
                for item in range(self.chance.randint(1, 3))
            ]
            for part in range(self.chance.randint(1, 3))
        ]
        number = self.ledger.intend(worker, *(send for part in parts for send in part), is_ordered=False)
        self._attempts[shared.attempt] = number
        self.tokens.setdefault(f"{self.name}-{sequence}", []).append(number)
        members = await asyncio.gather(*(self._write(shared, part) for part in parts))
        if self.chance.random() < 0.1:
            await shared.abort()
            raise AbortTransactionError("the job changes its mind")
        if self._is_replaced and not self.is_stopping and self._own_chance.random() < 0.2:
            self.world.later(0.0, self.start)
            await asyncio.sleep(4.0 * self._own_chance.random())
        self._tell_of_commit()
        recorded = b"" if self._has_one_payload else payload.encode()
        while True:
            try:
                answer = await shared.commit(members, payload=recorded)
                if answer.already_committed == (answer.decision.attempt == shared.attempt) or (
                    bytes(answer.decision.payload) != recorded
                ):
                    self.ledger.wrong("T13", f"{worker} commits {shared.attempt} of {self.name}-{sequence}: {answer}")
                break
            except AbortTransactionError:
                raise
            except RetriableError:
                await self.think(0.2)
        if sequence == self._sequence:
            self._decided(sequence, answer.decision.attempt)

    async def _write(self, shared: semel.aio.SharedTransaction, part: list[Send]) -> Any:
        """A task in a process of its own, and now and then a second copy of it, which nobody names (speculation)."""
        if self.chance.random() < 0.15:
            self._in_a_process(shared, [Send(s.topic, s.partition, f"{s.value}-twin") for s in part], known=True)
        return await asyncio.wrap_future(self._in_a_process(shared, part, known=False))

    def _in_a_process(self, shared: semel.aio.SharedTransaction, part: list[Send], *, known: bool) -> Future[Any]:
        process = self.world.client(f"{self.name}.task")
        if known:
            self.ledger.settle(self.ledger.intend(f"{self.name}.twin", *part, is_ordered=False), Outcome.ABORTED)
        result: Future[Any] = Future()

        async def work() -> None:
            try:
                async with await shared.join(request_timeout_ms=2_000, delivery_timeout_ms=8_000) as writer:
                    for send in part:
                        await writer.send(send.topic, send.value.encode(), partition=send.partition)
                        await self.think(0.02)
                    answer = await writer.finish()
            except SemelError as error:
                if not result.done():
                    result.set_exception(
                        error if isinstance(error, AbortTransactionError) else AbortTransactionError(str(error))
                    )
            else:
                if not result.done():
                    result.set_result(answer)

        process.start(work())
        return result

    def _decided(self, sequence: int, decided: str) -> None:
        if sequence != self._sequence:
            return
        for attempt, number in self._attempts.items():
            self.ledger.settle(number, Outcome.COMMITTED if attempt == decided else Outcome.ABORTED)
        if self._attempts and decided not in self._attempts:
            self.ledger.wrong("phantom", f"{self.name}-{sequence} was committed by {decided}, which nobody tried")
        self._attempts.clear()
        self._sequence += 1


class Reader(Actor):
    """Reads the output from its beginning, over and over from a place of its own, and writes down what it saw."""

    def __init__(self, world: World, ledger: Ledger, name: str, topics: dict[str, int]) -> None:
        super().__init__(world, ledger, name)
        self._topics = topics
        self._consumer: semel.aio.Consumer | None = None

    async def live(self, worker: str) -> None:
        seen: dict[tuple[str, int], list[tuple[int, str]]] = {}
        places = [
            semel.TopicPartition(topic, number) for topic, count in self._topics.items() for number in range(count)
        ]
        for place in places:
            runs = seen[place.topic, place.partition] = []
            self.ledger.reads.append(Read(worker, place.topic, place.partition, runs))  # type: ignore[arg-type]  # it grows
        async with semel.aio.Consumer(
            self.bootstrap, offset_reset="earliest", request_timeout_ms=3_000, max_wait_ms=1_000
        ) as consumer:
            consumer.assign(places)
            self._consumer = consumer
            while not self.is_stopping:
                batch = await consumer.poll(1.0)
                for record in batch or ():
                    seen[record.topic, record.partition].append((record.offset, (record.value or b"").decode()))

    def stands_at(self, tp: semel.TopicPartition) -> int:
        """Return how far the present life has read."""
        return -1 if self._consumer is None else (self._consumer.position(tp) or 0)


class Asker(Actor):
    """Asks what was committed under the keys of others. What it was told once must be true for good (T13, D5).

    Now and then it asks while a commit is on its way to the disk, and again and again.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, writers: Sequence[Actor], think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._keys = [writer.name for writer in writers]
        self._think_s = think_s
        self._hurried = ""
        """The key whose commit is under way."""
        self._told: dict[tuple[str, str], bytes] = {}
        """The payload of each commit that it was told of, by key and token."""
        self._woken: asyncio.Event | None = None
        self.on_told: Callable[[str], None] | None = None
        """Called with the key when it has just learned of a commit."""
        for writer in writers:
            writer.on_commit.append(partial(self._wake, writer.name))

    def _wake(self, key: str) -> None:
        process, woken = self.process, self._woken
        if process is not None and woken is not None and self.chance.random() < 0.5:
            self._hurried = key
            process.post(woken.set)

    async def live(self, worker: str) -> None:
        self._woken = woken = asyncio.Event()
        async with semel.aio.Admin(self.bootstrap, request_timeout_ms=2_000) as admin:
            while not self.is_stopping:
                if woken.is_set():
                    woken.clear()
                    await self._hurry(admin, self._hurried)
                for key in self._keys:
                    await self._ask(admin, key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._think_s / 4 * self.chance.random()):
                        await woken.wait()

    async def _hurry(self, admin: semel.aio.Admin, key: str) -> None:
        end = self.world.scheduler.now + HURRY_S
        while self.world.scheduler.now < end:
            await self._ask(admin, key)
            await self.think(0.03)

    async def _ask(self, admin: semel.aio.Admin, key: str) -> None:
        before = [place for place in self._told if place[0] == key]
        try:
            commits = await admin.commits(key)
        except RetriableError:
            return
        self._compare(key, before, {commit.token: bytes(commit.payload) for commit in commits})

    def _compare(self, key: str, before: list[tuple[str, str]], found: dict[str, bytes]) -> None:
        for place in before:
            if len(found) < REMEMBERED_COMMITS and found.get(place[1]) != self._told[place]:
                self.ledger.wrong("forgotten", f"{self.name} was told of the commit {place}, and then of {list(found)}")
        learned = [token for token in found if (key, token) not in self._told]
        for token, payload in found.items():
            self._told[key, token] = payload
        if learned and self.on_told is not None:
            self.world.scheduler.world.post(self.on_told, key)


class Keeper(Actor):
    """Commits places of groups that have no members, several at a time, and looks at them meanwhile and afterwards.

    What was answered, or was seen once, is there for good (O4, D1, D5). Each group is committed once, so that a message
    that comes late does not take it back.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._think_s = think_s
        self._place = semel.TopicPartition(INPUT, 0)
        self._count = 0
        self._kept: dict[str, int] = {}
        """The offset of each group that was answered, or seen."""

    async def live(self, worker: str) -> None:
        async with semel.aio.Admin(self.bootstrap, request_timeout_ms=2_000) as admin:
            while not self.is_stopping:
                commits = self.chance.randint(1, 4)
                await asyncio.gather(*(self._keep(admin, commits) for _ in range(4)))
                await self._look_back(admin)
                await self.think(self._think_s)

    async def _keep(self, admin: semel.aio.Admin, commits: int) -> None:
        for _ in range(commits):
            self._count += 1
            group, offset = f"{self.name}-{self._count}", self._count
            await self.think(0.01)
            calls = [self._commit(admin, group, offset)]
            if self.chance.random() < 0.2:
                calls.append(self._look(admin, group, offset))
            await asyncio.gather(*calls)

    async def _commit(self, admin: semel.aio.Admin, group: str, offset: int) -> None:
        with suppress(RetriableError):
            await admin.alter_group_offsets(group, {self._place: offset})
            self._kept[group] = offset

    async def _look(self, admin: semel.aio.Admin, group: str, offset: int) -> None:
        await self.think(0.01)
        is_kept = group in self._kept
        try:
            found = (await admin.group_offsets(group)).get(self._place)
        except RetriableError:
            return
        if found is not None and found.offset == offset:
            self._kept[group] = offset
        elif is_kept:
            self.ledger.wrong("forgotten", f"{group} was committed at {offset}, and is at {found}")

    async def _look_back(self, admin: semel.aio.Admin) -> None:
        """Look at the last ones, which a crash would have taken."""
        for group, offset in list(self._kept.items())[-12:]:
            await self._look(admin, group, offset)
