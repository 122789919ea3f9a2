"""Ids of spans, the next of which can be given. Imports OpenTelemetry's SDK: import it only to make spans."""

from __future__ import annotations

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from semel.protocol.trace_context import TraceContext


class SpanIds(RandomIdGenerator):
    """Random ids, but those of `next` while it is set. For one thread, so that `next` is never another's."""

    def __init__(self, next_ids: TraceContext | None = None) -> None:
        self.next = next_ids

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.next is None else self.next.trace_id

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.next is None else self.next.span_id

    def draw(self) -> TraceContext:
        """Return ids that nothing has yet."""
        return TraceContext(super().generate_trace_id(), super().generate_span_id())
