"""Foreign clients that write a hundred numbers and read them again, each with the settings of its own kind."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import PATIENCE_S, QUIET

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka

TOPIC = "numbers"
VALUES = [str(number).encode() for number in range(100)]


def by_confluent(bootstrap: str, **settings: Any) -> list[bytes]:
    """With a transaction and a group. Settings with underscores for dots."""
    common = {name if callable(value) else name.replace("_", "."): value for name, value in settings.items()}
    common |= {"bootstrap.servers": bootstrap, "log_level": 0}
    admin = AdminClient(common, logger=QUIET)
    admin.list_topics(timeout=5)
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE_S)
    producer = confluent_kafka.Producer({**common, "transactional.id": "t"}, logger=QUIET)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(TOPIC, value)
    producer.commit_transaction(PATIENCE_S)
    consumer = confluent_kafka.Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest"}, logger=QUIET)
    consumer.subscribe([TOPIC])
    messages = []
    while len(messages) < len(VALUES):
        messages += consumer.consume(len(VALUES), PATIENCE_S)
    consumer.close()
    return [message.value() or b"" for message in messages]


def by_kafka_python(bootstrap: str, **settings: Any) -> list[bytes]:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **settings)
    for value in VALUES:
        producer.send(TOPIC, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, **settings, group_id="g", auto_offset_reset="earliest"
    )
    values = [next(consumer).value for _ in VALUES]
    consumer.close()
    return values


def by_aiokafka(bootstrap: str, **settings: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        common = {"bootstrap_servers": bootstrap, **settings}
        producer = AIOKafkaProducer(**common)
        try:
            await producer.start()
            for value in VALUES:
                await producer.send_and_wait(TOPIC, value)
        finally:
            await producer.stop()  # also where it has not started: it warns otherwise
        async with AIOKafkaConsumer(TOPIC, **common, group_id="g", auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(main())
