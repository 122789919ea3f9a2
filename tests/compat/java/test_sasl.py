"""Apache Kafka's Java clients and tools as users with a password, by SCRAM and PLAIN (KIP-84, KIP-43)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from delegating_node import secret_file
from kafka_tools import KafkaTools
from live_node import LiveNode
from permitted_node import PERMITTED, acl
from user_files import ALICE, set_user

PASSWORD = "wonder=,land"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_MODULES = {"PLAIN": "plain.PlainLoginModule"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:  # type: ignore[override]
    users = set_user(tmp_path / "users", password=PASSWORD)
    listens = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    with LiveNode(tmp_path, **listens, sasl_users_location=str(users), sasl_enabled_mechanisms=MECHANISMS) as live:
        yield live


def settings(folder: Path, mechanism: str, password: str = PASSWORD, user: str = ALICE, more: str = "") -> str:
    """A file of settings for a client. more: options of its login"""
    module = _MODULES.get(mechanism, "scram.ScramLoginModule")
    file = folder / f"{user}-{mechanism}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}"{more};\n'
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(file)


def test_java_clients_write_and_read_as_a_user(node: LiveNode, each_tools: KafkaTools, tmp_path: Path) -> None:
    where = ("--bootstrap-server", str(node.node.kafka_address))
    for mechanism in MECHANISMS:
        file, topic = settings(tmp_path, mechanism), f"t-{mechanism}"
        each_tools.run("topics", *where, "--command-config", file, "--create", "--topic", topic).succeeded()
        lines = "".join(f"line {number}\n" for number in range(20))
        each_tools.run(
            *("console-producer", *where, "--producer.config", file, "--topic", topic), text=lines
        ).succeeded()
        read = each_tools.run(
            *("console-consumer", *where, "--consumer.config", file, "--topic", topic, "--from-beginning"),
            *("--max-messages", "20", "--timeout-ms", "30000"),
        ).succeeded()
        assert [line for line in read.lines() if line.startswith("line ")] == lines.splitlines()


def test_S6_a_wrong_password_gets_nothing(node: LiveNode, tools: KafkaTools, tmp_path: Path) -> None:
    where = ("--bootstrap-server", str(node.node.kafka_address))
    for mechanism in MECHANISMS:
        refused = tools.run("topics", *where, "--command-config", settings(tmp_path, mechanism, "wrong"), "--list")
        assert refused.code != 0
        assert "authentication failed: wrong user or password" in refused.output + refused.errors


def test_kafka_acls_makes_lists_and_removes_acls(tmp_path: Path, each_tools: KafkaTools) -> None:
    users = set_user(tmp_path / "users", password=PASSWORD)
    listens = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    permitted = {**PERMITTED, "super_users": f"User:{ALICE}"}
    with LiveNode(tmp_path, **listens, sasl_users_location=str(users), **permitted) as live:
        where = ("--bootstrap-server", str(live.node.kafka_address), "--command-config")
        where = (*where, settings(tmp_path, "SCRAM-SHA-256"))
        producer = ("--allow-principal", "User:bob", "--producer", "--topic", "orders")
        each_tools.run("acls", *where, "--add", *producer).succeeded()
        denied = (
            "--deny-principal",
            "User:*",
            "--operation",
            "All",
            "--group",
            "g-",
            "--resource-pattern-type",
            "prefixed",
        )
        each_tools.run("acls", *where, "--add", *denied).succeeded()
        assert live.node.metadata.image.acls == {
            *(acl(each, "topic:orders", principal="User:bob") for each in ("WRITE", "DESCRIBE", "CREATE")),
            acl("ALL", "group:g-*", principal="User:*", denies=True),
        }
        listed = each_tools.run("acls", *where, "--list", "--topic", "orders").succeeded().output
        assert "User:bob" in listed
        assert "WRITE" in listed
        each_tools.run("acls", *where, "--remove", "--force", *producer).succeeded()
        assert live.node.metadata.image.acls == {acl("ALL", "group:g-*", principal="User:*", denies=True)}


def test_kafka_configs_adds_lists_and_removes_users(tmp_path: Path, each_tools: KafkaTools) -> None:
    users = set_user(tmp_path / "users", password=PASSWORD)
    listens = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    with LiveNode(tmp_path, **listens, sasl_users_location=str(users)) as live:
        where = ("--bootstrap-server", str(live.node.kafka_address))
        as_alice = (*where, "--command-config", settings(tmp_path, "SCRAM-SHA-256"))
        bob = ("--entity-type", "users", "--entity-name", "bob")
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            given = f"{mechanism}=[iterations=8192,password=secret-of-bob]"
            each_tools.run("configs", *as_alice, *bob, "--alter", "--add-config", given).succeeded()
        listed = each_tools.run("configs", *as_alice, *bob, "--describe").succeeded().output
        assert "SCRAM-SHA-256=iterations=8192" in listed
        assert "SCRAM-SHA-512=iterations=8192" in listed
        assert "bob" in each_tools.run("configs", *as_alice, *bob[:2], "--describe").succeeded().output
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            file = settings(tmp_path, mechanism, "secret-of-bob", "bob")
            each_tools.run("topics", *where, "--command-config", file, "--list").succeeded()
        each_tools.run("configs", *as_alice, *bob, "--alter", "--delete-config", "SCRAM-SHA-256").succeeded()
        assert [each.mechanism for each in live.node.metadata.image.users["bob"]] == ["SCRAM-SHA-512"]
        again = each_tools.run("configs", *as_alice, *bob, "--alter", "--delete-config", "SCRAM-SHA-256")
        assert again.code != 0


def test_kafka_delegation_tokens_makes_describes_renews_and_expires_them(
    tmp_path: Path, each_tools: KafkaTools
) -> None:
    """And Java clients log in with a token, as its owner, once with each mechanism."""
    users = set_user(tmp_path / "users", password=PASSWORD)
    listens = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    secret = secret_file(tmp_path)
    with LiveNode(tmp_path, **listens, sasl_users_location=str(users), delegation_token_secret_file=secret) as live:
        where = ("--bootstrap-server", str(live.node.kafka_address), "--command-config")
        as_alice = (*where, settings(tmp_path, "SCRAM-SHA-256"))
        made = each_tools.run(
            *("delegation-tokens", *as_alice, "--create", "--max-life-time-period", "-1"),
            *("--renewer-principal", "User:bob"),
        ).succeeded()
        (token,) = live.node.metadata.image.delegation_tokens.values()
        assert (token.owner, token.renewers) == (f"User:{ALICE}", ("User:bob",))
        hmac = next(word for word in made.output.split() if len(word) == 88 and word.endswith("=="))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            file = settings(tmp_path, mechanism, hmac, token.token_id, ' tokenauth="true"')
            each_tools.run("topics", *where, file, "--create", "--topic", f"t-{mechanism}").succeeded()
        refused = each_tools.run("delegation-tokens", *where, file, "--create", "--max-life-time-period", "-1")
        assert refused.code != 0
        described = each_tools.run("delegation-tokens", *as_alice, "--describe", "--owner-principal", f"User:{ALICE}")
        assert token.token_id in described.succeeded().output
        each_tools.run(
            "delegation-tokens", *as_alice, "--renew", "--renew-time-period", "3600000", "--hmac", hmac
        ).succeeded()
        (renewed,) = live.node.metadata.image.delegation_tokens.values()
        assert renewed.expiry_timestamp_ms < token.expiry_timestamp_ms
        each_tools.run(
            "delegation-tokens", *as_alice, "--expire", "--expiry-time-period", "-1", "--hmac", hmac
        ).succeeded()
        assert live.node.metadata.image.delegation_tokens == {}
        assert each_tools.run("topics", *where, file, "--list").code != 0


def test_java_clients_prove_again_who_they_are(tmp_path: Path, tools: KafkaTools) -> None:
    """A consumer that waits for longer than connections.max.reauth.ms keeps its connections (KIP-368)."""
    users = set_user(tmp_path / "users", password=PASSWORD)
    listens = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    settings_of_node = {"sasl_users_location": str(users), "connections_max_reauth_ms": 2_000}
    with LiveNode(tmp_path, **listens, **settings_of_node) as live:
        where = ("--bootstrap-server", str(live.node.kafka_address))
        file = settings(tmp_path, "SCRAM-SHA-256")
        tools.run("topics", *where, "--command-config", file, "--create", "--topic", "t").succeeded()
        listener = live.node.kafka_listener
        assert listener is not None
        before = listener.statistics()
        tools.run("console-consumer", *where, "--consumer.config", file, "--topic", "t", "--timeout-ms", "9000")
        after = listener.statistics()
        handshakes = after.requests["SASL_HANDSHAKE"] - before.requests["SASL_HANDSHAKE"]
        assert handshakes > after.accepted_connections - before.accepted_connections, "on connections there were"
        assert after.aborted_connections == before.aborted_connections
