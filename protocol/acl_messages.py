"""ACLs as the messages of semel.v1 carry them."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from semel.protocol.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.v1 import acls_pb2

_Enum = TypeVar("_Enum", bound=IntEnum)


def acl_message(acl: Acl | AclFilter) -> acls_pb2.Acl:
    """Return the message of an ACL, or of a filter."""
    return acls_pb2.Acl(
        resource_type=acl.resource_type,
        name=acl.name or "",
        pattern=acl.pattern,
        principal=acl.principal or "",
        host=acl.host or "",
        operation=acl.operation,
        permission=acl.permission,
    )


def acl_of(message: acls_pb2.Acl) -> Acl:
    """Return the ACL of a message. It is not checked; numbers that are unknown here are UNKNOWN."""
    return Acl(
        _known(ResourceType, message.resource_type),
        message.name,
        _known(PatternType, message.pattern),
        message.principal,
        message.host,
        _known(AclOperation, message.operation),
        _known(AclPermission, message.permission),
    )


def acl_filter_of(message: acls_pb2.Acl) -> AclFilter:
    """Return the filter of a message, in which what is left out means all."""
    return AclFilter(
        _known(ResourceType, message.resource_type or ResourceType.ANY),
        message.name or None,
        _known(PatternType, message.pattern or PatternType.ANY),
        message.principal or None,
        message.host or None,
        _known(AclOperation, message.operation or AclOperation.ANY),
        _known(AclPermission, message.permission or AclPermission.ANY),
    )


def _known(kind: type[_Enum], number: int) -> _Enum:
    try:
        return kind(number)
    except ValueError:
        return kind(0)
