"""What is found about ACLs: those that let everybody in, and those that never decide anything. Pure: facts in."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from semel.protocol.acls import (
    ANONYMOUS,
    ANY_USER,
    IMPLIED,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from semel.protocol.api.diagnostics import NodeSnapshot, Severity
from semel.protocol.wording import command
from semel.sdk.diagnosis.commands import serve_command
from semel.sdk.diagnosis.findings import KINDS, Cluster, Finding

AUTHORIZER: Final = "authorizer.class.name"
"""The setting that has nodes ask what clients may do."""
_SUPER_USERS: Final = "super.users"
_OPEN: Final = "allow.everyone.if.no.acl.found"
_CHANGES: Final = frozenset(AclOperation) - {
    AclOperation.READ,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.DESCRIBE_TOKENS,
    AclOperation.IDEMPOTENT_WRITE,  # alone it lets nobody write
}
_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}
_LITERAL_OPTIONS: Final = {
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}
_Key = tuple[ResourceType, AclPermission, str, PatternType, str]


def acl_findings(cluster: Cluster) -> Iterator[Finding]:
    """ACLs, and the settings that decide with them, where nodes ask what clients may do."""
    node = cluster.newest
    if node is None or cluster.acls is None:
        return
    settings = {one.name: one.value for one in node.settings}
    super_users = frozenset(filter(None, (each.strip() for each in settings.get(_SUPER_USERS, "").split(";"))))
    is_open = settings.get(_OPEN) == "true"
    yield from _setting_findings(node, cluster.acls, super_users, is_open=is_open)
    acls = _Patterns(cluster.acls)
    for acl in sorted(cluster.acls):
        if (why := _lets_everybody_in(acl)) is not None:
            yield _finding("acl-for-everybody", Severity.WARNING, acl, why)
        if (why := _without_effect(acl, super_users)) is not None:
            severity = Severity.WARNING if acl.permission is AclPermission.DENY else Severity.INFO
            # Where what no ACL is about is open to everybody, even this one closes what it names.
            yield _finding("acl-ineffective", severity, acl, why, is_removed=not is_open)
        elif (other := acls.wider(acl)) is not None:
            yield _finding("acl-redundant", Severity.INFO, acl, f"{acl}, and so says a wider ACL: {other}")
        elif (other := acls.denies_all_of(acl)) is not None:
            yield _finding("acl-redundant", Severity.INFO, acl, f"{acl}, and another ACL denies all of that: {other}")


def _setting_findings(
    node: NodeSnapshot, acls: Iterable[Acl], super_users: frozenset[str], *, is_open: bool
) -> Iterator[Finding]:
    if ANONYMOUS in super_users:
        yield Finding(
            KINDS["super-user-anonymous"],
            Severity.WARNING,
            _SUPER_USERS,
            f"{_SUPER_USERS} names {ANONYMOUS}",
            commands=(serve_command(node, "--set", f"{_SUPER_USERS}=User:NAME"),),
        )
    if is_open:
        yield Finding(
            KINDS["open-without-acl"],
            Severity.WARNING,
            _OPEN,
            f"{_OPEN} is true",
            commands=(command("acl", "list"), serve_command(node, "--set", f"{_OPEN}=false")),
        )
    elif not super_users and not any(
        acl.permission is AclPermission.ALLOW
        and acl.resource_type is ResourceType.CLUSTER
        and acl.operation in (AclOperation.ALTER, AclOperation.ALL)
        for acl in acls
    ):
        yield Finding(
            KINDS["nobody-administers"],
            Severity.WARNING,
            _SUPER_USERS,
            f"{_SUPER_USERS} names nobody, and no ACL allows anybody to alter the cluster",
            commands=(serve_command(node, "--set", f"{_SUPER_USERS}=User:NAME"),),
        )


def _finding(kind: str, severity: Severity, acl: Acl, what: str, *, is_removed: bool = True) -> Finding:
    return Finding(KINDS[kind], severity, str(acl), what, commands=_remove_command(acl) if is_removed else ())


def _remove_command(acl: Acl) -> tuple[str, ...]:
    """Return the command that removes an ACL; none for a pattern that it does not know."""
    if acl.resource_type is ResourceType.CLUSTER:
        what = ["--cluster"]
    elif acl.resource_type in _OPTIONS:
        option = _OPTIONS[acl.resource_type]
        what = [option if acl.pattern is PatternType.LITERAL else f"{option}-prefix", acl.name]
    elif acl.resource_type in _LITERAL_OPTIONS and acl.pattern is PatternType.LITERAL:
        what = [_LITERAL_OPTIONS[acl.resource_type], acl.name]
    else:
        return ()
    operation = acl.operation.name.lower().replace("_", "-")
    return (
        command("acl", "remove", "--principal", acl.principal, "--operation", operation, *what, "--host", acl.host),
    )


def _lets_everybody_in(acl: Acl) -> str | None:
    """Return what everybody may change by an ACL that is about more than one thing; None where it is no such ACL."""
    if acl.permission is not AclPermission.ALLOW or acl.operation not in _CHANGES:
        return None
    if acl.principal == ANONYMOUS:
        return f"{acl}: it takes neither a password nor a certificate to be {ANONYMOUS}"
    is_about_all = acl.resource_type is ResourceType.CLUSTER or acl.name == WILDCARD
    return f"{acl}" if acl.principal == ANY_USER and acl.host == WILDCARD and is_about_all else None


def _without_effect(acl: Acl, super_users: frozenset[str]) -> str | None:
    """Return why an ACL can't decide anything; None where it can."""
    if acl.principal in super_users:
        return f"{acl}: {acl.principal} is a super user, who may do everything whatever ACLs say"
    if acl.host != WILDCARD and _address(acl.host) is None:
        return f"{acl}: {acl.host} is no IP address, and names are not looked up, so no client is there"
    possible = OPERATIONS.get(acl.resource_type, ())
    if acl.operation is not AclOperation.ALL and acl.operation not in possible:
        return f"{acl}: nothing that a client does is {acl.operation.name} of a {_word(acl.resource_type)}"
    return None


def _word(kind: ResourceType) -> str:
    return kind.name.lower().replace("_", " ")


def _address(host: str) -> str | None:
    """Return an IP address as nodes compare it; None for what is none."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)


class _Patterns:
    """ACLs by whom and what they are about, so that those which may cover another one are few."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._acls: defaultdict[_Key, list[Acl]] = defaultdict(list)
        self._lengths: defaultdict[tuple[ResourceType, AclPermission, str], set[int]] = defaultdict(set)
        for acl in acls:
            self._acls[acl.resource_type, acl.permission, acl.principal, acl.pattern, acl.name].append(acl)
            if acl.pattern is PatternType.PREFIXED:
                self._lengths[acl.resource_type, acl.permission, acl.principal].add(len(acl.name))

    def wider(self, acl: Acl) -> Acl | None:
        """Return an ACL that says all that another one says; of two that say the same, only the first counts."""
        for other in self._about_all_of(acl, acl.permission):
            if other is not acl and _says_all(other, acl) and (other < acl or not _covers(acl, other)):
                return other
        return None

    def denies_all_of(self, acl: Acl) -> Acl | None:
        """Return an ACL that takes back all that one allows."""
        if acl.permission is not AclPermission.ALLOW:
            return None
        for other in self._about_all_of(acl, AclPermission.DENY):
            is_same = other.operation is acl.operation and acl.operation not in IMPLIED
            if (other.operation is AclOperation.ALL or is_same) and _is_from_all_of(other, acl):
                return other
        return None

    def _about_all_of(self, acl: Acl, permission: AclPermission) -> Iterator[Acl]:
        """Go through the ACLs about all principals and resources of one; it may be among them."""
        kind, name = acl.resource_type, acl.name
        for principal in dict.fromkeys((acl.principal, ANY_USER)):
            patterns = {(acl.pattern, name): None, (PatternType.LITERAL, WILDCARD): None}
            if (acl.pattern, name) != (PatternType.LITERAL, WILDCARD):
                lengths = sorted(self._lengths.get((kind, permission, principal), ()))
                patterns |= {(PatternType.PREFIXED, name[:length]): None for length in lengths if length <= len(name)}
            for pattern, text in patterns:
                yield from self._acls.get((kind, permission, principal, pattern, text), ())


def _is_from_all_of(wide: Acl, acl: Acl) -> bool:
    return wide.host == WILDCARD or (acl.host != WILDCARD and _address(wide.host) == _address(acl.host))


def _says_all(wide: Acl, acl: Acl) -> bool:
    """Return whether an ACL about all resources and principals of another one is also about its hosts and operation.

    That who may WRITE may also DESCRIBE does not count: Kafka's tools and `semel acl add --producer` write both.
    """
    return _is_from_all_of(wide, acl) and wide.operation in (AclOperation.ALL, acl.operation)


def _covers(wide: Acl, acl: Acl) -> bool:
    """Return whether an ACL says all that another one of the same type and permission says."""
    if wide.principal not in (acl.principal, ANY_USER) or not _says_all(wide, acl):
        return False
    if (wide.pattern, wide.name) in ((acl.pattern, acl.name), (PatternType.LITERAL, WILDCARD)):
        return True
    is_all = (acl.pattern, acl.name) == (PatternType.LITERAL, WILDCARD)
    return wide.pattern is PatternType.PREFIXED and not is_all and acl.name.startswith(wide.name)
