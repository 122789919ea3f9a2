"""Spark on a node that encrypts and asks for certificates: source, sink and their transaction, from a query's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from certificates import Authority, encrypted
from live_node import LiveNode

import semel
from semel.protocol.errors import UsageError
from semel.sdk.transport.options import Bootstrap, parse_bootstrap
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
    bootstrap = str(Bootstrap((node.bootstrap,), tls))
    with semel.Admin(bootstrap) as admin:
        for topic in ("in", "out"):
            admin.create_topic(topic, partitions=2)
    with semel.Producer(bootstrap) as producer:
        for number in range(COUNT):
            producer.send("in", str(number).encode(), partition=number % 2)
    options = {
        "kafka.bootstrap.servers": str(node.node.kafka_address),
        "kafka.security.protocol": "SSL",
        **{f"kafka.{name}": value for name, value in tls.options().items()},
    }
    rows = spark.readStream.format("semel").options(**options, subscribe="in", startingOffsets="earliest").load()
    written = rows.select("value").writeStream.format("semel").options(**options, topic="out")
    query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
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
        ({"kafka.security.protocol": "SASL_SSL"}, "use one of: PLAINTEXT, SSL"),
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
