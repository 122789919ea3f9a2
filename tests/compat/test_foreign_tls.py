"""Foreign clients on encrypted listeners, by their usual settings, with a certificate of their own and without (S6)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from certificates import Authority, encrypted
from confluent_kafka.admin import AdminClient
from foreign_clients import QUIET
from foreign_roundtrips import VALUES, by_aiokafka, by_confluent, by_kafka_python
from live_node import LiveNode


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **encrypted(authority.node(), authority)) as live:
        yield live


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_a_client_with_a_certificate_writes_and_reads(node: LiveNode, authority: Authority, client: str) -> None:
    bootstrap, own = str(node.node.kafka_address), authority.client()
    if client == "confluent":
        files = {
            "ssl_ca_location": str(authority.ca),
            "ssl_certificate_location": str(own.certificate),
            "ssl_key_location": str(own.key),
        }
        found = by_confluent(bootstrap, security_protocol="ssl", **files)
    elif client == "kafka-python":
        files = {"ssl_cafile": str(authority.ca), "ssl_certfile": str(own.certificate), "ssl_keyfile": str(own.key)}
        found = by_kafka_python(bootstrap, security_protocol="SSL", **files)
    else:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(own.certificate, own.key)
        found = by_aiokafka(bootstrap, security_protocol="SSL", ssl_context=context)
    assert found == VALUES


def test_S6_librdkafka_without_a_certificate_gets_nothing(node: LiveNode, authority: Authority) -> None:
    settings = {
        "bootstrap.servers": str(node.node.kafka_address),
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.ca),
        "log_level": 0,
    }
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient(settings, logger=QUIET).list_topics(timeout=3)
