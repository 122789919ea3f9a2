"""semel.v1.DelegationTokenService. The HMAC of a token, a secret, is in the answer that makes it and in no other."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.callers import is_delegated
from semel.broker.listeners.grpc.convert import filled
from semel.broker.listeners.grpc.edge import Context
from semel.broker.permitted import delegation_tokens as tokens
from semel.broker.services import Services
from semel.protocol.delegation_token_messages import token_message
from semel.protocol.v1 import delegation_tokens_pb2 as messages


class DelegationTokenService:
    """Tokens that users make for their programs."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def create_delegation_token(
        self, request: messages.CreateDelegationTokenRequest, _context: Context
    ) -> messages.CreateDelegationTokenResponse:
        made = await tokens.create_token(
            self._node,
            rights_of_call(),
            request.owner,
            request.renewers,
            request.max_lifetime_ms,
            is_delegated=is_delegated(),
        )
        return messages.CreateDelegationTokenResponse(token=token_message(made.token), hmac=made.hmac)

    async def renew_delegation_token(
        self, request: messages.RenewDelegationTokenRequest, _context: Context
    ) -> messages.RenewDelegationTokenResponse:
        renewed = await tokens.renew_token(
            self._node, rights_of_call(), request.token_id, request.renew_period_ms, is_delegated=is_delegated()
        )
        return messages.RenewDelegationTokenResponse(expiry_timestamp_ms=renewed.expiry_timestamp_ms)

    async def expire_delegation_token(
        self, request: messages.ExpireDelegationTokenRequest, _context: Context
    ) -> messages.ExpireDelegationTokenResponse:
        expiry_ms = await tokens.expire_token(
            self._node, rights_of_call(), request.token_id, request.expiry_period_ms, is_delegated=is_delegated()
        )
        return messages.ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)

    async def describe_delegation_tokens(
        self, request: messages.DescribeDelegationTokensRequest, _context: Context
    ) -> messages.DescribeDelegationTokensResponse:
        found = await tokens.describe_tokens(
            self._node, rights_of_call(), request.owners or None, is_delegated=is_delegated()
        )
        message = messages.DescribeDelegationTokensResponse()
        return await filled(message, message.tokens, map(token_message, found))
