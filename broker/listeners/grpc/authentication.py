"""Who calls over gRPC: each call carries the user's name and password in `authorization: Basic ...` (RFC 7617), or a
token in `authorization: Bearer ...` (RFC 6750). A delegation token is shown like a user: its id, and its HMAC as the
password.

A password that was right once is known without another check. Health checks are answered to anybody: they say only
whether the node serves.
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
from semel.broker.users.basic import parse_basic
from semel.broker.users.tokens import TokenError
from semel.protocol.errors import ErrorCode, RetriableError

if TYPE_CHECKING:
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

AUTHORIZATION: Final = "authorization"
_BEARER: Final = "bearer "
_OPEN: Final = f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/"
_NEEDED: Final = "this node serves users alone: give sasl.username and sasl.password (docs/security.md)"
_NO_TOKENS: Final = "this node takes no tokens: give sasl.username and sasl.password (docs/security.md)"
_NO_PASSWORDS: Final = "this node takes tokens alone: give sasl.mechanism=OAUTHBEARER and a token (docs/security.md)"
_INVALID_TOKEN: Final = "authentication failed: invalid_token"  # noqa: S105 (what is answered)
_WRONG: Final = "authentication failed: wrong user or password"
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
        given = next((value for key, value in details.invocation_metadata or () if key == AUTHORIZATION), None)
        if given is None:
            return self._refusing("", _NEEDED)
        text = given.decode("latin-1") if isinstance(given, bytes) else given
        try:
            if text[: len(_BEARER)].lower() == _BEARER:
                return await self._with_token(handler, text[len(_BEARER) :].strip())
            return await self._with_password(handler, text)
        except RetriableError as error:
            return _ending(grpc.StatusCode.UNAVAILABLE, error.code, error.message)

    async def _with_token(self, handler: grpc.RpcMethodHandler[Any, Any], text: str) -> grpc.RpcMethodHandler[Any, Any]:
        if self._tokens is None:
            return self._refusing("", _NO_TOKENS)
        try:
            token = self._tokens.known(text) or await self._tokens.check(text)
        except TokenError as error:
            return self._refusing("", _INVALID_TOKEN, str(error))
        set_user(token.subject)
        over = f"the token of the user {token.subject} has ended"
        return self._watched(handler, lambda: token.is_current, over)

    async def _with_password(
        self, handler: grpc.RpcMethodHandler[Any, Any], text: str
    ) -> grpc.RpcMethodHandler[Any, Any]:
        users = self._users
        if users is None:
            return self._refusing("", _NO_PASSWORDS)
        name, password = parse_basic(text)
        await users.settled()
        if users.delegation is not None and not users.has(name):
            delegated = await users.delegation.check(name, password)
            if delegated is not None:
                set_user(delegated.subject, is_delegated=True)
                over = f"the delegation token {name} has expired, or was taken back"
                return self._watched(handler, lambda: delegated.is_current, over)
        verifier = users.knows_password(name, password) or await users.check_password(name, password)
        if verifier is None:
            return self._refusing(name, _WRONG)
        set_user(name)
        over = f"the user {name} was removed, or has another password now"
        return self._watched(handler, lambda: users.is_current(name, verifier), over)

    def _refusing(self, name: str, message: str, why: str = "") -> grpc.RpcMethodHandler[Any, Any]:
        """Return what refuses a call. why: for the node's log alone"""

        def tell(peer: str) -> None:
            self._audit.authentication_failed(
                listener="grpc", peer=peer, user=name[:_NAME_SHOWN], reason=why or message
            )

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
