"""Foreign clients on encrypted listeners, by their usual settings, with a certificate of their own and without (S6)."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from certificates import Authority, Pair, encrypted
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import PATIENCE_S, QUIET
from live_node import LiveNode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka

TOPIC = "numbers"
VALUES = [str(number).encode() for number in range(100)]

Roundtrip = Callable[[str, Authority, Pair], list[bytes]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **encrypted(authority.node(), authority)) as live:
        yield live


def by_confluent(bootstrap: str, authority: Authority, client: Pair) -> list[bytes]:
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
        "log_level": 0,
    }
    admin = AdminClient(settings, logger=QUIET)
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE_S)
    producer = confluent_kafka.Producer({**settings, "transactional.id": "t"}, logger=QUIET)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(TOPIC, value)
    producer.commit_transaction(PATIENCE_S)
    consumer = confluent_kafka.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"}, logger=QUIET)
    consumer.subscribe([TOPIC])
    messages = []
    while len(messages) < len(VALUES):
        messages += consumer.consume(len(VALUES), PATIENCE_S)
    consumer.close()
    return [message.value() or b"" for message in messages]


def by_kafka_python(bootstrap: str, authority: Authority, client: Pair) -> list[bytes]:
    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(authority.ca),
        "ssl_certfile": str(client.certificate),
        "ssl_keyfile": str(client.key),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(TOPIC, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(TOPIC, **settings, group_id="g", auto_offset_reset="earliest")
    values = [next(consumer).value for _ in VALUES]
    consumer.close()
    return values


def by_aiokafka(bootstrap: str, authority: Authority, client: Pair) -> list[bytes]:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(client.certificate, client.key)

    async def main() -> list[bytes]:
        settings = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": context}
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(TOPIC, value)
        async with AIOKafkaConsumer(TOPIC, **settings, group_id="g", auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(main())


@pytest.mark.parametrize("roundtrip", [by_confluent, by_kafka_python, by_aiokafka])
def test_a_client_with_a_certificate_writes_and_reads(
    node: LiveNode, authority: Authority, roundtrip: Roundtrip
) -> None:
    assert roundtrip(str(node.node.kafka_address), authority, authority.client()) == VALUES


def test_S6_librdkafka_without_a_certificate_gets_nothing(node: LiveNode, authority: Authority) -> None:
    settings = {
        "bootstrap.servers": str(node.node.kafka_address),
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.ca),
        "log_level": 0,
    }
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient(settings, logger=QUIET).list_topics(timeout=3)
