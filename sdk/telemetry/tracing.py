"""Traces: contexts in record headers, requests and gRPC metadata, and spans by OpenTelemetry's messaging conventions.

Only the OpenTelemetry API is used, and it is imported when an SDK is there: without one, `active()` is one look into a
dictionary and nothing else here runs. Contexts go through the propagators that OpenTelemetry is configured with, by
default `traceparent`, `tracestate` and `baggage`. The spans of
records that are sent are in sdk/producer/record_tracing.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

Headers = Sequence[tuple[str, bytes | None]]

TRACE_HEADERS = ("traceparent", "tracestate")
TRANSACTION: Final = "semel.transaction.id"
LINKS_MAX: Final = 128
"""As many as OpenTelemetry's SDK keeps of a span by default."""

_TYPES: Final = {"poll": "receive", "commit": "settle", "abort": "settle", "batch": "process"}
_OPERATION_TYPES: Final = frozenset({"create", "send", "receive", "process", "settle"})


def active() -> bool:
    """Whether the program has set an OpenTelemetry SDK, so that spans go anywhere."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return False
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def inject(headers: Headers, context: Context | None = None) -> Headers:
    """Return record headers with the trace context and baggage of `context` (None: the current one) added.

    A context that the caller gave stays as it is (the conventions' "custom creation context").
    """
    carrier = _carrier(context)
    if not carrier:
        return headers
    if headers:
        if carries_context(headers):
            return headers
        given = {name.lower() for name, _ in headers}
        carrier = {name: value for name, value in carrier.items() if name not in given}
    return (*headers, *((name, value.encode()) for name, value in carrier.items()))


def carries_context(headers: Headers) -> bool:
    """Whether somebody has put a trace context into headers already."""
    from opentelemetry.propagate import get_global_textmap

    names = get_global_textmap().fields - {"baggage"}
    return any(name.lower() in names for name, _ in headers)


def extract(headers: Headers) -> Context | None:
    """Return the context, with its baggage, that record headers carry, or None."""
    if not headers:
        return None
    from opentelemetry.context import Context
    from opentelemetry.propagate import get_global_textmap

    propagator = get_global_textmap()
    fields = {name.lower(): name for name in propagator.fields}
    carrier = {
        fields[name.lower()]: value.decode("utf-8", "replace")
        for name, value in headers
        if value is not None and name.lower() in fields
    }
    if not carrier:
        return None
    found = propagator.extract(carrier, Context())
    return found or None


def metadata() -> tuple[tuple[str, str], ...]:
    """Return the current context as gRPC metadata; empty without one."""
    return tuple(_carrier(None).items()) if active() else ()


def context_of(headers: Headers) -> Context | None:
    """Return the context in `headers`, made elsewhere, to continue in here; None where there is one here already."""
    if not headers or not active():
        return None
    from opentelemetry.trace import get_current_span

    return None if get_current_span().get_span_context().is_valid else extract(headers)


def start_span(
    operation: str,
    destination: str,
    *,
    kind: str,
    client_id: str,
    parent: Context | None = None,
    links: Iterable[Headers] = (),
    start_ns: int | None = None,
    about: str = "messaging.destination.name",
    **attributes: str | int,
) -> Span:
    """Start a span named "operation destination", now or at `start_ns`. `kind` is producer, consumer, client, internal.

    `about` is the attribute that the destination is given as, where it is no topic.
    `links` are the headers of the records that a batch operation is about. Attributes are named without their
    "messaging." and with "__" for dots. Call only where `active()`.
    """
    from opentelemetry.trace import SpanKind, get_tracer_provider

    named: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.client.id": client_id,
    }
    kind_of_operation = _TYPES.get(operation, operation)
    if kind_of_operation in _OPERATION_TYPES:
        named["messaging.operation.type"] = kind_of_operation
    if destination:
        named[about] = destination
    named.update({f"messaging.{name.replace('__', '.')}": value for name, value in attributes.items()})
    return _tracer(get_tracer_provider()).start_span(
        f"{operation} {destination}".rstrip(),
        context=parent,
        kind=SpanKind[kind.upper()],
        attributes=named,
        links=list(_links(links)),
        start_time=start_ns,
    )


def if_none_is_current(context: Context | None) -> Context | None:
    """Return `context` to be attached where no span is current; None where one is, which then stays."""
    if context is None:
        return None
    from opentelemetry.trace import get_current_span

    return None if get_current_span().get_span_context().is_valid else context


def context_with(span: Span, parent: Context | None = None) -> Context:
    """Return `parent` (None: the current context) with `span` as its current span."""
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span, parent)


def attached(context: Context | None) -> AbstractContextManager[None]:
    """Return a context manager inside of which `context` is the current one. None changes nothing."""
    return nullcontext() if context is None else _attached(context)


def end_span(span: Span, error: BaseException | None = None, **attributes: str | int) -> None:
    """End a span, with what is known by now and the error if there was one."""
    for name, value in attributes.items():
        span.set_attribute(f"messaging.{name.replace('__', '.')}", value)
    if error is not None:
        from opentelemetry.trace import Status, StatusCode

        code = getattr(error, "code", None)
        span.set_attribute("error.type", getattr(code, "name", None) or type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def add_links(span: Span, headers: Iterable[Headers]) -> None:
    """Link a span that has begun to the contexts in records' headers."""
    if span.is_recording():
        for link in _links(headers):
            span.add_link(link.context)


@contextmanager
def inside(span: Span, base: Context | None = None) -> Iterator[None]:
    """Be inside of a span, in `base` (None: the current context), and end it at the end."""
    try:
        with attached(context_with(span, base)):
            yield
    except GeneratorExit:  # the caller has had enough
        end_span(span)
        raise
    except BaseException as error:
        end_span(span, error)
        raise
    end_span(span)


def operation(name: str, destination: str, *, client_id: str, **attributes: Any) -> AbstractContextManager[None]:
    """Return a context manager that is a client's call to a node. Without an SDK it does nothing."""
    if not active():
        return nullcontext()
    return inside(start_span(name, destination, kind="client", client_id=client_id, **attributes))


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    from opentelemetry.context import attach, detach

    token = attach(context)
    try:
        yield
    finally:
        detach(token)


@cache
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("semel")


def _carrier(context: Context | None) -> dict[str, str]:
    from opentelemetry.propagate import inject as inject_text

    carrier: dict[str, str] = {}
    inject_text(carrier, context)
    return {name.lower(): value for name, value in carrier.items()}


def _links(headers: Iterable[Headers]) -> Iterator[Link]:
    from opentelemetry.trace import Link, get_current_span

    count = 0
    for one in headers:
        context = extract(one) if one else None
        span = None if context is None else get_current_span(context).get_span_context()
        if span is not None and span.is_valid:
            yield Link(span)
            count += 1
            if count == LINKS_MAX:
                return
