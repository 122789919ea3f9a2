"""Who calls over gRPC: each call says it in `authorization`, as `users/headers.py` reads it.

Health checks are answered to anybody: they say only whether the node serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health_pb2

from semel.broker.audit.log import Audit
from semel.broker.listeners.grpc.callers import set_user
from semel.broker.listeners.grpc.errors import ERROR_METADATA
from semel.broker.users.headers import Lack, NotProvenError, proven_by
from semel.protocol.errors import ErrorCode, RetriableError

if TYPE_CHECKING:
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

AUTHORIZATION: Final = "authorization"
_OPEN: Final = f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/"
_TOLD: Final = {
    Lack.NOTHING: "this node serves users alone: give sasl.username and sasl.password (docs/security.md)",
    Lack.NO_TOKENS: "this node takes no tokens: give sasl.username and sasl.password (docs/security.md)",
    Lack.NO_PASSWORDS: "this node takes tokens alone: give sasl.mechanism=OAUTHBEARER and a token (docs/security.md)",
    Lack.INVALID_TOKEN: "authentication failed: invalid_token",
    Lack.WRONG: "authentication failed: wrong user or password",
}
_NAME_SHOWN: Final = 60
LOOK_S: Final = 5.0
"""How often it is looked whether who has begun a stream may go on with it."""


class AuthenticatingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """In front of every call."""

    def __init__(self, users: Users | None, tokens: Tokens | None, audit: Audit) -> None:
        self._users = users
        self._tokens = tokens
        self._audit = audit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what serves the call, or what refuses it."""
        handler = await continuation(details)
        if handler is None or str(details.method).startswith(_OPEN):
            return handler
        given = next((value for key, value in details.invocation_metadata or () if key == AUTHORIZATION), "")
        header = given.decode("latin-1") if isinstance(given, bytes) else given
        try:
            proven = await proven_by(header, self._users, self._tokens)
        except NotProvenError as error:
            return self._refusing(error)
        except RetriableError as error:
            return _ending(grpc.StatusCode.UNAVAILABLE, error.code, error.message)
        set_user(proven.user, is_delegated=proven.is_delegated)
        return self._watched(handler, proven.is_current, proven.over)

    def _refusing(self, error: NotProvenError) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what refuses a call."""

        def tell(peer: str) -> None:
            self._audit.authentication_failed(
                listener="grpc", peer=peer, user=error.name[:_NAME_SHOWN], reason=str(error)
            )

        message = _TOLD[error.lack]
        return _ending(grpc.StatusCode.UNAUTHENTICATED, ErrorCode.SASL_AUTHENTICATION_FAILED, message, tell)

    def _watched(
        self, handler: grpc.RpcMethodHandler[Any, Any], is_current: Callable[[], bool], over: str
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what serves a stream for as long as its user may. over: what is said to it then"""
        if handler.stream_stream is None:
            return handler
        serve: Any = handler.stream_stream

        async def run(requests: AsyncIterator[Any], context: Context) -> None:
            answers: Any = serve(requests, context)
            if not hasattr(answers, "__aiter__"):
                await answers
                return
            async for answer in answers:
                await context.write(answer)

        async def watch(requests: AsyncIterator[Any], context: Context) -> None:
            running = asyncio.ensure_future(run(requests, context))
            try:
                while not (await asyncio.wait({running}, timeout=LOOK_S))[0]:
                    if not is_current():
                        running.cancel()  # first: nothing may be written to a call that has ended
                        await asyncio.gather(running, return_exceptions=True)
                        await context.abort(
                            grpc.StatusCode.UNAUTHENTICATED,
                            over,
                            ((ERROR_METADATA, ErrorCode.SASL_AUTHENTICATION_FAILED.name),),
                        )
                await running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        made: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            watch, handler.request_deserializer, handler.response_serializer
        )
        return made


def _ending(
    status: grpc.StatusCode, code: ErrorCode, message: str, tell: Callable[[str], None] = lambda _: None
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return what ends any call with an error: like a stream, of which nothing is read, however large it is."""

    async def refuse(_requests: Any, context: Context) -> None:
        tell(context.peer())
        await context.abort(status, message, ((ERROR_METADATA, code.name),))

    made: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(refuse)
    return made
