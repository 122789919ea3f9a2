"""The coordinator's spans: where a transaction began, its decision, and each of its markers (E4).

A decision's ids are drawn before it is taken, because its record names them: markers that are written after a crash, or
by another coordinator, still belong to its trace. The span itself is made when the decision is durable. If it died with
its process, the tree would have a hole, so the next one makes one more, below the same parent and linked to the
first, and writes its markers below that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.trace import Span, SpanKind

from semel.protocol.api.shared_transactions import key_of_member
from semel.protocol.ids import TopicPartition
from semel.protocol.trace_context import DecisionIds, TraceContext, TransactionTrace
from semel.runtime.telemetry.tracing import Attributes, Spans, caller, context_of
from semel.txn_coordinator.effects import Decided, SendMarkers
from semel.txn_coordinator.state import DecisionCause, TransactionMetadata, TransactionState

VERIFIED_MAX: Final = 10_000
"""Of so many open transactions of clients of the older protocol the trace is remembered."""


class TransactionSpans:
    """Makes them with the node's tracer."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._verified: OrderedDict[str, TraceContext] = OrderedDict()

    def ids(self, transactional_id: str) -> DecisionIds:
        """Return what a request that may decide is to bring along. Call in the context of the request."""
        drawn = self._spans.draw()
        return DecisionIds(drawn.trace_id, drawn.span_id, caller() or self._verified.get(transactional_id))

    def verified(self, transactional_id: str, trace: TraceContext | None) -> None:
        """Remember the trace of a batch that was let into a transaction by a client of the older protocol.

        It adds partitions and ends the transaction without a word of traces; only its records may have one. This is in
        memory alone: after a restart, such a decision belongs to where the partitions were added.
        """
        if trace is not None:
            self._verified[transactional_id] = trace
            self._verified.move_to_end(transactional_id)
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)

    def adding(self, transactional_id: str, partitions: Sequence[TopicPartition], above: TraceContext | None) -> Span:
        """Begin the span of an addition of partitions; the transaction that begins by it belongs there."""
        attributes: Attributes = {
            "semel.transaction.id": transactional_id,
            "semel.transaction.partitions": len(partitions),
        }
        return self._spans.start("add_partitions", transactional_id, attributes, parent=above or caller())

    def take(self, effects: Sequence[Any]) -> list[Any]:
        """Make the spans of the decisions among effects, and return all others, with markers below their decisions."""
        made: dict[int, TraceContext] = {}
        by_id: dict[str, TraceContext] = {}
        rest: list[Any] = []
        for effect in effects:
            if isinstance(effect, Decided):
                self._verified.pop(effect.txn.transactional_id, None)
                by_id[effect.txn.transactional_id] = self._decided(effect, made)
            elif isinstance(effect, SendMarkers) and effect.transactional_id in by_id:
                rest.append(replace(effect, trace=TransactionTrace(by_id[effect.transactional_id])))
            else:
                rest.append(effect)
        return rest

    def marker(self, effect: SendMarkers, tp: TopicPartition) -> Span:
        """Begin the span of one partition's marker. `effect.trace` is its decision's."""
        assert effect.trace is not None
        attributes = {
            "messaging.destination.name": tp.topic,
            "messaging.destination.partition.id": str(tp.partition),
            "semel.transaction.id": effect.transactional_id,
            "semel.transaction.outcome": _outcome(effect.marker.committed),
        }
        return self._spans.start("marker", tp.topic, attributes, kind=SpanKind.INTERNAL, parent=effect.trace.context)

    def _decided(self, effect: Decided, made: dict[int, TraceContext]) -> TraceContext:
        """Make the span of a decision, one for all writers of a shared transaction; return its context."""
        txn, cause = effect.txn, effect.cause
        trace = txn.trace
        assert trace is not None, "only traced decisions are told of"
        is_recorded = cause is DecisionCause.REQUEST or (cause is DecisionCause.RECOVERY and trace.parent is not None)
        if is_recorded and trace.context.span_id in made:
            return made[trace.context.span_id]
        span = self._spans.start(
            "decide",
            _name(txn),
            _attributes(txn, cause),
            parent=trace.parent if is_recorded else None,
            links=() if cause is DecisionCause.REQUEST else (trace.context,),
            at=trace.context if cause is DecisionCause.REQUEST else None,
            start_ms=txn.last_update_ms if cause is DecisionCause.REQUEST else None,
        )
        span.end()
        context = context_of(span) or TraceContext(trace.context.trace_id, trace.context.span_id, 0)
        if is_recorded:
            made[trace.context.span_id] = context
        return context


def _name(txn: TransactionMetadata) -> str:
    """A shared transaction's writers are decided together, under its key."""
    return key_of_member(txn.transactional_id) or txn.transactional_id


def _attributes(txn: TransactionMetadata, cause: DecisionCause) -> dict[str, str | int]:
    return {
        "semel.transaction.id": txn.transactional_id,
        "semel.transaction.outcome": _outcome(txn.state is TransactionState.PREPARE_COMMIT),
        "semel.transaction.cause": cause.value,
        "semel.transaction.partitions": len(txn.partitions),
        "semel.producer.id": txn.producer_id,
        "semel.producer.epoch": txn.producer_epoch,
    }


def _outcome(committed: bool) -> str:
    return "committed" if committed else "aborted"
