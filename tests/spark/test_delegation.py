"""A user's password stays on the driver: tasks log in with a delegation token, which the driver renews."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from asking_node import at
from delegating_node import delegating
from live_node import LiveNode
from passing_numbers import PATIENCE_S
from user_files import ALICE, PASSWORD, set_user

import semel
import semel.spark
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.errors import FatalError, UsageError
from semel.spark.sink.options import SinkOptions
from semel.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 50
QUERY_S = 300
SHORT_MS = 6_000
"""Half of it is what a renewal may take, on a busy machine, too."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    settings = delegating(set_user(tmp_path / "users"), delegation_token_expiry_time_ms=SHORT_MS)
    with LiveNode(tmp_path, **settings) as live:
        yield live


def of_alice(node: LiveNode, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": node.bootstrap,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.username": ALICE,
        "kafka.sasl.password": PASSWORD,
        **more,
    }


def tokens(node: LiveNode) -> list[DelegationToken]:
    return list(node.node.metadata.image.delegation_tokens.values())


@pytest.mark.drawn(1, "long runs of Spark")
def test_a_query_runs_with_a_token_that_is_renewed_meanwhile(
    spark: SparkSession, node: LiveNode, tmp_path: Path
) -> None:
    with semel.Admin(at(node.bootstrap)) as admin, semel.Producer(at(node.bootstrap)) as producer:
        for topic in ("in", "out"):
            admin.create_topic(topic, partitions=2)
        with semel.spark.delegated(of_alice(node)) as options:
            (made,) = tokens(node)
            rows = spark.readStream.format("semel").options(**options, subscribe="in", startingOffsets="earliest")
            written = rows.load().select("value").writeStream.format("semel").options(**options, topic="out")
            query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            try:
                with semel.Consumer(at(node.bootstrap), topics=["out"], group="g", offset_reset="earliest") as consumer:
                    for first in (0, COUNT):
                        for number in range(first, first + COUNT):
                            producer.send("in", str(number).encode(), partition=number % 2)
                        assert _read(consumer, query) == list(range(first, first + COUNT))
                        if not first:  # the rest is read and written when the token would have ended without the driver
                            _until(lambda: node.node.clock.now_ms() > made.expiry_timestamp_ms)
                assert [each.token_id for each in tokens(node)] == [made.token_id], "the same token all the time"
            finally:
                query.stop()
        assert tokens(node) == [], "it was taken back"


def _read(consumer: Any, query: Any) -> list[int]:
    """Return what the query has written, once that are COUNT records."""
    got: list[int] = []
    deadline = time.monotonic() + QUERY_S
    while len(got) < COUNT:
        assert time.monotonic() < deadline
        assert query.exception() is None
        got += [int(record.value) for record in consumer.poll(1) or ()]
    return sorted(got)


def test_S5_nothing_that_leaves_the_driver_has_the_password(node: LiveNode, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    with_file = of_alice(node)
    del with_file["kafka.sasl.password"]
    with_file["kafka.sasl.password.location"] = str(file)
    in_bootstrap = {"bootstrap": f"sasl://{node.bootstrap}?sasl.username={ALICE}&sasl.password={PASSWORD}"}
    for given in (of_alice(node), with_file, in_bootstrap):
        with semel.spark.delegated({**given, "kafka.client.id": "mine"}) as options:
            assert options["kafka.client.id"] == "mine"
            source = SourceOptions.parse({**options, "subscribe": "t"}, is_stream=True)
            sink = SinkOptions.parse({**options, "topic": "t"})
            for sent in (options, source, sink):
                data = pickle.dumps(sent)
                for secret in (PASSWORD, ALICE, str(file)):
                    assert secret.encode() not in data
            with semel.Admin(source.address.bootstrap) as admin:
                assert admin.topics() == []


def test_it_is_renewed_until_it_can_not_be_and_taken_back_at_the_end(
    node: LiveNode, caplog: pytest.LogCaptureFixture
) -> None:
    with semel.spark.delegated(of_alice(node), max_lifetime_ms=2 * SHORT_MS):
        (made,) = tokens(node)
        _until(lambda: tokens(node)[0].expiry_timestamp_ms > made.expiry_timestamp_ms)
        _until(lambda: "can't be renewed any more" in caplog.text)
        assert tokens(node)[0].expiry_timestamp_ms == made.max_timestamp_ms
    assert tokens(node) == []
    assert not [each for each in threading.enumerate() if each.name == "semel-spark-delegation"]


def test_a_token_that_is_gone_is_told(node: LiveNode, caplog: pytest.LogCaptureFixture) -> None:
    with semel.spark.delegated(of_alice(node)), semel.Admin(at(node.bootstrap)) as admin:
        admin.expire_delegation_token(tokens(node)[0].token_id)
        _until(lambda: "is gone, and the tasks' requests fail" in caplog.text)
    assert "was not taken back" in caplog.text


def _until(is_so: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_can_not_have_a_token_is_told_before_a_query_begins(node: LiveNode) -> None:
    with pytest.raises(UsageError, match="no user is named"), semel.spark.delegated({"bootstrap": node.bootstrap}):
        pass
    with pytest.raises(FatalError), semel.spark.delegated(of_alice(node, **{"kafka.sasl.password": "hunter2"})):
        pass
    with (
        semel.spark.delegated(of_alice(node)) as options,
        pytest.raises(FatalError, match="log in as a user"),
        semel.spark.delegated(options),
    ):
        pass


def test_sources_and_sinks_take_a_token_from_a_file(node: LiveNode, tmp_path: Path) -> None:
    with semel.Admin(at(node.bootstrap)) as admin:
        made = admin.create_delegation_token()
    file = tmp_path / "token"
    file.write_text(f"{made.token.token_id}:{made.password}\n")
    options = {
        "kafka.bootstrap.servers": str(node.node.kafka_address),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.delegation.token.location": str(file),
    }
    source = SourceOptions.parse({**options, "subscribe": "t"}, is_stream=True)
    assert made.password.encode() not in pickle.dumps(source)
    with semel.Admin(source.address.bootstrap) as admin:
        assert admin.topics() == []
    with pytest.raises(UsageError, match="the token says who the user is") as refused:
        SinkOptions.parse({**options, "topic": "t", "kafka.sasl.username": ALICE, "kafka.sasl.password": "hunter2"})
    assert "hunter2" not in refused.value.message
