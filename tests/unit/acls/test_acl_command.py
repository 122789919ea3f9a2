"""`semel acl` and the calls of `Admin` below it, by a super user of a node whose users have passwords."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking_node import address_for, asking
from live_node import LiveNode
from permitted_node import PERMITTED, acl
from typer.testing import CliRunner
from user_files import ALICE, set_user

import semel
from semel.cli.main import app
from semel.protocol.acls import AclFilter
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.ids import TopicPartition

ME = f"User:{ALICE}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    users = set_user(set_user(tmp_path / "users"), "admin")
    with LiveNode(tmp_path, **{**asking(users), **PERMITTED}) as live:
        yield live


def run(node: LiveNode, *words: str, user: str = "admin", succeeds: bool = True) -> str:
    done = CliRunner().invoke(app, ["acl", *words, "--bootstrap", address_for(node, user)])
    assert (done.exit_code == 0) is succeeds, done.output
    return done.output


def test_a_super_user_allows_and_a_producer_and_a_consumer_work(node: LiveNode) -> None:
    admin = semel.Admin(address_for(node, "admin"))
    admin.create_topic("orders")
    refused = semel.Producer(address_for(node, ALICE))
    with pytest.raises(FatalError) as denied:
        refused.send("orders", b"x").result()
    assert denied.value.code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert "semel acl add" in str(denied.value)
    refused.close()

    said = run(node, "add", "--allow", ME, "--producer", "--consumer", "--topic", "orders", "--group", "billing")
    assert f"{ME} may WRITE TOPIC:orders from *" in said
    assert f"{ME} may READ GROUP:billing from *" in said
    with semel.Producer(address_for(node, ALICE)) as producer:
        producer.send("orders", b"x").result()
    with semel.Consumer(address_for(node, ALICE), group="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert next(iter(consumer)).value == b"x"
    with semel.Consumer(address_for(node, ALICE), group="other") as consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(FatalError) as denied:
            next(iter(consumer))
        assert denied.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    run(node, "remove", "--principal", ME, "--topic", "orders", "--yes")
    run(node, "add", "--allow", ME, "--operation", "describe", "--topic", "orders")
    with semel.Consumer(address_for(node, ALICE), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        with pytest.raises(FatalError, match="semel acl add --consumer") as denied:
            next(iter(consumer))
        assert denied.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    admin.close()


def test_a_user_who_may_not_describe_the_cluster_is_told_so_at_the_kafka_port(node: LiveNode) -> None:
    """It said that the node was a Kafka broker and no node of Semel."""
    grpc, kafka = str(node.node.grpc_address), str(node.node.kafka_address)
    with (
        pytest.raises(FatalError, match="gRPC listener") as denied,
        semel.Admin(address_for(node, ALICE).replace(grpc, kafka)) as admin,
    ):
        admin.topics()
    assert denied.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_acls_are_listed_and_removed(node: LiveNode) -> None:
    assert "no ACLs" in run(node, "list")
    run(
        node, "add", "--allow", ME, "--operation", "read,describe-configs", "--topic-prefix", "or", "--host", "10.0.0.1"
    )
    run(node, "add", "--deny", "User:*", "--operation", "all", "--cluster")
    listed = run(node, "list", "--topic", "orders")
    assert ("read" in listed, "prefixed" in listed, "10.0.0.1" in listed, "cluster" in listed) == (
        True,
        True,
        True,
        False,
    )
    assert json.loads(run(node, "list", "--principal", "User:*", "--json")) == [
        {
            "resource_type": "CLUSTER",
            "name": "kafka-cluster",
            "pattern": "LITERAL",
            "principal": "User:*",
            "host": "*",
            "operation": "ALL",
            "permission": "DENY",
        }
    ]
    assert "no ACL is like that" in run(node, "remove", "--topic", "or", "--yes", succeeds=False)
    assert "1 ACL removed" in run(node, "remove", "--topic-prefix", "or", "--operation", "read", "--yes")
    assert "1 ACL removed" in run(node, "remove", "--principal", ME, "--all", "--yes")
    with semel.Admin(address_for(node, "admin")) as admin:
        assert admin.acls() == [acl("ALL", "cluster", principal="User:*", denies=True)]
        assert admin.delete_acls([AclFilter()]) == [acl("ALL", "cluster", principal="User:*", denies=True)]


def test_acls_may_be_about_delegation_tokens_and_their_owners(node: LiveNode) -> None:
    run(node, "add", "--allow", ME, "--operation", "create_tokens,describe-tokens", "--user-principal", "User:etl")
    run(node, "add", "--allow", ME, "--operation", "describe", "--delegation-token", "5Zk0F3T1")
    listed = json.loads(run(node, "list", "--user-principal", "User:etl", "--json"))
    assert [(each["resource_type"], each["operation"]) for each in listed] == [
        ("USER", "CREATE_TOKENS"),
        ("USER", "DESCRIBE_TOKENS"),
    ]
    assert "1 ACL removed" in run(node, "remove", "--delegation-token", "5Zk0F3T1", "--yes")
    assert "2 ACLs removed" in run(node, "remove", "--user-principal", "User:etl", "--yes")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "--topic", "t", "--operation", "read"), "say who"),
        (("add", "--allow", ME, "--operation", "read"), "say with what"),
        (("add", "--allow", ME, "--topic", "t"), "say what may be done"),
        (("add", "--allow", ME, "--topic", "t", "--operation", "eat"), "is no operation"),
        (("add", "--allow", ME, "--topic", "t", "--operation", "idempotent-write"), "nothing does"),
        (("add", "--allow", "alice", "--topic", "t", "--operation", "read"), "is no principal"),
        (("add", "--allow", ME, "--topic", "t", "--operation", "read", "--host", "h"), "give an IP address"),
        (("add", "--allow", ME, "--cluster", "--producer"), "neither --producer nor --consumer"),
        (("remove", "--all"), "name it with --principal"),
        (("remove", "--principal", ME), "say which"),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["acl", *words])
    assert done.exit_code == 2
    assert said in done.output


def test_who_may_not_alter_the_cluster_changes_no_acl(node: LiveNode) -> None:
    with semel.Admin(address_for(node, ALICE)) as mine:
        for call in (lambda: mine.create_acls([acl("ALL", "cluster", principal=ME)]), mine.acls):
            with pytest.raises(FatalError) as denied:
                call()
            assert denied.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(UsageError):
            mine.create_acls([acl("ALL", "cluster", principal=ME)._replace(name="")])
    with semel.Admin(address_for(node, "admin")) as admin:
        assert admin.acls() == []


def test_without_an_authorizer_acls_are_refused(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as live, semel.Admin(str(live.node.grpc_address)) as admin:
        for call in (lambda: admin.create_acls([acl("READ", "topic:t")]), admin.acls):
            with pytest.raises(FatalError) as refused:
                call()
            assert refused.value.code is ErrorCode.SECURITY_DISABLED
