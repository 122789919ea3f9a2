"""Users' passwords in the cluster's metadata are set, removed and described (KIP-554). Any node takes changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from semel.broker.handlers.delegation_tokens import tokens_by_user
from semel.broker.handlers.newest import read_newest
from semel.broker.metadata.changes import (
    CREDENTIALS_VERSION,
    Change,
    CredentialsChanged,
    DelegationTokensChanged,
)
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.scram import (
    SCRAM_MECHANISMS,
    Alteration,
    Deletion,
    Upsertion,
    UserDescription,
    Verifier,
    check_user_name,
    unacceptable,
    unknown_mechanism,
)
from semel.runtime.turns import in_turns

PER_REQUEST_MAX: Final = 1_000
"""Users of one request."""

Outcomes = dict[str, SemelError | None]
"""What became of users: None, or what is wrong."""
_Tokens: TypeAlias = Mapping[str, Sequence[DelegationToken]]
"""Delegation tokens by the names of users."""


class Described(NamedTuple):
    """A user that was asked for, or why it is not told of."""

    name: str
    user: UserDescription | None = None
    error: SemelError | None = None


async def alter_users(node: Services, wanted: Sequence[tuple[str, Alteration | SemelError]]) -> Outcomes:
    """Set and remove users' passwords, all at once; return what became of each user, in order.

    wanted: users, each with what is to become of him, or with what is known to be wrong about that. A user that comes
        twice is not changed at all, as in Kafka
    Raises `SemelError` for all of them.
    """
    if len(wanted) > PER_REQUEST_MAX:
        raise UsageError(f"{len(wanted)} users in one request are too many: send up to {PER_REQUEST_MAX} at once")
    outcomes: Outcomes = {}
    beyond: set[str] = set()

    def decide(image: MetadataImage) -> list[Change]:
        accepted: dict[str, CredentialsChanged] = {}
        outcomes.clear()
        beyond.clear()
        users_there = len(image.users)
        tokens = tokens_by_user(image)
        for user, alteration in wanted:
            if outcomes.get(user) is not None:
                continue  # the first error is the one that counts
            if user in accepted:
                del accepted[user]
                outcomes[user] = FatalError(
                    "a user can't be altered twice in one request", ErrorCode.DUPLICATE_RESOURCE
                )
                continue
            try:
                accepted[user] = _changed(node, image, alteration, tokens)
                outcomes[user] = None
            except SemelError as error:
                outcomes[user] = error
        for user, change in list(accepted.items()):
            if not change.upserted or user in image.users:
                continue
            users_there += 1
            if users_there > node.config.users_max:
                del accepted[user]
                beyond.add(user)
                outcomes[user] = FatalError(
                    f"the cluster has {len(image.users)} users, and users.max is {node.config.users_max}: remove some, "
                    "or raise the setting",
                    ErrorCode.POLICY_VIOLATION,
                )
        if not accepted:
            return []
        changed = CredentialsChanged(
            tuple(each for change in accepted.values() for each in change.upserted),
            tuple(each for change in accepted.values() for each in change.removed),
        )
        ended = {*_gone(node, image, accepted), *_new(image, accepted)}
        removed = [
            token.token_id
            for user in accepted
            for token in (tokens.get(user, ()) if user in ended else _left_over(node, image, user, tokens))
        ]
        return [
            *([changed] if changed.upserted or changed.removed else []),
            *([DelegationTokensChanged(removed=tuple(removed))] if removed else []),
        ]

    await read_newest(node)
    if decide(node.metadata.image):
        await node.metadata.change(decide)
        await node.caught_up()
    node.metadata.refusals.note("users.max", len(beyond))
    return outcomes


def _in_file(node: Services, user: str) -> bool:
    return node.users is not None and node.users.is_in_file(user)


def _left_over(node: Services, image: MetadataImage, user: str, tokens: _Tokens) -> Sequence[DelegationToken]:
    """Return the tokens of somebody who had this name before, and was in a node's file. Those of a user whom the
    metadata has are all his.
    """
    if user in image.users:
        return []
    known = node.users if _in_file(node, user) else None
    return [each for each in tokens.get(user, ()) if known is None or not known.had(user, each.issue_timestamp_ms)]


def _gone(node: Services, image: MetadataImage, accepted: Mapping[str, CredentialsChanged]) -> list[str]:
    """Return the users who are none any more after these changes."""
    return [
        user
        for user, change in accepted.items()
        if not change.upserted and len(change.removed) == len(image.users.get(user, ())) and not _in_file(node, user)
    ]


def _new(image: MetadataImage, accepted: Mapping[str, CredentialsChanged]) -> list[str]:
    """Return the users who are added: tokens of their names are of others, whom nodes had in their files."""
    return [user for user, change in accepted.items() if change.upserted and user not in image.users]


def _changed(
    node: Services, image: MetadataImage, wanted: Alteration | SemelError, tokens: _Tokens
) -> CredentialsChanged:
    """Return the change of one user. Raises `SemelError`."""
    if image.version < CREDENTIALS_VERSION:
        raise FatalError(
            "there can't be users in the metadata yet: not all nodes run a semel that knows of them. Upgrade all nodes "
            "first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if isinstance(wanted, SemelError):
        raise wanted
    user, removed = wanted.user, wanted.removed
    if not user:
        raise unacceptable("a user's name must not be empty")
    if not set(removed) <= set(SCRAM_MECHANISMS):
        raise unknown_mechanism()
    there = [each.mechanism for each in image.users.get(user, ())]
    has_nothing = wanted.replaces and not wanted.verifiers and not there
    if has_nothing and _left_over(node, image, user, tokens):
        return CredentialsChanged()  # nothing is left but tokens, of somebody whom a node had in its file
    if not set(removed) <= set(there) or has_nothing:
        raise FatalError("there is no such password to remove", ErrorCode.RESOURCE_NOT_FOUND)
    for verifier in wanted.verifiers:
        verifier.check_for_cluster()
    if wanted.verifiers:
        _check_new(node, user, wanted.verifiers)
    if wanted.replaces:
        removed = tuple(each for each in there if each not in {one.mechanism for one in wanted.verifiers})
    return CredentialsChanged(
        tuple(Upsertion(user, each) for each in wanted.verifiers), tuple(Deletion(user, each) for each in removed)
    )


def _check_new(node: Services, user: str, verifiers: Sequence[Verifier]) -> None:
    if len({each.mechanism for each in verifiers}) < len(verifiers):
        raise FatalError("a user has one password for a mechanism", ErrorCode.DUPLICATE_RESOURCE)
    try:
        check_user_name(user)
    except UsageError as error:
        raise unacceptable(error.message) from None
    if _in_file(node, user):
        raise unacceptable(
            f"the user {user} is in this node's file of users (sasl.users.location), which counts alone: change the "
            "password there (`semel user add --file`), or remove the user from the files of all nodes first"
        )


async def describe_users(node: Services, names: Sequence[str]) -> list[Described]:
    """Return the users of these names, in order; without any, all."""
    await read_newest(node)
    users = node.metadata.image.users
    counts: dict[str, int] = {}
    async for name in in_turns(names or sorted(users)):
        counts[name] = counts.get(name, 0) + 1
    return [_described(name, users.get(name, ()), count) async for name, count in in_turns(counts.items())]


def _described(name: str, verifiers: Sequence[Verifier], count: int) -> Described:
    if count > 1:
        why = f"a user can't be described twice in one request: {name}"
        return Described(name, error=FatalError(why, ErrorCode.DUPLICATE_RESOURCE))
    if not verifiers:
        why = f"there is no user of this name in the cluster's metadata: {name}"
        return Described(name, error=FatalError(why, ErrorCode.RESOURCE_NOT_FOUND))
    return Described(name, UserDescription(name, {each.mechanism: each.iterations for each in verifiers}))
