"""Spans and trace context of the producer: one trace from the transaction over its records to the coordinator (E4)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import opentelemetry.trace
import pytest
from fake_node import FakeNode
from opentelemetry.baggage import get_baggage, set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode

import semel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.sdk.telemetry import tracing
from semel.testing import Broker

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
    assert set(found) == {"transaction enrich-0", "create orders", "send orders", "commit enrich-0"}
    transaction, commit = found["transaction enrich-0"], found["commit enrich-0"]
    create, send = found["create orders"], found["send orders"]
    assert transaction.parent is None
    assert [parent_of(child) for child in (create, send, commit)] == [transaction.context.span_id] * 3
    assert attributes_of(transaction) | {
        "semel.transaction.outcome": "committed",
        "semel.transaction.partitions": 1,
        "semel.transaction.records": 1,
        "semel.transaction.id": "enrich-0",
    } == attributes_of(transaction)
    assert "messaging.destination.name" not in attributes_of(transaction)
    assert attributes_of(commit)["semel.transaction.id"] == "enrich-0"
    assert (create.kind, send.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert [link.context.span_id for link in send.links] == [create.context.span_id]
    common = {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.client.id": "enricher",
        "messaging.destination.partition.id": "0",
    }
    assert attributes_of(create) == {
        **common,
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
    }
    assert attributes_of(send) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 1,
        "messaging.kafka.offset": 0,
    }
    ((_, record),) = node.broker.partitions[ORDERS].records()
    headers = dict(record.headers)
    assert headers["mine"] == b"1"
    value = headers["traceparent"]
    assert value is not None
    assert value.startswith(f"00-{create.context.trace_id:032x}-{create.context.span_id:016x}-".encode())
    context = tracing.extract(record.headers)
    assert opentelemetry.trace.get_current_span(context).get_span_context().span_id == create.context.span_id


def test_E4_one_trace_holds_a_shared_transaction_its_writers_and_its_commit(spans: InMemorySpanExporter) -> None:
    """Also where writers and committer are other processes, to which only the handle's bytes go."""
    with Broker() as node:
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
    for name in ("create orders", "send orders"):
        assert [parent_of(span) for span in named[name]] == [job.context.span_id]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_failures_are_on_their_spans(node: FakeNode, spans: InMemorySpanExporter) -> None:
    with semel.Producer(node.bootstrap, linger_ms=0) as producer:
        node.produce_script.append(ErrorCode.INVALID_RECORD)
        assert producer.send("orders", b"bad").exception(WAIT_S) is not None
        with pytest.raises(semel.FatalError):
            producer.flush()
        with pytest.raises(semel.UsageError):
            producer.send("orders", b"x", partition=7)
    made, refused, misused = spans.get_finished_spans()
    assert (made.name, refused.name, misused.name) == ("create orders", "send orders", "create orders")
    assert made.status.status_code is StatusCode.UNSET
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes_of(refused)["error.type"] == "INVALID_RECORD"
    assert misused.status.status_code is StatusCode.ERROR


def test_a_callers_own_traceparent_stays(node: FakeNode, spans: InMemorySpanExporter) -> None:
    """It is the record's creation context then, and no other is made; the batch links to it."""
    own = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with semel.Producer(node.bootstrap) as producer:
        producer.send("orders", b"x", headers={"traceparent": own})
    ((_, record),) = node.broker.partitions[ORDERS].records()
    assert record.headers == (("traceparent", own),)
    (send,) = spans.get_finished_spans()
    assert send.name == "send orders"
    assert [link.context.span_id for link in send.links] == [0xB7AD6B7169203331]


def test_a_batch_of_records_of_many_traces_is_a_root_that_links_to_them(
    node: FakeNode, spans: InMemorySpanExporter
) -> None:
    tracer = opentelemetry.trace.get_tracer("a program")
    with semel.Producer(node.bootstrap, linger_ms=1_000) as producer:
        for name in ("first", "second"):
            with tracer.start_as_current_span(name):
                producer.send("orders", b"x")
    creates = [span for span in spans.get_finished_spans() if span.name == "create orders"]
    send = by_name(spans)["send orders"]
    assert send.parent is None
    assert [link.context.span_id for link in send.links] == [span.context.span_id for span in creates]
    assert [parent_of(span) for span in creates] == [by_name(spans)[one].context.span_id for one in ("first", "second")]


def test_E4_records_sent_without_a_block_belong_to_the_open_transaction(
    node: FakeNode, spans: InMemorySpanExporter
) -> None:
    with semel.Producer(node.bootstrap, transactional_id="a") as producer:
        producer.begin_transaction()
        producer.send("orders", b"x")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("orders", b"y")
        producer.abort_transaction()
    transactions = [span for span in spans.get_finished_spans() if span.name == "transaction a"]
    assert [attributes_of(span)["semel.transaction.outcome"] for span in transactions] == ["committed", "aborted"]
    creates = [span for span in spans.get_finished_spans() if span.name == "create orders"]
    assert [parent_of(span) for span in creates] == [span.context.span_id for span in transactions]


def test_baggage_goes_with_records(node: FakeNode, spans: InMemorySpanExporter) -> None:
    token = attach(set_baggage("tenant", "blue & green"))
    try:
        with semel.Producer(node.bootstrap) as producer:
            producer.send("orders", b"x")
    finally:
        detach(token)
    ((_, record),) = node.broker.partitions[ORDERS].records()
    assert [name for name, _ in record.headers] == ["traceparent", "baggage"]
    assert get_baggage("tenant", tracing.extract(record.headers)) == "blue & green"


@pytest.mark.parametrize(
    "sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF), TraceIdRatioBased(0.0)], ids=lambda one: type(one).__name__
)
def test_what_is_not_sampled_makes_no_spans_but_says_so_to_others(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, sampler: Sampler
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    with semel.Producer(node.bootstrap, transactional_id="a") as producer, producer.transaction() as txn:
        for _ in range(3):
            txn.send("orders", b"x")
    assert exporter.get_finished_spans() == ()
    found = {dict(record.headers)["traceparent"] for _, record in node.broker.partitions[ORDERS].records()}
    (traceparent,) = found
    assert traceparent is not None
    assert int(traceparent[-2:], 16) & 1 == 0


def test_an_sdk_that_is_disabled_adds_no_headers(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spans have no ids, and records had a traceparent of zeros."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", TracerProvider())
    with semel.Producer(node.bootstrap, transactional_id="a") as producer, producer.transaction() as txn:
        txn.send("orders", b"x")
    ((_, record),) = node.broker.partitions[ORDERS].records()
    assert record.headers == ()


def test_a_sampler_of_the_programs_own_is_asked_for_each_record(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look at what the shortcut for OpenTelemetry's own samplers does not."""

    class EverySecond(StaticSampler):
        asked = 0

        def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
            self.asked += 1
            return StaticSampler(Decision.RECORD_AND_SAMPLE if self.asked % 2 else Decision.DROP).should_sample(
                *args, **options
            )

        def get_description(self) -> str:
            return "EverySecond"

    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=EverySecond(Decision.DROP))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    with semel.Producer(node.bootstrap, linger_ms=1_000) as producer:
        for _ in range(4):
            producer.send("orders", b"x")
    assert [span.name for span in exporter.get_finished_spans()].count("create orders") == 2


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
