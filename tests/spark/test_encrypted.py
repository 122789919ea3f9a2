"""Spark on a node that encrypts and asks for certificates, or for a password: source, sink and their transaction, from
a query's tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from certificates import Authority, encrypted
from live_node import LiveNode
from user_files import ALICE, set_user

import semel
from semel.protocol.errors import UsageError
from semel.sdk.transport.login import Login
from semel.sdk.transport.options import Bootstrap, parse_bootstrap
from semel.sdk.transport.security import Security
from semel.spark.sink.options import SinkOptions
from semel.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 50


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **encrypted(authority.node(), authority)) as live:
        yield live


def test_a_query_reads_and_writes_exactly_once_over_tls(
    spark: SparkSession, node: LiveNode, authority: Authority, tmp_path: Path
) -> None:
    tls = authority.tls(authority.client())
    options = {
        "kafka.security.protocol": "SSL",
        **{f"kafka.{name}": value for name, value in tls.options().items()},
    }
    _query(spark, node, Security(tls), options, tmp_path)


def test_a_query_reads_and_writes_exactly_once_as_a_user(spark: SparkSession, tmp_path: Path) -> None:
    """By the options that Spark's own Kafka source has for it."""
    settings: dict[str, Any] = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    settings["sasl_users_location"] = str(set_user(tmp_path / "users", password="wonderland"))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="{ALICE}" password="wonderland";',
    }
    with LiveNode(tmp_path, **settings) as live:
        _query(spark, live, Security(None, Login(ALICE, "wonderland")), options, tmp_path)


def _query(
    spark: SparkSession, node: LiveNode, security: Security, kafka_options: dict[str, str], folder: Path
) -> None:
    """Have a query copy numbers from one topic to another one."""
    bootstrap = str(Bootstrap((node.bootstrap,), security))
    with semel.Admin(bootstrap) as admin:
        for topic in ("in", "out"):
            admin.create_topic(topic, partitions=2)
    with semel.Producer(bootstrap) as producer:
        for number in range(COUNT):
            producer.send("in", str(number).encode(), partition=number % 2)
    options = {"kafka.bootstrap.servers": str(node.node.kafka_address), **kafka_options}
    rows = spark.readStream.format("semel").options(**options, subscribe="in", startingOffsets="earliest").load()
    written = rows.select("value").writeStream.format("semel").options(**options, topic="out")
    query = written.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    with semel.Consumer(bootstrap, topics=["out"], group="g", offset_reset="earliest") as consumer:
        got: list[bytes | None] = []
        while len(got) < COUNT and (batch := consumer.poll(30)) is not None:
            got += [record.value for record in batch]
    assert sorted(map(int, filter(None, got))) == list(range(COUNT))


def test_options_of_kafkas_clients_and_the_bootstrap_say_the_same() -> None:
    tls = {"kafka.ssl.ca.location": "ca.pem", "kafka.security.protocol": "SSL"}
    expected = parse_bootstrap("tls://a:1?ssl.ca.location=ca.pem")
    by_name = SourceOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t", **tls}, is_stream=False)
    by_text = SinkOptions.parse({"bootstrap": str(expected), "topic": "t"})
    assert by_name.address.bootstrap == by_text.address.bootstrap == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kafka.security.protocol": "TLS"}, "use one of: PLAINTEXT, SSL"),
        ({"kafka.ssl.truststore.location": "x.jks"}, "use ssl.ca.location, a PEM file"),
        ({"kafka.ssl.key.password": "hunter2"}, "is a key that is not encrypted"),
        ({"kafka.security.protocol": "PLAINTEXT", "kafka.ssl.ca.location": "x"}, "nothing would be encrypted"),
    ],
)
def test_S5_options_that_can_t_be_meant_are_refused_without_their_secrets(options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        SinkOptions.parse({"bootstrap": "a:1", "topic": "t", **options})
    assert told in raised.value.message
    assert "hunter2" not in raised.value.message
