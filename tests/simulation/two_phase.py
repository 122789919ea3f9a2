"""Transactions that somebody outside decides about, who writes that down as in a database (KIP-939)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from history import Outcome, Send

import semel.aio
from semel.protocol.errors import AbortTransactionError, RetriableError
from simulation.actors import OUTPUT, Actor

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

T = TypeVar("T")

PREPARER_SHARE: Final = 0.2
"""How many worlds with transactions have one."""


def has_preparer(world: World) -> bool:
    return random.Random(f"preparer of {world.seed}").random() < PREPARER_SHARE


class Preparer(Actor):
    """Prepares, writes down that it commits, and completes. Another life completes what one has left (E3)."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._partitions = partitions
        self._think_s = think_s
        self._count = 0
        self._open: int | None = None
        """The number in the ledger of the transaction that is not known to be complete."""
        self._decided: str | None = None
        """The last prepared transaction that was decided to commit: a row in a database."""
        self._is_commit = False
        """Whether that is the one which is open."""
        self._owner = ""
        """The life that recovered last: a row in that database, too. Only this one decides: who recovers finds what is
        undecided, and has it aborted.
        """
        self._is_interfered = False

    def transaction_aborted_by_operator(self) -> None:
        self._is_interfered = True

    async def live(self, worker: str) -> None:
        producer = semel.aio.Producer(
            self.bootstrap,
            transactional_id=self.name,
            two_phase=True,
            transaction_timeout_ms=1_000,  # which has no meaning: what is prepared never times out (T9)
            request_timeout_ms=2_000,
            delivery_timeout_ms=15_000,
            **self.patience,
        )
        await self._settled(lambda: producer.init_transactions(keep_prepared=True))
        self._owner = worker
        await self._complete(worker, producer)
        while not self.is_stopping and self.is_current(worker):
            try:
                await self._transact(worker, producer)
            except AbortTransactionError:
                await self._settled(producer.abort_transaction)
                self._ended(worker, Outcome.ABORTED)
            await self.think(self._think_s)
        await producer.close()

    async def _transact(self, worker: str, producer: semel.aio.Producer) -> None:
        self._count += 1
        sends = [
            Send(OUTPUT, self.chance.randrange(self._partitions), f"{worker}-{self._count}.{item}")
            for item in range(self.chance.randint(1, 4))
        ]
        self._open, self._is_commit = self.ledger.intend(worker, *sends), False
        await producer.begin_transaction()
        for send in sends:
            await producer.send(OUTPUT, send.value.encode(), partition=send.partition)
        prepared = await self._settled(producer.prepare_transaction)
        await self.think(0.5)
        if not self.is_current(worker):
            return  # who came after it has completed what it left: nothing can be decided about it any more
        if self._owner == worker and self.chance.random() < 0.7:
            self._decided, self._is_commit = str(prepared), True
        await self.think(0.5)
        await self._complete(worker, producer)

    async def _complete(self, worker: str, producer: semel.aio.Producer) -> None:
        await self._settled(lambda: producer.complete_transaction(self._decided))
        self._ended(worker, Outcome.COMMITTED if self._is_commit else Outcome.ABORTED)

    def _ended(self, worker: str, outcome: Outcome) -> None:
        if self._open is not None and self.is_current(worker) and not self._is_interfered:
            self.ledger.settle(self._open, outcome)
        if self.is_current(worker):
            self._open, self._is_commit = None, False

    async def _settled(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer."""
        while True:
            try:
                return await call()
            except RetriableError:
                await self.think(0.2)
