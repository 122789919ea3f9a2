"""Foreign clients with tokens (OAUTHBEARER), by their usual settings, encrypted and not (S6)."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import pytest
from certificates import Authority, encrypted
from foreign_roundtrips import VALUES, by_aiokafka, by_confluent, by_kafka_python, kafka
from live_node import LiveNode
from token_issuer import Issuer

CLIENTS = ("confluent", "kafka-python", "aiokafka")


@pytest.fixture(params=[False, True], ids=["sasl", "tls+sasl"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> Authority | None:
    return Authority(tmp_path / "authority") if request.param else None


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def node(tmp_path: Path, authority: Authority | None, issuer: Issuer) -> Iterator[LiveNode]:
    scheme = "sasl://" if authority is None else "tls+sasl://"
    settings: dict[str, Any] = {} if authority is None else dict(encrypted(authority.node()))
    settings |= issuer.settings(**dict.fromkeys(("kafka_listen", "grpc_listen"), f"{scheme}127.0.0.1:0"))
    with LiveNode(tmp_path, **settings) as live:
        yield live


def roundtrip(client: str, bootstrap: str, token: str, ca: Path | None) -> list[bytes]:
    protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"
    if client == "confluent":
        authorities = {} if ca is None else {"ssl_ca_location": str(ca)}

        def give(_config: str) -> tuple[str, float]:
            return token, time.time() + 600

        return by_confluent(
            bootstrap,
            security_protocol=protocol.lower(),
            sasl_mechanism="OAUTHBEARER",
            oauth_cb=give,
            **authorities,
        )
    if client == "kafka-python":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return token

        return by_kafka_python(
            bootstrap,
            security_protocol=protocol,
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
            ssl_cafile=None if ca is None else str(ca),
        )

    class Giver(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token

    context = None if ca is None else ssl.create_default_context(cafile=str(ca))
    return by_aiokafka(
        bootstrap,
        security_protocol=protocol,
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Giver(),
        ssl_context=context,
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_token_writes_and_reads(
    node: LiveNode, issuer: Issuer, authority: Authority | None, client: str
) -> None:
    ca = None if authority is None else authority.ca
    assert roundtrip(client, str(node.node.kafka_address), issuer.token(), ca) == VALUES


@pytest.mark.drawn(1, "wrong passwords and tokens")
@pytest.mark.parametrize("authority", [False], ids=["sasl"], indirect=True)
@pytest.mark.parametrize("client", CLIENTS)
def test_S6_a_wrong_token_gets_nothing(node: LiveNode, issuer: Issuer, client: str) -> None:
    errors = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)
    with pytest.raises(errors):
        roundtrip(client, str(node.node.kafka_address), issuer.token(aud="others"), None)
    assert node.node.metadata.image.topics == {}


@pytest.mark.parametrize("authority", [False], ids=["sasl"], indirect=True)
def test_S6_confluents_client_shows_another_token_on_the_same_connection(node: LiveNode, issuer: Issuer) -> None:
    given: list[str] = []

    def give(_config: str) -> tuple[str, float]:
        given.append(issuer.token(lasts_s=5))
        return given[-1], time.time() + 5

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": str(node.node.kafka_address),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
        }
    )
    failed: list[Any] = []
    ends_at, sent = time.time() + 12, 0
    while time.time() < ends_at:
        producer.produce("t", b"x", on_delivery=lambda error, _: failed.append(error))
        producer.flush(60)
        sent += 1
        time.sleep(0.2)
    assert failed == [None] * sent
    assert len(given) > 1
