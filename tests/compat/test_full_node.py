"""What foreign clients' own suites are given (`make compat-full`): all ways to connect to a node, and Kafka's tools."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from foreign_clients import QUIET
from full_suites import neighbour

PATIENCE_S = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with neighbour("served").serving(tmp_path_factory.mktemp("full") / "node", 1) as served:
        yield served


@pytest.fixture(scope="module")
def tools(node: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = neighbour("suite_tools").write_tools(tmp_path_factory.mktemp("tools"), node.admin_settings())
    return folder / "bin"


def call(tools: Path, name: str, *words: str) -> str:
    done = subprocess.run([tools / name, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(node: Any, protocol: str, **settings: str) -> AdminClient:
    given = {**node.security.client_settings(protocol, "testuser"), **settings}
    return AdminClient({"bootstrap.servers": node.bootstrap_of(protocol), "log_level": 0, **given}, logger=QUIET)


@pytest.mark.parametrize("protocol", ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"])
def test_each_way_to_connect_is_served(node: Any, protocol: str) -> None:
    found = ask(node, protocol).list_topics(timeout=PATIENCE_S)
    (broker,) = found.brokers.values()
    assert f"{broker.host}:{broker.port}" == node.bootstrap_of(protocol)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_prove_their_passwords_by_each_mechanism(node: Any, mechanism: str) -> None:
    settings = {"sasl.mechanism": mechanism}
    assert ask(node, "sasl_plaintext", **settings).list_topics(timeout=PATIENCE_S).brokers
    with pytest.raises(confluent_kafka.KafkaException):
        ask(node, "sasl_plaintext", **settings, **{"sasl.password": "wrong"}).list_topics(timeout=3)


def test_a_token_of_the_endpoint_logs_in(node: Any, tmp_path: Path) -> None:
    with neighbour("token_endpoint").TokenEndpoint(node.security.issuer, tmp_path) as endpoint:
        settings = {
            "bootstrap.servers": node.bootstrap_of("sasl_ssl"),
            **node.security.client_settings("sasl_ssl", mechanism="OAUTHBEARER"),
            **endpoint.client_settings(),
            "log_level": 0,
        }
        assert AdminClient(settings, logger=QUIET).list_topics(timeout=PATIENCE_S).brokers
        settings["sasl.oauthbearer.client.secret"] = "wrong"
        with pytest.raises(confluent_kafka.KafkaException):
            AdminClient(settings, logger=QUIET).list_topics(timeout=3)


def test_the_tools_make_topics_users_and_acls(node: Any, tools: Path) -> None:
    call(tools, "kafka-topics.sh", "--bootstrap-server", "ignored", "--create", "--topic", "orders")
    assert "orders" in call(tools, "kafka-topics.sh", "--list").split()
    user = ("--alter", "--entity-type", "users", "--entity-name", "new", "--add-config")
    call(tools, "kafka-configs.sh", *user, "SCRAM-SHA-256=[password=a],SCRAM-SHA-512=[iterations=4096,password=a]")
    new = {"sasl.username": "new", "sasl.password": "a"}
    assert "orders" in ask(node, "sasl_plaintext", **new).list_topics(timeout=PATIENCE_S).topics
    words = ("--deny-principal", "User:new", "--operation", "Describe", "--topic", "orders")
    call(tools, "kafka-acls.sh", "--add", *words)
    assert "User:new" in call(tools, "kafka-acls.sh", "--list")
    hidden = ask(node, "sasl_plaintext", **new).list_topics("orders", timeout=PATIENCE_S).topics["orders"]
    assert hidden.error is not None
    assert hidden.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    call(tools, "kafka-acls.sh", "--remove", "--force", *words)
    assert "User:new" not in call(tools, "kafka-acls.sh", "--list")
