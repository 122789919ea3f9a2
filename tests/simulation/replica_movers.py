"""Somebody who has replicas moved to other nodes all the time, and cancels some of the moves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_actors import KafkaActor
from simulation.kafka_wire import ClusterWire, code_of

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

MOVER_SHARE: Final = 0.4
"""How many worlds with several nodes have one."""
_VERSIONS: Final = (0, 1)
_EXPECTED: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,  # nobody could lead if the move were cancelled now
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,  # the metadata's database
    }
)


def has_replica_mover(world: World) -> bool:
    return random.Random(f"replica mover of {world.seed}").random() < MOVER_SHARE


class ReplicaMover(KafkaActor):
    """Asks for moves, of one partition or several at once, and cancels some."""

    def __init__(
        self, world: World, ledger: Ledger, name: str, topics: Mapping[str, int], think_s: float, *, is_durable: bool
    ) -> None:
        """is_durable: a node has on its disk what it acknowledges, so that one replica is enough for a while"""
        super().__init__(world, ledger, name, 0, think_s)
        self._topics = topics
        self._sizes = (2, 2, 3, 3, 3, 1) if is_durable else (2, 3)
        self._pause_s = self.chance.choice((0.1, 1.0, 3.0))
        """How long it waits between two moves, at most."""

    async def live(self, worker: str) -> None:
        wire = ClusterWire(self.party(worker))
        while not self.is_stopping:
            await self._move(wire)
            await self.think(self._pause_s)
        wire.close()

    async def _move(self, wire: ClusterWire) -> None:
        topic = self.chance.choice(list(self._topics))
        count = self._topics[topic]
        numbers = self.chance.sample(range(count), self.chance.randint(1, count))
        partitions = [{"partition_index": number, "replicas": self._drawn()} for number in numbers]
        version = self.chance.choice(_VERSIONS)
        try:
            answer = await wire.call(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                version=version,
                topics=[{"name": topic, "partitions": partitions}],
                timeout=2_000,
            )
        except ConnectionLostError:
            wire.ask_another()
            return
        codes = {code_of(answer.error_code)}
        codes |= {code_of(one.error_code) for each in answer.responses for one in each.partitions}
        if unexpected := codes - _EXPECTED:
            self.ledger.wrong(
                "refused", f"{self.name}: moves are refused with {sorted(one.name for one in unexpected)}"
            )

    def _drawn(self) -> list[int] | None:
        if self.chance.random() < 0.2:
            return None
        nodes = [node.settings["node_id"] for node in self.world.nodes.values()]
        return self.chance.sample(nodes, self.chance.choice(self._sizes))
