"""Programs that leave transactions open and never come back, and instances that go on after another took their place.

Each transaction has a transactional id of its own, so that nothing but its timeout ends what was left (T9), also where
its coordinator was away when that was over.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from history import Outcome, Send

from semel.protocol.errors import AbortTransactionError
from simulation.actors import OUTPUT
from simulation.kafka_actors import Transacting, batched
from simulation.kafka_producers import Place, TransactionalProducer
from simulation.kafka_wire import Echo, NewerInstanceError, Party

if TYPE_CHECKING:
    from simulation.world import World

LEAVER_SHARE: Final = 0.25
"""How many worlds have one."""
_MOST_LEFT: Final = 4
"""How many transactions one leaves: each holds readers back for as long as it may be open."""


def has_leaver(world: World) -> bool:
    return random.Random(f"leaver of {world.seed}").random() < LEAVER_SHARE


class KafkaLeaver(Transacting):
    """Writes one transaction under each name, and leaves it, or commits it, or continues after it was replaced (P4)."""

    async def live(self, worker: str) -> None:
        while not self.is_stopping and self._count < _MOST_LEFT:
            await self._leave_one(worker, self.party(worker))
            await self.think(2 * self.think_s)

    def _instance(self, party: Party, name: str, place: Place) -> TransactionalProducer:
        timeout_ms = self.chance.choice((1_500, 5_000, 20_000))
        return TransactionalProducer(party, place, Echo(party, 0.0), self.acknowledged, name, timeout_ms)

    async def _leave_one(self, worker: str, party: Party) -> None:
        self._count += 1
        name, place = f"{self.name}-{self._count}", Place()
        producer = self._instance(party, name, place)
        sends = [
            Send(OUTPUT, self.chance.randrange(self.partitions), f"{worker}-{self._count}.{item}")
            for item in range(self.chance.randint(1, 3))
        ]
        number = self.ledger.intend(f"{worker}/{name}", *sends)
        try:
            await producer.init()
            producer.begin()
            await producer.send(batched(sends))
        except (AbortTransactionError, NewerInstanceError):
            self.ledger.settle(number, Outcome.ABORTED)  # nobody asks for its commit
        else:
            await self._part(party, producer, name, place, number)
        producer.close()

    async def _part(self, party: Party, producer: TransactionalProducer, name: str, place: Place, number: int) -> None:
        draw = self.chance.random()
        if draw < 0.2:
            await self.ended(producer, number, True)
            return
        self.ledger.settle(number, Outcome.ABORTED)
        if draw > 0.6:
            return
        newer = self._instance(party, name, place)
        await newer.init()
        newer.close()
        try:
            await producer.renew()
        except NewerInstanceError:
            return
        self.ledger.wrong("P4", f"{name} was replaced, and got another epoch by the one that it had held")
