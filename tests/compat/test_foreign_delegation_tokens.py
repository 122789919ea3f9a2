"""Foreign clients that log in with a delegation token (KIP-48), and prove again who they are (KIP-368)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from asking_node import at
from delegating_node import delegating, login_of
from foreign_clients import PATIENCE_S, QUIET
from foreign_roundtrips import VALUES, by_aiokafka, by_confluent, by_kafka_python
from live_node import LiveNode
from user_files import set_user

import semel
from semel.broker.handlers.topics.changes import delete_topics

REAUTH_MS = 2_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **delegating(set_user(tmp_path / "users"))) as live:
        yield live


def settings_of(roundtrip: Any, user: str, password: str, mechanism: str) -> dict[str, Any]:
    if roundtrip is by_confluent:
        login = {"sasl_username": user, "sasl_password": password}
        return {"security_protocol": "sasl_plaintext", "sasl_mechanism": mechanism, **login}
    encryption = {"ssl_cafile": None} if roundtrip is by_kafka_python else {"ssl_context": None}
    login = {"sasl_plain_username": user, "sasl_plain_password": password}
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, **login, **encryption}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("roundtrip", [by_confluent, by_kafka_python, by_aiokafka])
def test_clients_that_have_no_word_for_tokens_log_in_with_one(node: LiveNode, roundtrip: Any, mechanism: str) -> None:
    with semel.Admin(at(node.bootstrap)) as admin:
        made = admin.create_delegation_token()
    settings = settings_of(roundtrip, *login_of(made), mechanism)
    assert roundtrip(str(node.node.kafka_address), **settings) == VALUES
    node.run(lambda: delete_topics(node.node, list(node.node.metadata.image.topics)))


@pytest.mark.parametrize("by_token", [False, True], ids=["password", "token"])
def test_librdkafka_proves_again_who_it_is_on_the_same_connection(tmp_path: Path, by_token: bool) -> None:
    users = set_user(tmp_path / "users")
    with LiveNode(tmp_path, **delegating(users, connections_max_reauth_ms=REAUTH_MS)) as node:
        login = at(node.bootstrap).security.login
        assert login is not None
        user, password = login.username, login.password
        if by_token:
            with semel.Admin(at(node.bootstrap)) as admin:
                user, password = login_of(admin.create_delegation_token())
        listener = node.node.kafka_listener
        assert listener is not None
        before = listener.statistics()
        settings = settings_of(by_confluent, user, password, "SCRAM-SHA-256")
        common = {name.replace("_", "."): value for name, value in settings.items()}
        failed = threading.Event()
        common |= {"bootstrap.servers": str(node.node.kafka_address), "error_cb": lambda _: failed.set()}
        producer = confluent_kafka.Producer({**common, "log_level": 0}, logger=QUIET)

        def count(api: str) -> int:
            return listener.statistics().requests[api] - before.requests[api]

        sent = 0
        while count("SASL_HANDSHAKE") <= listener.statistics().accepted_connections - before.accepted_connections:
            producer.produce("t", str(sent).encode())
            assert producer.flush(PATIENCE_S) == 0
            sent += 1
            assert not failed.wait(0.05)
        assert listener.statistics().aborted_connections == before.aborted_connections
