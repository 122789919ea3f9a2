"""Made-up facts of nodes that ask what clients may do, and ACLs, for tests of the doctor: each finding alone."""

from __future__ import annotations

from dataclasses import replace

from doctor_facts import NODE, settings_with
from permitted_node import acl

from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.protocol.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.api.diagnostics import Severity
from semel.sdk.diagnosis.findings import Cluster


def asking(*acls: Acl, super_users: str = "User:admin", **more: str) -> Cluster:
    settings = settings_with(authorizer_class_name=STANDARD_AUTHORIZER, super_users=super_users)
    others = settings_with(**more)[len(settings_with()) :]
    opened = tuple(replace(one, name="allow.everyone.if.no.acl.found") for one in others)
    return Cluster((replace(NODE, settings=(*settings, *opened)),), acls=acls)


def of_alice(operation: str, resource: str, host: str = "*", *, denies: bool = False) -> Acl:
    return acl(operation, resource, principal="User:alice", host=host, denies=denies)


NOT_DONE = Acl(ResourceType.GROUP, "g", PatternType.LITERAL, "User:alice", "*", AclOperation.WRITE, AclPermission.ALLOW)
"""Kafka takes such an ACL: nothing is written to a group."""

ACL_CASES: dict[str, tuple[tuple[Severity, Cluster], ...]] = {
    "super-user-anonymous": ((Severity.WARNING, asking(super_users="User:admin;User:ANONYMOUS")),),
    "open-without-acl": ((Severity.WARNING, asking(open="true")),),
    "nobody-administers": (
        (Severity.WARNING, asking(super_users="")),
        (Severity.WARNING, asking(of_alice("DESCRIBE", "cluster"), super_users="")),
    ),
    "acl-for-everybody": (
        (Severity.WARNING, asking(acl("WRITE", "topic:*", principal="User:*"))),
        (Severity.WARNING, asking(acl("ALTER", "cluster", principal="User:*"))),
        (Severity.WARNING, asking(acl("ALL", "transactional-id:*", principal="User:*"))),
        (Severity.WARNING, asking(acl("WRITE", "topic:orders"))),
    ),
    "acl-ineffective": (
        (Severity.WARNING, asking(acl("READ", "topic:orders", principal="User:admin", denies=True))),
        (Severity.INFO, asking(acl("READ", "topic:orders", principal="User:admin"))),
        (Severity.WARNING, asking(of_alice("READ", "topic:orders", host="db.example.com", denies=True))),
        (Severity.INFO, asking(of_alice("READ", "topic:orders", host="db.example.com"))),
        (Severity.INFO, asking(NOT_DONE)),
    ),
    "acl-redundant": (
        (Severity.INFO, asking(of_alice("READ", "topic:orders"), of_alice("READ", "topic:or*"))),
        (Severity.INFO, asking(of_alice("READ", "topic:or*"), of_alice("ALL", "topic:*"))),
        (Severity.INFO, asking(of_alice("READ", "topic:t", host="::1"), of_alice("READ", "topic:t"))),
        (Severity.INFO, asking(of_alice("READ", "topic:t", host="::1"), of_alice("READ", "topic:t", host="0::1"))),
        (Severity.INFO, asking(of_alice("READ", "topic:t"), of_alice("ALL", "topic:*", denies=True))),
        (Severity.INFO, asking(of_alice("CREATE", "topic:t"), of_alice("CREATE", "topic:t*", denies=True))),
    ),
}
"""Facts in which exactly this is to be found, once."""

FINE = (
    asking(),
    asking(of_alice("ALTER", "cluster"), super_users=""),
    asking(acl("READ", "topic:*", principal="User:*"), acl("WRITE", "topic:public", principal="User:*")),
    asking(acl("WRITE", "topic:*", principal="User:*", host="10.0.0.7")),
    asking(acl("READ", "topic:orders"), acl("WRITE", "topic:*", principal="User:*", denies=True)),
    asking(of_alice("READ", "topic:or*"), of_alice("READ", "topic:orders", denies=True)),
    asking(of_alice("READ", "topic:t"), of_alice("READ", "topic:t", denies=True)),  # DESCRIBE is left
    asking(of_alice("DESCRIBE", "topic:t"), of_alice("WRITE", "topic:t"), of_alice("CREATE", "topic:t")),  # a producer
    asking(of_alice("READ", "topic:a"), of_alice("READ", "topic:b*"), of_alice("READ", "group:*")),
    asking(of_alice("READ", "topic:t", host="::1"), of_alice("READ", "topic:t", host="::2")),
    asking(of_alice("DESCRIBE", "topic:t", denies=True), of_alice("READ", "topic:t", denies=True)),
)
"""Facts in which nothing is to be found."""
