"""A Kafka connection until its client has proven who it is: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152).

Until then it is served these two and ApiVersions, with small requests, and for a bounded time. Afterwards it is served
everything, and its user stays the same. With a token it authenticates again before that ends, on the same connection
(KIP-368); with a password before connections.max.reauth.ms is over, where that is set, and hears when
(`session_lifetime_ms`). Who asks for anything else after that is closed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from semel.broker.acls.principals import principal_of_user
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.users.exchanges import INVALID_TOKEN, AuthenticationError
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.kafka.api import ApiKey

FAILED_DELAY_S: Final = 0.1
"""How long a client waits for the answer that it has failed (Kafka's connection.failed.authentication.delay.ms)."""
REQUEST_BYTES_MAX: Final = 64 << 10
"""Of a request before a client has authenticated."""
_FAILED: Final = "authentication failed: wrong user or password, or the user has none for this mechanism"
_NAME_SHOWN: Final = 60
_LIFETIME_VERSION: Final = 1


async def handle_sasl_handshake(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    here = context.authentication
    if here is None or not here.may_begin:
        context.finish()
        return await write_response(context, error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())
    if not here.begin(request.mechanism):
        _tell_of_failure(context, mechanism=request.mechanism[:_NAME_SHOWN], reason="the mechanism is not enabled")
        context.count_refused()
        context.finish()
        return await write_response(
            context, error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=tuple(here.mechanisms)
        )
    return await write_response(context, error_code=ErrorCode.NONE, mechanisms=tuple(here.mechanisms))


async def handle_sasl_authenticate(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    here = context.authentication
    if here is None or not here.awaits_answer:
        return await _refuse(context, ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate comes after SaslHandshake, once")
    try:
        answer, is_proven = await here.answer(request.auth_bytes)
    except AuthenticationError as error:
        if here.refusal:  # it was told, and is in the log
            return await _refuse(context, ErrorCode.SASL_AUTHENTICATION_FAILED, INVALID_TOKEN.decode(), counted=False)
        _tell_of_failure(context, user=here.user[:_NAME_SHOWN], reason=error.message)
        await asyncio.sleep(FAILED_DELAY_S)
        return await _refuse(context, ErrorCode.SASL_AUTHENTICATION_FAILED, _FAILED)
    except RetriableError as error:
        context.finish()
        return await write_response(context, error_code=error.code, error_message=error.message)
    if here.refusal:
        _tell_of_failure(context, reason=f"token: {here.refusal}")
        context.count_refused()
        await asyncio.sleep(FAILED_DELAY_S)
    if is_proven:
        context.admit()
        context.node.audit.authenticated(
            listener="kafka", peer=context.peer, principal=principal_of_user(here.user), mechanism=here.mechanism
        )
        if context.api_version >= _LIFETIME_VERSION:
            return await write_response(context, auth_bytes=answer, session_lifetime=here.lifetime_ms)
    return await write_response(context, auth_bytes=answer)


def _tell_of_failure(context: RequestContext, **details: str) -> None:
    context.node.audit.authentication_failed(listener="kafka", peer=context.peer, **details)


async def _refuse(context: RequestContext, code: ErrorCode, message: str, *, counted: bool = True) -> bytes:
    if counted:
        context.count_refused()
    context.finish()
    return await write_response(context, error_code=code, error_message=message)


AUTHENTICATION_APIS: Final = (
    Api(ApiKey.SASL_HANDSHAKE, 1, 1, handle_sasl_handshake),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, handle_sasl_authenticate),
)
