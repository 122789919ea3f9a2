"""Spans and metrics of Spark's own processes: planner, tasks, and the one in which a batch is decided.

A batch's span can only be written when it is decided, in another process than its tasks, which are over by then. So
its ids are drawn where the batch is planned, go with the writer to the tasks, and come back with their messages.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.ids import TopicPartition
from semel.protocol.trace_context import TraceContext
from semel.sdk.telemetry import metrics, tracing
from semel.sdk.telemetry import setup as telemetry
from semel.spark.metrics import sink_metrics, source_metrics

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span
    from pyspark import TaskContext

_OUTCOME: Final = "semel.spark.outcome"


@dataclass(frozen=True, slots=True)
class BatchTrace:
    """The ids of the span of one execution of a batch, and when it began.

    above: the trace context that the application has set as local properties; empty: the batch is a root
    """

    trace_id: int
    span_id: int
    started_ns: int
    above: tuple[tuple[str, str], ...] = ()

    @classmethod
    def fresh(cls) -> BatchTrace:
        """Return ids that nothing has yet."""
        return cls(int.from_bytes(secrets.token_bytes(16)) or 1, int.from_bytes(secrets.token_bytes(8)) or 1, _now_ns())

    def in_task(self, task: TaskContext) -> BatchTrace:
        """Return the same below the application's trace, as the task knows it."""
        found = ((name, task.getLocalProperty(name)) for name in tracing.TRACE_HEADERS)
        return replace(self, above=tuple((name, value) for name, value in found if value))

    def context_above(self) -> Context | None:
        """Return the application's context; None without one."""
        return tracing.extract([(name, value.encode("ascii", "ignore")) for name, value in self.above])

    def context(self) -> Context | None:
        """Return the context that the batch's parts are made in: its span, where spans go anywhere; None for none."""
        above = self.context_above()
        if not tracing.active():
            return above
        from opentelemetry.context import Context as Empty
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            TraceFlags,
            get_current_span,
            get_tracer_provider,
            set_span_in_context,
        )

        parent = get_current_span(above or Empty()).get_span_context()
        sampler = getattr(get_tracer_provider(), "sampler", None)
        if parent.is_valid:
            trace_id, state = parent.trace_id, parent.trace_state
        else:
            trace_id, state = self.trace_id, None
        # The batch's own sampling is decided by its parent and its ids, so every process comes to the same.
        sampled = sampler is None or sampler.should_sample(above or Empty(), trace_id, "batch").decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        span = SpanContext(trace_id, self.span_id, is_remote=True, trace_flags=flags, trace_state=state)
        return set_span_in_context(NonRecordingSpan(span), above or Empty())


@dataclass(slots=True)
class Work:
    """What a task, or a decision, tells of itself before it ends. `headers`: what its rows carry."""

    headers: tracing.Headers = ()
    outcome: str = ""
    rows: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Names:
    """How a batch is called in spans and metrics. `app_id` is the query's id; empty for a write of its own."""

    app_id: str
    sink: str
    batch_id: int | None
    attempt: str
    topic: str
    client_id: str

    def labels(self) -> dict[str, str]:
        """Return what tells batches of one sink from others', for metrics: nothing that is new with every batch."""
        return {"semel.spark.sink": self.sink} | ({"semel.spark.query_id": self.app_id} if self.app_id else {})

    def attributes(self) -> dict[str, str | int]:
        """Return the attributes of a span."""
        number = {} if self.batch_id is None else {"semel.spark.batch_id": self.batch_id}
        return {**self.labels(), "semel.spark.attempt": self.attempt, **number}


@contextmanager
def task_writing(trace: BatchTrace, names: Names, task_partition: int) -> Iterator[Work]:
    """Be in a task's span below the batch's, if spans are wanted; count what it did; export at its end."""
    is_on = telemetry.start_from_environment()
    work = Work(outcome="failed")
    context = trace.context()
    span: Span | None = None
    if tracing.active():
        span = tracing.start_span("send", names.topic, kind="producer", client_id=names.client_id, parent=context)
        span.set_attributes({**names.attributes(), "semel.spark.task.partition": task_partition})
        context = tracing.context_with(span, context)
    if context is not None:
        work.headers = tracing.inject((), context)
    try:
        with tracing.attached(context):
            yield work
    except BaseException as error:
        _end(span, work, error)
        raise
    else:
        _end(span, work)
    finally:
        if metrics.active():
            sink_metrics().attempts.add(1, {**names.labels(), _OUTCOME: work.outcome})
        if is_on:
            telemetry.flush()


@contextmanager
def batch_deciding(trace: BatchTrace, names: Names) -> Iterator[Work]:
    """Be in the batch's span, which began when the batch was planned, and export at its end.

    Where the decision fails, Spark asks for an abort next, and the span is left to that: it has only one end.
    """
    is_on = telemetry.start_from_environment()
    work = Work(outcome="failed")
    span = _batch_span(trace, names) if tracing.active() else None
    try:
        with tracing.attached(trace.context() if span is None else tracing.context_with(span, trace.context_above())):
            yield work
        _end(span, work)
        _count_batch(trace, names, work)
    finally:
        if is_on:
            telemetry.flush()


@contextmanager
def batch_aborting(trace: BatchTrace, names: Names) -> Iterator[None]:
    """The same where the batch is given up."""
    with batch_deciding(trace, names) as work:
        yield
        work.outcome = "aborted"


def rows_read(tp: TopicPartition, rows: int, size_bytes: int) -> None:
    """Count what a task has read from a partition, and export it."""
    if not telemetry.start_from_environment():
        return
    if metrics.active():
        shared, attributes = metrics.client_metrics(), metrics.partition_attributes("poll", *tp)
        shared.consumed_messages.add(rows, attributes)
        shared.consumed_io.add(size_bytes, attributes)
    telemetry.flush()


def planned(begin: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> None:
    """Note the lag of each partition where a batch is planned: what lies between the last batch's end and the log's."""
    if not telemetry.start_from_environment():
        return
    if metrics.active():
        lag = source_metrics().lag
        for tp, offset in latest.items():
            lag.set(
                max(0, offset - begin.get(tp, offset)),
                {
                    **metrics.SYSTEM,
                    "messaging.destination.name": tp.topic,
                    "messaging.destination.partition.id": str(tp.partition),
                },
            )
    telemetry.flush(wait=False)  # this process lives as long as the query, and the next batch shouldn't wait


def _batch_span(trace: BatchTrace, names: Names) -> Span:
    """Start the span that the batch's tasks have named as their parent already."""
    from opentelemetry.sdk.trace import Tracer
    from opentelemetry.trace import get_tracer

    from semel.runtime.telemetry.span_ids import SpanIds

    tracer: Any = get_tracer("semel")
    if not isinstance(tracer, Tracer):  # another SDK, or a disabled one: its ids are its own
        return _started(trace, names)
    usual = tracer.id_generator
    tracer.id_generator = SpanIds(TraceContext(trace.trace_id, trace.span_id))
    try:
        return _started(trace, names)
    finally:
        tracer.id_generator = usual


def _started(trace: BatchTrace, names: Names) -> Span:
    from opentelemetry.context import Context as Empty

    span = tracing.start_span(
        "batch",
        names.sink,
        kind="internal",
        client_id=names.client_id,
        parent=trace.context_above() or Empty(),
        start_ns=trace.started_ns,
    )
    span.set_attributes(names.attributes())
    if names.topic:
        span.set_attribute("messaging.destination.name", names.topic)
    return span


def _end(span: Span | None, work: Work, error: BaseException | None = None) -> None:
    if span is None:
        return
    span.set_attribute(_OUTCOME, work.outcome)
    span.set_attribute("semel.spark.size_bytes", work.size_bytes)
    if error is None and work.outcome == "aborted":
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, "the batch was aborted"))
    tracing.end_span(span, error, batch__message_count=work.rows)


def _count_batch(trace: BatchTrace, names: Names, work: Work) -> None:
    if not metrics.active():
        return
    found, labels = sink_metrics(), names.labels()
    found.batches.add(1, {**labels, _OUTCOME: work.outcome})
    found.batch_duration.record((_now_ns() - trace.started_ns) / 1e9, {**labels, _OUTCOME: work.outcome})
    if work.outcome == "committed":
        found.committed_rows.add(work.rows, labels)
        found.committed_io.add(work.size_bytes, labels)


def _now_ns() -> int:
    return time.time_ns()
