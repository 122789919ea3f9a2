"""A collector on loopback, as tests want one: takes spans and metrics over OTLP, by HTTP and by gRPC, and keeps them.

    with OtlpReceiver() as receiver:
        run_a_program(env=receiver.environment())
        (span,) = receiver.wait_for_spans("commit orders")
        assert receiver.total("messaging.client.sent.messages") == 100

Programs that are to export are given `environment()`; what arrives has gone the whole way that users' telemetry goes.
"""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as data_pb2

BODY_BYTES_MAX: Final = 64 << 20
WAIT_S: Final = 60.0

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Link:
    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True)
class Span:
    """A span as it arrived. Ids in hex; `parent_id` is empty for a root."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    links: tuple[Link, ...]
    is_error: bool
    status_message: str
    scope: str
    resource: Attributes


@dataclass(frozen=True)
class Point:
    """One value of a metric. `value`: of a counter or a gauge, or a histogram's sum; `count`: of a histogram."""

    name: str
    kind: str
    unit: str
    attributes: Attributes
    resource: Attributes
    start_ns: int
    time_ns: int
    value: float
    count: int
    is_cumulative: bool
    arrival: int


@dataclass(frozen=True)
class LogLine:
    """A log record as it arrived."""

    event: str
    severity: str
    body: str
    attributes: Attributes
    scope: str
    resource: Attributes


@dataclass
class _Received:
    lines: list[LogLine] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class OtlpReceiver:
    """Listens from `with` on. `answer` is a status for HTTP; anything but 200 refuses what comes, and keeps nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._received = _Received()
        self.answer = 200

    def __enter__(self) -> Self:
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._grpc = grpc.server(ThreadPoolExecutor(2))
        trace_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._grpc)
        metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._grpc)
        self._grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._grpc.stop(None).wait()

    @property
    def endpoint(self) -> str:
        """The address for OTEL_EXPORTER_OTLP_ENDPOINT, by HTTP."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def grpc_endpoint(self) -> str:
        """The same by gRPC."""
        return f"http://127.0.0.1:{self._grpc_port}"

    def environment(self, service: str = "test", *, by: str = "http/protobuf", **more: str) -> dict[str, str]:
        """Return the variables with which a program exports to here. `by` is the protocol."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.grpc_endpoint if by == "grpc" else self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": by,
            "OTEL_SERVICE_NAME": service,
            **more,
        }

    # --- What has come ------------------------------------------------------------------------------------------------

    @property
    def requests(self) -> list[str]:
        """The paths of all requests so far, refused ones among them."""
        with self._changed:
            return list(self._received.requests)

    def spans(self, name: str | None = None, **attributes: Any) -> list[Span]:
        """The spans so far, by start: those of a name, and with these attributes; "__" in a name stands for a dot."""
        with self._changed:
            found = [span for span in self._received.spans if name is None or span.name == name]
        wanted = _dotted(attributes)
        return sorted(
            (span for span in found if _holds(span.attributes, wanted)), key=lambda span: (span.start_ns, span.name)
        )

    def lines(self, event: str | None = None) -> list[LogLine]:
        """The log records so far, as they came: all, or those of one event."""
        with self._changed:
            return [line for line in self._received.lines if event is None or line.event == event]

    def points(self, name: str, **attributes: Any) -> list[Point]:
        """Every point of a metric so far, as they came."""
        wanted = _dotted(attributes)
        with self._changed:
            return [point for point in self._received.points if point.name == name and _holds(point.attributes, wanted)]

    def last(self, name: str, **attributes: Any) -> list[Point]:
        """What counts now of a metric: the newest point of each stream where it is cumulative or a gauge, else all."""
        newest: dict[Any, Point] = {}
        for point in self.points(name, **attributes):
            stream = (_key(point.resource), _key(point.attributes), point.start_ns)
            newest[stream if point.is_cumulative else (*stream, point.arrival)] = point
        return list(newest.values())

    def total(self, name: str, **attributes: Any) -> float:
        """The sum of a counter, or of a histogram's values, over all processes and what attributes are not given."""
        return sum(point.value for point in self.last(name, **attributes))

    def count(self, name: str, **attributes: Any) -> int:
        """How many values a histogram has seen."""
        return sum(point.count for point in self.last(name, **attributes))

    # --- Waiting ------------------------------------------------------------------------------------------------------

    def wait_for_spans(self, name: str, count: int = 1, **attributes: Any) -> list[Span]:
        """Wait for at least so many spans, and return them."""
        self.wait_until(lambda: len(self.spans(name, **attributes)) >= count, f"{count} spans {name!r} {attributes}")
        return self.spans(name, **attributes)

    def wait_for_total(self, name: str, total: float, **attributes: Any) -> None:
        """Wait until a counter has come to at least `total`."""
        self.wait_until(lambda: self.total(name, **attributes) >= total, f"{name} {attributes} of {total}")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition that only what arrives can change."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while not holds():
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"no {what}; there are {self._summary()}"
                self._changed.wait(left_s)

    # --- Trees --------------------------------------------------------------------------------------------------------

    def parent(self, span: Span) -> Span | None:
        """Return a span's parent; None for a root, and for one whose parent has not arrived."""
        found = [each for each in self.spans() if (each.trace_id, each.span_id) == (span.trace_id, span.parent_id)]
        return found[0] if found else None

    def path(self, span: Span) -> list[str]:
        """Return the names from the root to the span. "?" stands for a parent that has not arrived."""
        names = [span.name]
        while span.parent_id:
            above = self.parent(span)
            if above is None:
                return ["?", *names]
            names.insert(0, above.name)
            span = above
        return names

    def children(self, span: Span) -> list[Span]:
        """Return the spans right below one."""
        return [each for each in self.spans() if (each.trace_id, each.parent_id) == (span.trace_id, span.span_id)]

    # --- Taking in ----------------------------------------------------------------------------------------------------

    def take_spans(self, request: trace_pb2.ExportTraceServiceRequest) -> None:
        spans = list(_spans(request))
        with self._changed:
            self._received.spans += spans
            self._changed.notify_all()

    def take_metrics(self, request: metrics_pb2.ExportMetricsServiceRequest) -> None:
        with self._changed:
            self._received.points += _points(request, len(self._received.points))
            self._changed.notify_all()

    def take_lines(self, request: logs_pb2.ExportLogsServiceRequest) -> None:
        with self._changed:
            self._received.lines += _lines(request)
            self._changed.notify_all()

    def note_request(self, path: str) -> None:
        with self._changed:
            self._received.requests.append(path)
            self._changed.notify_all()

    def _summary(self) -> str:
        metrics = sorted({point.name for point in self._received.points})
        return f"spans {sorted(span.name for span in self._received.spans)}, metrics {metrics}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                if size > BODY_BYTES_MAX:
                    self.send_error(413)
                    return
                body = self.rfile.read(size)
                receiver.note_request(self.path)
                if receiver.answer != 200:
                    self._reply(receiver.answer, b"")
                    return
                try:
                    self._reply(200, self._taken(_plain(body, self.headers.get("Content-Encoding", ""))))
                except KeyError:
                    self._reply(404, b"")

            def _taken(self, body: bytes) -> bytes:
                if self.path == "/v1/traces":
                    receiver.take_spans(trace_pb2.ExportTraceServiceRequest.FromString(body))
                    return trace_pb2.ExportTraceServiceResponse().SerializeToString()
                if self.path == "/v1/metrics":
                    receiver.take_metrics(metrics_pb2.ExportMetricsServiceRequest.FromString(body))
                    return metrics_pb2.ExportMetricsServiceResponse().SerializeToString()
                if self.path == "/v1/logs":
                    receiver.take_lines(logs_pb2.ExportLogsServiceRequest.FromString(body))
                    return logs_pb2.ExportLogsServiceResponse().SerializeToString()
                raise KeyError(self.path)

            def _reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Nothing: a test's output is its own."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: programs that are killed break their connections."""


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        _check_answer(self._receiver, "/v1/traces", context)
        self._receiver.take_spans(request)
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        _check_answer(self._receiver, "/v1/metrics", context)
        self._receiver.take_metrics(request)
        return metrics_pb2.ExportMetricsServiceResponse()


def _check_answer(receiver: OtlpReceiver, path: str, context: grpc.ServicerContext) -> None:
    receiver.note_request(path)
    if receiver.answer != 200:
        context.abort(grpc.StatusCode.UNAVAILABLE, "the test refuses")


def _plain(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    return zlib.decompress(body) if encoding == "deflate" else body


def _spans(request: trace_pb2.ExportTraceServiceRequest) -> Iterable[Span]:
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    name=span.name,
                    kind=type(span).SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    links=tuple(
                        Link(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes))
                        for link in span.links
                    ),
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                    status_message=span.status.message,
                    scope=of_scope.scope.name,
                    resource=resource,
                )


def _lines(request: logs_pb2.ExportLogsServiceRequest) -> Iterable[LogLine]:
    for of_resource in request.resource_logs:
        for of_scope in of_resource.scope_logs:
            for record in of_scope.log_records:
                yield LogLine(
                    event=record.event_name,
                    severity=record.severity_text,
                    body=record.body.string_value,
                    attributes=_attributes(record.attributes),
                    scope=of_scope.scope.name,
                    resource=_attributes(of_resource.resource.attributes),
                )


def _points(request: metrics_pb2.ExportMetricsServiceRequest, arrived: int) -> list[Point]:
    found: list[Point] = []
    for of_resource in request.resource_metrics:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                delta = getattr(data, "aggregation_temporality", 0) == data_pb2.AGGREGATION_TEMPORALITY_DELTA
                for point in data.data_points:
                    is_number = kind in ("sum", "gauge")
                    value = getattr(point, point.WhichOneof("value") or "as_int") if is_number else point.sum
                    found.append(
                        Point(
                            name=metric.name,
                            kind=kind,
                            unit=metric.unit,
                            attributes=_attributes(point.attributes),
                            resource=resource,
                            start_ns=0 if kind == "gauge" else point.start_time_unix_nano,
                            time_ns=point.time_unix_nano,
                            value=value,
                            count=0 if is_number else point.count,
                            is_cumulative=not delta,
                            arrival=arrived + len(found),
                        )
                    )
    return found


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return None if kind is None else getattr(value, kind)


def _dotted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items()}


def _holds(attributes: Attributes, wanted: Attributes) -> bool:
    return all(attributes.get(name) == value for name, value in wanted.items())


def _key(attributes: Attributes) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))
