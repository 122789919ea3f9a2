"""A pipeline of a foreign client's transactions on three processes, each of which is killed, frozen or stopped (E1)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from node_processes import NodeProcesses, node_processes, wait_for

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 3
RECORDS = 900
STRIKES = ("kill", "freeze", "stop", "kill")
CALL_S = 60.0
HANGS_S = 20.0
"""librdkafka can wait for good for a group's coordinator that was away when it sent a transaction's offsets
(confluentinc/librdkafka#5456, #5511).
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with node_processes(tmp_path / "cluster") as running:
        yield running


class Pipeline:
    """Reads "in", writes each value to "out", and commits the places with it; a life that fails is followed by another.

    Every instance has its own transactional id, as a program under a supervisor has. A life that hangs is left behind,
    and fenced by the next one.
    """

    def __init__(self, bootstrap: str, number: int) -> None:
        self._bootstrap = bootstrap
        self._id = f"pipeline-{number}"
        self._stops = threading.Event()
        self._moved_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[str] = []
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join(CALL_S)

    def _run(self) -> None:
        while not self._stops.is_set():
            self._moved_s = time.monotonic()
            life = threading.Thread(target=self._end_with_error, daemon=True)
            life.start()
            while life.is_alive() and time.monotonic() < self._moved_s + HANGS_S:
                life.join(0.2)

    def _end_with_error(self) -> None:
        try:
            self._live()
        except KafkaException as error:
            self.errors.append(str(error))

    def _live(self) -> None:
        quiet: dict[str, Any] = {"bootstrap.servers": self._bootstrap, "log_level": 0}
        producer = Producer({**quiet, "transactional.id": self._id, "transaction.timeout.ms": 10_000})
        producer.init_transactions(CALL_S)
        consumer = Consumer(
            {
                **quiet,
                "group.id": "pipeline",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "max.poll.interval.ms": 10_000,
            }
        )
        try:
            consumer.subscribe(["in"])
            while not self._stops.is_set():
                records = [one for one in consumer.consume(50, 0.2) if not one.error()]
                self._moved_s = time.monotonic()
                if records:
                    self._transact(producer, consumer, records)
        finally:
            consumer.close()

    def _transact(self, producer: Producer, consumer: Consumer, records: list[Any]) -> None:
        producer.begin_transaction()
        try:
            for record in records:
                producer.produce("out", record.value(), partition=record.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), CALL_S
            )
            producer.commit_transaction(CALL_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(CALL_S)
            for place in consumer.committed(consumer.assignment(), CALL_S):
                consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


def feed(bootstrap: str, struck: threading.Event) -> None:
    """Send all records, slowly until all has been done to the nodes."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(RECORDS):
        producer.produce("in", b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
        if not struck.is_set():
            time.sleep(0.05)
    assert producer.flush(CALL_S) == 0


def output(bootstrap: str) -> list[int]:
    """Return what a reader of committed records finds now."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed", "log_level": 0}
    )
    try:
        tps = [TopicPartition("out", number, 0) for number in range(PARTITIONS)]
        ends = {tp.partition: reader.get_watermark_offsets(tp, CALL_S)[1] for tp in tps}
        reader.assign(tps)
        values: list[int] = []
        while any(max(place.offset, 0) < ends[place.partition] for place in reader.position(tps)):
            found = reader.poll(1.0)
            if found is None:
                break  # the end is a marker, or belongs to an open transaction
            if not found.error():
                values.append(int(found.value() or b""))
        return values
    finally:
        reader.close()


def strike(nodes: NodeProcesses, how: str, node_id: int) -> None:
    """Do something to a node, and have it back."""
    getattr(nodes, how)(node_id)
    time.sleep(6.0 if how == "freeze" else 2.0)
    if how == "freeze":
        nodes.thaw(node_id)
    else:
        nodes.start(node_id)


@pytest.mark.drawn(1, "pipelines on three nodes")
def test_E1_each_record_is_transformed_once_whichever_node_is_killed_frozen_or_stopped(nodes: NodeProcesses) -> None:
    bootstrap = ",".join(nodes.kafka.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in ("in", "out")]).values():
        made.result(CALL_S)
    struck = threading.Event()
    feeding = threading.Thread(target=feed, args=(bootstrap, struck), daemon=True)
    feeding.start()
    pipelines = [Pipeline(bootstrap, number) for number in range(2)]
    chance = random.Random(1)
    for how in STRIKES:
        strike(nodes, how, chance.choice((1, 2, 3)))
    struck.set()
    feeding.join(2 * CALL_S)
    assert not feeding.is_alive()
    try:
        wait_for(lambda: len(output(bootstrap)) >= RECORDS, "all is transformed")
    finally:
        for pipeline in pipelines:
            pipeline.stop()
    assert sorted(output(bootstrap)) == list(range(RECORDS)), [pipeline.errors for pipeline in pipelines]
