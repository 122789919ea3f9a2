"""What a collector sees of Spark: spans and metrics from its own processes, over OTLP."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_receiver import OtlpReceiver, Span
from spark_query import VALUES, Query, read_table, settled_values, source, task, values
from spark_traced_driver import FIRST, SECOND

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.batch_header import iter_batches
from semel.runtime.ports import free_ports
from semel.sdk.telemetry import metrics, tracing
from semel.sdk.telemetry import setup as telemetry
from semel.spark.telemetry import BatchTrace, Names, batch_deciding, task_writing

NewTopic = Callable[..., str]
DRIVER = Path(__file__).parent.parent / "support" / "spark" / "spark_traced_driver.py"
TRACE_ID, APPLICATION = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ROWS = FIRST + SECOND


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def stored_bytes(node: NodeProcess, topic: str) -> list[int]:
    """The sizes of the record batches that a topic holds, partition by partition, without markers."""
    files = sorted(node.data_dir.rglob(f"{topic}-*/*.log"))
    assert files
    return [header.size_bytes for path in files for header in iter_batches(path.read_bytes()) if not header.is_control]


@pytest.mark.drawn(1, "long runs of Spark")
@pytest.mark.spark
def test_E4_a_collector_sees_each_batch_from_the_application_to_its_decision_and_what_it_moved(
    spark_environment: Mapping[str, str],
    receiver: OtlpReceiver,
    node: NodeProcess,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = new_topic(2), new_topic(2)
    traceparent = f"00-{TRACE_ID}-{APPLICATION}-01"
    driver = subprocess.run(
        [sys.executable, "-P", str(DRIVER), bootstrap, str(tmp_path), read, write, traceparent],
        env={**os.environ, **spark_environment, **receiver.environment("copy-job")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr[-3_000:]
    settled_values(bootstrap, write)
    check_tree(receiver, write)
    check_metrics(receiver, node, read, write)
    check_consumer(receiver.spans(f"send {write}", semel__spark__outcome="written"), bootstrap, write, monkeypatch)


def check_tree(receiver: OtlpReceiver, topic: str) -> None:
    """Application -> batch -> each task, and batch -> transaction -> commit; nothing is an orphan."""
    batches = receiver.wait_for_spans(f"batch {topic}", 3)
    assert [span.attributes["semel.spark.outcome"] for span in batches] == ["committed", "committed", "replayed"]
    assert [span.attributes["semel.spark.batch_id"] for span in batches] == [0, 1, 1]
    assert [span.attributes["messaging.batch.message_count"] for span in batches] == [FIRST, SECOND, 0]
    assert {(span.trace_id, span.parent_id) for span in batches} == {(TRACE_ID, APPLICATION)}
    assert len({span.span_id for span in batches}) == 3
    for batch, tasks in zip(batches, (FIRST, SECOND, 0), strict=True):
        below = receiver.children(batch)
        sends = [span for span in below if span.name == f"send {topic}"]
        assert {span.kind for span in sends} == {"PRODUCER"}
        assert {span.attributes["semel.spark.task.partition"] for span in sends} == {0, 1}
        assert sum(span.attributes["messaging.batch.message_count"] for span in sends) == tasks
        (transaction,) = [span for span in below if span not in sends]
        assert transaction.name == f"transaction {transaction.name.partition(' ')[2]}"
        (commit,) = receiver.children(transaction)
        assert commit.name == transaction.name.replace("transaction", "commit")
        for span in (*sends, transaction, commit):
            assert batch.start_ns <= span.start_ns <= span.end_ns <= batch.end_ns
            assert not span.is_error
        attempt = batch.attributes["semel.spark.attempt"]
        assert all(span.attributes["semel.spark.attempt"] == attempt for span in sends)
        assert batch.attributes["semel.spark.query_id"] in transaction.name
    commits = [span for span in receiver.spans() if span.name.startswith("commit ")]
    assert len(commits) == 3
    for commit in commits:
        # The application's own span is nowhere: the test made its id up.
        assert receiver.path(commit) == [
            "?",
            f"batch {topic}",
            commit.name.replace("commit", "transaction"),
            commit.name,
        ]
    assert {span.resource["service.name"] for span in receiver.spans()} == {"copy-job"}


def check_metrics(receiver: OtlpReceiver, node: NodeProcess, read: str, write: str) -> None:
    receiver.wait_for_total("semel.spark.batches", 3)
    assert receiver.total("semel.spark.batches", semel__spark__outcome="committed") == 2
    assert receiver.total("semel.spark.batches", semel__spark__outcome="replayed") == 1
    assert receiver.count("semel.spark.batch.duration") == 3
    assert receiver.total("semel.client.transactions", semel__transaction__outcome="committed") == 2
    assert receiver.total("semel.client.transactions", semel__transaction__outcome="already_committed") == 1
    assert receiver.total("semel.client.transactions") == 3
    assert receiver.total("semel.spark.attempts", semel__spark__outcome="written") == 4
    assert receiver.total("semel.spark.attempts", semel__spark__outcome="replayed") == 2
    assert receiver.total("messaging.client.sent.messages", messaging__destination__name=write) == ROWS
    written = sum(stored_bytes(node, write))
    assert receiver.total("semel.client.sent.io", messaging__destination__name=write) == written
    assert receiver.total("semel.spark.committed.rows") == ROWS
    assert receiver.total("semel.spark.committed.io") == written
    # The replayed batch was read again, though nothing of it was written.
    assert receiver.total("messaging.client.consumed.messages", messaging__destination__name=read) == ROWS + SECOND
    assert receiver.total("semel.client.consumed.io", messaging__destination__name=read) > sum(stored_bytes(node, read))
    lags = receiver.points("semel.spark.source.lag", messaging__destination__name=read)
    assert {point.value for point in lags} >= {FIRST / 2, SECOND / 2}
    query = {"semel__spark__query": "copy"}
    receiver.wait_for_total("semel.spark.query.rows", ROWS + SECOND, **query)
    assert {point.value for point in receiver.last("semel.spark.query.lag", **query)} == {0}
    assert receiver.count("semel.spark.query.phase.duration", semel__spark__phase="triggerExecution") >= 3
    units = {
        "messaging.client.sent.messages": "{message}",
        "semel.client.sent.io": "By",
        "semel.spark.source.lag": "{record}",
    }
    assert {name: receiver.points(name)[0].unit for name in units} == units


def check_consumer(sends: list[Span], bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer continues in the trace of the task that wrote what it reads."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    seen = []
    with semel.Consumer(bootstrap, group=f"g-{topic}", topics=[topic]) as consumer:
        while len(seen) < ROWS:
            batch = consumer.poll(30)
            assert batch is not None
            seen += list(batch)
    linked = {
        (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}")
        for span in exporter.get_finished_spans()
        for link in span.links
    }
    assert linked == {(span.trace_id, span.span_id) for span in sends}
    for record in seen:
        assert len(record.headers) == 1
        assert tracing.extract(record.headers) is not None


# --- In this process, step by step ------------------------------------------------------------------------------------


@pytest.fixture
def exporting(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """This process looks to the data source as one of Spark's with the environment set."""
    for name, value in receiver.environment("in-process").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(telemetry, "_looked_in", None)
    monkeypatch.setattr(telemetry, "_was_slow", False)
    with fresh_providers(monkeypatch) as providers:
        yield receiver
        for provider in providers():
            provider.shutdown()


@contextmanager
def fresh_providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Any]]]:
    """OpenTelemetry lets providers be set once in a process; a test needs them unset, before and after."""
    from opentelemetry.metrics import _internal as meters
    from opentelemetry.util._once import Once

    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(meters, "_METER_PROVIDER", None)
    monkeypatch.setattr(meters, "_METER_PROVIDER_SET_ONCE", Once())
    yield lambda: [
        provider for provider in (opentelemetry.trace._TRACER_PROVIDER, meters._METER_PROVIDER) if provider is not None
    ]


def test_a_batch_that_is_given_up_and_one_that_fails_at_its_decision_have_one_span_each(
    exporting: OtlpReceiver, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic)
    query.log_offsets(0, 10)
    messages = query.run_tasks(0, ["a", "b"], [])

    def broken() -> Iterator[Any]:
        yield values("c")
        raise OSError("the rows end here")

    with pytest.raises(OSError, match="end here"):
        query.run_task(query.planned(), 0, broken(), 2)
    with pytest.raises(semel.FatalError, match="1 of 3 tasks"):
        query.commit([*messages, None], 0)
    query.abort([*messages, None], 0)
    with pytest.raises(semel.SemelError):
        query.commit(messages, 0)  # what is aborted can't be decided any more
    (batch,) = exporting.wait_for_spans(f"batch {topic}")
    assert (batch.is_error, batch.parent_id) == (True, "")
    assert batch.attributes["semel.spark.outcome"] == "aborted"
    assert [span.attributes["semel.spark.outcome"] for span in exporting.children(batch)[:2]] == ["written", "empty"]
    (failed,) = exporting.wait_for_spans(f"send {topic}", semel__spark__outcome="failed")
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "OSError")
    assert failed.trace_id != batch.trace_id  # of an execution of which the driver heard nothing
    for outcome in ("written", "empty", "failed"):
        assert exporting.total("semel.spark.attempts", semel__spark__outcome=outcome) == 1
    assert exporting.total("semel.spark.batches", semel__spark__outcome="aborted") == 1
    assert exporting.total("semel.client.transactions", semel__transaction__outcome="aborted") == 1
    assert exporting.total("semel.spark.committed.rows") == 0
    assert settled_values(bootstrap, topic) == []


@pytest.mark.parametrize("app_id", ["", "app/with a slash"])
def test_a_batch_write_is_traced_as_a_batch_of_a_stream_is(
    exporting: OtlpReceiver, bootstrap: str, new_topic: NewTopic, app_id: str
) -> None:
    topic = new_topic()
    line = {"txnAppId": app_id, "txnVersion": "7", "sinkName": "totals"} if app_id else {}
    name = "totals" if app_id else topic

    def write() -> None:
        planned = source(bootstrap=bootstrap, topic=topic, **line).writer(VALUES, False)
        with task(0, traceparent=f"00-{TRACE_ID}-{APPLICATION}-01", tracestate="a=b"):
            message = pickle.loads(pickle.dumps(planned)).write(iterator=iter([values("a", "b")]))
        pickle.loads(pickle.dumps(planned)).commit([message])

    write()
    write()
    first, second = exporting.wait_for_spans(f"batch {name}", 2)
    outcomes = ["committed", "replayed" if app_id else "committed"]
    assert [span.attributes["semel.spark.outcome"] for span in (first, second)] == outcomes
    assert [span.attributes.get("semel.spark.query_id") for span in (first, second)] == [app_id or None] * 2
    assert [span.attributes.get("semel.spark.batch_id") for span in (first, second)] == [7 if app_id else None] * 2
    for batch in (first, second):
        assert (batch.trace_id, batch.parent_id) == (TRACE_ID, APPLICATION)
        send, transaction = exporting.children(batch)
        assert send.name == f"send {topic}"
        assert [span.name for span in exporting.children(transaction)] == [
            transaction.name.replace("transaction", "commit", 1)
        ]
    settled_values(bootstrap, topic)
    rows = read_table(bootstrap=bootstrap, subscribe=topic, includeHeaders="true").to_pylist()
    assert len(rows) == (2 if app_id else 4)
    sends = [exporting.children(batch)[0].span_id for batch in (first, second)]
    for row in rows:
        traceparent, tracestate = row["headers"]
        assert traceparent["value"].decode() in [f"00-{TRACE_ID}-{span_id}-01" for span_id in sends]
        assert tracestate == {"key": "tracestate", "value": b"a=b"}
    # The second write of a line is a replay; without a line, both count.
    assert exporting.total("semel.spark.committed.rows", semel__spark__sink=name) == len(rows)


def test_a_root_is_sampled_the_same_in_all_processes(exporting: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    assert telemetry.start_from_environment()
    names = Names("q", "s", 0, "a", "t", "c")
    sampled = set()
    for _ in range(40):
        trace = BatchTrace.fresh()
        with task_writing(trace, names, 0) as task:
            (_, traceparent), *_ = task.headers
            assert traceparent is not None
        with batch_deciding(trace, names) as batch:
            is_sampled = opentelemetry.trace.get_current_span().get_span_context().trace_flags.sampled
            batch.outcome = "committed"
        assert traceparent.endswith(b"-01") == is_sampled
        assert f"{trace.trace_id:032x}".encode() in traceparent
        sampled.add(is_sampled)
    assert sampled == {True, False}
    exporting.wait_for_total("semel.spark.batches", 40)
    for span in exporting.spans("send t"):
        assert exporting.path(span) == ["batch s", "send t"]


@pytest.mark.parametrize("away", [False, True])
def test_a_collector_that_refuses_or_is_away_fails_no_batch(
    exporting: OtlpReceiver,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    away: bool,
) -> None:
    monkeypatch.setattr(telemetry, "FLUSH_TIMEOUT_S", 0.2)
    if away:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_ports(1)[0]}")
        # Seconds that an export tries, here until the test ends. With fewer than its first pause, of up to 1.2 s, it
        # gives up at once, and was not slow.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    exporting.answer = 503
    topic = new_topic()
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic)
    query.run_batch(0, ["a"])
    assert telemetry._was_slow
    query.run_batch(1, ["b"])
    assert settled_values(bootstrap, topic) == ["a", "b"]
    if not away:
        exporting.wait_until(lambda: "/v1/traces" in exporting.requests, "request")
        exporting.answer = 200
        (before, _) = exporting.wait_for_spans(f"batch {topic}", 2)  # what could not be exported is tried again
        assert before.attributes["semel.spark.batch_id"] == 0


@pytest.mark.parametrize(
    ("environment", "traces", "points"),
    [
        ({}, [], []),
        ({"OTEL_SERVICE_NAME": "job"}, [], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, ["otlp_proto_http"], ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, ["otlp_proto_http"], []),
        (
            {"OTEL_TRACES_EXPORTER": "console, otlp", "OTEL_METRICS_EXPORTER": "none"},
            ["console", "otlp_proto_http"],
            [],
        ),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, [], ["otlp_proto_grpc"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, [], ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "True"}, [], []),
    ],
)
def test_the_environment_says_what_is_exported(
    environment: dict[str, str], traces: list[str], points: list[str]
) -> None:
    assert telemetry.exporters_asked_for("TRACES", environment) == traces
    assert telemetry.exporters_asked_for("METRICS", environment) == points


def test_what_can_not_be_exported_is_said_once_and_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for environment, said in (
        ({"OTEL_TRACES_EXPORTER": "nowhere"}, "no exporter 'nowhere'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier"}, "by 'carrier'"),
    ):
        caplog.clear()
        monkeypatch.setattr(telemetry, "_looked_in", None)
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            assert not telemetry.start_from_environment()
            assert not telemetry.start_from_environment()
        assert [said in record.message for record in caplog.records] == [True]


def test_without_being_asked_nothing_is_set_up_and_rows_carry_nothing(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_looked_in", None)
    topic = new_topic()
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic)
    query.run_batch(0, ["a"])
    query.log_offsets(1, 20)
    query.commit(query.run_tasks(1, ["b"], traceparent=f"00-{TRACE_ID}-{APPLICATION}-01"), 1)
    assert not tracing.active()
    assert not metrics.active()
    settled_values(bootstrap, topic)
    found = read_table(bootstrap=bootstrap, subscribe=topic, includeHeaders="true").to_pylist()
    own = [{"key": "traceparent", "value": f"00-{TRACE_ID}-{APPLICATION}-01".encode()}]
    assert [(row["value"], row["headers"]) for row in found] == [(b"a", None), (b"b", own)]


def test_off_costs_no_import_of_opentelemetry() -> None:
    program = """
import sys
from semel.protocol.ids import TopicPartition
from semel.spark.telemetry import BatchTrace, Names, batch_deciding, planned, rows_read, task_writing
trace, names = BatchTrace.fresh(), Names("q", "s", 0, "a", "t", "c")
with task_writing(trace, names, 0) as task:
    assert task.headers == ()
with batch_deciding(trace, names):
    pass
rows_read(TopicPartition("t", 0), 1, 1)
planned({}, {TopicPartition("t", 0): 1})
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    answer = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout == "[]\n"
