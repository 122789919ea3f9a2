"""Foreign clients and users in the cluster's metadata (KIP-554): they add, describe and remove them, and log in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from foreign_roundtrips import VALUES, by_aiokafka, by_confluent, by_kafka_python
from live_node import LiveNode
from permitted_node import PERMITTED, acl, allow
from user_files import ALICE, set_user

from semel.broker.handlers.topics.changes import delete_topics

PASSWORD = "wonder=,land"
PATIENCE_S = 60
EVERYTHING = [("ALL", f"{kind}:*") for kind in ("topic", "group", "transactional-id")] + [("ALL", "cluster")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    users = set_user(set_user(tmp_path / "users", password=PASSWORD), "admin", PASSWORD)
    settings = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    with LiveNode(tmp_path, **settings, sasl_users_location=str(users), **PERMITTED) as live:
        rights = [acl(*right, principal="User:bob") for right in EVERYTHING]
        live.run(lambda: allow(live.node, *rights))
        yield live


def admin_of(node: LiveNode, user: str = "admin") -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": str(node.node.kafka_address),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }
    )


def code_of(call: Callable[[], Any]) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        call()
    return int(raised.value.args[0].code())


def as_bob(roundtrip: Callable[..., Any], mechanism: str) -> dict[str, Any]:
    if roundtrip is by_confluent:
        user = {"sasl_username": "bob", "sasl_password": "secret of bob"}
        return {"security_protocol": "sasl_plaintext", "sasl_mechanism": mechanism, **user}
    encryption = {"ssl_cafile": None} if roundtrip is by_kafka_python else {"ssl_context": None}
    user = {"sasl_plain_username": "bob", "sasl_plain_password": "secret of bob"}
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, **user, **encryption}


def test_confluents_admin_adds_describes_and_removes_users(node: LiveNode) -> None:
    admin = admin_of(node)
    sha_256, sha_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    for mechanism, iterations in ((sha_256, 4096), (sha_512, 10_000)):
        wanted = UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, iterations), b"secret of bob")
        for future in admin.alter_user_scram_credentials([wanted]).values():
            assert future.result(PATIENCE_S) is None
    (found,) = admin.describe_user_scram_credentials(["bob"]).values()
    described = {each.mechanism: each.iterations for each in found.result(PATIENCE_S).scram_credential_infos}
    assert described == {sha_256: 4096, sha_512: 10_000}
    assert list(admin.describe_user_scram_credentials().result(PATIENCE_S)) == ["bob"]
    (missing,) = admin.describe_user_scram_credentials(["nobody"]).values()
    assert code_of(lambda: missing.result(PATIENCE_S)) == KafkaError.RESOURCE_NOT_FOUND

    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for roundtrip in (by_confluent, by_kafka_python, by_aiokafka):
            assert roundtrip(str(node.node.kafka_address), **as_bob(roundtrip, mechanism)) == VALUES
            node.run(lambda: delete_topics(node.node, list(node.node.metadata.image.topics)))

    (removed,) = admin.alter_user_scram_credentials([UserScramCredentialDeletion("bob", sha_256)]).values()
    assert removed.result(PATIENCE_S) is None
    assert [each.mechanism for each in node.node.metadata.image.users["bob"]] == ["SCRAM-SHA-512"]


def test_S7_confluents_admin_hears_what_it_may_not_and_what_is_wrong(node: LiveNode) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    alice, admin = admin_of(node, ALICE), admin_of(node)
    (refused,) = alice.alter_user_scram_credentials([UserScramCredentialUpsertion("x", info, b"y")]).values()
    assert code_of(lambda: refused.result(PATIENCE_S)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    few = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100)
    (wrong,) = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("x", few, b"y")]).values()
    assert code_of(lambda: wrong.result(PATIENCE_S)) == KafkaError.UNACCEPTABLE_CREDENTIAL
    assert node.node.metadata.image.users == {}
