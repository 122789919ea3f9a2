"""Programs of the SDK that write transactions of their own: of one process, and of several."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from history import Outcome, Send

import semel
import semel.aio
from semel.protocol.errors import (
    AbortTransactionError,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
)
from simulation.actors import OUTPUT, Actor
from simulation.ledger import Ledger

if TYPE_CHECKING:
    from simulation.world import World

DAWDLER_SHARE = 0.3
"""In how many worlds a program has transactions that take longer than their timeout."""
DAWDLED_MS = 2_000
REPEATER_SHARE = 0.3
"""In how many worlds a writer uses tokens again."""


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
