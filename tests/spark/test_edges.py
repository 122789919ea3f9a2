"""Options that make no sense, as somebody who runs a query of Spark reads of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from longer_runs import given
from spark_copy import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(given("SEMEL_SPARK_LONG", "0") != "1", reason="takes minutes: `make test-spark` runs it"),
]

NewTopic = Callable[..., str]

WRONG_SOURCE = [
    ({"startingOffsets": "latest", "subscribe": ""}, "option subscribe is empty"),
    ({"subscribe": "t", "assign": '{"t": [0]}'}, "both subscribe and assign are given"),
    (
        {"subscribe": "t", "startingOffsets": "soon"},
        "is 'soon'; it can be earliest, latest or committed",
    ),
    ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is 0; it must be at least 1"),
    ({"subscribe": "t", "failOnDataLoss": "maybe"}, "it can be true or false"),
    ({"subscribe": "t", "kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset can't be given to the source"),
    ({"subscribe": "t", "kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit can't be given to the source"),
    ({"subscribe": "t", "kafka.security.protocol": "TLS"}, "use one of: PLAINTEXT, SSL"),
    ({"subscribe": "t", "startingOffsets": "committed"}, "'committed' needs option kafka.group.id"),
    ({"subscribe": "t", "maxOfsetsPerTrigger": "3"}, "did you mean 'maxOffsetsPerTrigger'?"),
    ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic' to read"),
]
WRONG_SINK = [
    ({"topic": ""}, "option topic says where all rows go"),
    ({"topic": "t", "kafka.acks": "1"}, "kafka.acks can only be 'all'"),
    ({"topic": "t", "kafka.enable.idempotence": "false"}, "kafka.enable.idempotence can only be 'true'"),
    ({"topic": "t", "kafka.compression.type": "brotli"}, "kafka.compression.type is 'brotli'"),
    ({"topic": "t", "kafka.transactional.id": "x"}, "kafka.transactional.id can't be given to the sink"),
    ({"topic": "t", "kafka.transaction.timeout.ms": "99999999"}, "(99999999) is more than the node allows"),
    ({"topic": "t", "asyncProgressTrackingEnabled": "true"}, "async progress tracking"),
    ({"topic": "t", "sourceRange": "none", "kafka.group.id": "g"}, "sourceRange is 'none'"),
    ({"topic": "t", "txnAppId": "a"}, "txnAppId and txnVersion go together"),
    ({"topic": "t", "tpoic": "u"}, "did you mean 'topic'?"),
]


def message_of(call: Callable[[], object]) -> str:
    """What somebody who runs a query reads of its failure."""
    with pytest.raises(Exception) as failure:
        call()
    return f"{failure.value}\n{failure.value.__cause__}"


@pytest.mark.parametrize(("options", "message"), WRONG_SOURCE)
def test_a_wrong_option_of_the_source_is_named_by_the_query(
    spark: SparkSession, bootstrap: str, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    def run() -> None:
        frame = spark.readStream.format("semel").options(bootstrap=bootstrap, **options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    assert message in message_of(run)


@pytest.mark.parametrize(("options", "message"), WRONG_SINK)
def test_a_wrong_option_of_the_sink_is_named_by_the_query(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    options: dict[str, str],
    message: str,
) -> None:
    read = new_topic()
    produce(bootstrap, read, "a")

    def run() -> None:
        frame = spark.readStream.format("semel").options(bootstrap=bootstrap, subscribe=read).load().select("value")
        query = (
            frame.writeStream.format("semel")
            .options(bootstrap=bootstrap, checkpointLocation=str(tmp_path), **options)
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    assert message in message_of(run)
