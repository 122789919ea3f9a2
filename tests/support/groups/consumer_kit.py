"""What tests of consumers share: making them by either API, filling topics, polling until something is so."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

from live_node import BlockingAioConsumer, LiveNode

import semel
from semel.protocol.ids import TopicPartition
from semel.testing import Broker

FACES = {"sync": semel.Consumer, "aio": BlockingAioConsumer}
PATIENCE_S = 60.0

_numbers = itertools.count()


class Kit:
    """The sync or the asyncio consumer on a node, with names of its own for every test."""

    def __init__(self, node: Broker | LiveNode, face: str) -> None:
        self.node = node
        self.face = face
        self.admin = semel.Admin(node.bootstrap)
        number = next(_numbers)
        self.topic = f"t{number}"
        self.group = f"g{number}"
        self._consumers: list[Any] = []

    def consumer(self, **options: Any) -> Any:
        """A consumer, quick to try again, closed when the test ends."""
        consumer = FACES[self.face](self.node.bootstrap, **{"max_wait_ms": 100, **options})
        self._consumers.append(consumer)
        return consumer

    def member(self, **options: Any) -> Any:
        """A consumer that subscribes to the test's topic with the test's group."""
        topics = {} if "pattern" in options else {"topics": [self.topic]}
        return self.consumer(**{"group": self.group, "heartbeat_interval_ms": 20, **topics, **options})

    def create(self, partitions: int = 1, topic: str | None = None, **configs: str) -> list[TopicPartition]:
        name = topic or self.topic
        self.admin.create_topic(
            name, partitions=partitions, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
        return [TopicPartition(name, number) for number in range(partitions)]

    def fill(self, *values: str, partition: int = 0, topic: str | None = None, **options: Any) -> None:
        with semel.Producer(self.node.bootstrap, **{"linger_ms": 0, **options}) as producer:
            for value in values:
                producer.send(topic or self.topic, value.encode(), partition=partition)

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        self.admin.close()


def values(records: Iterable[semel.Record]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


def read(consumer: Any, count: int, max_records: int = 10_000) -> list[str]:
    """Poll until there were `count` records, and return their values."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found}"
        batch = consumer.poll(1.0, min(max_records, count - len(found)))
        if batch is not None:
            found += values(batch)
    return found


def poll_until(condition: Callable[[], object], *consumers: Any, into: list[str] | None = None) -> list[str]:
    """Poll consumers in turn until `condition` holds; return what they read, after what was `into`."""
    found: list[str] = [] if into is None else into
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            batch = consumer.poll(0.01)
            if batch is not None:
                found += values(batch)
    return found


def nothing(consumer: Any, seconds: float = 0.3) -> None:
    """Check that nothing is returned for a while."""
    batch = consumer.poll(seconds)
    assert batch is None, values(batch)
