"""Delegation tokens as the messages of semel.v1 carry them."""

from __future__ import annotations

from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.v1 import delegation_tokens_pb2


def token_message(token: DelegationToken) -> delegation_tokens_pb2.DelegationToken:
    """Return the message of a token."""
    return delegation_tokens_pb2.DelegationToken(
        token_id=token.token_id,
        owner=token.owner,
        requester=token.requester,
        renewers=token.renewers,
        issue_timestamp_ms=token.issue_timestamp_ms,
        expiry_timestamp_ms=token.expiry_timestamp_ms,
        max_timestamp_ms=token.max_timestamp_ms,
    )


def token_of(message: delegation_tokens_pb2.DelegationToken) -> DelegationToken:
    """Return the token of a message."""
    return DelegationToken(
        message.token_id,
        message.owner,
        message.requester,
        tuple(message.renewers),
        message.issue_timestamp_ms,
        message.expiry_timestamp_ms,
        message.max_timestamp_ms,
    )
