"""Three nodes whose PostgreSQL dies for good while they work: its standby takes over, nothing is lost (D1, R4)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from database_servers import PostgresqlPair
from node_processes import NodeProcesses, node_processes, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(600)]
PARTITIONS = 3
CALL_S = 60.0


@pytest.fixture
def pair() -> Iterator[PostgresqlPair]:
    pair = PostgresqlPair()
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture
def nodes(tmp_path: Path, pair: PostgresqlPair) -> Iterator[NodeProcesses]:
    pair.primary.new_database("semel")
    with node_processes(tmp_path / "cluster", **{"metadata.url": pair.url("semel")}) as running:
        yield running


class Feed:
    """Sends numbers with an idempotent producer until it is stopped, and writes down which were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= wanted, f"{count} more acknowledgements of {self._topic}")

    def stop(self) -> None:
        self._stops.set()
        self._thread.join(CALL_S)
        assert self._producer.flush(CALL_S) == 0
        assert self.failed == []

    def _run(self) -> None:
        number = 0
        while not self._stops.is_set():
            self._producer.produce(self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._told)
            number += 1
            self._producer.poll(0.01)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
        else:
            self.failed.append(str(error))


def everything(bootstrap: str, topic: str) -> list[int]:
    """Return all values that are in a topic now."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    try:
        tps = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = {tp.partition: reader.get_watermark_offsets(tp, CALL_S)[1] for tp in tps}
        reader.assign(tps)
        values: list[int] = []
        while len(values) < sum(ends.values()):
            found = reader.poll(CALL_S)
            assert found is not None
            assert found.error() is None, found.error()
            values.append(int(found.value()))
        return values
    finally:
        reader.close()


def create(admin: AdminClient, topic: str) -> None:
    (made,) = admin.create_topics([NewTopic(topic, PARTITIONS, 3)], request_timeout=CALL_S).values()
    made.result(CALL_S)


def leaders(admin: AdminClient, topic: str) -> set[int]:
    return {one.leader for one in admin.list_topics(topic, CALL_S).topics[topic].partitions.values()}


def test_D1_R4_a_cluster_survives_the_death_of_its_database_and_of_a_node_after_it(
    nodes: NodeProcesses, pair: PostgresqlPair
) -> None:
    bootstrap = ",".join(nodes.kafka.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, "before")
    wait_for(lambda: leaders(admin, "before") == {1, 2, 3}, "a leader for each partition")
    feed = Feed(bootstrap, "before")
    feed.more()
    pair.primary.kill()
    feed.more(200)  # leaders continue without a database
    pair.promote()

    def creates() -> bool:
        (made,) = admin.create_topics([NewTopic("after", PARTITIONS, 3)], request_timeout=CALL_S).values()
        error = made.exception(CALL_S)
        return error is None or "TOPIC_ALREADY_EXISTS" in str(error)

    wait_for(creates, "changes are taken by the standby")
    feed.more()
    nodes.kill(1)
    wait_for(lambda: 1 not in leaders(admin, "before"), "others lead what node 1 led")
    feed.more()
    nodes.start(1)
    feed.stop()
    found = everything(bootstrap, "before")
    assert len(found) == len(set(found)), "none is there twice"
    assert set(feed.acknowledged) <= set(found), "none is lost"
    assert everything(bootstrap, "after") == []
