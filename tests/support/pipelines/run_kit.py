"""What tests of `Consumer.run` share: a group with topics of its own, run by the sync or the asyncio API."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import semel
from semel.testing import Broker

IN, OUT, DEAD = "orders", "enriched", "orders-dead"
WAIT_S = 60.0
QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "idle_timeout_s": 1.0, "handle_signals": False}
_numbers = itertools.count()

Handler = Callable[[semel.Record], Any]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Kit:
    """One group that reads topics of its own, by the sync or the asyncio API."""

    def __init__(self, broker: Broker, face: str) -> None:
        self.broker = broker
        self.face = face
        number = next(_numbers)
        self.group = f"group-{number}"
        self.topics = {name: f"{name}-{number}" for name in (IN, OUT, DEAD)}
        for name in self.topics.values():
            broker.create_topic(name, partitions=2)
        self.consumer: Any = None

    def fill(self, *values: bytes | None, partition: int = 0) -> None:
        with semel.Producer(self.broker.bootstrap) as producer:
            for value in values:
                producer.send(self.topics[IN], value, key=value, headers={"from": "test"}, partition=partition)

    def run(self, handler: Handler, *, consumer: dict[str, Any] | None = None, **options: Any) -> semel.RunStatistics:
        """Run until nothing comes for a while."""
        options = {**QUICK, **options}
        made = {"group": self.group, "topics": [self.topics[IN]], "heartbeat_interval_ms": 20, **(consumer or {})}
        if self.face == "sync":
            with semel.Consumer(self.broker.bootstrap, **made) as self.consumer:
                return self.consumer.run(handler, **options)

        async def main() -> semel.RunStatistics:
            async with semel.aio.Consumer(self.broker.bootstrap, **made) as self.consumer:
                return await self.consumer.run(handler, **options)

        return asyncio.run(main())

    def start(self, handler: Handler, **options: Any) -> Future[semel.RunStatistics]:
        """Run on a thread."""
        return ThreadPoolExecutor(1).submit(self.run, handler, **options)

    def out(self, *values: bytes, topic: str = OUT) -> None:
        """Assert what is committed in a topic, each as often as it is given."""
        found = self.broker.records(self.topics[topic], at_least=len(values))
        assert Counter(record.value for record in found) == Counter(values)

    def enriched(self, record: semel.Record) -> semel.ProducerRecord:
        return semel.ProducerRecord(self.topics[OUT], b"<" + (record.value or b"") + b">", key=record.key)

    def stands_at(self) -> dict[int, int]:
        return {tp.partition: offset for tp, offset in self.broker.committed_offsets(self.group).items()}
