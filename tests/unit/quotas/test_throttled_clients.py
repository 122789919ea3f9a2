"""Real clients of a real node that have used up their quotas: slower, and nothing lost or twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from asking_node import asking, at
from live_node import LiveNode
from running_node import create_topic
from user_files import ALICE, set_user

import semel
from semel.broker.handlers.client_quotas import alter_client_quotas
from semel.broker.quotas.client_quotas import QuotaType
from semel.protocol.quotas import QuotaAlteration, QuotaEntity

RECORDS = 60
VALUE = bytes(500)
PATIENCE_S = 60


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    # Windows of a second, two of them: a burst of one second, so that few bytes are too many.
    with LiveNode(tmp_path, quota_window_num=2) as live:
        live.run(lambda: create_topic(live.node, "t"))
        yield live


def quota(node: LiveNode, entity: QuotaEntity, **values: float) -> None:
    node.run(lambda: alter_client_quotas(node.node, [QuotaAlteration(entity, dict(values))]))


def read(node: LiveNode, count: int) -> list[bytes]:
    """Return the next committed values of the topic, read by a client without a quota."""
    options = {"bootstrap.servers": str(node.node.kafka_address), "group.id": "reader"}
    consumer = confluent_kafka.Consumer({**options, "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message.value() or b"")
    consumer.close()
    return found


def test_librdkafka_hears_that_it_is_throttled_and_all_its_records_are_there_once(node: LiveNode) -> None:
    quota(node, QuotaEntity(client_id="rd"), producer_byte_rate=10_000, consumer_byte_rate=10_000)
    told: list[confluent_kafka.ThrottleEvent] = []
    options = {"bootstrap.servers": str(node.node.kafka_address), "client.id": "rd", "throttle_cb": told.append}
    producer = confluent_kafka.Producer({**options, "enable.idempotence": True, "batch.num.messages": 5})
    for number in range(RECORDS):
        producer.produce("t", key=str(number), value=VALUE)
    assert producer.flush(PATIENCE_S) == 0
    producer.poll(0)
    assert any(event.throttle_time > 0 for event in told)
    assert node.node.client_quotas.throttled[QuotaType.PRODUCE] > 0

    told.clear()
    consumer = confluent_kafka.Consumer(
        {**options, "group.id": "g", "auto.offset.reset": "earliest", "fetch.message.max.bytes": 4_000}
    )
    consumer.subscribe(["t"])
    keys: list[bytes | None] = []
    while len(keys) < RECORDS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        keys.append(message.key())
    assert keys == [str(number).encode() for number in range(RECORDS)]
    assert node.node.client_quotas.throttled[QuotaType.FETCH] > 0
    consumer.close()


def test_transactions_of_the_sdk_stay_exactly_once_under_a_quota(node: LiveNode) -> None:
    quota(node, QuotaEntity(client_id="slow"), producer_byte_rate=8_000, request_percentage=5)
    with semel.Producer(node.bootstrap, transactional_id="tx", client_id="slow") as producer:
        for turn in range(6):
            producer.begin_transaction()
            for number in range(10):
                producer.send("t", VALUE + str(turn * 10 + number).encode())
            if turn % 3 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert node.node.client_quotas.throttled[QuotaType.PRODUCE] > 0
    kept = [turn * 10 + number for turn in range(6) if turn % 3 != 2 for number in range(10)]
    found = [int(value[len(VALUE) :]) for value in read(node, len(kept))]
    assert found == kept


def test_a_users_quota_counts_for_who_has_proven_to_be_the_user(tmp_path: Path) -> None:
    users = set_user(set_user(tmp_path / "users"), "bob")
    with LiveNode(tmp_path, **asking(users)) as node:
        node.run(lambda: create_topic(node.node, "t"))
        quota(node, QuotaEntity(ALICE), producer_byte_rate=1_000)
        for user, throttled in (("bob", 0), (ALICE, 1)):
            with semel.Producer(at(node.node.kafka_address, user), client_id="any") as producer:
                producer.send("t", bytes(20_000)).result()
            assert node.node.client_quotas.throttled[QuotaType.PRODUCE] == throttled
