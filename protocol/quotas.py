"""Kafka's model of client quotas: how much of a node a user, a client id or an address may take (KIP-13, KIP-546).

A quota belongs to an entity: a user, a client id, both together, or an address. In place of each name there may be the
default, which counts for all that have no quota of their own.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from semel.protocol.addresses import host_of
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

DEFAULT: Final = ""
"""In place of a name: all that have no quota of their own. Nothing has an empty name."""
NAME_MAX: Final = 255
"""Characters of a name that has a quota."""

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""What users and client ids may have."""

_WHOLE_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {PRODUCER_BYTE_RATE: INT64_MAX, CONSUMER_BYTE_RATE: INT64_MAX, CONNECTION_CREATION_RATE: INT32_MAX}
)
"""Those that take no fractions, with the most they take."""
_NEARLY_WHOLE: Final = 1e-6
_NAME_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Whom a quota is for: `user`, `client_id` or both, or `ip` alone.

    None: it does not matter. `DEFAULT`: all that have no quota of their own
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """The types that matter, each with its name."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return tuple((kind, name) for kind, name in named if name is not None)

    @property
    def canonical(self) -> QuotaEntity:
        """The same entity with its address as addresses are compared, so that each has quotas once."""
        return self if not self.ip else QuotaEntity(ip=host_of(self.ip))

    def check(self) -> QuotaEntity:
        """Return this entity. Raises `UsageError` where it can't have quotas."""
        parts = self.parts
        if not parts:
            raise UsageError("a quota needs an entity: a user, a client id, both, or an IP address")
        if self.ip is not None and len(parts) > 1:
            raise UsageError("an IP address can't have a quota together with a user or a client id")
        for kind, name in parts:
            if len(name) > NAME_MAX:
                raise UsageError(f"a {kind} of {len(name)} characters can't have a quota: up to {NAME_MAX}")
        if self.ip:
            _check_address(self.ip)
        return self

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name!r}" if name else f"default {kind}" for kind, name in self.parts)


def _check_address(address: str) -> None:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(
            f"{address[:_NAME_SHOWN]!r} is no IP address: give an address, because names of hosts are not looked up"
        ) from None


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of types and names, None for the default. Raises `UsageError` for what can't be one."""
    found: dict[str, str] = {}
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            raise UsageError(f"{kind[:_NAME_SHOWN]!r} can't have quotas: {', '.join(ENTITY_TYPES)} can")
        if kind in found:
            raise UsageError(f"the entity has more than one {kind}")
        if name == "":
            raise UsageError(f"a {kind} with an empty name can't have a quota")
        found[kind] = DEFAULT if name is None else name
    return QuotaEntity(found.get(USER), found.get(CLIENT_ID), found.get(IP))


def keys_of(entity: QuotaEntity) -> tuple[str, ...]:
    """Return the quotas that an entity may have."""
    return (CONNECTION_CREATION_RATE,) if entity.ip is not None else CLIENT_KEYS


def check_quota(entity: QuotaEntity, key: str, value: float | None) -> None:
    """Raise `UsageError` where an entity can't have a quota of this value. None: it is removed."""
    if value is None:
        return
    if key not in keys_of(entity):
        raise UsageError(f"{entity} can't have a {key[:_NAME_SHOWN]!r}: {', '.join(keys_of(entity))}")
    if not value > 0 or math.isinf(value):
        raise UsageError(f"{key} = {value:g}: a quota must be a number greater than 0; remove it for no bound")
    most = _WHOLE_NUMBERS.get(key)
    if most is not None:
        if value > most:
            raise UsageError(f"{key} = {value:g} is too large: up to {most}")
        if abs(value - round(value)) > _NEARLY_WHOLE:
            raise UsageError(f"{key} = {value:g}: it must be a whole number")


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """Quotas of an entity that are set, or removed where their value is None."""

    entity: QuotaEntity
    values: Mapping[str, float | None]

    def check(self) -> QuotaAlteration:
        """Return this alteration. Raises `UsageError`."""
        self.entity.check()
        for key, value in self.values.items():
            check_quota(self.entity, key, value)
        return self


class ClientQuota(NamedTuple):
    """An entity with its quotas, by their names."""

    entity: QuotaEntity
    values: Mapping[str, float]


class MatchType(IntEnum):
    """How a filter compares a name. The numbers are the Kafka protocol's."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2
    """Any name, and the default."""


class QuotaMatch(NamedTuple):
    """What a filter wants of one type of entity. `name` only for EXACT."""

    entity_type: str
    match: MatchType | int = MatchType.SPECIFIED
    name: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """Entities to list: those that have all of `components`.

    strict: only entities that have nothing else
    """

    components: tuple[QuotaMatch, ...] = field(default=())
    strict: bool = False

    def check(self) -> QuotaFilter:
        """Return this filter. Raises `FatalError` for what can never be asked."""
        seen: set[str] = set()
        for kind, match, name in self.components:
            if not kind:
                raise UsageError("the filter has an entity without a type")
            if kind in seen:
                raise UsageError(f"the filter has more than one {kind[:_NAME_SHOWN]}")
            seen.add(kind)
            if kind not in ENTITY_TYPES:
                raise FatalError(
                    f"{kind[:_NAME_SHOWN]!r} can't have quotas: {', '.join(ENTITY_TYPES)} can",
                    ErrorCode.UNSUPPORTED_VERSION,
                )
            if match not in MatchType.__members__.values():
                raise UsageError(f"the filter has the unknown match type {int(match)}")
            if (match == MatchType.EXACT) != (name is not None):
                raise UsageError("a filter names an entity for an exact match, and for no other")
        if IP in seen and len(seen) > 1:
            raise UsageError("a filter can't ask for an IP address together with a user or a client id")
        return self

    def matches(self, entity: QuotaEntity) -> bool:
        """Return whether an entity is like that."""
        parts = dict(entity.parts)
        if self.strict and len(parts) != len(self.components):
            return False
        return all(_is_like(parts.get(each.entity_type), each) for each in self.components)


def _is_like(name: str | None, wanted: QuotaMatch) -> bool:
    if wanted.match == MatchType.SPECIFIED:
        return name is not None
    if wanted.match == MatchType.DEFAULT:
        return name == DEFAULT
    if wanted.entity_type == IP and wanted.name and name:
        return host_of(name) == host_of(wanted.name)
    return bool(name) and name == wanted.name


def sorted_quotas(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> Iterator[ClientQuota]:
    """Yield entities with their quotas in a fixed order: users, client ids, addresses; the defaults before names."""
    for entity in sorted(quotas, key=_order):
        yield ClientQuota(entity, quotas[entity])


def _order(entity: QuotaEntity) -> tuple[bool, bool, str, str, str]:
    return (
        entity.ip is not None,
        entity.user is None,
        entity.user or "",
        "" if entity.client_id is None else "\0" + entity.client_id,
        entity.ip or "",
    )
