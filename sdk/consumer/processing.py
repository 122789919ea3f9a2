"""The spans of records on their way into a program: "poll" for what is returned, "process" for what is done with it.

By OpenTelemetry's conventions both link to the contexts in which the records were created. Where nothing else is
current, the processing of one record continues in the record's own trace, so that one trace leads from the sender to
here; inside of a transaction or another span it is below that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from semel.protocol.record_decoder import Record
from semel.sdk.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from semel.sdk.consumer.core import ConsumerCore


def trace_receive(core: ConsumerCore, records: Sequence[Record], started_ns: int) -> None:
    """Make the span of a poll that returned records."""
    span = tracing.start_span(
        "poll",
        _common_topic(records),
        kind="client",
        client_id=core.client.options.client_id,
        start_ns=started_ns or None,
        batch__message_count=len(records),
        **_group(core),
    )
    tracing.add_links(span, (record.headers for record in records))
    tracing.end_span(span)


def processing(core: ConsumerCore, record: Record) -> AbstractContextManager[None]:
    """Return a context manager inside of which one record is processed. Without an SDK it does nothing."""
    return _processing(core, record) if tracing.active() else nullcontext()


def processing_all(core: ConsumerCore, records: Sequence[Record]) -> AbstractContextManager[None]:
    """The same for records that are processed together."""
    return _processing_all(core, records) if tracing.active() else nullcontext()


@contextmanager
def _processing(core: ConsumerCore, record: Record) -> Iterator[None]:
    base = _base(record)
    span = tracing.start_span(
        "process",
        record.topic,
        kind="consumer",
        client_id=core.client.options.client_id,
        parent=base,
        links=(record.headers,),
        destination__partition__id=str(record.partition),
        kafka__offset=record.offset,
        **_group(core),
    )
    with tracing.inside(span, base):
        yield


@contextmanager
def _processing_all(core: ConsumerCore, records: Sequence[Record]) -> Iterator[None]:
    span = tracing.start_span(
        "process",
        _common_topic(records),
        kind="consumer",
        client_id=core.client.options.client_id,
        batch__message_count=len(records),
        **_group(core),
    )
    tracing.add_links(span, (record.headers for record in records))
    with tracing.inside(span):
        yield


def _base(record: Record) -> Context | None:
    """Return the context to process a record in: the current one with the record's baggage, or the record's own."""
    found = tracing.extract(record.headers) if record.headers else None
    if found is None:
        return None
    from opentelemetry.baggage import get_all, set_baggage
    from opentelemetry.context import get_current
    from opentelemetry.trace import get_current_span

    base = get_current()
    if not get_current_span(base).get_span_context().is_valid:
        return found
    for name, value in get_all(found).items():
        base = set_baggage(name, value, base)
    return base


def _common_topic(records: Sequence[Record]) -> str:
    topics = {record.topic for record in records}
    return topics.pop() if len(topics) == 1 else ""


def _group(core: ConsumerCore) -> dict[str, Any]:
    return {} if core.group is None else {"consumer__group__name": core.group.group}
