"""Semel's own client library, for `semel bench`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from semel.cli.bench.client import Acknowledged, BenchConsumer, BenchProducer, ProducerPlan
from semel.cli.common import open_admin
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.api import Consumer
from semel.sdk.producer.api import Producer

POLL_RECORDS = 10_000


class SemelClient:
    """See `BenchClient`."""

    name = "semel"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def create_topic(self, name: str, partitions: int) -> None:
        with open_admin(self._bootstrap) as admin:
            admin.create_topic(name, partitions=partitions)

    def delete_topic(self, name: str) -> None:
        with open_admin(self._bootstrap) as admin:
            admin.delete_topic(name)

    def partition_count(self, topic: str) -> int:
        with open_admin(self._bootstrap) as admin:
            return len(admin.topic(topic).partitions)

    def producer(self, topic: str, plan: ProducerPlan) -> BenchProducer:
        return _Producer(self._bootstrap, topic, plan)

    def consumer(self, topic: str, *, from_end: bool) -> BenchConsumer:
        return _Consumer(self._bootstrap, topic, self.partition_count(topic), from_end=from_end)


class _Producer:
    def __init__(self, bootstrap: str, topic: str, plan: ProducerPlan) -> None:
        self._topic = topic
        self._producer = Producer(
            bootstrap,
            transactional_id=plan.transactional_id,
            acks="all" if plan.acks.value == "all" else int(plan.acks.value),
            compression=plan.compression,
            client_id="semel-bench",
        )

    def send(self, value: bytes, acknowledged: Acknowledged | None) -> None:
        if acknowledged is None:
            self._producer.send(self._topic, value)
        else:
            self._producer.send(self._topic, value, on_delivery=lambda _, error: acknowledged(error))

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()

    def abandon(self) -> None:
        with suppress(SemelError):
            self._producer.close(0)


class _Consumer:
    def __init__(self, bootstrap: str, topic: str, partition_count: int, *, from_end: bool) -> None:
        self._consumer = Consumer(bootstrap, client_id="semel-bench")
        tps = [TopicPartition(topic, number) for number in range(partition_count)]
        self._consumer.assign(tps)
        if from_end:
            for tp, offset in self._consumer.end_offsets(tps).items():
                self._consumer.seek(tp, offset)

    def poll(self, timeout_s: float) -> Sequence[bytes]:
        batch = self._consumer.poll(timeout_s, POLL_RECORDS)
        return [] if batch is None else [record.value or b"" for record in batch]

    def close(self) -> None:
        self._consumer.close()
