"""Foreign clients that prove a user's password, by their usual settings, encrypted and not (S6)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.errors
import confluent_kafka
import pytest
from certificates import Authority, encrypted
from foreign_roundtrips import VALUES, by_aiokafka, by_confluent, by_kafka_python, kafka
from live_node import LiveNode
from user_files import ALICE, set_user

PASSWORD = "wonder=,land"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
CLIENTS = ("confluent", "kafka-python", "aiokafka")


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


def roundtrip(client: str, bootstrap: str, mechanism: str, password: str, ca: Path | None) -> list[bytes]:
    protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"
    if client == "confluent":
        authorities = {} if ca is None else {"ssl_ca_location": str(ca)}
        user = {"sasl_mechanism": mechanism, "sasl_username": ALICE, "sasl_password": password}
        return by_confluent(bootstrap, security_protocol=protocol.lower(), **user, **authorities)
    user = {"sasl_mechanism": mechanism, "sasl_plain_username": ALICE, "sasl_plain_password": password}
    if client == "kafka-python":
        return by_kafka_python(
            bootstrap, security_protocol=protocol, **user, ssl_cafile=None if ca is None else str(ca)
        )
    context = None if ca is None else ssl.create_default_context(cafile=str(ca))
    return by_aiokafka(bootstrap, security_protocol=protocol, **user, ssl_context=context)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_user_writes_and_reads(node: LiveNode, authority: Authority | None, client: str, mechanism: str) -> None:
    ca = None if authority is None else authority.ca
    assert roundtrip(client, str(node.node.kafka_address), mechanism, PASSWORD, ca) == VALUES


@pytest.mark.drawn(1, "wrong passwords and tokens")
@pytest.mark.parametrize("authority", [False], ids=["sasl"], indirect=True)
@pytest.mark.parametrize("client", CLIENTS)
def test_S6_a_wrong_password_gets_nothing(node: LiveNode, client: str) -> None:
    errors = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)
    with pytest.raises(errors):
        roundtrip(client, str(node.node.kafka_address), MECHANISMS[0], "wrong", None)
    assert node.node.metadata.image.topics == {}
