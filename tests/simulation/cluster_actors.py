"""Programs that speak Kafka's protocol with several nodes: they find leaders, and follow them when they change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from history import Read

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_actors import KafkaActor
from simulation.kafka_consumers import ClusterFetcher, Values
from simulation.kafka_producers import IdempotentProducer
from simulation.kafka_wire import ClusterWire, Echo, code_of, learn_topic_ids
from simulation.ledger import Ledger
from simulation.world import World

TOPIC_VERSION: Final = 7
DELETE_VERSION: Final = 5


class ClusterReader(KafkaActor):
    """Reads topics from their beginning, again in each of its lives; in half of the worlds also from followers."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        topics: dict[str, int],
        think_s: float,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        super().__init__(world, ledger, name, 0, think_s)
        self._topics = topics
        self._isolation = isolation
        self.stands_at: dict[TopicPartition, int] = {}
        """Up to where its present life has written down what it read."""

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        ids = await learn_topic_ids(party.wire(), *self._topics)
        elsewhere = random.Random(f"reads of {worker} in {self.world.seed}")
        fetcher = ClusterFetcher(party, ids, self._isolation, elsewhere if self.world.seed % 2 else None)
        fetcher.positions = {
            TopicPartition(topic, number): 0 for topic, count in self._topics.items() for number in range(count)
        }
        runs: dict[TopicPartition, Values] = {}
        while not self.is_stopping:
            found = await fetcher.poll(self.chance.choice((200, 1 << 20)))
            for tp, values in found.items():
                if tp not in runs:
                    runs[tp] = []
                    self.ledger.reads.append(Read(worker, tp.topic, tp.partition, runs[tp]))  # type: ignore[arg-type]
                runs[tp] += values
            self.stands_at = dict(fetcher.positions)
            await self.think(self.think_s / 10)
        await fetcher.end()


class TopicMaker(KafkaActor):
    """Makes topics, writes a little into them, and deletes them: nobody reads them."""

    def __init__(self, world: World, ledger: Ledger, name: str, think_s: float, *, min_isr: int) -> None:
        super().__init__(world, ledger, name, 0, think_s)
        self._min_isr = min_isr
        self._made = 0

    def acknowledged(self, topic: str, partition: int, offset: int, value: str) -> None:
        """Where a value was depends on the topic's life."""

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        wire = party.wire()
        assert isinstance(wire, ClusterWire)
        while not self.is_stopping:
            self._made += 1
            count = self.chance.randint(1, 2)
            topic = f"again-{count}"
            await create_topic(wire, topic, count, replicas=self.chance.choice((2, 3)), min_isr=self._min_isr)
            producer = IdempotentProducer(party, Echo(party, 0.0), self.acknowledged, 1.0)
            await producer.begin()
            for number in range(self.chance.randint(0, 6)):
                producer.sender.put(topic, number % count, [f"{worker}-{self._made}.{number}"])
            with suppress(TimeoutError):  # a deletion that was sent before may have arrived since
                async with asyncio.timeout(3.0):
                    await producer.settle()
            producer.close()
            if self.chance.random() < 0.7:
                await delete_topic(wire, topic)
            await self.think(self.think_s)
        wire.close()


async def create_topic(
    wire: ClusterWire, topic: str, count: int, *, replicas: int, min_isr: int, configs: Mapping[str, str] | None = None
) -> None:
    """Ask until there is such a topic. configs: besides `min.insync.replicas`"""
    await _changed(
        wire,
        ApiKey.CREATE_TOPICS,
        TOPIC_VERSION,
        topics=[
            {
                "name": topic,
                "num_partitions": count,
                "replication_factor": replicas,
                "configs": [
                    {"name": name, "value": value}
                    for name, value in {"min.insync.replicas": str(min_isr), **(configs or {})}.items()
                ],
            }
        ],
        timeout=2_000,
    )


async def delete_topic(wire: ClusterWire, topic: str) -> None:
    """Ask until there is no such topic."""
    await _changed(wire, ApiKey.DELETE_TOPICS, DELETE_VERSION, topic_names=[topic], timeout=2_000)


_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


async def _changed(wire: ClusterWire, key: ApiKey, version: int, **values: Any) -> None:
    """An operator asks again after every error: most of them tell of what passes."""
    while True:
        try:
            answer = await wire.call(key, version=version, **values)
        except ConnectionLostError:
            await wire.party.pause()
            continue
        results = answer.topics if key is ApiKey.CREATE_TOPICS else answer.responses
        code = code_of(results[0].error_code)
        if code in _DONE:
            return
        wire.party.world.told(f"{wire.party.name}: {key.name} is refused with {code.name}")
        wire.ask_another()
        await wire.party.pause(0.5)
