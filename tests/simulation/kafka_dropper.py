"""Topics that are made, written to in transactions at once, and deleted while these are open or being decided (R8).

Coordinators and leaders may not have heard of such a topic yet, or not of its deletion, or of another one by its name.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import AbortTransactionError
from semel.protocol.ids import TRANSACTIONS_TOPIC, TopicPartition
from semel.txn_coordinator.state import COMPLETED
from simulation.cluster_actors import create_topic, delete_topic
from simulation.kafka_actors import Transacting
from simulation.kafka_wire import DIALECTS, JAVA_4, ClusterWire, Party

if TYPE_CHECKING:
    from semel.broker.node import Node
    from simulation.cluster_checks import ReplicaWatch
    from simulation.kafka_producers import TransactionalProducer
    from simulation.ledger import Ledger
    from simulation.world import World

DROPPER_SHARE: Final = 0.5
"""How many worlds with several nodes and transactions have one."""
_NAMES: Final = 4
_PATIENCE_S: Final = 8.0
"""How long it waits for a batch: another one may have deleted its topic before it has begun there."""


def has_dropper(world: World) -> bool:
    return len(world.nodes) > 1 and random.Random(f"dropper of {world.seed}").random() < DROPPER_SHARE


class KafkaDropper(Transacting):
    """Nobody reads what it writes: that its transactions end everywhere is what is looked at."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        # In the newer version the coordinator hears of a topic from its leader, before it has read of it.
        self.dialect = self.chance.choice((JAVA_4, JAVA_4, self.dialect))
        self.repeats = 0.0
        # A node that does not wait for its disk may lose what it alone has, and a topic with it.
        is_durable = all(node.settings["durability"] == "disk" for node in world.nodes.values())
        self._min_isr = 1 if is_durable else 2
        self._place.may_end_early = True  # one whose topic is deleted may be refused to continue

    def acknowledged(self, topic: str, partition: int, offset: int, value: str) -> None:
        """Where a value was depends on the topic's life."""

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        wire = ClusterWire(party)
        producer = await self.producer(party)
        while not self.is_stopping:
            await self._transact(party, wire, producer)
            await self.think(self.think_s / 10)
        for one in (producer, wire):
            one.close()

    async def _transact(self, party: Party, wire: ClusterWire, producer: TransactionalProducer) -> None:
        self._count += 1
        # A name that was used before, now and then; the others are news for everybody.
        number = self._count if self.chance.random() < 0.7 else self.chance.randrange(_NAMES)
        topic = f"fresh-{number}"
        await create_topic(wire, topic, 1, replicas=self.chance.choice((2, 3)), min_isr=self._min_isr)
        dropped: asyncio.Task[None] | None = None
        producer.begin()
        try:
            async with asyncio.timeout(self._patience_s()):
                await producer.send({(topic, 0): [[f"{self._count}.0"]]})
            if self.chance.random() < 0.4:
                dropped = asyncio.create_task(self._drop(party, topic))
                if self.chance.random() < 0.5:
                    await self.think(self.pause_s)
                    async with asyncio.timeout(_PATIENCE_S):
                        await producer.send({(topic, 0): [[f"{self._count}.1"]]})
        except TimeoutError:
            producer.give_up()
            commit = False
        except AbortTransactionError:
            commit = False
        else:
            commit = self.chance.random() > 0.4
        try:
            await producer.end(commit)
        except AbortTransactionError:
            await producer.end(False)
        if dropped is not None:
            await dropped

    def _patience_s(self) -> float:
        """Return how long it waits for its first batch before it aborts."""
        return _PATIENCE_S

    async def _drop(self, party: Party, topic: str) -> None:
        wire = ClusterWire(party)
        await delete_topic(wire, topic)
        if self.chance.random() < 0.6:
            await create_topic(wire, topic, 1, replicas=2, min_isr=self._min_isr)
        wire.close()


class KafkaHasty(KafkaDropper):
    """Aborts while its batches are being verified: in the older version, where no epoch tells late ones apart (T8)."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self.dialect = self.chance.choice([one for one in DIALECTS if not one.is_newer])

    def party(self, worker: str) -> Party:
        return Party(self.world, self.ledger, worker, self.name, self.chance, self.dialect)

    def _patience_s(self) -> float:
        return self.chance.choice((0.05, 0.2, 0.6)) if self.chance.random() < 0.7 else super()._patience_s()


class MarkerWatch:
    """No transaction is complete while a partition that still exists has no marker of it (T3, R8)."""

    def __init__(self, watch: ReplicaWatch, ledger: Ledger) -> None:
        self._watch = watch
        self._ledger = ledger

    def look(self) -> None:
        """To be called after the replicas were looked at."""
        running = self._watch.running()
        complete = {
            one.producer_id: (one.producer_epoch, name)
            for node_id, node in running.items()
            for machine in node.transactions.machines()
            for name, one in machine._transactions.items()
            if one.state in COMPLETED and self._coordinates(node_id, node, name)
        }
        if not complete:
            return
        for known, state, here in self._watch.replicas():
            one = here.get(state.leader)
            if one is None or one.leader is None or one.leader_epoch != state.leader_epoch:
                continue
            for first, producer_id in one.log.producer_state.open_transactions.items():
                epoch, name = complete.get(producer_id, (-1, ""))
                if epoch >= 0:
                    self._ledger.wrong(
                        "T3",
                        f"the transaction of {name} is complete (epoch {epoch}), and {known.tp} has it open from "
                        f"{first} on, at node {state.leader}",
                    )

    def _coordinates(self, node_id: int, node: Node, name: str) -> bool:
        tp = TopicPartition(TRANSACTIONS_TOPIC, node.transactions.partition_for(name))
        state, log = self._watch.image.partition(tp), node.partition(tp)
        return (
            state is not None and log is not None and state.leader == node_id and log.leader_epoch == state.leader_epoch
        )
