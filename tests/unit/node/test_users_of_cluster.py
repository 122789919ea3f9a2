"""Users of the cluster's metadata, from the first one on: SDK, command, both listeners, and how they are shut out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking_node import MECHANISMS, asking, at, authenticated
from live_node import LiveNode
from passing_numbers import PATIENCE_S, numbers_pass
from permitted_node import PERMITTED
from typer.testing import CliRunner, Result
from user_files import ALICE, PASSWORD, set_user

import semel
import semel.aio
from semel.cli.main import app
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.runtime.kafka_client.connection import Connection
from semel.runtime.setting import ConfigError


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    """A node whose only user is in its file."""
    with LiveNode(tmp_path, **asking(set_user(tmp_path / "users"))) as live:
        yield live


async def is_closed(connection: Connection) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        while connection.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return True


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_of_the_cluster_is_served_by_either_port(node: LiveNode, mechanism: str) -> None:
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.set_password("bob", PASSWORD)
    for address in (node.bootstrap, node.node.kafka_address):
        numbers_pass(at(address, "bob", mechanism=mechanism))


def test_S6_who_is_removed_or_gets_another_password_is_out(node: LiveNode) -> None:
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.set_password("bob", "b")
        admin.set_password("carl", "c")
        connections = {
            name: node.run(lambda name=name, word=word: authenticated(node, name, word))  # type: ignore[misc]
            for name, word in (("bob", "b"), ("carl", "c"), (ALICE, PASSWORD))
        }
        with semel.Admin(at(node.bootstrap, "bob", "b")) as bob, semel.Admin(at(node.bootstrap, "carl", "c")) as carl:
            assert bob.topics() == carl.topics() == []
            admin.remove_user("bob")
            admin.set_password("carl", "another")
            for gone in (bob, carl):
                with pytest.raises(FatalError, match="wrong user or password"):
                    gone.topics()
        for name in ("bob", "carl"):
            assert node.run(lambda name=name: is_closed(connections[name]))  # type: ignore[misc]
        assert connections[ALICE].is_open
    with semel.Admin(at(node.bootstrap, "carl", "another")) as carl:
        assert carl.topics() == []


def test_S6_a_stream_ends_with_its_user_of_the_cluster(node: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.listeners.grpc.authentication.LOOK_S", 0.05)
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.create_topic("t", partitions=1)
        admin.set_password("bob", "b")
        with semel.Consumer(at(node.bootstrap, "bob", "b"), auto_offset_reset="earliest") as consumer:
            consumer.assign([semel.TopicPartition("t", 0)])
            with semel.Producer(at(node.bootstrap)) as producer:
                producer.send("t", b"v").result()
            assert next(iter(consumer)).value == b"v"
            admin.remove_user("bob")
            with pytest.raises(FatalError) as refused:
                next(iter(consumer))
            assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_the_first_user_comes_over_a_listener_that_asks_for_none(tmp_path: Path) -> None:
    """On the machine itself: no file is needed then."""
    settings = {"kafka_listen": "sasl://127.0.0.1:0", "grpc_listen": "127.0.0.1:0"}
    with LiveNode(tmp_path, **settings, sasl_enabled_mechanisms=MECHANISMS) as live:
        with semel.Admin(str(live.bootstrap)) as admin:
            assert admin.users() == []
            admin.set_password("bob", "b", mechanisms=["SCRAM-SHA-512"], iterations=4096)
            assert [(user.name, dict(user.iterations)) for user in admin.users()] == [("bob", {"SCRAM-SHA-512": 4096})]
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            assert live.run(lambda each=mechanism: authenticated(live, "bob", "b", mechanism=each))  # type: ignore[misc]


def test_a_node_that_nobody_could_get_into_does_not_start(tmp_path: Path) -> None:
    settings: dict[str, Any] = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    with pytest.raises(ConfigError, match=r"needs users.*set sasl\.users\.location"), LiveNode(tmp_path, **settings):
        pass
    file = str(set_user(tmp_path / "users"))
    with (
        LiveNode(tmp_path, **settings, sasl_users_location=file) as live,
        semel.Admin(at(live.bootstrap)) as admin,
    ):
        admin.set_password("bob", "b")
    with LiveNode(tmp_path, **settings) as live, semel.Admin(at(live.bootstrap, "bob", "b")) as admin:
        assert [user.name for user in admin.users()] == ["bob"]


def test_S6_nobody_takes_over_a_user_of_the_file(node: LiveNode) -> None:
    with semel.Admin(at(node.bootstrap)) as admin:
        with pytest.raises(FatalError, match="in this node's file") as refused:
            admin.set_password(ALICE, "taken over")
        assert refused.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert admin.users() == []


def test_S7_only_who_may_alter_the_cluster_changes_users(tmp_path: Path) -> None:
    users = set_user(set_user(tmp_path / "users"), "admin")
    with (
        LiveNode(tmp_path, **{**asking(users), **PERMITTED}) as live,
        semel.Admin(at(live.bootstrap, "admin")) as admin,
        semel.Admin(at(live.bootstrap)) as alice,
    ):
        admin.set_password("bob", "b")
        for call in (lambda: alice.set_password("bob", "x"), lambda: alice.remove_user("bob"), alice.users):
            with pytest.raises(FatalError) as refused:
                call()
            assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert [user.name for user in admin.users()] == ["bob"]


def test_the_asyncio_client_does_the_same(node: LiveNode) -> None:
    async def main() -> None:
        async with semel.aio.Admin(at(node.bootstrap)) as admin:
            await admin.set_password("bob", "b")
            (user,) = await admin.users(["bob"])
            assert (user.name, dict(user.iterations)) == (
                "bob",
                {"SCRAM-SHA-256": 10_000, "SCRAM-SHA-512": 10_000},
            )
            await admin.remove_user("bob")
            with pytest.raises(FatalError) as refused:
                await admin.users(["bob"])
            assert refused.value.code is ErrorCode.RESOURCE_NOT_FOUND
            for wrong in (
                {"user": "a b", "password": "x"},
                {"user": "a", "password": ""},
                {"user": "a", "password": "x" * 1025},
                {"user": "a", "password": "bell\a"},
                {"user": "a", "password": "x", "iterations": 4095},
                {"user": "a", "password": "x", "iterations": 16_385},
                {"user": "a", "password": "x", "mechanisms": ["PLAIN"]},
                {"user": "a", "password": "x", "mechanisms": []},
            ):
                with pytest.raises(UsageError):
                    await admin.set_password(**wrong)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_command_adds_lists_changes_and_removes_users(node: LiveNode, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(PASSWORD)
    bootstrap = f"sasl://{node.bootstrap}?sasl.username={ALICE}&sasl.password.location={tmp_path / 'mine'}"

    def user(*words: str, told: str | None = None) -> Result:
        return CliRunner().invoke(app, ["user", *words, "--bootstrap", bootstrap], input=told)

    assert user("add", "bob", told="hunter2\n").stdout == "user bob added\n"
    assert user("add", "bob", told="hunter3\n").stdout == "bob has another password now\n"
    assert node.run(lambda: authenticated(node, "bob", "hunter3"))
    assert json.loads(user("list", "--json").stdout) == [
        {"name": "bob", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}
    ]
    refused = user("add", ALICE, told="x\n")
    assert (refused.exit_code, "in this node's file" in refused.stderr) == (1, True)
    assert user("remove", "bob").stdout == "user bob removed\n"
    missing = user("remove", "bob")
    assert (missing.exit_code, "there is no user bob in the cluster" in missing.stderr) == (1, True)
    assert "no users" in user("list").stdout
    by_environment = CliRunner().invoke(
        app, ["user", "list", "--file", str(tmp_path / "users"), "--json"], env={"SEMEL_BOOTSTRAP": bootstrap}
    )
    assert [one["name"] for one in json.loads(by_environment.stdout)] == [ALICE], "a file is what was asked for"
