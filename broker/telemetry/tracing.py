"""A node's spans: appends, fetches and rebalances here, those of transactions in txn_coordinator/tracing.py.

They are made where OpenTelemetry's standard variables ask for it (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER and
their like), and go through a queue with a bound (OTEL_BSP_MAX_QUEUE_SIZE) that a thread empties: what does not fit is
dropped, and the event loop never waits. Where nobody has asked, there is no `NodeTracing`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Self

from opentelemetry.trace import Span, SpanKind

from semel.broker.telemetry.providers import end_provider
from semel.broker.telemetry.resource import node_resource
from semel.group_coordinator.effects import GroupEvent, GroupEventKind
from semel.protocol.batch_header import iter_batches
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.fetch import FetchPartitionResponse
from semel.protocol.kafka.produce import ProducePartitionResponse, ProduceRequest
from semel.protocol.trace_context import TraceContext, context_of_first_record, decode_contexts
from semel.runtime.setting import ConfigError
from semel.runtime.telemetry.otel_environment import exporter_class, exporters_asked_for
from semel.runtime.telemetry.sampling import SamplerProbe
from semel.runtime.telemetry.tracing import Attributes, Spans, end_span
from semel.txn_coordinator.tracing import TransactionSpans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from semel.broker.config.node_config import NodeConfig
    from semel.broker.logs.partition import Partition
    from semel.protocol.errors import SemelError

_log = logging.getLogger("semel.tracing")

LINKS_MAX: Final = 128
REBALANCES_MAX: Final = 1_000
"""So many groups may be in a rebalance whose span is open; of more, the oldest ends early."""


class NodeTracing:
    """All that makes spans on one node."""

    def __init__(self, provider: TracerProvider, spans: Spans) -> None:
        self._provider = provider
        self.appends = AppendSpans(spans)
        self.fetches = FetchSpans(spans)
        self.transactions = TransactionSpans(spans)
        self.groups = GroupSpans(spans)

    @classmethod
    def start(cls, config: NodeConfig, environment: Mapping[str, str]) -> Self | None:
        """Return the tracing that the environment asks for, or None. Raises `ConfigError` where it makes no sense."""
        try:
            names = exporters_asked_for("TRACES", environment)
            if not names:
                return None
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            from semel.runtime.telemetry.span_ids import SpanIds

            exporters = [exporter_class("TRACES", name)() for name in names]
        except ValueError as error:
            raise ConfigError(f"tracing: {error}") from error

        ids = SpanIds()  # spans are made on the event loop alone
        provider = TracerProvider(resource=node_resource(config, environment), id_generator=ids, shutdown_on_exit=False)
        for exporter in exporters:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        _log.info("spans are exported: %s", ", ".join(names))
        return cls(provider, Spans(provider.get_tracer("semel.node"), ids, SamplerProbe(provider)))

    async def stop(self) -> None:
        """Send what there is, for a moment, beside the event loop."""
        self.groups.close()
        await end_provider(self._provider, _log, "spans")


class AppendSpans:
    """A span for each batch that clients append, from its arrival until it is as durable as was asked for."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def note(self, request: ProduceRequest) -> None:
        """Give each batch the context that its request carried for it; else that of its first record."""
        for item, context in zip(
            request.partitions, decode_contexts(request.trace, len(request.partitions)), strict=True
        ):
            if context is None and item.records is not None:
                context = context_of_first_record(item.records)
            item.trace = context

    def drops(self, context: TraceContext | None) -> bool:
        """Whether the append of a batch with this context is not sampled."""
        return self._spans.drops(context)

    def begin(self, tp: TopicPartition, context: TraceContext | None, size_bytes: int) -> Span:
        attributes: Attributes = {
            "messaging.destination.name": tp.topic,
            "messaging.destination.partition.id": str(tp.partition),
            "semel.batch.size_bytes": size_bytes,
        }
        return self._spans.start("append", tp.topic, attributes, parent=context)

    def end(
        self, span: Span, answer: ProducePartitionResponse, partition: Partition | None, offset: int, duplicate: bool
    ) -> None:
        """End the span; where the batch has to be committed first (`partition`), then."""
        if answer.error is not ErrorCode.NONE:
            end_span(span, answer.error.name, answer.error_message or "")
            return
        if span.is_recording():
            span.set_attribute("messaging.kafka.offset", answer.base_offset)
            if duplicate:
                span.set_attribute("semel.batch.duplicate", True)
        if partition is None:
            span.end()
            return

        def committed(error: SemelError | None) -> None:
            if error is None:
                span.end()
            else:
                end_span(span, error.code.name, error.message)

        partition.when_committed(offset, committed)


class FetchSpans:
    """A span for each fetch that brought records, linked to the first record of each batch that is at hand."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def answered(self, responses: Iterable[FetchPartitionResponse], names: Iterable[str], started_ms: int) -> None:
        """Make the span of an answer. Batches that go out of their files without being read are not linked."""
        if self._spans.drops(None):
            return
        found = [
            (name, response) for name, response in zip(names, responses, strict=True) if response.records is not None
        ]
        if not found:
            return
        topics = {name for name, _ in found}
        topic = topics.pop() if len(topics) == 1 else ""
        attributes: dict[str, str | int] = {
            "semel.fetch.partitions": len(found),
            "semel.fetch.size_bytes": sum(len(response.records) for _, response in found if response.records),
        }
        if topic:
            attributes["messaging.destination.name"] = topic
        if len(found) == 1:
            attributes["messaging.destination.partition.id"] = str(found[0][1].partition)
        links: list[TraceContext] = []
        for _, response in found:
            if isinstance(response.records, (bytes, bytearray, memoryview)) and len(links) < LINKS_MAX:
                links += _contexts_in(response.records, LINKS_MAX - len(links))
        self._spans.start("fetch", topic, attributes, links=links, start_ms=started_ms).end()


def _contexts_in(records: bytes | bytearray | memoryview, most: int) -> list[TraceContext]:
    view, found = memoryview(records), []
    try:
        for header in iter_batches(view):
            context = context_of_first_record(view[header.position : header.position + header.size_bytes])
            if context is not None:
                found.append(context)
            if len(found) == most:
                break
    except CorruptBatchError:
        pass  # a part of a batch, at the end
    return found


class GroupSpans:
    """A span for each rebalance, from its reason to the assignment, linked to what the members that joined brought."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._open: OrderedDict[str, Span] = OrderedDict()

    def happened(self, event: GroupEvent) -> None:
        """Take note of what has happened to a group."""
        if event.kind is GroupEventKind.REBALANCING:
            if event.group_id not in self._open:
                self._begin(event)
            return
        span = self._open.get(event.group_id)
        if span is None:
            return
        span.add_event(event.kind.value, {"detail": event.detail})
        if event.kind in _ENDS:
            del self._open[event.group_id]
            span.set_attribute("semel.group.generation", event.generation_id)
            span.set_attribute("semel.group.outcome", event.kind.value)
            span.end()

    def joined(self, group_id: str, caller: TraceContext | None) -> None:
        """Link the rebalance that is under way to a member's join."""
        span = self._open.get(group_id)
        if span is not None and caller is not None:
            self._spans.link(span, caller)

    def close(self) -> None:
        """End what is open: the node stops."""
        while self._open:
            end_span(self._open.popitem(last=False)[1], "node_stopped")

    def _begin(self, event: GroupEvent) -> None:
        if len(self._open) >= REBALANCES_MAX:
            end_span(self._open.popitem(last=False)[1], "too_many_rebalances")
        attributes: Attributes = {
            "messaging.consumer.group.name": event.group_id,
            "semel.group.reason": event.detail,
        }
        self._open[event.group_id] = self._spans.start("rebalance", event.group_id, attributes, kind=SpanKind.INTERNAL)


_ENDS: Final = frozenset({GroupEventKind.STABLE, GroupEventKind.ASSIGNED, GroupEventKind.EMPTY, GroupEventKind.DELETED})
