"""The collector that tests use: by both protocols, compressed or not, and what it makes of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from otlp_receiver import OtlpReceiver


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.mark.parametrize("compression", list(Compression))
def test_spans_come_with_their_tree_links_and_failures(receiver: OtlpReceiver, compression: Compression) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "s"}))
    exporter = OTLPSpanExporter(f"{receiver.endpoint}/v1/traces", compression=compression)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("scope")
    with tracer.start_as_current_span("root") as root:
        link = Link(root.get_span_context(), {"why": "a test"})
        with tracer.start_as_current_span("leaf", kind=SpanKind.CONSUMER, links=[link]) as leaf:
            leaf.set_attributes({"a.text": "x", "a.number": 7, "a.list": [1.5, 2.5]})
            leaf.set_status(Status(StatusCode.ERROR, "went wrong"))
        assert receiver.path(receiver.wait_for_spans("leaf")[0]) == ["?", "leaf"]
    (found,) = receiver.wait_for_spans("root")
    (below,) = receiver.children(found)
    assert receiver.spans("leaf", a__text="x", a__number=7) == [below]
    assert receiver.spans("leaf", a__number=8) == []
    assert (below.kind, below.is_error, below.status_message, below.scope) == ("CONSUMER", True, "went wrong", "scope")
    assert below.attributes["a.list"] == [1.5, 2.5]
    assert [(link.span_id, link.attributes) for link in below.links] == [(found.span_id, {"why": "a test"})]
    assert receiver.path(below) == ["root", "leaf"]
    assert found.resource["service.name"] == "s"
    provider.shutdown()


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_counters_of_several_processes_add_up_and_the_last_of_a_gauge_counts(
    receiver: OtlpReceiver, temporality: AggregationTemporality
) -> None:
    preferred: dict[type, AggregationTemporality] = dict.fromkeys((Counter, Histogram), temporality)
    for process in ("1", "2"):
        exporter = OTLPMetricExporter(f"{receiver.endpoint}/v1/metrics", preferred_temporality=preferred)
        reader = PeriodicExportingMetricReader(exporter)
        provider = MeterProvider([reader], Resource.create({"service.instance.id": process}))
        meter = provider.get_meter("m")
        counter, gauge = meter.create_counter("rows", "{row}"), meter.create_gauge("lag")
        histogram = meter.create_histogram("time", "s")
        for number in (1, 2):
            counter.add(10, {"topic": "a"})
            counter.add(1, {"topic": "b"})
            gauge.set(number)
            histogram.record(0.5)
            provider.force_flush()
        provider.shutdown()
    assert (receiver.total("rows"), receiver.total("rows", topic="b")) == (44, 4)
    assert (receiver.total("lag"), receiver.count("time"), receiver.total("time")) == (4, 4, 2.0)
    assert receiver.points("rows")[0].unit == "{row}"


def test_what_is_refused_is_not_kept(receiver: OtlpReceiver) -> None:
    receiver.answer = 400
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.endpoint}/v1/traces")))
    provider.get_tracer("t").start_span("lost").end()
    assert receiver.requests == ["/v1/traces"]
    assert receiver.spans() == []
    provider.shutdown()


def test_grpc_is_taken_too(receiver: OtlpReceiver) -> None:
    spans, metrics = trace_pb2.ExportTraceServiceRequest(), metrics_pb2.ExportMetricsServiceRequest()
    span = spans.resource_spans.add().scope_spans.add().spans.add()
    span.name, span.trace_id, span.span_id = "by grpc", bytes(range(16)), bytes(range(8))
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = "rows"
    metric.sum.data_points.add().as_int = 3
    address = receiver.environment(by="grpc")["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://")
    with grpc.insecure_channel(address) as channel:
        trace_grpc.TraceServiceStub(channel).Export(spans)
        metrics_grpc.MetricsServiceStub(channel).Export(metrics)
        receiver.answer = 503
        with pytest.raises(grpc.RpcError):
            trace_grpc.TraceServiceStub(channel).Export(spans)
    assert [span.span_id for span in receiver.spans("by grpc")] == [bytes(range(8)).hex()]
    assert receiver.total("rows") == 3
    assert receiver.requests == ["/v1/traces", "/v1/metrics", "/v1/traces"]
