"""Foreign clients and ACLs: they make, list and remove them, and hear what they may not do by Kafka's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from foreign_clients import kafka
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from live_node import LiveNode
from permitted_node import PERMITTED, only
from running_node import create_topic
from user_files import ALICE, set_user

PASSWORD = "wonder=,land"
PATIENCE_S = 60


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    users = set_user(set_user(tmp_path / "users", password=PASSWORD), "admin", PASSWORD)
    settings = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    with LiveNode(tmp_path, **settings, sasl_users_location=str(users), **PERMITTED) as live:
        live.run(lambda: create_topic(live.node, "orders"))
        yield live


def options(node: LiveNode, user: str = ALICE, **more: Any) -> dict[str, Any]:
    """Settings of confluent-kafka."""
    return {
        "bootstrap.servers": str(node.node.kafka_address),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        **more,
    }


def permit(node: LiveNode, *rights: tuple[str, str]) -> None:
    """Let the user have these rights and no others."""
    from permitted_node import acl, allow

    async def change() -> None:
        await only(node.node, [])
        await allow(node.node, *(acl(*right, principal=f"User:{ALICE}") for right in rights))

    node.run(change)


def code_of(call: Callable[[], Any]) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        call()
    return int(raised.value.args[0].code())


def test_confluents_admin_makes_lists_and_removes_acls(node: LiveNode) -> None:
    admin = AdminClient(options(node, "admin"))
    bindings = [
        AclBinding(ResourceType.TOPIC, name, kind, f"User:{ALICE}", "*", AclOperation.READ, AclPermissionType.ALLOW)
        for name, kind in (("orders", ResourcePatternType.LITERAL), ("or", ResourcePatternType.PREFIXED))
    ]
    for future in admin.create_acls(bindings).values():
        future.result(PATIENCE_S)
    wanted = AclBindingFilter(
        ResourceType.TOPIC, "orders", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    found = admin.describe_acls(wanted).result(PATIENCE_S)
    assert {(each.name, each.resource_pattern_type) for each in found} == {
        (each.name, each.resource_pattern_type) for each in bindings
    }
    (deleted,) = admin.delete_acls([wanted]).values()
    assert len(deleted.result(PATIENCE_S)) == 2
    assert admin.describe_acls(wanted).result(PATIENCE_S) == []
    mine = AdminClient(options(node))
    (refused,) = mine.create_acls(bindings[:1]).values()
    assert code_of(lambda: refused.result(PATIENCE_S)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert node.node.metadata.image.acls == frozenset()


def test_confluents_producer_and_consumer_are_refused_and_served(node: LiveNode) -> None:
    def produce() -> int:
        producer = confluent_kafka.Producer(options(node))
        errors: list[Any] = []
        producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(PATIENCE_S)
        return 0 if errors[0] is None else int(errors[0].code())

    permit(node, ("READ", "topic:orders"))
    assert produce() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    permit(node, ("WRITE", "topic:orders"))
    assert produce() == 0

    def consume() -> int:
        consumer = confluent_kafka.Consumer(options(node, **{"group.id": "g", "auto.offset.reset": "earliest"}))
        try:
            consumer.subscribe(["orders"])
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            return 0 if message.error() is None else int(message.error().code())
        finally:
            consumer.close()

    permit(node, ("READ", "topic:orders"))
    assert consume() == KafkaError.GROUP_AUTHORIZATION_FAILED
    permit(node, ("READ", "group:g"))
    assert consume() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    permit(node, ("READ", "group:g"), ("READ", "topic:orders"))
    assert consume() == 0


def test_confluents_transaction_is_refused_and_served(node: LiveNode) -> None:
    def transact() -> None:
        producer = confluent_kafka.Producer(options(node, **{"transactional.id": "x"}))
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("orders", b"x")
        producer.commit_transaction(PATIENCE_S)

    permit(node, ("WRITE", "topic:orders"))
    assert code_of(transact) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    permit(node, ("WRITE", "topic:orders"), ("WRITE", "transactional-id:x"))
    transact()


def test_kafka_python_is_refused_and_served(node: LiveNode) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": str(node.node.kafka_address),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": ALICE,
        "sasl_plain_password": PASSWORD,
    }
    permit(node, ("DESCRIBE", "topic:orders"))
    producer = kafka.KafkaProducer(enable_idempotence=False, **settings)
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("orders", b"x").get(PATIENCE_S)
        permit(node, ("WRITE", "topic:orders"))
        producer.send("orders", b"x").get(PATIENCE_S)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer("orders", group_id="g", auto_offset_reset="earliest", **settings)
    try:
        permit(node, ("READ", "topic:orders"))
        with pytest.raises(GroupAuthorizationFailedError):
            consumer.poll(PATIENCE_S * 1_000)
        permit(node, ("READ", "topic:orders"), ("READ", "group:g"))
        while not (found := consumer.poll(1_000)):
            pass
        assert [record.value for records in found.values() for record in records] == [b"x"]
    finally:
        consumer.close()
