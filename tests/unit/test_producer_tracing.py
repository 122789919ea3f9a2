"""Spans and trace context of the producer: one trace from the transaction over its records to the coordinator (E4)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import opentelemetry.trace
import pytest
from fake_node import FakeNode
from live_node import LiveNode
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import semel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.sdk import tracing

WAIT_S = 30
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1}) as node:
        yield node


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    return exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_E4_one_trace_holds_the_transaction_its_records_and_its_commit(
    node: FakeNode, spans: InMemorySpanExporter
) -> None:
    producer = semel.Producer(node.bootstrap, transactional_id="enrich-0", client_id="enricher")
    with producer, producer.transaction() as txn:
        txn.send("orders", b"x", headers={"mine": b"1"})
    found = by_name(spans)
    assert set(found) == {"transaction enrich-0", "send orders", "commit enrich-0"}
    transaction, send, commit = found["transaction enrich-0"], found["send orders"], found["commit enrich-0"]
    assert transaction.parent is None
    for child in (send, commit):
        assert child.parent is not None
        assert child.parent.span_id == transaction.context.span_id
    assert send.kind is SpanKind.PRODUCER
    assert send.attributes is not None
    assert dict(send.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": "enricher",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
    }
    ((_, record),) = node.broker.partitions[ORDERS].records()
    headers = dict(record.headers)
    assert headers["mine"] == b"1"
    value = headers["traceparent"]
    assert value is not None
    assert value.startswith(f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-".encode())
    context = tracing.extract(record.headers)
    assert opentelemetry.trace.get_current_span(context).get_span_context().span_id == send.context.span_id


def test_E4_one_trace_holds_a_shared_transaction_its_writers_and_its_commit(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    """Also where writers and committer are other processes, to which only the handle's bytes go."""
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        tracer = opentelemetry.trace.get_tracer("a job")
        with tracer.start_as_current_span("job"):
            sent = pickle.dumps(semel.SharedTransaction(node.bootstrap, "import", token="t"))
        with pickle.loads(sent).join() as writer:
            writer.send("orders", b"x")
            member = writer.finish()
        pickle.loads(sent).commit([member])
        semel.SharedTransaction(node.bootstrap, "import", token="u").commit([])
        with tracer.start_as_current_span("driver"):
            pickle.loads(sent).commit([member])
    named: dict[str, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        named.setdefault(span.name, []).append(span)
    (job,), (driver,) = named["job"], named["driver"]
    transactions, commits = named["transaction import"], named["commit import"]
    assert [parent_of(span) for span in transactions] == [job.context.span_id, None, driver.context.span_id]
    assert [parent_of(span) for span in commits] == [span.context.span_id for span in transactions]
    assert [parent_of(span) for span in named["send orders"]] == [job.context.span_id]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_failures_are_on_their_spans(node: FakeNode, spans: InMemorySpanExporter) -> None:
    with semel.Producer(node.bootstrap, linger_ms=0) as producer:
        node.produce_script.append(ErrorCode.INVALID_RECORD)
        assert producer.send("orders", b"bad").exception(WAIT_S) is not None
        with pytest.raises(semel.FatalError):
            producer.flush()
        with pytest.raises(semel.UsageError):
            producer.send("orders", b"x", partition=7)
    refused, misused = spans.get_finished_spans()
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "INVALID_RECORD"
    assert misused.status.status_code is StatusCode.ERROR


def test_a_callers_own_traceparent_stays(node: FakeNode, spans: InMemorySpanExporter) -> None:
    own = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with semel.Producer(node.bootstrap) as producer:
        producer.send("orders", b"x", headers={"traceparent": own})
    ((_, record),) = node.broker.partitions[ORDERS].records()
    assert record.headers == (("traceparent", own),)


def test_without_an_sdk_nothing_is_added(node: FakeNode) -> None:
    assert not tracing.active()
    assert tracing.metadata() == ()
    with semel.Producer(node.bootstrap) as producer:
        producer.send("orders", b"x")
    ((_, record),) = node.broker.partitions[ORDERS].records()
    assert record.headers == ()


def test_the_trace_context_goes_with_grpc_calls(node: FakeNode, spans: InMemorySpanExporter) -> None:
    with semel.Producer(node.bootstrap, transactional_id="a") as producer, producer.transaction() as txn:
        txn.send("orders", b"x")
    commit = by_name(spans)["commit a"]
    (metadata,) = [found for name, found in node.call_metadata if name == "EndTransaction"]
    assert metadata["traceparent"].startswith(f"00-{commit.context.trace_id:032x}-{commit.context.span_id:016x}-")
