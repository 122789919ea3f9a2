"""Delegation tokens, for users who are known by something else than such a token. Each change is in the audit log,
without the HMAC.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers import delegation_tokens as tokens
from semel.broker.services import Services
from semel.protocol.acls import AclOperation, ResourceType
from semel.protocol.delegation_tokens import DelegationToken, NewDelegationToken, check_principal
from semel.protocol.errors import ErrorCode, FatalError
from semel.runtime.completion import done_to_its_end
from semel.runtime.turns import in_turns


def requester_of(rights: Rights, *, is_delegated: bool) -> str:
    """Return who asks. is_delegated: whether a delegation token has proven that. Raises `FatalError`."""
    principal = rights.principal
    if is_delegated:
        raise FatalError(
            "who is known by a delegation token may not make, renew, take back or list such tokens: log in as a user",
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        )
    if principal is None:
        raise FatalError(
            "delegation tokens are for users who prove who they are: write tls+sasl:// before the listener's address",
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        )
    return principal


@done_to_its_end
async def create_token(
    node: Services,
    rights: Rights,
    owner: str,
    renewers: Sequence[str],
    max_lifetime_ms: int,
    *,
    is_delegated: bool,
) -> NewDelegationToken:
    """See `handlers.delegation_tokens.create_token`. owner: empty for who asks (KIP-373)."""
    requester = requester_of(rights, is_delegated=is_delegated)
    owner = owner or requester
    if owner != requester:
        check_principal(owner)
        if not node.authorizer.is_on:
            # Kafka lets everybody then. The token would outlive that, and could be one of an operator.
            raise FatalError(
                "without permissions a user makes delegation tokens for himself alone: set authorizer.class.name, and "
                f"allow {requester} CREATE_TOKENS on {owner}",
                ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
            )
        rights.check(ResourceType.USER, owner)
    made = await tokens.create_token(node, requester, owner, renewers, max_lifetime_ms)
    node.audit.changed(
        requester,
        Event.DELEGATION_TOKEN_CREATED,
        token_id=made.token.token_id,
        owner=owner,
        expires_ms=made.token.expiry_timestamp_ms,
        max_ms=made.token.max_timestamp_ms,
        renewers=", ".join(made.token.renewers),
    )
    return made


@done_to_its_end
async def renew_token(
    node: Services, rights: Rights, token: str | bytes, period_ms: int, *, is_delegated: bool
) -> DelegationToken:
    """See `handlers.delegation_tokens.renew_token`. token: its id, or its HMAC"""
    requester = requester_of(rights, is_delegated=is_delegated)
    token_id = await _id_of(node, token)
    renewed = await tokens.renew_token(node, requester, token_id, period_ms)
    node.audit.changed(
        requester,
        Event.DELEGATION_TOKEN_RENEWED,
        token_id=token_id,
        owner=renewed.owner,
        expires_ms=renewed.expiry_timestamp_ms,
    )
    return renewed


@done_to_its_end
async def expire_token(
    node: Services, rights: Rights, token: str | bytes, period_ms: int, *, is_delegated: bool
) -> int:
    """See `handlers.delegation_tokens.expire_token`. token: its id, or its HMAC"""
    requester = requester_of(rights, is_delegated=is_delegated)
    token_id = await _id_of(node, token)
    expiry_ms = await tokens.expire_token(node, requester, token_id, period_ms)
    node.audit.changed(requester, Event.DELEGATION_TOKEN_EXPIRED, token_id=token_id, expires_ms=expiry_ms)
    return expiry_ms


async def describe_tokens(
    node: Services, rights: Rights, owners: Sequence[str] | None, *, is_delegated: bool
) -> list[DelegationToken]:
    """Return the tokens that the caller has to do with, and those that he may hear of. owners: None for all"""
    requester = requester_of(rights, is_delegated=is_delegated)
    return [
        token
        async for token in in_turns(await tokens.all_tokens(node, owners))
        if token.is_of(requester) or (node.authorizer.is_on and _may_hear(rights, token))
    ]


def _may_hear(rights: Rights, token: DelegationToken) -> bool:
    describe, of_owner = AclOperation.DESCRIBE, AclOperation.DESCRIBE_TOKENS
    return rights.may(ResourceType.DELEGATION_TOKEN, token.token_id, describe, told=False) or rights.may(
        ResourceType.USER, token.owner, of_owner, told=False
    )


async def _id_of(node: Services, token: str | bytes) -> str:
    return token if isinstance(token, str) else await tokens.token_of_hmac(node, token)
