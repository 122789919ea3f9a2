"""Spans of a node, made below contexts that were read from bytes (protocol/trace_context.py).

A node makes spans only where its operator has asked for them; where nobody has, there is no `Spans`, and the places
where one would be are None. Everything here is called on the event loop and never waits: what sends spans away has a
bounded queue and a thread of its own (broker/telemetry/tracing.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from semel.protocol.trace_context import TraceContext
from semel.runtime.telemetry.sampling import SamplerProbe

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from semel.runtime.telemetry.span_ids import SpanIds

Attributes = Mapping[str, str | int]


class Spans:
    """Makes a node's spans by one tracer, which takes their ids from `ids`."""

    def __init__(self, tracer: Tracer, ids: SpanIds, sampler: SamplerProbe | None = None) -> None:
        """`sampler`: what is dropped for certain, for which no span is begun."""
        self._tracer = tracer
        self._ids = ids
        unsampled = _context_in(TraceContext(1, 1, 0))
        self._drops_roots = sampler is not None and sampler.drops(None, "root")
        self._drops_unsampled = sampler is not None and sampler.drops(unsampled, "child")

    def drops(self, parent: TraceContext | None) -> bool:
        """Whether a span below `parent` (None: a root) would not be sampled, as far as that is certain."""
        if parent is None:
            return self._drops_roots
        return self._drops_unsampled and not parent.is_sampled

    def draw(self) -> TraceContext:
        """Return ids for a span that is to be made later, `at` them."""
        return self._ids.draw()

    def start(
        self,
        operation: str,
        destination: str,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.SERVER,
        parent: TraceContext | None = None,
        links: Iterable[TraceContext] = (),
        at: TraceContext | None = None,
        start_ms: int | None = None,
    ) -> Span:
        """Start a span named "operation destination" below `parent` (None: a root).

        at:       the ids that it has; None: new ones
        start_ms: when it began, if that was earlier

        What is dropped for certain is no span: it has the context of `parent`, or none.
        """
        if self.drops(parent):
            return INVALID_SPAN if parent is None else NonRecordingSpan(_remote(parent))
        context = Context() if parent is None else _context_in(parent)
        self._ids.next = at
        try:
            return self._tracer.start_span(
                f"{operation} {destination}".rstrip(),
                context=context,
                kind=kind,
                attributes={"messaging.system": "kafka", "messaging.operation.name": operation, **attributes},
                links=[Link(_remote(link)) for link in links],
                start_time=None if start_ms is None else start_ms * 1_000_000,
            )
        finally:
            self._ids.next = None

    @staticmethod
    def link(span: Span, context: TraceContext) -> None:
        """Link a span that is open to another one."""
        span.add_link(_remote(context))


def caller() -> TraceContext | None:
    """Return the trace context of the call that is being answered, if it brought one."""
    found = get_current_span().get_span_context()
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags)) if found.is_valid else None


def context_of(span: Span) -> TraceContext | None:
    """Return the context of a span, to be recorded or sent; None where it has none."""
    found = span.get_span_context()
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags)) if found.is_valid else None


def end_span(span: Span, error_name: str | None = None, message: str = "") -> None:
    """End a span; with the error's name where there was one."""
    if error_name is not None:
        span.set_attribute("error.type", error_name)
        span.set_status(Status(StatusCode.ERROR, message or error_name))
    span.end()


def _context_in(parent: TraceContext) -> Context:
    return set_span_in_context(NonRecordingSpan(_remote(parent)), Context())


def _remote(context: TraceContext) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(context.flags))
