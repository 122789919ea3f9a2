"""The edge of the gRPC API: what every call goes through, whatever it is about.

`service_handler` binds the methods of an object to a service of the .proto files by their names, and wraps each: the
caller's trace context is taken over, bounds are checked, errors become a status, and what nobody expected is logged.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry import context as trace_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semel.broker.acls.rights import ALL_RIGHTS, Rights, set_rights
from semel.broker.listeners.grpc.calls_in_flight import CallsInFlight
from semel.broker.listeners.grpc.errors import ERROR_METADATA, status_message, status_of
from semel.broker.listeners.grpc.malformed import Malformed
from semel.broker.listeners.grpc.wire import WireCount
from semel.protocol.api.clients import CLIENT_METADATA, ClientOrigin
from semel.protocol.api.elsewhere import GO_TO_METADATA, ElsewhereError
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.runtime.caller import set_caller
from semel.runtime.clock import Clock
from semel.runtime.limited_log import LimitedLog

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
UnaryMethod: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
StreamMethod: TypeAlias = Callable[[AsyncIterator[Any], Context], AsyncIterator[Any]]
RightsOf: TypeAlias = Callable[[str, Context], Rights]
"""Says what the caller of a method ("GroupService/JoinGroup") may do."""
Counts: TypeAlias = Callable[[Coroutine[Any, Any, Message], Context], Awaitable[Message]]
"""Awaits what answers a call, and counts it for its client's quotas."""
Explain: TypeAlias = Callable[[Message, SemelError], SemelError]
"""Turns what a call is refused with into the answer to its caller."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Where calls are measured: `record` takes the method's full name, the error or "", and the seconds."""

    clock: Clock
    record: Callable[[str, str, float], None]


REQUEST_BYTES_MAX: Final = 4 << 20
"""The most bytes of a request without records: offsets of 40,000 partitions, 100 bytes each."""
_INTERNAL_ERROR: Final = SemelError("the node failed at this request: see its own log")
_TRACE_HEADERS: Final = frozenset({"traceparent", "tracestate"})
_propagator: Final = TraceContextTextMapPropagator()


def service_handler(
    service: ServiceDescriptor,
    methods: object,
    *,
    max_array_length: int,
    times: CallTimes | None = None,
    malformed: Malformed | None = None,
    explain: Explain = lambda _request, error: error,
    rights: RightsOf = lambda _method, _context: ALL_RIGHTS,
    counts: Counts = lambda answer, _context: answer,
    calls: CallsInFlight | None = None,
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handler of a service whose method `GetMetadata` is `methods.get_metadata`, and so on for all.

    `times`: where it is measured how long calls take. `malformed`: where messages are counted that are none. `explain`:
    adds to refusals of calls what this node knows, such as who has what was asked for. `rights`: of a call's caller.
    `counts`: what calls, and the beginnings of streams, count for. `calls`: where those under way are counted.
    """
    calls = calls or CallsInFlight()
    malformed = malformed or Malformed()
    handlers = {
        method.name: _method_handler(
            method,
            getattr(methods, _snake_case(method.name)),
            max_array_length,
            times,
            malformed,
            explain,
            rights,
            counts,
            calls,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _method_handler(
    method: MethodDescriptor,
    call: Any,
    max_array_length: int,
    times: CallTimes | None,
    malformed: Malformed,
    explain: Explain,
    rights: RightsOf,
    counts: Counts,
    calls: CallsInFlight,
) -> grpc.RpcMethodHandler[Any, Any]:
    request_class, response_class = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    check = _array_check(method, max_array_length)
    count = WireCount(method.input_type, max_array_length, lambda name: _refuse_list(method, name, max_array_length))
    bytes_max = None if _carries_records(method) else REQUEST_BYTES_MAX
    name = f"/{method.containing_service.full_name}/{method.name}"
    read = _Reader(name, request_class.FromString, check, malformed, count, bytes_max)
    serialize = response_class.SerializeToString
    own_rights = partial(rights, f"{method.containing_service.name}/{method.name}")
    assert method.client_streaming == method.server_streaming, "semel.v1 has calls and two-way streams"
    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(_stream(call, read, own_rights, calls), None, serialize)
    if times is not None:
        call = _timed(f"{method.containing_service.full_name}/{method.name}", call, times)
    return grpc.unary_unary_rpc_method_handler(_unary(call, read, explain, own_rights, counts, calls), None, serialize)


@dataclass(frozen=True, slots=True)
class _Reader:
    """How the requests of one method are read."""

    method: str
    parser: Callable[[bytes], Any]
    check: Callable[[Message], None]
    malformed: Malformed
    count: WireCount
    bytes_max: int | None

    async def request_of(self, data: bytes, context: Context) -> Any:
        """Return a request. Its bytes are looked at first: what is too much is refused before it is in memory (S2)."""
        if self.bytes_max is not None and len(data) > self.bytes_max:
            raise UsageError(
                f"{self.method}: the request has {len(data)} bytes, more than {self.bytes_max}: send several requests"
            )
        if not self.count.can_skip(len(data)):
            await self.malformed.check(self.count.check, data, self.method, context)
        request = await self.malformed.parse(self.parser, data, self.method, context)
        self.check(request)
        return request


def _carries_records(method: MethodDescriptor) -> bool:
    """Return whether the requests of a method may be as large as any message."""
    return bool(method.input_type.full_name == "semel.v1.ProduceRequest")


def _refuse_list(method: MethodDescriptor, name: str, longest: int) -> None:
    what = f"{name} has more items than" if name else "the request has far more fields than"
    raise UsageError(f"{method.name}: {what} grpc.max.array.length = {longest}: send several requests")


def _array_check(method: MethodDescriptor, longest: int) -> Callable[[Message], None]:
    """The message's size bounds its memory; this bounds the work of one request. Lists within a list count together."""
    lists = [(field.name, _inner_lists(field)) for field in method.input_type.fields if _is_repeated(field)]

    def refuse(name: str, count: int) -> None:
        raise UsageError(
            f"{method.name}: {name} has {count} items, more than grpc.max.array.length = {longest}: "
            "send several requests"
        )

    def check(request: Message) -> None:
        for name, inner_names in lists:
            items = getattr(request, name)
            if len(items) > longest:
                refuse(name, len(items))
            for inner in inner_names:
                count = sum([len(getattr(item, inner)) for item in items])
                if count > longest:
                    refuse(f"{name}.{inner}", count)

    return check


def _inner_lists(field: FieldDescriptor) -> list[str]:
    """Return the names of the lists in the messages of a list. The entries of a map are a key and a value each."""
    message = field.message_type
    if message is None or message.GetOptions().map_entry:
        return []
    return [inner.name for inner in message.fields if _is_repeated(inner)]


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _timed(name: str, call: UnaryMethod, times: CallTimes) -> UnaryMethod:
    async def timed(request: Any, context: Context) -> Any:
        begun, error = times.clock.monotonic(), ""
        try:
            return await call(request, context)
        except SemelError as refusal:
            error = refusal.code.name
            raise
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            times.record(name, error, times.clock.monotonic() - begun)

    return timed


def _unary(
    call: UnaryMethod,
    read: _Reader,
    explain: Explain,
    rights: Callable[[Context], Rights],
    counts: Counts,
    calls: CallsInFlight,
) -> Any:
    async def answer(data: bytes, context: Context) -> Message:
        request = await read.request_of(data, context)
        del data
        try:
            response: Message = await call(request, context)
        except SemelError as error:
            raise explain(request, error) from None
        return response

    async def handle(data: bytes, context: Context) -> Message:
        with calls.one_of(context.peer()), _callers_trace(context):
            try:
                set_caller(_origin(context))
                set_rights(rights(context))
                answering = answer(data, context)
                del data
                return await counts(answering, context)
            except Exception as error:
                failure = _without_frames(error, read.malformed.log)
            await _refuse(context, failure)
            raise failure

    return handle


def _stream(call: StreamMethod, read: _Reader, rights: Callable[[Context], Rights], calls: CallsInFlight) -> Any:
    async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
        async def checked() -> AsyncIterator[Message]:
            async for data in requests:
                yield await read.request_of(data, context)

        with calls.one_of(context.peer()), _callers_trace(context):
            try:
                set_rights(rights(context))
                responses: Any = call(checked(), context)
                async with aclosing(responses):
                    async for response in responses:
                        try:
                            await context.write(response)
                        except grpc.aio.InternalError:
                            return  # the client has left
                return
            except Exception as error:
                failure = _without_frames(error, read.malformed.log)
            await _refuse(context, failure)
            raise failure

    return handle


def _without_frames(error: Exception, log: LimitedLog) -> Exception:
    """Return what to answer. The library keeps what ends a call in a cycle with the call, until a full collection.

    The frames of the traceback would keep the request there, which may be large.
    """
    if not isinstance(error, SemelError | grpc.aio.AbortError):
        log.exception(error, "a gRPC request failed unexpectedly")
        return _INTERNAL_ERROR
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


async def _refuse(context: Context, error: Exception) -> None:
    """Answer with an error. Raises what ends the call, but for errors that gRPC has dealt with itself."""
    if isinstance(error, grpc.aio.AbortError):
        return
    assert isinstance(error, SemelError)
    name = error.code.name if error.code is not ErrorCode.NONE else ErrorCode.UNKNOWN_SERVER_ERROR.name
    trailers = [(ERROR_METADATA, name)]
    if isinstance(error, ElsewhereError):
        trailers.append((GO_TO_METADATA, error.go_to))
    await context.abort(status_of(error), status_message(error), tuple(trailers))


@contextmanager
def _callers_trace(context: Context) -> Iterator[None]:
    """Continue the trace of the caller's `traceparent` (W3C), where it sent one (E4)."""
    carrier = {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in _TRACE_HEADERS and isinstance(value, str)
    }
    if not carrier:
        yield
        return
    token = trace_context.attach(_propagator.extract(carrier))
    try:
        yield
    finally:
        trace_context.detach(token)


def _origin(context: Context) -> ClientOrigin:
    return ClientOrigin.of(client_id_of(context), client_host(context))


def client_id_of(context: Context) -> str:
    """Return how the caller calls itself."""
    named = next((value for key, value in context.invocation_metadata() or () if key == CLIENT_METADATA), b"")
    return named.decode("utf-8", "replace") if isinstance(named, bytes) else named


def client_host(context: Context) -> str:
    """Return the caller's address in the form that Kafka's tools show: `/127.0.0.1`."""
    peer = context.peer()
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return "/" + kind
    return "/" + rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
