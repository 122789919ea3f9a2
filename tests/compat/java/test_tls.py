"""Apache Kafka's Java clients and tools on a node that encrypts and asks for certificates, with PEM files (KIP-651)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority, encrypted
from kafka_tools import KafkaTools
from live_node import LiveNode


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[LiveNode]:  # type: ignore[override]
    with LiveNode(tmp_path, **encrypted(authority.node(), authority)) as live:
        yield live


@pytest.fixture
def settings(tmp_path: Path, authority: Authority) -> str:
    """A file of settings for a client with a certificate."""
    pair = authority.client()
    both = tmp_path / "client-and-key.pem"
    both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.ca}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
    )
    return str(file)


def test_java_clients_with_a_certificate_write_and_read(node: LiveNode, each_tools: KafkaTools, settings: str) -> None:
    where = ("--bootstrap-server", str(node.node.kafka_address))
    each_tools.run("topics", *where, "--command-config", settings, "--create", "--topic", "t").succeeded()
    lines = "".join(f"line {number}\n" for number in range(20))
    each_tools.run("console-producer", *where, "--producer.config", settings, "--topic", "t", text=lines).succeeded()
    read = each_tools.run(
        *("console-consumer", *where, "--consumer.config", settings, "--topic", "t", "--from-beginning"),
        *("--max-messages", "20", "--timeout-ms", "30000"),
    ).succeeded()
    assert [line for line in read.lines() if line.startswith("line ")] == lines.splitlines()


def test_S6_java_clients_without_a_certificate_get_nothing(
    node: LiveNode, tools: KafkaTools, settings: str, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.properties"
    kept = [line for line in Path(settings).read_text().splitlines() if "keystore" not in line]
    bare.write_text("\n".join([*kept, "default.api.timeout.ms=5000", "request.timeout.ms=4000"]) + "\n")
    where = ("--bootstrap-server", str(node.node.kafka_address))
    assert tools.run("topics", *where, "--command-config", str(bare), "--list").code != 0
