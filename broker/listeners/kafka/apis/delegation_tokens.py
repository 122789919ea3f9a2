"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken, from version 1 on
(KIP-48, KIP-373).

As in Kafka, who may describe a token gets its HMAC, too, and could log in with it. Their answers have a code alone
for what is wrong: the node's log has the rest.
"""

from __future__ import annotations

from typing import Final

from semel.broker.handlers.delegation_tokens import tokens_of
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted import delegation_tokens as tokens
from semel.protocol.acls import ANONYMOUS
from semel.protocol.delegation_tokens import USER_TYPE, DelegationToken, parts_of
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values, to_ms
from semel.runtime.turns import in_turns

_NO_TIME: Final = -1
_WITHOUT_TIMES: Final = (
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_PRINCIPAL_TYPE,
)
"""Kafka's brokers answer so themselves; what its controller answers has zeros."""


async def handle_create_delegation_token(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    requester = context.rights.principal or ANONYMOUS
    owner = ""
    if context.api_version >= 3 and request.owner_principal_name:
        owner = _principal(request.owner_principal_type or "", request.owner_principal_name)
    told = _owner_and_requester(owner or requester, requester)
    try:
        made = await tokens.create_token(
            context.node,
            context.rights,
            owner,
            [_principal(each.principal_type, each.principal_name) for each in request.renewers],
            to_ms(request.max_lifetime),
            is_delegated=_is_delegated(context),
        )
    except SemelError as error:
        code, at = _refused(context, error)
        times = {"issue_timestamp": at, "expiry_timestamp": at, "max_timestamp": at}
        return await write_response(context, error_code=code, token_id="", hmac=b"", **told, **times)
    return await write_response(
        context,
        error_code=ErrorCode.NONE,
        issue_timestamp=made.token.issue_timestamp_ms,
        expiry_timestamp=made.token.expiry_timestamp_ms,
        max_timestamp=made.token.max_timestamp_ms,
        token_id=made.token.token_id,
        hmac=made.hmac,
        **told,
    )


async def handle_renew_delegation_token(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    period_ms, is_delegated = to_ms(request.renew_period), _is_delegated(context)
    try:
        renewed = await tokens.renew_token(
            context.node, context.rights, bytes(request.hmac), period_ms, is_delegated=is_delegated
        )
    except SemelError as error:
        code, at = _refused(context, error)
        return await write_response(context, error_code=code, expiry_timestamp=at)
    return await write_response(context, error_code=ErrorCode.NONE, expiry_timestamp=renewed.expiry_timestamp_ms)


async def handle_expire_delegation_token(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    period_ms, is_delegated = to_ms(request.expiry_time_period), _is_delegated(context)
    try:
        expiry_ms = await tokens.expire_token(
            context.node, context.rights, bytes(request.hmac), period_ms, is_delegated=is_delegated
        )
    except SemelError as error:
        code, at = _refused(context, error)
        return await write_response(context, error_code=code, expiry_timestamp=at)
    return await write_response(context, error_code=ErrorCode.NONE, expiry_timestamp=expiry_ms)


async def handle_describe_delegation_token(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    owners = request.owners
    asked = None if owners is None else [_principal(each.principal_type, each.principal_name) for each in owners]
    try:
        found = await tokens.describe_tokens(context.node, context.rights, asked, is_delegated=_is_delegated(context))
        made_by = tokens_of(context.node)
    except SemelError as error:
        return await write_response(context, error_code=_refused(context, error)[0], tokens=())
    described = [_described(token, made_by.hmac(token.token_id)) async for token in in_turns(found)]
    return await write_response(context, error_code=ErrorCode.NONE, tokens=described)


def _is_delegated(context: RequestContext) -> bool:
    return context.authentication is not None and context.authentication.is_delegated


def _principal(kind: str, name: str) -> str:
    """Return a principal as text; for another type than users', what is none."""
    return f"{kind if kind == USER_TYPE else '?'}:{name}"


def _owner_and_requester(owner: str, requester: str) -> Values:
    (kind, name), (requester_kind, requester_name) = parts_of(owner), parts_of(requester)
    return {
        "principal_type": kind,
        "principal_name": name,
        "token_requester_principal_type": requester_kind,
        "token_requester_principal_name": requester_name,
    }


def _described(token: DelegationToken, hmac: bytes) -> Values:
    return {
        **_owner_and_requester(token.owner, token.requester),
        "issue_timestamp": token.issue_timestamp_ms,
        "expiry_timestamp": token.expiry_timestamp_ms,
        "max_timestamp": token.max_timestamp_ms,
        "token_id": token.token_id,
        "hmac": hmac,
        "renewers": [{"principal_type": kind, "principal_name": name} for kind, name in map(parts_of, token.renewers)],
    }


def _refused(context: RequestContext, error: SemelError) -> tuple[ErrorCode, int]:
    """Return the code of an answer, and what it has in place of times. Tells the operator why."""
    code = ErrorCode(error.code)
    context.warn("%s refused: peer=%s: %s", ApiKey(context.api_key).name, context.peer, error.message)
    return code, _NO_TIME if code in _WITHOUT_TIMES else 0


CREATE_DELEGATION_TOKEN = Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, handle_create_delegation_token)
RENEW_DELEGATION_TOKEN = Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, handle_renew_delegation_token)
EXPIRE_DELEGATION_TOKEN = Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, handle_expire_delegation_token)
DESCRIBE_DELEGATION_TOKEN = Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, handle_describe_delegation_token)
