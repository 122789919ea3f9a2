"""The coordinator's spans, over its machine: what a record keeps of a trace, and what a crash leaves of it (E4)."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from txn_shard import TxnShard

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import CommitSharedRequest, OpenSharedRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, EndTxnRequest
from semel.protocol.ids import TopicPartition
from semel.protocol.trace_context import DecisionIds, TraceContext
from semel.runtime.telemetry.span_ids import SpanIds
from semel.runtime.telemetry.tracing import Spans
from semel.txn_coordinator.effects import SendMarkers
from semel.txn_coordinator.tracing import VERIFIED_MAX, TransactionSpans

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BEGUN, CALLER = TraceContext(7, 70), TraceContext(8, 80)
IDS = DecisionIds(9, 90, CALLER)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> TransactionSpans:
    ids = SpanIds()
    provider = TracerProvider(id_generator=ids)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return TransactionSpans(Spans(provider.get_tracer("test"), ids))


def begun(shard: TxnShard) -> EndTxnRequest:
    producer = shard.submit(InitProducerIdRequest("t", 60_000)).producer
    shard.submit(AddPartitionsToTxnRequest("t", producer, (P0, P1), trace=BEGUN))
    shard.effects.clear()
    return EndTxnRequest("t", producer, True)


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def place(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def markers(effects: list[Any]) -> list[tuple[int, int]]:
    """Return what the markers among effects are below."""
    found = [effect.trace.context for effect in effects if isinstance(effect, SendMarkers) and effect.trace]
    return [(context.trace_id, context.span_id) for context in found]


def test_E4_a_decision_has_the_ids_that_its_record_names(
    spans: TransactionSpans, exporter: InMemorySpanExporter
) -> None:
    shard = TxnShard()
    end = begun(shard)
    shard.submit(EndTxnRequest(end.transactional_id, end.producer, True, trace=IDS))
    rest = spans.take(shard.effects)
    decide = only(exporter)
    assert place(decide) == (8, 90)
    assert parent(decide) == (8, 80)
    assert markers(rest) == [(8, 90)]


def test_E4_a_decision_nobody_called_for_by_a_trace_is_below_where_its_transaction_began(
    spans: TransactionSpans, exporter: InMemorySpanExporter
) -> None:
    shard = TxnShard()
    end = begun(shard)
    shard.submit(EndTxnRequest(end.transactional_id, end.producer, True, trace=DecisionIds(9, 90)))
    spans.take(shard.effects)
    assert place(only(exporter)) == (7, 90)
    assert parent(only(exporter)) == (7, 70)


def test_E4_after_a_crash_the_tree_continues_under_the_same_parent(
    spans: TransactionSpans, exporter: InMemorySpanExporter
) -> None:
    shard = TxnShard()
    end = begun(shard)
    shard.submit(EndTxnRequest(end.transactional_id, end.producer, True, trace=IDS))
    shard.reload(epoch=4)
    rest = spans.take(shard.effects)
    again = only(exporter)
    assert parent(again) == (8, 80)
    assert links(again) == [(8, 90)]
    assert markers(rest) == [place(again)] != [(8, 90)]
    assert dict(again.attributes or {})["semel.transaction.cause"] == "recovery"


def test_E4_all_writers_of_a_shared_transaction_have_one_decision_also_after_a_crash(
    spans: TransactionSpans, exporter: InMemorySpanExporter
) -> None:
    shard = TxnShard()
    writers = []
    for partition in (P0, P1):
        opened = shard.submit(OpenSharedRequest("key", "attempt", "token", 60_000, writer=True))
        shard.submit(AddPartitionsToTxnRequest(opened.transactional_id, opened.producer, (partition,)))
        writers.append(opened.producer)
    shard.effects.clear()
    shard.submit(CommitSharedRequest("key", "attempt", "token", tuple(writers), trace=IDS))
    assert markers(spans.take(shard.effects)) == [(8, 90)] * 2
    assert place(only(exporter)) == (8, 90)
    assert only(exporter).name == "decide key"
    exporter.clear()
    shard.reload(epoch=4)
    assert markers(spans.take(shard.effects)) == [place(only(exporter))] * 2
    assert parent(only(exporter)) == (8, 80)


def test_a_transaction_that_is_not_traced_makes_no_spans(
    spans: TransactionSpans, exporter: InMemorySpanExporter
) -> None:
    shard = TxnShard()
    producer = shard.submit(InitProducerIdRequest("t", 60_000)).producer
    shard.submit(AddPartitionsToTxnRequest("t", producer, (P0,)))
    shard.submit(EndTxnRequest("t", producer, True))
    effects = list(shard.effects)
    assert spans.take(effects) == effects
    assert not exporter.get_finished_spans()


def test_what_is_remembered_of_open_transactions_is_bounded(spans: TransactionSpans) -> None:
    for number in range(VERIFIED_MAX + 1):
        spans.verified(f"t{number}", TraceContext(number + 1, 1))
    assert spans.ids("t0").caller is None
    assert spans.ids("t1").caller == TraceContext(2, 1)
