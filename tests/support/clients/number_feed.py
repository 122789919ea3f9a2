"""Numbers that a producer of confluent-kafka sends to a topic while something happens to a cluster."""

from __future__ import annotations

import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from node_processes import wait_for

PARTITIONS: Final = 3
CALL_S: Final = 60.0


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
    """Return all values that are committed in a topic now."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0}
    )
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        values: list[int] = []
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            found = reader.poll(CALL_S)
            assert found is not None
            error = found.error()
            if error is None:
                values.append(int(found.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(found.partition())
        return values
    finally:
        reader.close()


def create(admin: AdminClient, topic: str) -> None:
    (made,) = admin.create_topics([NewTopic(topic, PARTITIONS, 3)], request_timeout=CALL_S).values()
    made.result(CALL_S)


def leaders(admin: AdminClient, topic: str) -> set[int]:
    return {one.leader for one in admin.list_topics(topic, CALL_S).topics[topic].partitions.values()}
