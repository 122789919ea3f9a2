"""Users of a test's broker: who they are, what they may do, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer

import semel
from semel import SemelError, UsageError
from semel.testing import Broker, Cluster

USERS = {"admin": "the first", "alice": " wonder&land 100% #?+=\u00e9 "}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def send(bootstrap: str, topic: str, value: bytes) -> None:
    with semel.Producer(bootstrap, connect_timeout_ms=20_000) as producer:
        producer.send(topic, value).result()


def test_S6_a_broker_with_users_serves_them_alone() -> None:
    with Broker(users=USERS) as broker:
        broker.create_topic("orders")
        send(broker.bootstrap_of("alice"), "orders", b"apple")
        for wrong in (broker.bootstrap, broker.bootstrap_of("alice").replace("100", "1")):
            with pytest.raises(SemelError):
                send(wrong, "orders", b"pear")
        assert [record.value for record in broker.records("orders", at_least=1)] == [b"apple"]


@pytest.mark.parametrize("mechanisms", [(), ("PLAIN",), "SCRAM-SHA-512, PLAIN"])
def test_kafka_clients_connect_as_a_user(mechanisms: object) -> None:
    with Broker(users=USERS, **({"sasl_enabled_mechanisms": mechanisms} if mechanisms else {})) as broker:
        broker.create_topic("orders")
        send(broker.bootstrap_of("admin"), "orders", b"apple")
        consumer = Consumer({**broker.kafka_config_of("admin"), "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = consumer.poll(30)
        consumer.close()
        assert message is not None
        assert message.value() == b"apple"


def test_users_have_permissions() -> None:
    with Broker(users=USERS, authorizer_class_name=AUTHORIZER, super_users="User:admin") as broker:
        broker.create_topic("orders")
        with pytest.raises(SemelError, match="User:alice may not"):
            send(broker.bootstrap_of("alice"), "orders", b"pear")
        with semel.Admin(broker.bootstrap_of("admin")) as admin:
            admin.create_acls([semel.Acl.allow("User:alice", "write", topic="orders")])
        send(broker.bootstrap_of("alice"), "orders", b"apple")
        assert [record.value for record in broker.records("orders", at_least=1)] == [b"apple"]


def test_coroutines_find_the_same_addresses() -> None:
    async def test() -> None:
        async with Broker(users=USERS) as broker:
            assert broker.bootstrap_of("alice") == broker.sync.bootstrap_of("alice")
            assert broker.kafka_config_of("alice") == broker.sync.kafka_config_of("alice")

    asyncio.run(test())


def test_users_stay_over_restarts_and_go_with_the_broker() -> None:
    with Broker(users=USERS) as broker:
        bootstrap = broker.bootstrap_of("alice")
        for again in (broker.restart, broker.reset):
            again()
            assert broker.bootstrap_of("alice") == bootstrap
            send(bootstrap, broker.create_topic(), b"apple")
        file = Path(str(broker._values["sasl.users.location"]))
        assert "wonder" not in file.read_text()
    assert not file.parent.exists()


def test_a_cluster_has_users_on_all_nodes() -> None:
    with Cluster(3, users=USERS) as cluster:
        cluster.create_topic("orders")
        with semel.Producer(cluster.bootstrap_of("alice")) as producer:
            producer.send("orders", b"apple").result()
            cluster.kill(cluster.leader("orders"))
            producer.send("orders", b"pear").result()
        config = cluster.kafka_config_of("alice")
        assert config["bootstrap.servers"] == cluster.kafka
        assert cluster.kafka.count("127.0.0.1:") == 3
        assert "sasl" not in cluster.kafka


@pytest.mark.parametrize(
    ("users", "says"),
    [
        (["alice"], "users are names with passwords"),
        ({"alice": ""}, "has to be text that is not empty"),
        ({"alice": 5}, "has to be text that is not empty"),
        ({"al ice": "secret"}, "a user can't be called 'al ice'"),
    ],
)
def test_wrong_users_are_refused(users: object, says: str) -> None:
    for kind in (Broker, Cluster):
        with pytest.raises(UsageError, match=says):
            kind(users=users)  # type: ignore[arg-type]


def test_there_is_one_place_for_users(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give that, or users, not both"):
        Broker(users=USERS, sasl_users_location=str(tmp_path / "users"))
    with Broker() as broker, pytest.raises(UsageError, match="there is no user 'bob'; there are: none"):
        broker.kafka_config_of("bob")
    with Broker(users=USERS) as broker, pytest.raises(UsageError, match="there are: admin, alice"):
        broker.bootstrap_of("bob")


def test_users_and_named_listeners_are_not_mixed() -> None:
    with pytest.raises(UsageError, match=r"leave kafka.listeners out, or users"):
        Broker(users=USERS, kafka_listeners=("in=127.0.0.1:0",))


def test_a_start_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    missing = str(tmp_path / "missing.pem")
    broker = Broker(
        users=USERS, kafka_listen="tls://127.0.0.1:0", ssl_certificate_location=missing, ssl_key_location=missing
    )
    with pytest.raises(SemelError):
        broker.start()
    assert list(tmp_path.iterdir()) == []


def test_encrypted_listeners_ask_too() -> None:
    broker = Broker(users=USERS, kafka_listen="tls://127.0.0.1:0", ssl_certificate_location="c", ssl_key_location="k")
    assert str(broker._values["kafka.listen"]).startswith("tls+sasl://")
    assert str(broker._values["grpc.listen"]).startswith("sasl://")
