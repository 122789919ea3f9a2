"""The metadata's image: every change and its replay are one function, and a snapshot is as good as the log."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.metadata.changes import (
    KINDS,
    BrokerRegistered,
    Change,
    ClusterCreated,
    ConfigsChanged,
    MetadataCorruptError,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    decode_change,
    encode_change,
)
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, decode_image, encode_image
from semel.protocol.ids import TopicPartition, new_topic_id

STATE = PartitionState(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
ORDERS, PAYMENTS = new_topic_id(), new_topic_id()

CHANGES: list[Change] = [
    ClusterCreated("cluster"),
    BrokerRegistered(1, "a1", "dir", "127.0.0.1", 9092, "127.0.0.1", 9094, "rack"),
    TopicCreated("orders", ORDERS, (STATE, STATE), {"retention.ms": "5"}),
    TopicCreated("payments", PAYMENTS, (STATE,)),
    PartitionsAdded("orders", ORDERS, 2, (STATE,)),
    PartitionChanged("orders", ORDERS, 1, PartitionState(2, 1, (1, 2), (2,), 1)),
    ConfigsChanged("TOPIC", "orders", {"retention.ms": None, "segment.bytes": "100"}),
    ConfigsChanged("BROKER", "1", {"num.partitions": "3"}),
    ProducerIdsAllocated(1, 0, 1000),
    TopicDeleted("payments", PAYMENTS),
]


def whole() -> MetadataImage:
    return EMPTY_IMAGE.apply_all(enumerate(CHANGES, 1))


def test_every_kind_of_change_is_applied() -> None:
    assert {type(change) for change in CHANGES} == set(KINDS.values())
    image = whole()
    assert image.sequence == len(CHANGES)
    assert image.cluster_id == "cluster"
    assert image.brokers[1].kafka_port == 9092
    assert set(image.topics) == {"orders"}
    assert image.topic_names == {ORDERS: "orders"}
    assert image.topic_by_id(PAYMENTS) is None
    assert image.topics["orders"].configs == {"segment.bytes": "100"}
    assert len(image.topics["orders"].partitions) == image.partition_count == 3
    assert image.partition(TopicPartition("orders", 1)) == PartitionState(2, 1, (1, 2), (2,), 1)
    assert image.partition(TopicPartition("orders", 3)) is None
    assert image.partition(TopicPartition("orders", -1)) is None
    assert image.broker_configs == {1: {"num.partitions": "3"}}
    assert image.next_producer_id == 1000


def test_an_image_never_changes() -> None:
    before = EMPTY_IMAGE.apply_all(enumerate(CHANGES[:3], 1))
    copy = decode_image(encode_image(before))
    before.apply_all(enumerate(CHANGES[3:], 4))
    assert before == copy
    with pytest.raises(TypeError):
        before.topics["x"] = before.topics["orders"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.sequence = 9  # type: ignore[misc]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_changes_are_read_back_as_they_were_written(change: Change) -> None:
    kind, payload = encode_change(change)
    assert decode_change(kind, payload) == change
    json.loads(payload)


@given(st.integers(0, len(CHANGES)))
def test_a_snapshot_and_the_rest_of_the_log_give_the_same_image(cut: int) -> None:
    snapshot = decode_image(encode_image(EMPTY_IMAGE.apply_all(enumerate(CHANGES[:cut], 1))))
    assert snapshot.apply_all(enumerate(CHANGES[cut:], cut + 1)) == whole()


@pytest.mark.parametrize(
    ("image", "change", "sequence"),
    [
        (EMPTY_IMAGE, ClusterCreated("x"), 2),
        (EMPTY_IMAGE, ClusterCreated("x"), 0),
        (EMPTY_IMAGE, TopicDeleted("orders", ORDERS), 1),
        (EMPTY_IMAGE, ConfigsChanged("TOPIC", "orders", {}), 1),
        (whole(), TopicDeleted("orders", PAYMENTS), len(CHANGES) + 1),
        (whole(), PartitionsAdded("orders", ORDERS, 2, (STATE,)), len(CHANGES) + 1),
        (whole(), PartitionChanged("orders", ORDERS, 0, STATE), len(CHANGES) + 1),
    ],
)
def test_R5_a_change_that_does_not_follow_is_refused(image: MetadataImage, change: Change, sequence: int) -> None:
    """A gap, a topic of another id, a partition epoch that is not the next: none may slip in."""
    with pytest.raises(MetadataCorruptError):
        image.apply(change, sequence)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("topic-exploded", "{}"),
        ("topic-created", "["),
        ("topic-created", "{}"),
        ("topic-created", '{"name":"x","topic_id":"short","partitions":[],"configs":{}}'),
        ("topic-created", '{"name":"x","topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":[[1]],"configs":{}}'),
    ],
)
def test_damaged_changes_are_named(kind: str, payload: str) -> None:
    with pytest.raises(MetadataCorruptError, match=kind):
        decode_change(kind, payload)


@pytest.mark.parametrize("payload", ["", "{}", '{"format":2}', encode_image(whole())[:-5]])
def test_damaged_snapshots_are_named(payload: str) -> None:
    with pytest.raises(MetadataCorruptError, match="snapshot"):
        decode_image(payload)
