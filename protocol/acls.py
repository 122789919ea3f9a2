"""Kafka's model of permissions: who may do what with which resource, from where (KIP-11, KIP-290).

An ACL allows or denies an operation on the resources that its pattern matches. What no ACL allows is refused, and what
one denies is refused whatever others allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from semel.protocol.errors import UsageError

WILDCARD: Final = "*"
"""As a host: from anywhere. As the name of a literal pattern: every resource of its type."""
ANY_USER: Final = "User:*"
ANONYMOUS: Final = "User:ANONYMOUS"
"""Who is asked neither for a password nor for a certificate."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of the type CLUSTER."""
NOT_ASKED_FOR: Final = -(1 << 31)
"""In place of the operations that may be done with something (KIP-430), where nobody asked for them."""
NAME_BYTES_MAX: Final = 1024
"""Of each of an ACL's texts."""


class AclOperation(IntEnum):
    """What is done. The numbers are the protocol's; the number is also the bit of KIP-430's authorized operations."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


IMPLIED: Final[Mapping[AclOperation, AclOperation]] = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.DELETE: AclOperation.DESCRIBE,
    AclOperation.ALTER: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
"""What is allowed to who is allowed another operation. A denial stands for its own operation alone."""


class AclPermission(IntEnum):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourceType(IntEnum):
    """What something is done with."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a pattern's name matches a resource's: the same (or `*`), or as its beginning.

    ANY and MATCH are of filters alone: any pattern of the name, and all patterns that match a resource of the name.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

OPERATIONS: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        *_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, *_CONFIGS),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.ALTER,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.DESCRIBE,
        *_CONFIGS,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""What can be done with each type of resource."""


def _operation(value: AclOperation | str) -> AclOperation:
    known = {each.name: each for each in AclOperation if each not in (AclOperation.UNKNOWN, AclOperation.ANY)}
    found = value if isinstance(value, AclOperation) else known.get(str(value).upper().replace("-", "_"))
    if found is None:
        raise UsageError(f"{value!r} is no operation: there are {', '.join(name.lower() for name in known)}")
    return found


def _pattern_of(resource: Mapping[str, str | bool]) -> tuple[ResourceType, str, PatternType]:
    """Return what an ACL is about by the keywords of `Acl.allow`. Raises `UsageError`."""
    named = {kind.name.lower(): kind for kind in OPERATIONS}
    unknown = resource.keys() - named.keys() - {"prefixed"}
    given = [(kind, resource[word]) for word, kind in named.items() if word in resource]
    if unknown or len(given) != 1:
        found = f", not {', '.join(sorted(unknown))}" if unknown else ""
        raise UsageError(f'an ACL is about one of {", ".join(named)}, for example topic="orders"{found}')
    ((kind, name),) = given
    if kind is ResourceType.CLUSTER:
        name = CLUSTER_NAME if name is True else ""
    if not isinstance(name, str) or not name:
        word = kind.name.lower()
        shown = "cluster=True" if kind is ResourceType.CLUSTER else f'{word}="NAME", or {word}="*" for all'
        raise UsageError(f"an ACL needs a name: {shown}")
    return kind, name, PatternType.PREFIXED if resource.get("prefixed", False) else PatternType.LITERAL


class Acl(NamedTuple):
    """One rule: `principal` at `host` may, or may not, do `operation` with what the pattern matches.

    principal: `User:alice`, or `User:*` for everybody
    host:      an IP address, or `*`
    """

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    @classmethod
    def allow(cls, principal: str, operation: AclOperation | str, host: str = WILDCARD, **resource: str | bool) -> Acl:
        """Return a rule that allows somebody something.

        operation: such as "write", "describe-configs" or "all"
        resource:  one of topic, group, transactional_id, delegation_token and user, each with a name (`*`: all of
                   them), or cluster=True. prefixed=True beside it: all whose names begin so

        Raises `UsageError` for what is no rule.

        >>> print(Acl.allow("User:alice", "write", topic="orders"))
        User:alice may WRITE TOPIC:orders from *
        """
        return cls(*_pattern_of(resource), principal, host, _operation(operation), AclPermission.ALLOW).check()

    @classmethod
    def deny(cls, principal: str, operation: AclOperation | str, host: str = WILDCARD, **resource: str | bool) -> Acl:
        """Return a rule that denies somebody something, whatever others allow. See `allow`.

        >>> print(Acl.deny("User:mallory", "all", "10.0.0.7", topic="etl-", prefixed=True))
        User:mallory may not ALL TOPIC with the prefix etl- from 10.0.0.7
        """
        return cls(*_pattern_of(resource), principal, host, _operation(operation), AclPermission.DENY).check()

    def __str__(self) -> str:
        allows = "may" if self.permission is AclPermission.ALLOW else "may not"
        what = f"{self.resource_type.name}:{self.name}"
        if self.pattern is PatternType.PREFIXED:
            what = f"{self.resource_type.name} with the prefix {self.name}"
        return f"{self.principal} {allows} {self.operation.name} {what} from {self.host}"

    def check(self) -> Acl:
        """Return this ACL. Raises `UsageError` where it could never decide anything, as Kafka refuses it."""
        if self.resource_type not in OPERATIONS:
            raise UsageError(f"an ACL is about a type of resource, not {self.resource_type.name}")
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise UsageError(f"an ACL's pattern is LITERAL or PREFIXED, not {self.pattern.name}")
        if self.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            raise UsageError(f"an ACL is about an operation or ALL, not {self.operation.name}")
        if self.permission not in (AclPermission.ALLOW, AclPermission.DENY):
            raise UsageError(f"an ACL allows or denies: {self.permission.name} is neither")
        if not self.name:
            raise UsageError("an ACL needs the name of a resource, or * for all of them")
        if self.resource_type is ResourceType.CLUSTER and self.name not in (CLUSTER_NAME, WILDCARD):
            raise UsageError(f"the only resource of type CLUSTER is {CLUSTER_NAME}, not {self.name[:60]}")
        user_type, _, user = self.principal.partition(":")
        if not user_type or not user:
            raise UsageError(f"{self.principal[:60]!r} is no principal: write User:NAME, or {ANY_USER} for everybody")
        if not self.host:
            raise UsageError("an ACL needs an IP address to allow or deny, or * for all")
        for text in (self.name, self.principal, self.host):
            if len(text.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
                raise UsageError(f"{text[:60]}... is longer than {NAME_BYTES_MAX} bytes")
        return self


class AclFilter(NamedTuple):
    """Which ACLs are meant: None and ANY mean every one."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def check(self) -> AclFilter:
        """Return this filter. Raises `UsageError` for a value that the protocol does not have."""
        for value in (self.resource_type, self.pattern, self.operation, self.permission):
            if not value:
                raise UsageError(f"{type(value).__name__} {int(value)} is unknown here")
        return self

    def matches(self, acl: Acl) -> bool:
        """Say whether an ACL is one of those that are meant."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if acl.pattern is PatternType.LITERAL:
            return acl.name == WILDCARD
        return self.name.startswith(acl.name)
