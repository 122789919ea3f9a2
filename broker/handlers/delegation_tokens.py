"""Delegation tokens are made, renewed, taken back and removed (KIP-48, KIP-373). Any node takes changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from semel.broker.handlers.newest import read_newest
from semel.broker.metadata.changes import DELEGATION_TOKENS_VERSION, Change, DelegationTokensChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.broker.users.delegation import DelegationTokens
from semel.protocol.delegation_tokens import (
    RENEWERS_MAX,
    TOKEN_ID_BYTES_MAX,
    DelegationToken,
    NewDelegationToken,
    check_principal,
    parts_of,
)
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import format_topic_id, new_topic_id
from semel.runtime.turns import in_turns

_log = logging.getLogger("semel.cluster")

TOKENS_MAX: Final = 10_000
"""Of a cluster: they are in each snapshot of the metadata, and each change of one copies the table of all (S2)."""
TOKENS_OF_OWNER_MAX: Final = 1_000
OWNERS_ASKED_MAX: Final = 1_000
"""In one request to describe tokens."""
_RETRY_S: Final = 60.0
_CLOCKS_APART_MS: Final = 10_000

_Changed: TypeAlias = Callable[[DelegationToken], DelegationToken | None]


def tokens_of(node: Services) -> DelegationTokens:
    """Return what checks tokens. Raises `FatalError` where this node or the cluster has none yet."""
    tokens = None if node.users is None else node.users.delegation
    if tokens is None:
        raise FatalError(
            "this node has no delegation tokens: set delegation.token.secret.file on all nodes",
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        )
    if node.metadata.image.version < DELEGATION_TOKENS_VERSION:
        raise FatalError(
            "there can't be delegation tokens yet: not all nodes run a semel that knows of them. Upgrade all nodes "
            "first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    return tokens


async def create_token(
    node: Services, requester: str, owner: str, renewers: Sequence[str], max_lifetime_ms: int
) -> NewDelegationToken:
    """Make a token. max_lifetime_ms: 0 or less for the longest that is set. Raises `SemelError`."""
    if len(renewers) > RENEWERS_MAX:
        raise FatalError(
            f"{len(renewers)} renewers of a delegation token are too many: name up to {RENEWERS_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    for principal in (owner, *renewers):
        check_principal(principal)
    tokens = tokens_of(node)
    assert node.users is not None
    config, now_ms = node.config, node.clock.now_ms()
    owner_name = parts_of(owner)[1]
    _check_added(node, owner_name, now_ms)
    longest_ms = config.delegation_token_max_lifetime_ms
    last_ms = now_ms + (min(longest_ms, max_lifetime_ms) if max_lifetime_ms > 0 else longest_ms)
    token = DelegationToken(
        format_topic_id(new_topic_id()),
        owner,
        requester,
        tuple(dict.fromkeys(renewers)),
        # A file may come from a machine whose clock is a little ahead: the token is his all the same.
        max(now_ms, node.users.added_ms(owner_name)),
        min(last_ms, now_ms + config.delegation_token_expiry_time_ms),
        last_ms,
        node.users.has(owner_name),
    )
    in_file = node.users.is_in_file

    def decide(image: MetadataImage) -> list[Change]:
        if token.ends_with_user and not in_file(owner_name) and owner_name not in image.users:
            raise FatalError(f"the user {owner_name} was removed meanwhile", ErrorCode.UNACCEPTABLE_CREDENTIAL)
        there = image.delegation_tokens.values()
        expired = [each.token_id for each in there if each.is_expired(now_ms)]
        of_owner = sum(each.owner == owner and not each.is_expired(now_ms) for each in there)
        if of_owner >= TOKENS_OF_OWNER_MAX:
            raise FatalError(
                f"{owner} has {of_owner} delegation tokens, of at most {TOKENS_OF_OWNER_MAX}: have some expire",
                ErrorCode.POLICY_VIOLATION,
            )
        if len(there) - len(expired) >= TOKENS_MAX:
            raise FatalError(
                f"the cluster has {len(there) - len(expired)} delegation tokens, of at most {TOKENS_MAX}: have some "
                "expire",
                ErrorCode.POLICY_VIOLATION,
            )
        # Those that have expired are in nobody's way.
        return [DelegationTokensChanged((token,), tuple(expired) if len(there) >= TOKENS_MAX else ())]

    await node.metadata.change(decide)
    await node.caught_up()
    return NewDelegationToken(token, tokens.hmac(token.token_id))


async def token_of_hmac(node: Services, hmac: bytes) -> str:
    """Return the id of the token that an HMAC is of. Raises `FatalError`."""
    tokens = tokens_of(node)
    found = await tokens.token_of(hmac)
    if found is None:
        await read_newest(node)  # another node may have made it a moment ago
        found = await tokens.token_of(hmac)
    if found is None:
        raise _not_found()
    return found.token_id


async def renew_token(node: Services, requester: str, token_id: str, period_ms: int) -> DelegationToken:
    """Have a token expire later. period_ms: from now on; 0 or less for the longest that is set. Raises `SemelError`."""
    tokens_of(node)
    now_ms, longest_ms = node.clock.now_ms(), node.config.delegation_token_expiry_time_ms
    expiry_ms = now_ms + (min(longest_ms, period_ms) if period_ms > 0 else longest_ms)

    def renewed(token: DelegationToken) -> DelegationToken | None:
        if token.is_expired(now_ms):
            raise _expired(token)
        _check_may_renew(token, requester)
        return _expiring(token, expiry_ms)

    return await _change(node, token_id, renewed)


async def expire_token(node: Services, requester: str, token_id: str, period_ms: int) -> int:
    """Have a token expire in a while, or remove it at once where that is less than 0. Returns when it expires.

    Raises `SemelError`.
    """
    tokens_of(node)
    now_ms = node.clock.now_ms()

    def changed(token: DelegationToken) -> DelegationToken | None:
        _check_may_renew(token, requester)
        if period_ms < 0:
            return None
        if token.is_expired(now_ms):
            raise _expired(token)
        return _expiring(token, now_ms + period_ms)

    token = await _change(node, token_id, changed)
    return now_ms if period_ms < 0 else token.expiry_timestamp_ms


async def all_tokens(node: Services, owners: Sequence[str] | None) -> list[DelegationToken]:
    """Return the tokens of which one of some is owner, requester or renewer; None for all. Raises `SemelError`."""
    if owners is not None and len(owners) > OWNERS_ASKED_MAX:
        raise FatalError(
            f"{len(owners)} owners in one request are too many: name up to {OWNERS_ASKED_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    await read_newest(node)
    tokens_of(node)
    wanted = None if owners is None else frozenset(owners)
    return [
        token
        async for token in in_turns(node.metadata.image.delegation_tokens.values())
        if wanted is None or not wanted.isdisjoint((token.owner, token.requester, *token.renewers))
    ]


async def remove_expired(node: Services) -> None:
    """Remove tokens that have expired from the metadata, now and then, for ever. The controller alone does it."""
    while True:
        await asyncio.sleep(node.config.delegation_token_expiry_check_interval_ms / 1000)
        now_ms = node.clock.now_ms()
        before = len(node.metadata.image.delegation_tokens)
        if node.metadata.controller_epoch < 0 or not expired_tokens(node.metadata.image, now_ms):
            continue
        try:
            image = await node.metadata.change(partial(expired_tokens, now_ms=now_ms), as_controller=True)
            left = len(image.delegation_tokens)
            _log.info("delegation tokens that had expired were removed: there are %d, before %d", left, before)
        except SemelError as error:
            _log.warning("delegation tokens that have expired are removed later: %s", error.message)
            await asyncio.sleep(_RETRY_S)


def expired_tokens(image: MetadataImage, now_ms: int) -> list[Change]:
    """Return the change that removes the tokens that have expired; none where there are none."""
    expired = [token.token_id for token in image.delegation_tokens.values() if token.is_expired(now_ms)]
    return [DelegationTokensChanged(removed=tuple(expired))] if expired else []


def tokens_by_user(image: MetadataImage) -> dict[str, list[DelegationToken]]:
    """Return the tokens that go with a user, who had a password when they were made, by his name."""
    found: dict[str, list[DelegationToken]] = {}
    for token in image.delegation_tokens.values():
        if token.ends_with_user:
            found.setdefault(parts_of(token.owner)[1], []).append(token)
    return found


def _check_added(node: Services, user: str, now_ms: int) -> None:
    """Refuse a token of a user who is added only later, by this node's clock.

    Who has his name after him would be taken for him, where that one's time is right.
    """
    assert node.users is not None
    ahead_ms = node.users.added_ms(user) - now_ms
    if ahead_ms > _CLOCKS_APART_MS:
        raise FatalError(
            f"the user {user} is added {ahead_ms / 1000:.0f} s from now, by this node's clock: set the clocks of the "
            "machines, then remove the user from the file and add him again",
            ErrorCode.INVALID_REQUEST,
        )


async def _change(node: Services, token_id: str, changed: _Changed) -> DelegationToken:
    """Change a token to what `changed` makes of it, None to remove it. Returns it as it is then, or was."""
    result: list[DelegationToken] = []

    def decide(image: MetadataImage) -> list[Change]:
        token = image.delegation_tokens.get(token_id) if len(token_id) <= TOKEN_ID_BYTES_MAX else None
        if token is None:
            raise _not_found()
        after = changed(token)
        result[:] = [after or token]
        return [DelegationTokensChanged(removed=(token_id,)) if after is None else DelegationTokensChanged((after,))]

    await read_newest(node)
    await node.metadata.change(decide)
    await node.caught_up()
    return result[0]


def _expiring(token: DelegationToken, expiry_ms: int) -> DelegationToken:
    return replace(token, expiry_timestamp_ms=min(token.max_timestamp_ms, expiry_ms))


def _check_may_renew(token: DelegationToken, requester: str) -> None:
    if not token.may_renew(requester):
        raise FatalError(
            f"{requester} is neither the owner nor a renewer of this delegation token",
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
        )


def _not_found() -> FatalError:
    return FatalError("there is no such delegation token, or no more", ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def _expired(token: DelegationToken) -> FatalError:
    return FatalError(
        f"the delegation token {token.token_id} has expired: make another one", ErrorCode.DELEGATION_TOKEN_EXPIRED
    )
