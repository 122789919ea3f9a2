"""ACLs are added, removed and listed. Any node writes them into the metadata, and the others follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.broker.handlers.newest import read_newest
from semel.broker.metadata.changes import ACLS_VERSION, AclsChanged, Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.acls import Acl, AclFilter
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.runtime.turns import in_turns

PER_REQUEST_MAX: Final = 1_000
"""ACLs, or filters, of one request."""


class Deleted(NamedTuple):
    """What became of one filter."""

    acls: Sequence[Acl]
    error: SemelError | None = None


def check_is_on(node: Services) -> None:
    """Raise SECURITY_DISABLED where ACLs would change nothing."""
    if not node.authorizer.is_on:
        raise FatalError(
            "there is no authorizer on this node: everybody may do everything, and ACLs would change nothing. Set "
            "authorizer.class.name on all nodes first (docs/security.md)",
            ErrorCode.SECURITY_DISABLED,
        )


async def create_acls(node: Services, acls: Sequence[Acl]) -> list[SemelError | None]:
    """Add ACLs; return for each in order None, or what is wrong with it. Raises `SemelError` for all of them."""
    check_is_on(node)
    _check_count(len(acls), "ACLs")
    outcomes: list[SemelError | None] = [_wrong(acl) for acl in acls]
    wanted = dict.fromkeys(acl for acl, error in zip(acls, outcomes, strict=True) if error is None)

    def decide(image: MetadataImage) -> list[Change]:
        _check_version(image)
        added = tuple(acl for acl in wanted if acl not in image.acls)
        if added and len(image.acls) + len(added) > node.config.acls_max:
            node.metadata.refusals.note("acls.max")
            raise FatalError(
                f"the cluster has {len(image.acls)} ACLs, and acls.max is {node.config.acls_max}: remove some, use "
                "prefixes (`semel acl add --topic-prefix`), or raise the setting",
                ErrorCode.POLICY_VIOLATION,
            )
        return [AclsChanged(added=added)] if added else []

    if wanted:
        await node.metadata.change(decide)
        await node.caught_up()
    return outcomes


async def delete_acls(node: Services, filters: Sequence[AclFilter]) -> list[Deleted]:
    """Remove what each filter matches; return that in order. Raises `SemelError` for all of them."""
    check_is_on(node)
    _check_count(len(filters), "filters")
    wrong = [_wrong(each) for each in filters]
    matched: list[list[Acl]] = []
    # The filters are looked at in turns, on one image; what is gone when it is written stays out of the answer.
    await read_newest(node)
    here = sorted(node.metadata.image.acls)
    for each, error in zip(filters, wrong, strict=True):
        matched.append([acl async for acl in in_turns(here) if each.matches(acl)] if error is None else [])
    wanted = {acl for found in matched for acl in found}
    removed: frozenset[Acl] = frozenset()

    def decide(image: MetadataImage) -> list[Change]:
        nonlocal removed
        _check_version(image)
        removed = image.acls.intersection(wanted)
        return [AclsChanged(removed=tuple(sorted(removed)))] if removed else []

    if wanted:
        await node.metadata.change(decide)
        await node.caught_up()
    return [
        Deleted([acl for acl in found if acl in removed], error) for found, error in zip(matched, wrong, strict=True)
    ]


async def describe_acls(node: Services, wanted: AclFilter) -> list[Acl]:
    """Return what a filter matches, in order. Raises `UsageError`."""
    check_is_on(node)
    wanted.check()
    await read_newest(node)
    return [acl async for acl in in_turns(sorted(node.metadata.image.acls)) if wanted.matches(acl)]


def _wrong(given: Acl | AclFilter) -> SemelError | None:
    try:
        given.check()
    except UsageError as error:
        return error
    return None


def _check_count(count: int, what: str) -> None:
    if count > PER_REQUEST_MAX:
        raise UsageError(f"{count} {what} in one request are too many: send up to {PER_REQUEST_MAX} at once")


def _check_version(image: MetadataImage) -> None:
    if image.version < ACLS_VERSION:
        raise FatalError(
            "there can't be ACLs yet: not all nodes run a semel that knows of them. Upgrade all nodes first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
