"""What the doctor finds about ACLs: each kind, what is none, and that what it would remove decides nothing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from asking_node import address_for
from asking_node import asking as asking_node
from doctor_acl_facts import ACL_CASES, FINE, asking, of_alice
from doctor_facts import NODE
from hypothesis import given, settings
from hypothesis import strategies as st
from live_node import LiveNode
from permitted_node import PERMITTED, acl
from typer.testing import CliRunner
from user_files import set_user

import semel
from semel.broker.acls.decision import AclSet
from semel.cli.main import app
from semel.protocol.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.addresses import host_of
from semel.protocol.api.diagnostics import Severity
from semel.sdk.diagnosis.findings import Cluster
from semel.sdk.diagnosis.rules import diagnose

CASES = [(name, severity, cluster) for name, cases in ACL_CASES.items() for severity, cluster in cases]


@pytest.mark.parametrize(("name", "severity", "cluster"), CASES)
def test_each_kind_is_found_alone(name: str, severity: Severity, cluster: Cluster) -> None:
    found = [(one.kind.name, one.severity) for one in diagnose(cluster).findings]
    assert found == [(name, severity)]


@pytest.mark.parametrize("cluster", FINE)
def test_acls_that_decide_are_no_findings(cluster: Cluster) -> None:
    assert diagnose(cluster).findings == ()


def test_where_nobody_asks_nothing_is_found() -> None:
    assert diagnose(Cluster((NODE,))).findings == ()


def test_what_closes_a_resource_to_everybody_is_not_to_be_removed() -> None:
    """With allow.everyone.if.no.acl.found each ACL does that, even one that never allows or denies."""
    opened = asking(of_alice("READ", "topic:orders", host="db.example.com"), open="true")
    (found,) = (one for one in diagnose(opened).findings if one.kind.name == "acl-ineffective")
    assert found.commands == ()


HOSTS = ("*", "1.1.1.1", "::ffff:1.1.1.1", "2.2.2.2", "db.example.com")
USERS = ("User:u", "User:admin", "User:*")
NAMES = ("a", "aa", "b", "*")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = (AclOperation.ALL, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.CREATE)
ACLS = st.builds(
    Acl,
    st.sampled_from(KINDS),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(USERS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((AclPermission.ALLOW, AclPermission.DENY)),
)
# CREATE of a group is asked for by nothing, so no decision about it counts.
ASKED = [
    (who, host_of(host), operation, kind, name)
    for who in ("User:u", "User:v")
    for host in HOSTS[1:4]
    for kind in KINDS
    for operation in OPERATIONS[1 : 4 if kind is ResourceType.TOPIC else 3]
    for name in (*NAMES, "ab", "c")
]


@settings(max_examples=300, deadline=None)
@given(st.lists(ACLS, max_size=6, unique=True))
def test_S7_what_the_doctor_would_remove_decides_nothing(acls: list[Acl]) -> None:
    found = diagnose(asking(*acls)).findings
    idle = {one.subject for one in found if one.kind.name in ("acl-redundant", "acl-ineffective")}
    removed = [each for each in acls if str(each) in idle]
    kept = AclSet(each for each in acls if each not in removed)
    with_all = AclSet(acls)
    for asked in ASKED:
        assert kept.allows(*asked) is with_all.allows(*asked), asked


def test_the_doctor_finds_acls_of_a_node_and_its_command_removes_them(tmp_path: Path) -> None:
    users = set_user(tmp_path / "users", "admin")
    with LiveNode(tmp_path, **{**asking_node(users), **PERMITTED}) as live:
        address = address_for(live, "admin")
        wide, narrow = of_alice("READ", "topic:or*"), of_alice("READ", "topic:orders")
        everybody = acl("WRITE", "topic:*", principal="User:*")
        with semel.Admin(address) as admin:
            admin.create_acls([wide, narrow, everybody])
        runner = CliRunner()
        told = runner.invoke(app, ["doctor", "--section", "permissions", "--json", "--bootstrap", address])
        found = json.loads(told.output)["findings"]
        assert [one["kind"] for one in found] == ["acl-for-everybody", "acl-redundant"]
        for one in found:
            (command,) = one["commands"]
            words = shlex.split(command)
            assert words[0] == "semel"
            assert runner.invoke(app, [*words[1:], "--yes"]).exit_code == 0, command
        with semel.Admin(address) as admin:
            assert admin.acls() == [wide]
            assert [one for one in admin.diagnose().findings if one.kind.section.value == "permissions"] == []
