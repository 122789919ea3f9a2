"""Traces over nodes (E4): the leaders of a transaction's partitions and its coordinator are different nodes."""

from __future__ import annotations

from collections.abc import Iterator

import opentelemetry.trace
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_receiver import OtlpReceiver

import semel
import semel.testing

PARTITIONS = 3


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        more = {"OTEL_METRICS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        for name, value in receiver.environment("node", **more).items():
            monkeypatch.setenv(name, value)
        yield receiver


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans of the test's own clients."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.mark.timeout(300)
def test_E4_one_trace_leads_over_the_leaders_of_all_partitions_and_the_coordinator(
    receiver: OtlpReceiver, client: InMemorySpanExporter
) -> None:
    with semel.testing.Cluster(3) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS)
        with (
            semel.Producer(cluster.bootstrap, transactional_id="enrich") as producer,
            producer.transaction() as txn,
        ):
            for number in range(PARTITIONS):
                txn.send("orders", b"x", partition=number)
        sent = {span.name: span for span in client.get_finished_spans()}
        appends = receiver.wait_for_spans("append orders", PARTITIONS)
        adds = receiver.wait_for_spans("add_partitions enrich")
        (decide,) = receiver.wait_for_spans("decide enrich")
        markers = receiver.wait_for_spans("marker orders", PARTITIONS)
    commit, whole = sent["commit enrich"].context, sent["transaction enrich"].context
    assert commit is not None
    assert whole is not None
    nodes = {span.attributes["messaging.destination.partition.id"]: span.resource["semel.node.id"] for span in appends}
    assert len(set(nodes.values())) == PARTITIONS, "each partition has a leader of its own"
    assert decide.parent_id == f"{commit.span_id:016x}", "the commit is no orphan"
    assert {marker.parent_id for marker in markers} == {decide.span_id}
    sends = {f"{span.context.span_id:016x}" for span in client.get_finished_spans() if span.name == "send orders"}
    assert {span.parent_id for span in adds} <= sends, "asked by way of the leaders, whose nodes pass the trace on"
    traces = {span.trace_id for span in (*appends, *adds, decide, *markers)}
    assert traces == {f"{whole.trace_id:032x}"}
