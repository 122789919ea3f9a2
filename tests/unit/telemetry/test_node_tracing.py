"""What a node that is traced tells a collector: appends, fetches, decisions, markers, timeouts, rebalances (E4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import Producer as ForeignProducer
from live_node import LiveNode
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_receiver import OtlpReceiver, Span

import semel
from semel.broker.config.node_config import NodeConfig
from semel.broker.telemetry.tracing import REBALANCES_MAX, GroupSpans, NodeTracing
from semel.group_coordinator.effects import GroupEvent, GroupEventKind
from semel.protocol.batch_builder import encode_batch
from semel.protocol.ids import TopicPartition
from semel.protocol.trace_context import TraceContext
from semel.runtime.setting import ConfigError
from semel.runtime.telemetry.tracing import Spans
from semel.sdk.telemetry import tracing

WAIT_S = 30
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01".encode()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        more = {"OTEL_METRICS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        for name, value in receiver.environment("node", **more).items():
            monkeypatch.setenv(name, value)
        yield receiver


@pytest.fixture
def node(receiver: OtlpReceiver, tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        yield node


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans of the test's own clients."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    return exporter


def ids(exporter: InMemorySpanExporter, name: str) -> tuple[str, str]:
    """The trace and span id of the one span of the clients that has this name."""
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent(span: Span) -> tuple[str, str]:
    return span.trace_id, span.parent_id


def place(span: Span) -> tuple[str, str]:
    return span.trace_id, span.span_id


def links(span: Span) -> list[tuple[str, str]]:
    return [(link.trace_id, link.span_id) for link in span.links]


def foreign_producer(node: LiveNode, **options: Any) -> ForeignProducer:
    return ForeignProducer({"bootstrap.servers": str(node.node.kafka_address), "linger.ms": 0, **options})


def test_E4_a_transactions_trace_leads_over_appends_and_the_decision_to_its_markers(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    with (
        semel.Producer(node.bootstrap, transactional_id="enrich") as producer,
        producer.transaction() as txn,
    ):
        txn.send("orders", b"x", partition=0)
    (append,) = receiver.wait_for_spans("append orders")
    assert parent(append) == ids(client, "send orders")
    assert append.kind == "SERVER"
    assert append.attributes["messaging.kafka.offset"] == 0
    assert append.attributes["messaging.destination.partition.id"] == "0"
    (adding,) = receiver.wait_for_spans("add_partitions enrich")
    assert parent(adding) == ids(client, "send orders")
    (decide,) = receiver.wait_for_spans("decide enrich")
    assert parent(decide) == ids(client, "commit enrich")
    expected = {
        "semel.transaction.outcome": "committed",
        "semel.transaction.cause": "request",
        "semel.transaction.partitions": 1,
        "semel.transaction.id": "enrich",
    }
    assert {name: decide.attributes.get(name) for name in expected} == expected
    (marker,) = receiver.wait_for_spans("marker orders")
    assert parent(marker) == place(decide)
    assert marker.attributes["semel.transaction.outcome"] == "committed"
    assert {span.trace_id for span in (append, adding, decide, marker)} == {ids(client, "transaction enrich")[0]}
    assert append.resource["service.name"] == "node"
    assert append.resource["semel.node.id"] == "1"


def test_E4_a_shared_transaction_is_one_decision_with_the_markers_of_all_its_writers(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    shared = semel.SharedTransaction(node.bootstrap, "import", token="t")
    members = []
    for _ in range(2):
        with shared.join() as writer:
            writer.send("orders", b"x")
            members.append(writer.finish())
    shared.commit(members)
    markers = receiver.wait_for_spans("marker orders", 2)
    (decide,) = receiver.wait_for_spans("decide import")
    assert parent(decide) == ids(client, "commit import")
    assert [parent(marker) for marker in markers] == [place(decide)] * 2


def test_E4_a_foreign_clients_records_carry_their_trace_to_the_append_and_the_commit(
    node: LiveNode, receiver: OtlpReceiver
) -> None:
    producer = foreign_producer(node, **{"transactional.id": "foreign"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"x", headers=[("traceparent", TRACEPARENT)])
    producer.commit_transaction(WAIT_S)
    (append,) = receiver.wait_for_spans("append orders")
    assert parent(append) == (TRACE, PARENT)
    (adding,) = receiver.wait_for_spans("add_partitions foreign")
    (decide,) = receiver.wait_for_spans("decide foreign")
    (marker,) = receiver.wait_for_spans("marker orders")
    assert parent(decide) == (TRACE, PARENT)
    assert parent(marker) == place(decide)
    assert adding.parent_id == ""  # AddPartitionsToTxn comes before any record, and says nothing of traces
    producer.begin_transaction()
    producer.produce("orders", b"y")
    producer.commit_transaction(WAIT_S)
    _, untraced = receiver.wait_for_spans("decide foreign", 2)
    _, added = receiver.wait_for_spans("add_partitions foreign", 2)
    assert parent(untraced) == place(added)


def test_contexts_go_to_and_from_foreign_clients(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    """What they put into headers is read here, and what is put in here is there for them."""
    theirs = foreign_producer(node)
    theirs.produce("orders", b"theirs", headers=[("traceparent", TRACEPARENT), ("baggage", b"tenant=blue")])
    assert theirs.flush(WAIT_S) == 0
    with semel.Consumer(node.bootstrap, group="g", topics=["orders"]) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        with batch.processing(batch[0]), semel.Producer(node.bootstrap) as producer:
            producer.send("orders", b"ours")
    (process,) = [span for span in client.get_finished_spans() if span.name == "process orders"]
    assert process.parent is not None
    assert (f"{process.parent.trace_id:032x}", f"{process.parent.span_id:016x}") == (TRACE, PARENT)
    reader = ForeignConsumer(
        {"bootstrap.servers": str(node.node.kafka_address), "group.id": "f", "auto.offset.reset": "earliest"}
    )
    reader.subscribe(["orders"])
    try:
        found: dict[bytes, dict[str, Any]] = {}
        while b"ours" not in found:
            message = reader.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            found[message.value()] = dict(message.headers() or [])
    finally:
        reader.close()
    trace_id, span_id = ids(client, "create orders")
    assert trace_id == TRACE
    assert found[b"ours"]["traceparent"].decode().startswith(f"00-{trace_id}-{span_id}-")
    assert found[b"ours"]["baggage"] == b"tenant=blue"


def test_a_ready_made_batch_is_appended_below_the_span_that_it_was_sent_in(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    """As Spark's tasks send them: theirs is the span of the sending."""
    with (
        opentelemetry.trace.get_tracer("a task").start_as_current_span("task"),
        semel.Producer(node.bootstrap) as producer,
    ):
        producer.send_batch("orders", 0, encode_batch([(1, None, b"x", ())]))
    (append,) = receiver.wait_for_spans("append orders")
    assert parent(append) == ids(client, "task")
    assert [span.name for span in client.get_finished_spans()] == ["task"]


def test_a_fetch_links_to_the_records_that_it_brought(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    with semel.Producer(node.bootstrap) as producer:
        producer.send("orders", b"x")
    with semel.Consumer(node.bootstrap, group="g", topics=["orders"]) as consumer:
        assert consumer.poll(WAIT_S) is not None
    (fetch,) = receiver.wait_for_spans("fetch orders")
    assert fetch.kind == "SERVER"
    assert links(fetch) == [ids(client, "create orders")]
    assert fetch.attributes["semel.fetch.partitions"] == 1


def test_a_rebalance_is_linked_to_the_joins_of_its_members(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    with semel.Consumer(node.bootstrap, group="g", topics=["orders"]) as consumer:
        consumer.poll(0.01)
        (rebalance,) = _rebalances(receiver, consumer)
    assert links(rebalance) == [ids(client, "join")]
    assert rebalance.attributes["messaging.consumer.group.name"] == "g"
    assert rebalance.attributes["semel.group.outcome"] == "stable"
    assert rebalance.attributes["semel.group.generation"] == 1


def _rebalances(receiver: OtlpReceiver, consumer: semel.Consumer) -> list[Span]:
    while not (found := receiver.spans("rebalance g")):
        consumer.poll(0.05)
    return found


def group_spans() -> tuple[GroupSpans, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    class Ids:
        next: TraceContext | None = None

        def draw(self) -> TraceContext:
            return TraceContext(1, 2)

    return GroupSpans(Spans(provider.get_tracer("semel.node"), Ids())), exporter


def test_a_rebalance_of_a_consumer_group_ends_with_its_target_assignment() -> None:
    spans, exporter = group_spans()
    spans.happened(GroupEvent(GroupEventKind.REBALANCING, "g", 1, "a member joined"))
    spans.happened(GroupEvent(GroupEventKind.REBALANCING, "g", 2, "another one"))
    assert not exporter.get_finished_spans()
    spans.happened(GroupEvent(GroupEventKind.ASSIGNED, "g", 2, "2 members"))
    spans.happened(GroupEvent(GroupEventKind.MEMBER_REMOVED, "g", 2, "of nothing that is open"))
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["semel.group.outcome"] == "target assigned"
    assert (span.attributes or {})["semel.group.reason"] == "a member joined"


def test_rebalances_that_never_end_are_bounded_and_end_with_the_node() -> None:
    spans, exporter = group_spans()
    for number in range(REBALANCES_MAX + 1):
        spans.happened(GroupEvent(GroupEventKind.REBALANCING, f"g{number}", 1, "reason"))
    (first,) = exporter.get_finished_spans()
    assert first.name == "rebalance g0"
    assert (first.attributes or {})["error.type"] == "too_many_rebalances"
    spans.close()
    assert len(exporter.get_finished_spans()) == REBALANCES_MAX + 1


def test_a_timed_out_transaction_is_a_root_that_links_to_where_it_began(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    producer = semel.Producer(node.bootstrap, transactional_id="slow", transaction_timeout_ms=300)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"x").result(WAIT_S)
    (decide,) = receiver.wait_for_spans("decide slow")
    (adding,) = receiver.wait_for_spans("add_partitions slow")
    (marker,) = receiver.wait_for_spans("marker orders")
    assert decide.parent_id == ""
    assert links(decide) == [place(adding)]
    assert decide.attributes["semel.transaction.cause"] == "timeout"
    assert decide.attributes["semel.transaction.outcome"] == "aborted"
    assert parent(marker) == place(decide)
    assert adding.trace_id == ids(client, "create orders")[0]
    producer.abort_transaction()
    producer.close()


def test_a_fenced_transaction_is_a_root_that_links_to_where_it_began(
    node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    first = semel.Producer(node.bootstrap, transactional_id="enrich")
    first.init_transactions()
    first.begin_transaction()
    first.send("orders", b"x").result(WAIT_S)
    with semel.Producer(node.bootstrap, transactional_id="enrich"):
        (decide,) = receiver.wait_for_spans("decide enrich")
    assert decide.parent_id == ""
    assert decide.attributes["semel.transaction.cause"] == "fence"
    assert links(decide) == [place(receiver.wait_for_spans("add_partitions enrich")[0])]
    with pytest.raises(semel.FencedError):
        first.abort_transaction()
    first.close()


def test_a_refused_append_says_why(node: LiveNode, receiver: OtlpReceiver, client: InMemorySpanExporter) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("small", partitions=1, configs={"max.message.bytes": "200"})
    with semel.Producer(node.bootstrap) as producer:
        assert producer.send("small", b"x" * 1000).exception(WAIT_S) is not None
        with pytest.raises(semel.SemelError):
            producer.flush()
    (append,) = receiver.wait_for_spans("append small")
    assert append.is_error
    assert append.attributes["error.type"] == "MESSAGE_TOO_LARGE"


def test_a_sampler_that_follows_its_clients_makes_no_traces_of_its_own(
    receiver: OtlpReceiver, client: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        theirs = foreign_producer(node)
        theirs.produce("orders", b"untraced")
        assert theirs.flush(WAIT_S) == 0
        with semel.Producer(node.bootstrap) as producer:
            producer.send("orders", b"x")
    assert [parent(span) for span in receiver.spans()] == [ids(client, "send orders")]


def test_a_collector_that_is_away_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        with semel.Producer(node.bootstrap) as producer:
            assert producer.send("orders", b"x").result(WAIT_S).offset == 0


def test_nobody_asked_nothing_is_made(tmp_path: Path) -> None:
    assert NodeTracing.start(NodeConfig(), {}) is None
    with LiveNode(tmp_path) as node:
        assert node.node.produce.spans is None
        assert node.node.fetch.spans is None


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "nonsense"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "pigeons"},
    ],
)
def test_variables_that_make_no_sense_stop_the_start(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="tracing: "):
        NodeTracing.start(NodeConfig(), environment)


def test_stopping_exports_what_is_left(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    traced = NodeTracing.start(NodeConfig(), os.environ)
    assert traced is not None
    traced.appends.begin(TopicPartition("orders", 0), None, 100).end()
    asyncio.run(traced.stop())
    assert [span.name for span in receiver.spans()] == ["append orders"]
    assert not tracing.active()  # the node's tracing is not the program's
