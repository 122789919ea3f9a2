"""What librdkafka goes through to be recorded (`request_recorder.SCENARIOS`), by confluent-kafka.

`tests/compat/java/src/Recorded.java` does the same with Java's clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import confluent_kafka
from foreign_clients import QUIET
from request_recorder import SOURCE, SOURCE_VALUES, TARGET

NAME: Final = "librdkafka"
VERSION: Final = f"{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.__version__})"
PATIENCE_S: Final = 30
_ID: Final = "transactor"
_GROUP: Final = "readers"
_IDLE_S: Final = 1.0
"""Long enough for some heartbeats."""
_BACKOFF: Final = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 20}


def run(bootstrap: str, scenario: str) -> None:
    """Go through one scenario."""
    _STEPS[scenario](_Client(bootstrap))


class _Client:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, number: int = 1, *, transactional: bool = True, **options: Any) -> Any:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "client.id": f"producer-{number}",
            "enable.idempotence": True,
            "linger.ms": 1_000,
            **_BACKOFF,
        }
        if transactional:
            settings |= {"transactional.id": _ID}
        made = confluent_kafka.Producer({**settings, **_dotted(options)}, logger=QUIET)
        if transactional:
            made.init_transactions(PATIENCE_S)
        return made

    def consumer(self, number: int = 1, protocol: str = "classic", **options: Any) -> Any:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "client.id": f"consumer-{number}",
            "group.id": _GROUP,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **_BACKOFF,
        }
        if protocol == "classic":
            settings |= {"partition.assignment.strategy": "roundrobin"}
        return confluent_kafka.Consumer({**settings, **_dotted(options)}, logger=QUIET)


def _dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in options.items()}


def _send(producer: Any, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(TARGET, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def _transact(producer: Any, *values: str) -> None:
    producer.begin_transaction()
    _send(producer, *values)
    producer.commit_transaction(PATIENCE_S)


def _offsets(offset: int) -> list[Any]:
    return [confluent_kafka.TopicPartition(SOURCE, 0, offset)]


def _take(consumer: Any, count: int = len(SOURCE_VALUES)) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            count -= 1


def _idle(consumer: Any) -> None:
    deadline = time.monotonic() + _IDLE_S
    while time.monotonic() < deadline:
        assert consumer.poll(0.05) is None


def _idempotent(client: _Client) -> None:
    producer = client.producer(transactional=False)
    _send(producer, "a")
    _send(producer, "b")
    _send(producer, "c", "d", "e")
    _send(producer, "f", partition=1)


def _lost_pipeline(client: _Client) -> None:
    producer = client.producer(transactional=False, batch_num_messages=1, linger_ms=0)
    _send(producer, "a")
    _send(producer, "b", "c", "d")


def _transaction(client: _Client) -> None:
    producer = client.producer()
    producer.begin_transaction()
    _send(producer, "a", "b")
    _send(producer, "c", partition=1)
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    _send(producer, "d")
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.commit_transaction(PATIENCE_S)
    _transact(producer, "e")


def _transform(client: _Client) -> None:
    consumer = client.consumer(heartbeat_interval_ms=200)
    consumer.subscribe([SOURCE])
    producer = client.producer()
    _take(consumer)
    producer.begin_transaction()
    _send(producer, *SOURCE_VALUES)
    producer.send_offsets_to_transaction(_offsets(3), consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(_offsets(2), consumer.consumer_group_metadata(), PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    _idle(consumer)
    consumer.close()


def _group(protocol: str, **options: Any) -> Callable[[_Client], None]:
    def go(client: _Client) -> None:
        consumer = client.consumer(1, protocol, **options)
        consumer.subscribe([SOURCE])
        _take(consumer)
        consumer.commit(offsets=_offsets(3), asynchronous=False)
        _idle(consumer)
        consumer.close()
        consumer = client.consumer(2, protocol, **options)
        consumer.subscribe([SOURCE])
        deadline = time.monotonic() + PATIENCE_S
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.05)
        _idle(consumer)
        consumer.close()

    return go


def _fenced_end(client: _Client) -> None:
    first = client.producer(1)
    first.begin_transaction()
    _send(first, "a")
    second = client.producer(2)
    second.begin_transaction()
    _send(second, "b")
    with suppress(confluent_kafka.KafkaException):
        first.commit_transaction(PATIENCE_S)
    second.commit_transaction(PATIENCE_S)


def _fenced_produce(client: _Client) -> None:
    first = client.producer(1)
    first.begin_transaction()
    _send(first, "a")
    second = client.producer(2)
    with suppress(confluent_kafka.KafkaException):
        _send(first, "b")
    with suppress(confluent_kafka.KafkaException):
        first.abort_transaction(PATIENCE_S)
    _transact(second, "c")


def _two_transactions(client: _Client) -> None:
    producer = client.producer()
    _transact(producer, "a")
    _transact(producer, "b")


def _lost_produce(client: _Client) -> None:
    producer = client.producer()
    producer.begin_transaction()
    _send(producer, "a")
    _send(producer, "b")
    _send(producer, "c")
    producer.commit_transaction(PATIENCE_S)


def _lost_offsets(client: _Client) -> None:
    """Of a consumer without a group: its generation is -1."""
    consumer, producer = client.consumer(), client.producer()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(_offsets(2), consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    _transact(producer, "a")
    consumer.close()


def _given_up(client: _Client) -> None:
    producer = client.producer(message_timeout_ms=1_000, linger_ms=0)
    producer.begin_transaction()
    _send(producer, "a")
    _send(producer, "b")
    with suppress(confluent_kafka.KafkaException):
        producer.commit_transaction(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    _transact(producer, "c")


_STEPS: Final[Mapping[str, Callable[[_Client], None]]] = {
    "idempotent": _idempotent,
    "transaction": _transaction,
    "transform": _transform,
    "classic-group": _group("classic", heartbeat_interval_ms=200),
    "new-group": _group("consumer"),
    "fenced-end": _fenced_end,
    "fenced-produce": _fenced_produce,
    "lost-produce": _lost_produce,
    "lost-pipeline": _lost_pipeline,
    "lost-add-partitions": _two_transactions,
    "lost-add-offsets": _lost_offsets,
    "lost-offset-commit": _lost_offsets,
    "lost-end": _two_transactions,
    "given-up": _given_up,
}
