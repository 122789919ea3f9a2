"""REST for users: each request has its user's rights, and its user's keys (S5, S6)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest
from gateway_requests import GatewayRequests, Reply, text
from rest_gateway import rest_gateway

import semel
from semel.testing import Broker
from semel.web.rest.once.answers import TOPIC

USERS = {"alice": "alice-secret", "bob": "bob-secret", "gateway": "gateway-secret"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(users=USERS, authorizer_class_name=AUTHORIZER, super_users="User:gateway") as node:
        yield node


@pytest.fixture(scope="module")
def gateway(node: Broker) -> Iterator[GatewayRequests]:
    with rest_gateway(node.bootstrap_of("gateway"), has_users=True) as url:
        yield GatewayRequests(url)


def send(gateway: GatewayRequests, user: str, topic: str, key: str | None = None) -> Reply:
    proof = {"Authorization": "Basic " + b64encode(f"{user}:{USERS.get(user, 'wrong')}".encode()).decode()}
    cluster = gateway.get("/v3/clusters", **proof)
    if cluster.status != 200:
        return cluster
    path = f"/v3/clusters/{cluster.json['data'][0]['cluster_id']}/topics/{topic}/records"
    headers = proof if key is None else {**proof, "Idempotency-Key": key}
    return gateway.request("POST", path, text(user), headers)


def allow(node: Broker, user: str, topic: str) -> None:
    who = f"User:{user}"
    with semel.Admin(node.bootstrap_of("gateway")) as admin:
        admin.create_acls(
            [
                semel.Acl.allow(who, "write", topic=topic),
                semel.Acl.allow(who, "write", topic=TOPIC),
                semel.Acl.allow(who, "write", transactional_id=f"semel-rest/{user}/", prefixed=True),
            ]
        )


def test_S6_strangers_are_401_and_users_without_the_right_403(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    assert send(gateway, "mallory", topic).status == 401
    for key in (None, "bob's"):
        refused = send(gateway, "bob", topic, key)
        assert (refused.status, refused.json["error_code"]) == (403, 40301)
    assert node.records(topic) == []


def test_S5_users_have_keys_of_their_own(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    for user in ("alice", "bob"):
        allow(node, user, topic)
    replies = [send(gateway, user, topic, "the same") for user in ("alice", "bob", "alice", "bob")]
    assert [reply.status for reply in replies] == [200] * 4
    assert replies[0].body == replies[2].body != replies[1].body == replies[3].body
    assert [record.value for record in node.records(topic)] == [b"alice", b"bob"]
