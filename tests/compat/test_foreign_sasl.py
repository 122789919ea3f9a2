"""Foreign clients that prove a user's password, by their usual settings, encrypted and not (S6)."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka.errors
import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from certificates import Authority, encrypted
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import PATIENCE_S, QUIET
from live_node import LiveNode
from user_files import ALICE, set_user

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    from kafka.errors import KafkaError

TOPIC = "numbers"
VALUES = [str(number).encode() for number in range(100)]
PASSWORD = "wonder=,land"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")

Roundtrip = Callable[[str, str, str, "Path | None"], list[bytes]]


@pytest.fixture(params=[False, True], ids=["sasl", "tls+sasl"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> Authority | None:
    return Authority(tmp_path / "authority") if request.param else None


@pytest.fixture
def node(tmp_path: Path, authority: Authority | None) -> Iterator[LiveNode]:
    scheme = "sasl://" if authority is None else "tls+sasl://"
    settings: dict[str, Any] = {} if authority is None else dict(encrypted(authority.node()))
    settings |= dict.fromkeys(("kafka_listen", "grpc_listen"), f"{scheme}127.0.0.1:0")
    settings |= {"sasl_users_location": str(set_user(tmp_path / "users", password=PASSWORD))}
    with LiveNode(tmp_path, **settings, sasl_enabled_mechanisms=MECHANISMS) as live:
        yield live


def by_confluent(bootstrap: str, mechanism: str, password: str, ca: Path | None) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "sasl_plaintext" if ca is None else "sasl_ssl",
        "sasl.mechanism": mechanism,
        "sasl.username": ALICE,
        "sasl.password": password,
        "log_level": 0,
    }
    if ca is not None:
        settings["ssl.ca.location"] = str(ca)
    admin = AdminClient(settings, logger=QUIET)
    admin.list_topics(timeout=5)
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


def by_kafka_python(bootstrap: str, mechanism: str, password: str, ca: Path | None) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT" if ca is None else "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ALICE,
        "sasl_plain_password": password,
        "ssl_cafile": None if ca is None else str(ca),
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


def by_aiokafka(bootstrap: str, mechanism: str, password: str, ca: Path | None) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT" if ca is None else "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ALICE,
        "sasl_plain_password": password,
        "ssl_context": None if ca is None else ssl.create_default_context(cafile=str(ca)),
    }

    async def main() -> list[bytes]:
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
            for value in VALUES:
                await producer.send_and_wait(TOPIC, value)
        finally:
            await producer.stop()  # also where it has not started: it warns otherwise
        async with AIOKafkaConsumer(TOPIC, **settings, group_id="g", auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(main())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("roundtrip", [by_confluent, by_kafka_python, by_aiokafka])
def test_a_user_writes_and_reads(
    node: LiveNode, authority: Authority | None, roundtrip: Roundtrip, mechanism: str
) -> None:
    ca = None if authority is None else authority.ca
    assert roundtrip(str(node.node.kafka_address), mechanism, PASSWORD, ca) == VALUES


@pytest.mark.parametrize("authority", [False], ids=["sasl"], indirect=True)
@pytest.mark.parametrize("roundtrip", [by_confluent, by_kafka_python, by_aiokafka])
def test_S6_a_wrong_password_gets_nothing(node: LiveNode, roundtrip: Roundtrip) -> None:
    errors = (confluent_kafka.KafkaException, KafkaError, aiokafka.errors.KafkaError)
    with pytest.raises(errors):
        roundtrip(str(node.node.kafka_address), MECHANISMS[0], "wrong", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # kafka-python leaves sockets where it could not connect
        gc.collect()
    assert node.node.metadata.image.topics == {}
