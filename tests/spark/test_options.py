"""Options of source and sink: what is refused, with which advice, and that secrets never show."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType
from spark_query import VALUES, source

from semel.protocol.errors import UsageError
from semel.spark.options import redacted
from semel.spark.source.options import SourceOptions

ANY = {"bootstrap": "localhost:9094", "subscribe": "t"}
SINK = {"bootstrap": "localhost:9094", "topic": "t", "checkpointLocation": "/nowhere"}


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers"),
        ({"bootstrap": "localhost", "subscribe": "t"}, "HOST:PORT"),
        ({"bootstrap": "localhost:9094"}, "exactly one of .* none is given"),
        ({**ANY, "assign": '{"t": [0]}'}, "both subscribe and assign"),
        ({**ANY, "subscribe": " , "}, "subscribe is empty"),
        ({"bootstrap": "localhost:9094", "subscribePattern": "("}, "no regular expression"),
        ({"bootstrap": "localhost:9094", "assign": '{"t": 0}'}, "list of numbers"),
        ({**ANY, "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({**ANY, "startingOffsets": "latest"}, "batch query"),
        ({**ANY, "startingOffsets": '{"t": {"0": -1}}'}, "latest.* t-0"),
        ({**ANY, "startingOffsets": '{"t": {"0": -3}}'}, "the least is -2"),
        ({**ANY, "startingOffsets": "yesterday"}, "is 'yesterday'; it can be earliest, latest or committed, or JSON"),
        ({**ANY, "startingOffsets": "{0"}, "no JSON"),
        ({**ANY, "startingOffsets": '{"t": [1]}'}, "object of partitions"),
        ({**ANY, "startingOffsets": '{"t": {"x": 1}}'}, "no partition number"),
        ({**ANY, "startingOffsets": "committed"}, "kafka.group.id"),
        ({**ANY, "endingOffsets": "earliest"}, "endingOffsets can't be 'earliest'"),
        ({**ANY, "endingOffsets": "soon"}, "endingOffsets is 'soon'; it can be latest, or JSON"),
        ({**ANY, "endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets has -2"),
        ({**ANY, "startingTimestamp": "2026-01-01"}, "milliseconds since 1970"),
        ({**ANY, "minPartitions": "0"}, "at least 1|from 1"),
        ({**ANY, "minPartitions": "many"}, "no whole number"),
        ({**ANY, "failOnDataLoss": "maybe"}, "true or false"),
        ({**ANY, "maxTriggerDelay": "soon"}, "'15m'"),
        ({**ANY, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "more than maxOffsetsPerTrigger"),
        ({**ANY, "kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
        ({**ANY, "kafka.security.protocol": "TLS"}, "PLAINTEXT"),
        ({**ANY, "kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({**ANY, "kafka.key.deserializer": "X"}, "binary"),
        ({**ANY, "kafka.value.deserializer": "X"}, "binary"),
        ({**ANY, "kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({**ANY, "kafka.interceptor.classes": "X"}, "Java"),
    ],
)
def test_a_wrong_option_of_the_source_is_refused_with_advice(options: dict[str, str], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        SourceOptions.parse(options, is_stream=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(UsageError, match="availableNow"):
        SourceOptions.parse({**ANY, name: "latest"}, is_stream=True)


def test_names_are_compared_without_case_and_other_kafka_options_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    options = {"BOOTSTRAP": "localhost:9094", "SUBSCRIBE": "t", "maxtriggerdelay": "2 minutes", "kafka.zap": "1"}
    parsed = SourceOptions.parse(options, is_stream=True)
    assert parsed.max_trigger_delay_ms == 120_000
    assert "kafka.zap has no counterpart" in caplog.text


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({**SINK, "topics": "t"}, "did you mean 'topic'"),
        ({**SINK, "kafka.acks": "1"}, "'all'"),
        ({**SINK, "kafka.enable.idempotence": "false"}, "'true'"),
        ({**SINK, "kafka.transactional.id": "x"}, "coordinator"),
        ({**SINK, "kafka.key.serializer": "X"}, "binary"),
        ({**SINK, "kafka.compression.type": "rar"}, "zstd"),
        ({**SINK, "asyncProgressTrackingEnabled": "true"}, "leave the option out"),
        ({**SINK, "txnAppId": "x"}, "go together"),
        ({**SINK, "sourceRange": "none", "kafka.group.id": "g"}, "sourceRange"),
    ],
)
def test_a_wrong_option_of_the_sink_is_refused_with_advice(options: dict[str, str], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        source(**options).streamWriter(VALUES, False)


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        (StructType().add("key", StringType()), "needs a column 'value'.*has key"),
        (StructType().add("value", LongType()), "'value' is bigint.*string or binary"),
        (StructType().add("value", StringType()).add("partition", StringType()), "'partition' is string"),
        (StructType().add("value", StringType()).add("headers", StringType()), "array<struct"),
        (StructType().add("value", StringType()).add("topic", IntegerType()), "'topic' is int"),
    ],
)
def test_a_frame_that_can_not_be_written_is_refused_on_the_driver(schema: StructType, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        source(**SINK).writer(schema, False)


def test_a_batch_write_that_has_read_nothing_of_a_stream_commits_for_no_group() -> None:
    line = {"txnAppId": "a", "txnVersion": "1"}
    for more in ({}, line):
        with pytest.raises(UsageError, match=r"(?s)kafka.group.id.*write_batch.*leave the option out"):
            source(bootstrap="localhost:9094", topic="t", kafka__group__id="g", **more).writer(VALUES, False)
    source(**SINK, kafka__group__id="g", **line).writer(VALUES, False)


def test_rows_must_go_somewhere_and_a_log_is_not_overwritten() -> None:
    with pytest.raises(UsageError, match="option topic"):
        source(bootstrap="localhost:9094").writer(VALUES, False)
    with pytest.raises(UsageError, match="append"):
        source(**SINK).writer(VALUES, True)


@pytest.mark.parametrize("name", ["n" * 470, "\u00e9" * 235])
def test_names_that_are_too_long_for_the_coordinator_are_refused_before_any_task_runs(name: str) -> None:
    fits = {**SINK, "checkpointLocation": "/nowhere", "sinkName": name[:-1]}
    source(**fits).streamWriter(VALUES, False)
    with pytest.raises(UsageError, match=r"has 51[34] bytes; the most is 512: give a shorter sinkName"):
        source(**{**fits, "sinkName": name}).streamWriter(VALUES, False)
    query = {**fits, "txnAppId": "0" * 36, "txnVersion": "1"}
    source(**query).writer(VALUES, False)
    with pytest.raises(UsageError, match=r"give a shorter sinkName .* or txnAppId"):
        source(**{**query, "txnAppId": "0" * 39}).writer(VALUES, False)


def test_secrets_show_in_no_repr_and_no_error() -> None:
    secret = "hunter2-hunter2"
    options = {
        **ANY,
        "kafka.sasl.jaas.config": f'x.ScramLoginModule required username="me" password="{secret}";',
        "kafka.sasl.oauthbearer.token.endpoint.url": secret,
    }
    assert secret not in repr(redacted(options))
    assert redacted(options)["subscribe"] == "t"
    with pytest.raises(UsageError) as caught:
        SourceOptions.parse({**options, "kafka.security.protocol": "TLS"}, is_stream=False)
    assert secret not in str(caught.value)
    for name in ("kafka.ssl.keystore.password", "kafka.ssl.keystore.key", "kafka.ssl.key.password"):
        with pytest.raises(UsageError) as caught:
            SourceOptions.parse({**options, name: secret}, is_stream=False)
        assert secret not in str(caught.value)
    del options["kafka.sasl.oauthbearer.token.endpoint.url"]  # it is for another mechanism
    data_source = source(**options)
    things = [data_source, data_source.reader(data_source.schema()), data_source.streamReader(data_source.schema())]
    sink = {name: value for name, value in options.items() if name != "subscribe"}
    things += [source(**sink, topic="t").writer(VALUES, False), source(**{**SINK, **sink}).streamWriter(VALUES, False)]
    for thing in things:
        assert secret not in repr(thing)
        assert secret not in repr(pickle.loads(pickle.dumps(thing)))
    with pytest.raises(UsageError) as caught:
        source(**sink, topics="t").writer(VALUES, False)
    assert secret not in str(caught.value)


def test_clients_of_a_query_get_tokens_themselves_and_the_secret_is_in_no_log() -> None:
    secret, url = "hunter2", "https://login.example.com/token"
    options = {
        **ANY,
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
        "kafka.sasl.oauthbearer.client.id": "etl",
        "kafka.sasl.oauthbearer.client.secret": secret,
        "kafka.sasl.oauthbearer.scope": "read",
        "kafka.https.ca.location": "/ca.pem",
    }
    parsed = SourceOptions.parse(options, is_stream=False)
    login = parsed.address.bootstrap.security.login
    assert login is not None
    assert (login.token_url, login.client_id, login.client_secret, login.scope, login.endpoint_ca) == (
        url, "etl", secret, "read", "/ca.pem",
    )  # fmt: skip
    assert secret not in repr(redacted(options))
    assert secret not in repr(parsed)
    in_one = f"sasl://localhost:9094{parsed.address.bootstrap.security.query()}"
    assert secret not in repr(redacted({**ANY, "bootstrap": in_one}))
