"""The decision: a pure function of an immutable set of ACLs, as Apache Kafka's StandardAuthorizer decides.

What an ACL denies is refused, whatever others allow. What none allows is refused too; where no ACL at all is about the
resource, `NO_ACL` says so. To be allowed READ, WRITE, DELETE or ALTER is to be allowed DESCRIBE; ALTER_CONFIGS allows
DESCRIBE_CONFIGS. A denial stands for its own operation alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, TypeAlias

from semel.protocol.acls import ANY_USER, WILDCARD, Acl, AclOperation, AclPermission, PatternType, ResourceType

_ALL: Final = AclOperation.ALL
_ALLOW: Final = AclPermission.ALLOW
_LITERAL: Final = PatternType.LITERAL
_IMPLYING: Final = {
    AclOperation.DESCRIBE: frozenset(
        {
            _ALL,
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({_ALL, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""The operations to be allowed which is to be allowed another."""
_ALLOWING: Final = {
    operation: _IMPLYING.get(operation, frozenset({_ALL, operation})) for operation in AclOperation
}


class Decision(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACL = "no ACL is about this resource"


class _Rules:
    """ACLs with the same type of resource: those with the same pattern together."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: defaultdict[str, list[Acl]] = defaultdict(list)
        self.prefixed: defaultdict[str, list[Acl]] = defaultdict(list)
        self.lengths: tuple[int, ...] = ()
        """Of the prefixes, in order."""

    def add(self, acl: Acl) -> None:
        (self.literal if acl.pattern is _LITERAL else self.prefixed)[acl.name].append(acl)

    def finish(self) -> None:
        self.lengths = tuple(sorted({len(prefix) for prefix in self.prefixed}))

    def matching(self, name: str) -> Iterator[list[Acl]]:
        """Yield the ACLs of each pattern that matches a resource."""
        literal, prefixed = self.literal, self.prefixed
        if name in literal:
            yield literal[name]
        if name != WILDCARD and WILDCARD in literal:
            yield literal[WILDCARD]
        longest = len(name)
        for length in self.lengths:
            if length > longest:
                break
            if (prefix := name[:length]) in prefixed:
                yield prefixed[prefix]


_RulesOf: TypeAlias = dict[tuple[str, ResourceType], _Rules]


class AclSet:
    """An immutable set of ACLs, by whom and what they are about."""

    __slots__ = ("_all", "_of")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._of: _RulesOf = {}
        self._all: dict[ResourceType, _Rules] = {}
        for acl in acls:
            self._of.setdefault((acl.principal, acl.resource_type), _Rules()).add(acl)
            self._all.setdefault(acl.resource_type, _Rules()).add(acl)
        for rules in (*self._of.values(), *self._all.values()):
            rules.finish()

    def decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Decide whether somebody may do something with a resource, which is named exactly."""
        allowing = _ALLOWING[operation]
        is_allowed = False
        for rules in self._rules(principal, resource_type):
            for acls in rules.matching(name):
                for acl in acls:
                    if acl.host not in (WILDCARD, host):
                        continue
                    if acl.permission is _ALLOW:
                        is_allowed = is_allowed or acl.operation in allowing
                    elif acl.operation in (operation, _ALL):
                        return Decision.DENIED
        if is_allowed:
            return Decision.ALLOWED
        everybodys = self._all.get(resource_type)
        if everybodys is not None and any(everybodys.matching(name)):
            return Decision.DENIED
        return Decision.NO_ACL

    def allows_some(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Say whether some ACL allows an operation on any resource of a type, and none takes that back (KIP-679)."""
        allowed: list[Acl] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for acl in self._acls(principal, resource_type):
            if acl.host not in (WILDCARD, host) or acl.operation not in (operation, _ALL):
                continue
            if acl.permission is _ALLOW:
                allowed.append(acl)
            elif acl.pattern is not _LITERAL:
                denied_prefixes.add(acl.name)
            elif acl.name == WILDCARD:
                return False
            else:
                denied_names.add(acl.name)

        def stands(acl: Acl) -> bool:
            if acl.pattern is _LITERAL and (acl.name == WILDCARD or acl.name in denied_names):
                return acl.name == WILDCARD
            return not any(acl.name[: end + 1] in denied_prefixes for end in range(len(acl.name)))

        return any(stands(acl) for acl in allowed)

    def _rules(self, principal: str, resource_type: ResourceType) -> Iterator[_Rules]:
        for who in (principal, ANY_USER):
            rules = self._of.get((who, resource_type))
            if rules is not None:
                yield rules

    def _acls(self, principal: str, resource_type: ResourceType) -> Iterator[Acl]:
        for rules in self._rules(principal, resource_type):
            for group in (rules.literal, rules.prefixed):
                for acls in group.values():
                    yield from acls
