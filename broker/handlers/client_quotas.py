"""Client quotas are set, removed and listed. Any node writes them into the metadata, and the others follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from semel.broker.handlers.newest import read_newest
from semel.broker.metadata.changes import CLIENT_QUOTAS_VERSION, Change, ClientQuotasChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.quotas import ClientQuota, QuotaAlteration, QuotaEntity, QuotaFilter, sorted_quotas
from semel.runtime.turns import in_turns

PER_REQUEST_MAX: Final = 1_000
"""Entities of one request."""


class Altered(NamedTuple):
    """What became of an entity's quotas: those that are others now, or why none is."""

    entity: QuotaEntity
    values: Mapping[str, float | None]
    error: SemelError | None = None


async def alter_client_quotas(
    node: Services, wanted: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> list[Altered]:
    """Set and remove quotas, for each entity all or none; answer for each in order, once for one that is there twice.

    Raises `SemelError` for all of them.
    """
    if len(wanted) > PER_REQUEST_MAX:
        raise UsageError(
            f"{len(wanted)} entities in one request are too many: send up to {PER_REQUEST_MAX} at once",
        )
    # The answer names entities as the request did: a client finds its own by that.
    times = Counter([each.entity.canonical for each in wanted])
    errors: dict[QuotaEntity, SemelError] = {}
    for each in wanted:
        error = _wrong(each, times[each.entity.canonical])
        if error is not None:
            errors.setdefault(each.entity, error)
    asked = [each for each in wanted if each.entity not in errors]
    changed: dict[QuotaEntity, Mapping[str, float | None]] = {}

    def decide(image: MetadataImage) -> list[Change]:
        _check_version(image)
        changed.clear()
        count = len(image.client_quotas)
        for entity, values in ((each.entity.canonical, each.values) for each in asked):
            before = image.client_quotas.get(entity, {})
            new = {key: value for key, value in values.items() if before.get(key) != value}
            if new:
                changed[entity] = new
                after = {key for key in {**before, **new} if {**before, **new}[key] is not None}
                count += bool(after) - bool(before)
        if len(image.client_quotas) < count > node.config.client_quotas_max:
            node.metadata.refusals.note("client.quotas.max")
            raise FatalError(
                f"the cluster has quotas for {len(image.client_quotas)} entities, and client.quotas.max is "
                f"{node.config.client_quotas_max}: remove some, use a default, or raise the setting",
                ErrorCode.POLICY_VIOLATION,
            )
        quotas = tuple(QuotaAlteration(entity, values) for entity, values in changed.items())
        return [ClientQuotasChanged(quotas)] if quotas and not validate_only else []

    if validate_only:
        decide(node.metadata.image)
    elif asked:
        await node.metadata.change(decide)
        await node.caught_up()
    named = dict.fromkeys(each.entity for each in wanted)
    return [Altered(each, changed.get(each.canonical, {}), errors.get(each)) for each in named]


async def describe_client_quotas(node: Services, wanted: QuotaFilter) -> list[ClientQuota]:
    """Return the entities that a filter matches, with their quotas, in order. Raises `FatalError`."""
    wanted.check()
    await read_newest(node)
    return [
        each
        async for each in in_turns(list(sorted_quotas(node.metadata.image.client_quotas)))
        if wanted.matches(each.entity)
    ]


def _wrong(alteration: QuotaAlteration, times: int) -> SemelError | None:
    try:
        alteration.check()
        if times > 1:
            raise UsageError(f"{alteration.entity} is in the request more than once")
    except UsageError as error:
        return error
    return None


def _check_version(image: MetadataImage) -> None:
    if image.version < CLIENT_QUOTAS_VERSION:
        raise FatalError(
            "there can't be client quotas yet: not all nodes run a semel that knows of them. Upgrade all nodes first",
            ErrorCode.UNSUPPORTED_VERSION,
        )
