"""A node whose ACLs count, and ACLs for tests. Its listener asks nobody who he is: the caller is User:ANONYMOUS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.broker.handlers.acls import create_acls, delete_acls
from semel.broker.node import Node
from semel.protocol.acls import (
    ANONYMOUS,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

PERMITTED: dict[str, Any] = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin"}
"""Settings of a node whose ACLs count."""

CLUSTER = "cluster"


def acl(
    operation: str,
    resource: str,
    *,
    principal: str = ANONYMOUS,
    host: str = "*",
    denies: bool = False,
) -> Acl:
    """Return an ACL from words: `acl("READ", "topic:orders")`, `"topic:orders-*"` for a prefix, `"cluster"`."""
    kind, _, name = resource.partition(":")
    is_prefix = len(name) > 1 and name.endswith("*")
    return Acl(
        ResourceType[kind.upper().replace("-", "_")],
        CLUSTER_NAME if kind == CLUSTER else name.removesuffix("*") if is_prefix else name,
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        principal,
        host,
        AclOperation[operation],
        AclPermission.DENY if denies else AclPermission.ALLOW,
    ).check()


async def allow(node: Node, *acls: Acl | tuple[str, str]) -> None:
    """Add ACLs, as themselves or as `("READ", "topic:orders")`."""
    outcomes = await create_acls(node, [each if isinstance(each, Acl) else acl(*each) for each in acls])
    assert outcomes == [None] * len(acls)


async def only(node: Node, acls: Iterable[tuple[str, str]]) -> None:
    """Let there be these ACLs and no others."""
    await delete_acls(node, [AclFilter()])
    await allow(node, *acls)
