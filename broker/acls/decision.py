"""The decision: a pure function of an immutable set of ACLs, as Apache Kafka's StandardAuthorizer decides.

What an ACL denies is refused, whatever others allow. What none allows is refused too; where no ACL at all is about the
resource, `NO_ACL` says so. To be allowed READ, WRITE, DELETE or ALTER is to be allowed DESCRIBE; ALTER_CONFIGS allows
DESCRIBE_CONFIGS. A denial stands for its own operation alone.

Operations are bits of a number here, so that the ACLs of one pattern are one look, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from semel.protocol.acls import (
    ANY_USER,
    IMPLIED,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from semel.protocol.addresses import host_of

_LITERAL: Final = PatternType.LITERAL
_EVERY_BIT: Final = sum(1 << operation for operation in AclOperation)
_ALLOW: Final = AclPermission.ALLOW
_DENIED: Final = [_EVERY_BIT if operation is AclOperation.ALL else 1 << operation for operation in AclOperation]
"""The bits that an ACL denies, by its operation."""
_ALLOWED: Final = [
    bits | (1 << IMPLIED[operation] if operation in IMPLIED else 0)
    for operation, bits in zip(AclOperation, _DENIED, strict=True)
]
"""The bits that an ACL allows, by its operation."""


class Decision(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACL = "no ACL is about this resource"


class _Pattern:
    """The ACLs of one principal with the same pattern."""

    __slots__ = ("allowed", "denied", "hosts")

    def __init__(self) -> None:
        self.allowed = self.denied = 0
        """What is allowed and denied from everywhere."""
        self.hosts: dict[str, tuple[int, int]] | None = None
        """What else is allowed and denied to single hosts."""

    def add_for_host(self, host: str, allowed: int, denied: int) -> None:
        if self.hosts is None:
            self.hosts = {}
        host = host_of(host)
        allowed_there, denied_there = self.hosts.get(host, (0, 0))
        self.hosts[host] = allowed_there | allowed, denied_there | denied


class _Rules:
    """The ACLs of one principal about one type of resource."""

    __slots__ = ("acls", "lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Pattern] = {}
        self.prefixed: dict[str, _Pattern] = {}
        self.lengths: tuple[int, ...] = ()
        """Of the prefixes, in order."""
        self.acls: list[Acl] = []

    def add(self, acl: Acl) -> None:
        _, name, kind, _, host, operation, permission = acl
        self.acls.append(acl)
        patterns = self.literal if kind is _LITERAL else self.prefixed
        pattern = patterns.get(name)
        if pattern is None:
            pattern = patterns[name] = _Pattern()
        allowed, denied = (_ALLOWED[operation], 0) if permission is _ALLOW else (0, _DENIED[operation])
        if host == WILDCARD:
            pattern.allowed |= allowed
            pattern.denied |= denied
        else:
            pattern.add_for_host(host, allowed, denied)

    def finish(self) -> None:
        self.lengths = tuple(sorted({len(prefix) for prefix in self.prefixed}))

    def bits(self, host: str, name: str) -> tuple[int, int]:
        """Return what is allowed and what is denied to a host, of a resource."""
        found = []
        if (pattern := self.literal.get(name)) is not None:
            found.append(pattern)
        if name != WILDCARD and (pattern := self.literal.get(WILDCARD)) is not None:
            found.append(pattern)
        longest = len(name)
        for length in self.lengths:
            if length > longest:
                break
            if (pattern := self.prefixed.get(name[:length])) is not None:
                found.append(pattern)
        allowed = denied = 0
        for pattern in found:
            allowed |= pattern.allowed
            denied |= pattern.denied
            if pattern.hosts is not None and host in pattern.hosts:
                allowed_there, denied_there = pattern.hosts[host]
                allowed |= allowed_there
                denied |= denied_there
        return allowed, denied


class _Names:
    """The patterns of all ACLs about one type of resource."""

    __slots__ = ("lengths", "literal", "prefixes")

    def __init__(self) -> None:
        self.literal: set[str] = set()
        self.prefixes: set[str] = set()
        self.lengths: tuple[int, ...] = ()

    def matches(self, name: str) -> bool:
        """Return whether any ACL is about a resource."""
        if name in self.literal or WILDCARD in self.literal:
            return True
        return any(name[:length] in self.prefixes for length in self.lengths if length <= len(name))


class AclSet:
    """An immutable set of ACLs, by whom and what they are about."""

    __slots__ = ("_all", "_of")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._of: list[dict[str, _Rules]] = [{} for _ in ResourceType]
        """By type of resource, then by principal."""
        self._all: list[_Names] = [_Names() for _ in ResourceType]
        for acl in acls:
            of_type = self._of[acl.resource_type]
            rules = of_type.get(acl.principal)
            if rules is None:
                rules = of_type[acl.principal] = _Rules()
            rules.add(acl)
            names = self._all[acl.resource_type]
            (names.literal if acl.pattern is _LITERAL else names.prefixes).add(acl.name)
        for names in self._all:
            names.lengths = tuple(sorted({len(prefix) for prefix in names.prefixes}))
        for of_type in self._of:
            for rules in of_type.values():
                rules.finish()

    def decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Decide whether somebody may do something with a resource, which is named exactly. host: of `host_of`."""
        allowed, denied = self._bits(principal, host, resource_type, name)
        if denied >> operation & 1:
            return Decision.DENIED
        if allowed >> operation & 1:
            return Decision.ALLOWED
        return Decision.DENIED if self._all[resource_type].matches(name) else Decision.NO_ACL

    def allows(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether the decision is that somebody may: quicker, for it need not be told why not."""
        allowed, denied = self._bits(principal, host, resource_type, name)
        return bool((allowed & ~denied) >> operation & 1)

    def _bits(self, principal: str, host: str, resource_type: ResourceType, name: str) -> tuple[int, int]:
        """Return what ACLs allow and what they deny somebody, of a resource."""
        of_type = self._of[resource_type]
        allowed = denied = 0
        if (rules := of_type.get(principal)) is not None:
            allowed, denied = rules.bits(host, name)
        if (rules := of_type.get(ANY_USER)) is not None:
            allowed_to_any, denied_to_any = rules.bits(host, name)
            allowed |= allowed_to_any
            denied |= denied_to_any
        return allowed, denied

    def is_about_every(self, resource_type: ResourceType) -> bool:
        """Return whether an ACL is about every resource of a type."""
        return WILDCARD in self._all[resource_type].literal

    def allows_some(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Say whether some ACL allows an operation on any resource of a type, and none takes that back (KIP-679)."""
        allowed: list[Acl] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for acl in self._acls(principal, resource_type):
            if acl.operation not in (operation, AclOperation.ALL) or (
                acl.host != WILDCARD and host_of(acl.host) != host
            ):
                continue
            if acl.permission is AclPermission.ALLOW:
                allowed.append(acl)
            elif acl.pattern is not _LITERAL:
                denied_prefixes.add(acl.name)
            elif acl.name == WILDCARD:
                return False
            else:
                denied_names.add(acl.name)

        lengths = {len(prefix) for prefix in denied_prefixes}

        def stands(acl: Acl) -> bool:
            if acl.pattern is _LITERAL and (acl.name == WILDCARD or acl.name in denied_names):
                return acl.name == WILDCARD
            return not any(acl.name[:length] in denied_prefixes for length in lengths if length <= len(acl.name))

        return any(stands(acl) for acl in allowed)

    def _acls(self, principal: str, resource_type: ResourceType) -> Iterator[Acl]:
        of_type = self._of[resource_type]
        for who in (principal, ANY_USER):
            if (rules := of_type.get(who)) is not None:
                yield from rules.acls
