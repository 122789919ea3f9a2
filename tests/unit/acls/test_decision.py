"""The decision against a plain model, and whether an operation is allowed on any resource."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from permitted_node import acl

from semel.broker.acls.authorizer import Authorizer
from semel.broker.acls.decision import AclSet, Decision
from semel.broker.audit.log import Audit
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.protocol.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.addresses import host_of

OPERATIONS = (
    AclOperation.ALL, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS, AclOperation.CREATE,
)  # fmt: skip
NAMES = st.sampled_from(("a", "aa", "b", "*"))
ACLS = st.builds(
    Acl,
    st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    NAMES,
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(("User:u", "User:v", "User:*")),
    st.sampled_from(("*", "*", "1.1.1.1", "::ffff:1.1.1.1", "2.2.2.2")),
    st.sampled_from(OPERATIONS),
    st.sampled_from((AclPermission.ALLOW, AclPermission.DENY)),
)
IMPLYING = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


def modelled(acls: Sequence[Acl], operation: AclOperation, kind: ResourceType, name: str) -> Decision:
    """What is decided for User:u at 1.1.1.1, word by word."""
    about = [
        each
        for each in acls
        if each.resource_type is kind
        and (name.startswith(each.name) if each.pattern is PatternType.PREFIXED else each.name in (name, "*"))
    ]
    mine = [
        each
        for each in about
        if each.principal in ("User:u", "User:*") and each.host in ("*", "1.1.1.1", "::ffff:1.1.1.1")
    ]
    same = (operation, AclOperation.ALL)
    if any(each.permission is AclPermission.DENY and each.operation in same for each in mine):
        return Decision.DENIED
    allowing = (*same, *IMPLYING.get(operation, ()))
    if any(each.permission is AclPermission.ALLOW and each.operation in allowing for each in mine):
        return Decision.ALLOWED
    return Decision.DENIED if about else Decision.NO_ACL


@settings(max_examples=400)
@given(
    st.lists(ACLS, max_size=12),
    st.sampled_from([each for each in OPERATIONS if each is not AclOperation.ALL]),
    st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    NAMES,
)
def test_S7_a_decision_is_that_of_the_model(
    acls: list[Acl], operation: AclOperation, kind: ResourceType, name: str
) -> None:
    found, wanted = AclSet(acls), modelled(acls, operation, kind, name)
    asked = "User:u", host_of("1.1.1.1"), operation, kind, name
    assert found.decide(*asked) is wanted
    assert found.allows(*asked) is (wanted is Decision.ALLOWED)


def some(*acls: Acl) -> bool:
    return AclSet(acls).allows_some("User:u", "1.1.1.1", AclOperation.WRITE, ResourceType.TOPIC)


def of_u(operation: str, name: str, **more: object) -> Acl:
    return acl(operation, f"topic:{name}", principal="User:u", **more)  # type: ignore[arg-type]


def test_an_operation_is_allowed_on_some_resource_unless_a_denial_covers_all_that_is_allowed() -> None:
    """As Apache Kafka's `authorizeByResourceType` (KIP-679)."""
    denied = {"denies": True}
    assert not some()
    assert some(of_u("WRITE", "a"))
    assert some(of_u("ALL", "a*"))
    assert not some(of_u("READ", "a"))
    assert not some(of_u("WRITE", "a", host="2.2.2.2"))
    assert not some(of_u("WRITE", "a"), of_u("WRITE", "a", **denied))
    assert some(of_u("WRITE", "a"), of_u("WRITE", "b", **denied))
    assert not some(of_u("WRITE", "abc"), of_u("WRITE", "ab*", **denied))
    assert not some(of_u("WRITE", "abc*"), of_u("ALL", "ab*", **denied))
    assert some(of_u("WRITE", "ab*"), of_u("WRITE", "abc*", **denied))
    assert some(of_u("WRITE", "*"), of_u("WRITE", "a", **denied))
    assert not some(of_u("WRITE", "*"), of_u("WRITE", "*", **denied))


@pytest.mark.parametrize(
    ("address", "compared"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("x", "x"),
    ],
)
def test_hosts_are_compared_as_addresses(address: str, compared: str) -> None:
    assert host_of(address) == compared


class Image:
    acls: frozenset[Acl] = frozenset()


class Source:
    image = Image()


def authorizer(source: Source, **settings: object) -> Authorizer:
    config = NodeConfig(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:root;User:CN=a,O=b", **settings)  # type: ignore[arg-type]
    return Authorizer(config, source, Audit(1))


def test_S7_a_super_user_needs_no_acl_and_a_decision_follows_the_acls() -> None:
    source = Source()
    made = authorizer(source)
    assert made.access("User:root", "1.1.1.1") is None
    assert made.access("User:CN=a,O=b", "1.1.1.1") is None
    access = made.access("User:u", "::ffff:1.1.1.1")
    assert access is not None
    for acls, may in ((frozenset(), False), (frozenset({of_u("WRITE", "a")}), True), (frozenset(), False)):
        source.image = Image()
        source.image.acls = acls
        for _ in range(2):  # the second one is remembered
            assert access.may(AclOperation.WRITE, ResourceType.TOPIC, "a") is may
            assert access.may_some(AclOperation.WRITE, ResourceType.TOPIC) is may


def test_where_no_acl_is_about_a_resource_the_setting_decides() -> None:
    source = Source()
    source.image.acls = frozenset({acl("READ", "topic:a", principal="User:v")})
    access = authorizer(source, allow_everyone_if_no_acl_found=True).access("User:u", "1.1.1.1")
    assert access is not None
    assert not access.may(AclOperation.READ, ResourceType.TOPIC, "a")
    assert access.may(AclOperation.READ, ResourceType.TOPIC, "b")
    assert access.may_some(AclOperation.WRITE, ResourceType.TOPIC)


def test_decisions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.acls.authorizer.REMEMBERED_MAX", 10)
    made = authorizer(Source())
    access = made.access("User:u", "1.1.1.1")
    assert access is not None
    for number in range(100):
        access.may(AclOperation.WRITE, ResourceType.TOPIC, f"t{number}")
        access.may(AclOperation.WRITE, ResourceType.GROUP, "g" * 1_000 + str(number))
        assert len(made._current.known) <= 10


@given(ACLS, st.lists(NAMES, max_size=1))
def test_a_filter_that_matches_a_name_finds_what_decides_about_it(one: Acl, names: list[str]) -> None:
    name = names[0] if names else None
    matches = AclFilter(one.resource_type, name, PatternType.MATCH).matches(one)
    decides = (
        name is None
        or name == one.name
        or modelled([one], AclOperation.READ, one.resource_type, name) is not Decision.NO_ACL
    )
    assert matches is decides
    assert AclFilter(one.resource_type, one.name, one.pattern, one.principal, one.host).matches(one)
    assert AclFilter().matches(one)
