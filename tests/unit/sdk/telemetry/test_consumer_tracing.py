"""Spans of the consumer: what a poll returns, what is done with it, commits and joins (E4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import opentelemetry.trace
import pytest
from live_node import LiveNode
from opentelemetry.baggage import get_baggage, set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import semel
import semel.aio

WAIT_S = 30


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        yield node


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    return exporter


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def send(node: LiveNode, count: int = 2) -> None:
    token = attach(set_baggage("tenant", "blue"))
    try:
        with semel.Producer(node.bootstrap) as producer:
            for number in range(count):
                producer.send("orders", str(number).encode())
    finally:
        detach(token)


def read(consumer: semel.Consumer) -> semel.Batch:
    batch = consumer.poll(WAIT_S)
    assert batch is not None
    return batch


def test_E4_a_records_trace_goes_on_where_it_is_processed(node: LiveNode, spans: InMemorySpanExporter) -> None:
    send(node)
    creates = named(spans, "create orders")
    with semel.Consumer(node.bootstrap, group="g", topics=["orders"], client_id="reader") as consumer:
        batch = read(consumer)
        for record in batch:
            with batch.processing(record):
                assert get_baggage("tenant") == "blue"
        assert get_baggage("tenant") is None
        consumer.commit()
    processed = named(spans, "process orders")
    assert [parent(span) for span in processed] == [ids(span) for span in creates]
    assert [links(span) for span in processed] == [[ids(span)] for span in creates]
    assert processed[1].kind is SpanKind.CONSUMER
    assert dict(processed[1].attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": "reader",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 1,
        "messaging.consumer.group.name": "g",
    }
    (poll,), (commit,), (join,) = named(spans, "poll orders"), named(spans, "commit orders"), named(spans, "join")
    assert links(poll) == [ids(span) for span in creates]
    assert [span.kind for span in (poll, commit, join)] == [SpanKind.CLIENT] * 3
    assert {(span.attributes or {})["messaging.consumer.group.name"] for span in (poll, commit, join)} == {"g"}
    assert (commit.attributes or {})["messaging.operation.type"] == "settle"
    assert "messaging.operation.type" not in (join.attributes or {})


def test_E4_inside_a_transaction_processing_is_below_it_and_linked(node: LiveNode, spans: InMemorySpanExporter) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("enriched", partitions=1)
    send(node)
    with (
        semel.Consumer(node.bootstrap, group="g", topics=["orders"]) as consumer,
        semel.Producer(node.bootstrap, transactional_id="enrich") as producer,
    ):
        batch = read(consumer)
        with producer.transaction(commits=batch) as txn:
            for record in batch.traced():
                assert get_baggage("tenant") == "blue"
                txn.send("enriched", record.value)
    (transaction,) = named(spans, "transaction enrich")
    creates = named(spans, "create orders")
    processed = named(spans, "process orders")
    assert links(transaction) == [ids(span) for span in creates]
    assert [parent(span) for span in processed] == [ids(transaction)] * 2
    assert [links(span) for span in processed] == [[ids(span)] for span in creates]
    assert [parent(span) for span in named(spans, "create enriched")] == [ids(span) for span in processed]
    (sent,) = named(spans, "send enriched")
    assert parent(sent) == ids(transaction)
    assert links(sent) == [ids(span) for span in named(spans, "create enriched")]


def test_a_batch_that_is_processed_as_a_whole_links_to_its_records(node: LiveNode, spans: InMemorySpanExporter) -> None:
    send(node)
    with semel.Consumer(node.bootstrap, group="h", topics=["orders"]) as consumer:
        batch = read(consumer)
        with pytest.raises(ZeroDivisionError), batch.processing():
            raise ZeroDivisionError
    (processed,) = named(spans, "process orders")
    assert processed.parent is None
    assert links(processed) == [ids(span) for span in named(spans, "create orders")]
    assert (processed.attributes or {})["messaging.batch.message_count"] == 2
    assert processed.status.status_code is StatusCode.ERROR
    assert (processed.attributes or {})["error.type"] == "ZeroDivisionError"


def test_records_of_an_iteration_are_processed_in_spans_of_their_own(
    node: LiveNode, spans: InMemorySpanExporter
) -> None:
    send(node, 1)
    with semel.Consumer(node.bootstrap, group="h", topics=["orders"]) as consumer:
        for record in consumer:
            with consumer.processing(record):
                break
    (processed,), (created,) = named(spans, "process orders"), named(spans, "create orders")
    assert parent(processed) == ids(created)


def test_a_loop_that_is_left_early_is_no_error(node: LiveNode, spans: InMemorySpanExporter) -> None:
    send(node)
    with semel.Consumer(node.bootstrap, group="h", topics=["orders"]) as consumer:
        records = read(consumer).traced()
        next(records)
        records.close()
    (processed,) = named(spans, "process orders")
    assert processed.status.status_code is StatusCode.UNSET
    assert not opentelemetry.trace.get_current_span().get_span_context().is_valid


def test_the_asyncio_consumer_traces_alike(node: LiveNode, spans: InMemorySpanExporter) -> None:
    send(node, 1)

    async def run() -> None:
        async with semel.aio.Consumer(node.bootstrap, group="g", topics=["orders"]) as consumer:
            batch = await consumer.poll(WAIT_S)
            assert batch is not None
            for record in batch:
                with batch.processing(record):
                    await consumer.commit()

    asyncio.run(run())
    (processed,), (created,) = named(spans, "process orders"), named(spans, "create orders")
    (commit,) = named(spans, "commit orders")
    assert parent(processed) == ids(created)
    assert parent(commit) == ids(processed)


def test_without_an_sdk_processing_does_nothing(node: LiveNode) -> None:
    send(node, 1)
    with semel.Consumer(node.bootstrap, group="h", topics=["orders"]) as consumer:
        batch = read(consumer)
        with batch.processing(), batch.processing(batch[0]), consumer.processing(batch[0]):
            assert list(batch.traced()) == batch.records
            assert not opentelemetry.trace.get_current_span().get_span_context().is_valid
