"""Who calls over gRPC: each call carries the user's name and password in `authorization: Basic ...` (RFC 7617).

A password that was right once is known without another check. Health checks are answered to anybody: they say only
whether the node serves.
"""

from __future__ import annotations

import binascii
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2

from semel.broker.listeners.grpc.errors import ERROR_METADATA
from semel.broker.users.exchanges import TOKEN_BYTES_MAX
from semel.protocol.errors import ErrorCode, RetriableError
from semel.runtime.limited_log import LimitedLog

if TYPE_CHECKING:
    from semel.broker.users.users import Users

AUTHORIZATION: Final = "authorization"
_SCHEME: Final = "basic "
_OPEN: Final = f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/"
_NEEDED: Final = "this node serves users alone: give sasl.username and sasl.password (docs/security.md)"
_WRONG: Final = "authentication failed: wrong user or password"
_NAME_SHOWN: Final = 60


class PasswordInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """In front of every call."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._log = LimitedLog(logging.getLogger("semel.grpc"))
        self.refused = 0
        """Calls without a user, and with a wrong password."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what serves the call, or what refuses it."""
        handler = await continuation(details)
        if handler is None or str(details.method).startswith(_OPEN):
            return handler
        given = next((value for key, value in details.invocation_metadata or () if key == AUTHORIZATION), None)
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        if given is None:
            self.refused += 1
            return _refusing(handler, grpc.StatusCode.UNAUTHENTICATED, code, _NEEDED)
        name, password = _parsed(given)
        if self._users.knows_password(name, password) is not None:
            return handler
        try:
            if await self._users.check_password(name, password) is not None:
                return handler
        except RetriableError as error:
            return _refusing(handler, grpc.StatusCode.UNAVAILABLE, error.code, error.message)
        self.refused += 1
        self._log.warning("authentication failed: gRPC, user=%r", name[:_NAME_SHOWN])
        return _refusing(handler, grpc.StatusCode.UNAUTHENTICATED, code, _WRONG)

    def close(self) -> None:
        self._log.close()


def _parsed(given: str | bytes) -> tuple[str, str]:
    """Return a name and a password; empty ones, which nobody has, for what is no such pair."""
    text = given.decode("latin-1") if isinstance(given, bytes) else given
    if text[: len(_SCHEME)].lower() != _SCHEME or len(text) > 2 * TOKEN_BYTES_MAX:
        return "", ""
    try:
        name, _, password = b64decode(text[len(_SCHEME) :].strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, password


def _refusing(
    handler: grpc.RpcMethodHandler[Any, Any], status: grpc.StatusCode, code: ErrorCode, message: str
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return what ends a call of the same kind with an error, whatever it asks for."""

    async def refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(status, message, ((ERROR_METADATA, code.name),))

    kind: Any = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
    )
    if handler.response_streaming and not handler.request_streaming:
        kind = grpc.unary_stream_rpc_method_handler
    made: grpc.RpcMethodHandler[Any, Any] = kind(refuse)
    return made
