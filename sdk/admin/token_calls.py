"""What `Admin` asks of nodes about delegation tokens. Any node takes changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.protocol.delegation_token_messages import token_of
from semel.protocol.delegation_tokens import EXPIRE_NOW_MS, NewDelegationToken
from semel.protocol.errors import UsageError
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.v1 import delegation_tokens_pb2 as messages
from semel.sdk.transport import rpcs as rpc

if TYPE_CHECKING:
    from semel.protocol.delegation_tokens import DelegationToken
    from semel.sdk.transport.control import Control


async def create_token(
    control: Control, owner: str | None, renewers: Iterable[str], max_lifetime_ms: int | None
) -> NewDelegationToken:
    if isinstance(renewers, str):
        raise UsageError("renewers are several: give a list")
    response = await control.call(
        rpc.CREATE_DELEGATION_TOKEN,
        messages.CreateDelegationTokenRequest(
            owner=owner or "", renewers=renewers, max_lifetime_ms=_time("max_lifetime_ms", max_lifetime_ms)
        ),
    )
    return NewDelegationToken(token_of(response.token), response.hmac)


async def renew_token(control: Control, token_id: str, period_ms: int | None) -> int:
    request = messages.RenewDelegationTokenRequest(token_id=token_id, renew_period_ms=_time("period_ms", period_ms))
    return (await control.call(rpc.RENEW_DELEGATION_TOKEN, request)).expiry_timestamp_ms


async def expire_token(control: Control, token_id: str, after_ms: int | None) -> int:
    after_ms = EXPIRE_NOW_MS if after_ms is None else after_ms
    if not EXPIRE_NOW_MS <= after_ms <= INT64_MAX:
        raise UsageError(f"after_ms = {after_ms} is no time in milliseconds")
    request = messages.ExpireDelegationTokenRequest(token_id=token_id, expiry_period_ms=after_ms)
    return (await control.call(rpc.EXPIRE_DELEGATION_TOKEN, request)).expiry_timestamp_ms


async def describe_tokens(control: Control, owners: Iterable[str]) -> list[DelegationToken]:
    request = messages.DescribeDelegationTokensRequest(owners=dict.fromkeys(owners))
    return [token_of(each) for each in (await control.call(rpc.DESCRIBE_DELEGATION_TOKENS, request)).tokens]


def _time(name: str, value_ms: int | None) -> int:
    if value_ms is None:
        return -1
    if not 1 <= value_ms <= INT64_MAX:
        raise UsageError(f"{name} = {value_ms} is no time in milliseconds: at least 1")
    return value_ms
