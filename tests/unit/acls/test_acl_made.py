"""`Acl.allow` and `Acl.deny`: rules in few words, and none that could never decide anything."""

from __future__ import annotations

from typing import Any

import pytest

from semel import Acl, AclOperation, AclPermission, PatternType, ResourceType, UsageError
from semel.protocol.acls import OPERATIONS


@pytest.mark.parametrize("kind", OPERATIONS)
def test_each_type_of_resource_has_a_word(kind: ResourceType) -> None:
    name: Any = True if kind is ResourceType.CLUSTER else "User:etl"
    acl = Acl.allow("User:alice", "all", **{kind.name.lower(): name})
    assert acl.resource_type is kind
    assert acl.name == ("kafka-cluster" if name is True else name)


def test_a_rule_says_who_what_and_from_where() -> None:
    assert Acl.allow("User:alice", "describe-configs", topic="orders") == Acl(
        ResourceType.TOPIC,
        "orders",
        PatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.DESCRIBE_CONFIGS,
        AclPermission.ALLOW,
    )
    denied = Acl.deny("User:*", AclOperation.READ, "10.0.0.7", group="etl-", prefixed=True)
    assert denied.permission is AclPermission.DENY
    assert (denied.pattern, denied.name, denied.host) == (PatternType.PREFIXED, "etl-", "10.0.0.7")


@pytest.mark.parametrize(
    ("words", "resource", "says"),
    [
        (("User:alice", "write"), {}, 'an ACL is about one of topic, .* for example topic="orders"$'),
        (("User:alice", "write"), {"topic": "a", "group": "b"}, "an ACL is about one of topic"),
        (("User:alice", "write"), {"topics": "a"}, "not topics$"),
        (("User:alice", "write"), {"topic": "a", "prefix": True}, "not prefix$"),
        (("User:alice", "write"), {"topic": ""}, r'an ACL needs a name: topic="NAME", or topic="\*" for all'),
        (("User:alice", "write"), {"topic": True}, "an ACL needs a name: topic="),
        (("User:alice", "alter"), {"cluster": "mine"}, "an ACL needs a name: cluster=True"),
        (("User:alice", "alter"), {"cluster": False}, "an ACL needs a name: cluster=True"),
        (("User:alice", "any"), {"topic": "a"}, "'any' is no operation: there are all, read, write"),
        (("User:alice", "wirte"), {"topic": "a"}, "'wirte' is no operation"),
        (("User:alice", AclOperation.ANY), {"topic": "a"}, "an ACL is about an operation or ALL"),
        (("alice", "write"), {"topic": "a"}, "'alice' is no principal: write User:NAME"),
        (("User:alice", "write", ""), {"topic": "a"}, "needs an IP address"),
    ],
)
def test_what_is_no_rule_is_refused(words: tuple[Any, ...], resource: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Acl.allow(*words, **resource)
