"""Malformed gRPC messages: they are answered INVALID_ARGUMENT, counted, and told now and then.

The library would answer UNKNOWN and log a traceback for each, so messages come from it as bytes and are parsed here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Never, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from semel.runtime.limited_log import LimitedLog

_log = logging.getLogger("semel.grpc")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Malformed:
    """Counts what could not be parsed on one listener, and what failed unexpectedly."""

    def __init__(self) -> None:
        self.log: Final = LimitedLog(_log)
        self.messages = 0

    async def parse(self, parser: Callable[[bytes], Any], data: bytes, method: str, context: Context) -> Any:
        """Return a message. Ends the call where there is none in `data`."""
        try:
            return parser(data)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            await self._refuse(error, data, method, context)

    async def check(
        self, check: Callable[[bytes], Awaitable[None]], data: bytes, method: str, context: Context
    ) -> None:
        """Look at the bytes of a message before it is parsed. Ends the call where they are none."""
        try:
            await check(data)
        except DecodeError as error:
            await self._refuse(error, data, method, context)

    async def _refuse(self, error: Exception, data: bytes, method: str, context: Context) -> Never:
        self.messages += 1
        self.log.warning("malformed gRPC message: peer=%s method=%s bytes=%d", context.peer(), method, len(data))
        reason = str(error) or type(error).__name__
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"{method}: this is no message of the API ({reason}): check the client"
        )
        raise AssertionError("abort raises")

    def messages_of(
        self, parser: Callable[[bytes], Any], requests: AsyncIterator[bytes], method: str, context: Context
    ) -> AsyncIterator[Any]:
        """Return the messages of a stream."""

        async def parsed() -> AsyncIterator[Any]:
            async for data in requests:
                yield await self.parse(parser, data, method, context)

        return parsed()


class HardenedServer:
    """What the library's own services (health, reflection) are added to: their messages are parsed here, too."""

    def __init__(self, server: grpc.aio.Server, malformed: Malformed) -> None:
        self._server = server
        self._malformed = malformed

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler[Any, Any], ...]) -> None:
        self._server.add_generic_rpc_handlers(tuple(_Hardened(each, self._malformed) for each in handlers))

    def add_registered_method_handlers(self, *_: Any) -> None:
        """A shortcut of synchronous servers."""


class _Hardened(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # a plain class where it runs
    def __init__(self, inner: grpc.GenericRpcHandler[Any, Any], malformed: Malformed) -> None:
        self._inner = inner
        self._malformed = malformed

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler: Any = self._inner.service(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        method, parser, malformed = handler_call_details.method, handler.request_deserializer, self._malformed

        async def unary(data: bytes, context: Context) -> Any:
            call: Callable[[Any, Context], Awaitable[Any]] = handler.unary_unary or handler.unary_stream
            return await call(await malformed.parse(parser, data, method, context), context)

        async def stream(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            async for response in handler.stream_stream(
                malformed.messages_of(parser, requests, method, context), context
            ):
                yield response

        if handler.unary_unary is not None:
            return handler._replace(request_deserializer=None, unary_unary=unary)
        if handler.unary_stream is not None and inspect.iscoroutinefunction(handler.unary_stream):
            return handler._replace(request_deserializer=None, unary_stream=unary)
        assert handler.stream_stream is not None, method
        return handler._replace(request_deserializer=None, stream_stream=stream)
