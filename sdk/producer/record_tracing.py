"""The spans of records on their way to a node: "create" for each record, "send" for each batch.

By OpenTelemetry's conventions a record carries the context of the span that created it, and the span that sends a batch
links to those of its records. A batch goes out long after `send` returned, on another thread, so its span's parent is
what its records have in common: their transaction, else the trace of the first where all have the same.

What a sampler drops for certain is not even begun: the context that goes with a record is then made once for each
context that records are sent in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.protocol.errors import SemelError
from semel.protocol.trace_context import TraceContext
from semel.runtime.telemetry.sampling import SamplerProbe
from semel.sdk.producer.delivery import ProducerBatch, RecordMetadata
from semel.sdk.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider

_USUAL_FIELDS: Final = frozenset({"traceparent", "tracestate", "baggage"})
_TOPICS_KEPT_MAX: Final = 1_000


class Trace(NamedTuple):
    """What a batch keeps of a record: the context of its creation, and the one that it was sent in."""

    created: SpanContext | None
    above: Context


class Created(NamedTuple):
    """A record's headers with its context, its open span, if it has one, and what its batch is to keep."""

    headers: tracing.Headers
    span: Span | None
    trace: Trace


def record_tracer(client_id: str) -> RecordTracer | None:
    """Return what traces the records of a client, or None without an SDK."""
    if not tracing.active():
        return None
    from opentelemetry.trace import get_tracer_provider

    return _record_tracer(get_tracer_provider(), client_id)


@lru_cache(maxsize=64)
def _record_tracer(provider: TracerProvider, client_id: str) -> RecordTracer:
    return RecordTracer(provider, client_id)


class RecordTracer:
    """Traces the records of producers with one client id. Called from any thread.

    current: returns the context that is current
    quick:   what to do with records without headers that are sent in the context where nothing was sampled last: that
             context, the transaction's, the headers that the record gets, and what its batch is to keep
    """

    def __init__(self, provider: TracerProvider, client_id: str) -> None:
        from opentelemetry.context import get_current
        from opentelemetry.trace import SpanKind

        self.current = get_current
        self.quick: tuple[Context, Context | None, tracing.Headers, Trace | None] | None = None
        self._start_span = provider.get_tracer("semel").start_span
        self._kind = SpanKind.PRODUCER
        self._client_id = client_id
        self._attributes: dict[str, dict[str, str]] = {}
        self._sampler = SamplerProbe(provider)
        # The context that was last sent in, and what is above a record then: replaced as a whole, for threads' sake.
        self._seen: tuple[Context, Context | None, Context] | None = None

    def create(self, topic: str, value: bytes | None, headers: tracing.Headers, transaction: Context | None) -> Created:
        """Begin the span of a record's creation. `transaction` is the context of the one that is open."""
        current, seen = self.current(), self._seen
        if seen is None or seen[0] is not current or seen[1] is not transaction:
            above = _inside(current, transaction)
            if self._sampler.drops(above, "create"):
                trace = Trace(None, above)
                if not headers:
                    self.quick = current, transaction, tracing.inject((), above), trace if _plain(above) else None
                return Created(tracing.inject(headers, above), None, trace)
            self._seen = seen = current, transaction, above
        above = seen[2]
        if headers and tracing.carries_context(headers):
            return Created(headers, None, Trace(_span_context(headers), above))
        attributes = self._attributes.get(topic) or self._attributes_of(topic)
        span = self._start_span(f"create {topic}", above, self._kind, attributes)
        context = span.get_span_context()
        carried = tracing.inject(headers, tracing.context_with(span, above)) if headers else _header_of(context, above)
        if not context.trace_flags & 1:
            return Created(carried, None, Trace(None, above))
        if value is None:
            span.set_attribute("messaging.kafka.message.tombstone", True)
        return Created(carried, span, Trace(context, above))

    def _attributes_of(self, topic: str) -> dict[str, str]:
        if len(self._attributes) >= _TOPICS_KEPT_MAX:
            self._attributes.clear()
        found = {
            "messaging.system": "kafka",
            "messaging.operation.name": "create",
            "messaging.operation.type": "create",
            "messaging.client.id": self._client_id,
            "messaging.destination.name": topic,
        }
        self._attributes[topic] = found
        return found

    def in_context(self, transaction: Context | None) -> Trace:
        """Return what a batch keeps that came ready-made: only the context that it is sent in."""
        return Trace(None, _inside(self.current(), transaction))

    def sending(self, batch: ProducerBatch, transaction: Context | None) -> TraceContext | None:
        """Begin the span of a batch that goes out for the first time. Returns the context for its request."""
        traces: Sequence[Trace] = batch.traces or ()
        created = [trace.created for trace in traces if trace.created is not None]
        above = transaction or _common(traces, created)
        if not created or self._sampler.drops(above, "create"):
            return _plain(above)
        span = self._send_span(batch, created, above)
        batch.add_callback(0, -1, _ending(span, batch))
        return _plain(tracing.context_with(span, above))

    def _send_span(self, batch: ProducerBatch, created: Sequence[SpanContext], above: Context | None) -> Span:
        from opentelemetry.context import Context as Empty

        span = tracing.start_span(
            "send",
            batch.topic,
            kind="client",
            client_id=self._client_id,
            parent=Empty() if above is None else above,
            destination__partition__id=str(batch.partition),
            batch__message_count=batch.record_count,
        )
        for context in created:
            span.add_link(context)
        return span


def _ending(span: Span, batch: ProducerBatch) -> Callable[[RecordMetadata | None, SemelError | None], object]:
    def done(metadata: RecordMetadata | None, error: SemelError | None) -> None:
        if metadata is not None:
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        if batch.attempts > 1:
            span.set_attribute("semel.send.attempts", batch.attempts)
        tracing.end_span(span, error)

    return done


def _inside(current: Context, transaction: Context | None) -> Context:
    """Return the transaction's context where nothing else of the program's is current."""
    if transaction is None:
        return current
    from opentelemetry.trace import get_current_span, set_span_in_context

    if get_current_span(current).get_span_context().is_valid:
        return current
    return set_span_in_context(get_current_span(transaction), current)  # baggage of the caller's stays


def _header_of(context: SpanContext, above: Context) -> tracing.Headers:
    """Return the headers that carry a new span's context: at once where that is a traceparent and nothing else."""
    from opentelemetry.baggage import get_all
    from opentelemetry.propagate import get_global_textmap

    if not context.is_valid:  # of an SDK that is disabled
        return tracing.inject((), above)
    if get_global_textmap().fields == _USUAL_FIELDS and not context.trace_state and not get_all(above):
        text = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return (("traceparent", text.encode()),)
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return tracing.inject((), set_span_in_context(NonRecordingSpan(context), above))


def _common(traces: Sequence[Trace], created: Sequence[SpanContext]) -> Context | None:
    """Return the context above the first record, if all records are of its trace."""
    if not traces or len({context.trace_id for context in created}) > 1:
        return None
    above = traces[0].above
    if not created:
        return above
    from opentelemetry.trace import get_current_span

    found = get_current_span(above).get_span_context()
    return above if found.trace_id == created[0].trace_id else None


def _plain(context: Context | None) -> TraceContext | None:
    if context is None:
        return None
    from opentelemetry.trace import get_current_span

    found = get_current_span(context).get_span_context()
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags)) if found.is_valid else None


def _span_context(headers: tracing.Headers) -> SpanContext | None:
    from opentelemetry.trace import get_current_span

    context = tracing.extract(headers)
    found = None if context is None else get_current_span(context).get_span_context()
    return found if found is not None and found.is_valid else None
