"""The metadata's image: every change and its replay are one function, and a snapshot is as good as the log."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest
from chained_changes import chained
from hypothesis import given
from hypothesis import strategies as st
from permitted_node import acl

from semel.broker.metadata import image as image_module
from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import (
    KINDS,
    METADATA_VERSION,
    AclsChanged,
    BrokerFenced,
    BrokerFull,
    BrokerRegistered,
    BrokerStopping,
    BrokerUnfenced,
    BrokerUnregistered,
    Change,
    ClientQuotasChanged,
    ClusterCreated,
    ConfigsChanged,
    CredentialsChanged,
    DelegationTokensChanged,
    MetadataCorruptError,
    MetadataVersionRaised,
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
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.protocol.scram import Deletion, Upsertion, Verifier

STATE = PartitionState(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
ORDERS, PAYMENTS = new_topic_id(), new_topic_id()

ALICE = QuotaEntity("alice", "")
VERIFIER = Verifier("SCRAM-SHA-256", 4096, b"salt", b"s" * 32, b"t" * 32)
OTHER = Verifier("SCRAM-SHA-512", 8192, b"tlas", b"s" * 64, b"t" * 64)
TOKEN = DelegationToken("id", "User:alice", "User:bob", ("User:carl",), 1, 2, 10, True)
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
    BrokerRegistered(2, "b1", "dir2", "b", 9092, "b", 9094, "", "peer", 9093, is_clean=False, durability="os"),
    PartitionChanged("orders", ORDERS, 1, PartitionState(-1, 2, (1, 2), (), 2, (2,), (1,))),
    BrokerFenced(1, 2),
    BrokerStopping(1, 2),
    BrokerFull(1, 2, True),
    BrokerFenced(2, 11),
    BrokerUnfenced(2, 11),
    MetadataVersionRaised(1),
    BrokerRegistered(3, "c1", "dir3", "c", 9092, "c", 9094, has_store=False),
    ConfigsChanged("BROKER", "3", {"num.partitions": "4"}),
    BrokerUnregistered(3, 19),
    AclsChanged(added=(acl("READ", "topic:orders"), acl("ALL", "group:g-*", denies=True))),
    AclsChanged(removed=(acl("ALL", "group:g-*", denies=True),)),
    ClientQuotasChanged((QuotaAlteration(ALICE, {"producer_byte_rate": 1.5e6, "consumer_byte_rate": 1.0}),)),
    ClientQuotasChanged(
        (
            QuotaAlteration(ALICE, {"consumer_byte_rate": None}),
            QuotaAlteration(QuotaEntity(ip=""), {"connection_creation_rate": 5.0}),
        )
    ),
    ClientQuotasChanged((QuotaAlteration(QuotaEntity(ip=""), {"connection_creation_rate": None}),)),
    CredentialsChanged(upserted=(Upsertion("alice", OTHER), Upsertion("alice", VERIFIER), Upsertion("bob", OTHER))),
    CredentialsChanged(removed=(Deletion("bob", OTHER.mechanism),)),
    DelegationTokensChanged(stored=(TOKEN, replace(TOKEN, token_id="gone", renewers=()))),
    DelegationTokensChanged(stored=(replace(TOKEN, expiry_timestamp_ms=9),), removed=("gone",)),
]
NEXT = len(CHANGES) + 1


def whole() -> MetadataImage:
    return EMPTY_IMAGE.apply_all(chained(CHANGES))


def test_every_kind_of_change_is_applied() -> None:
    assert {type(change) for change in CHANGES} == set(KINDS.values())
    image = whole()
    assert image.sequence == len(CHANGES)
    assert image.cluster_id == "cluster"
    assert image.acls == {acl("READ", "topic:orders")}
    assert image.client_quotas == {ALICE: {"producer_byte_rate": 1.5e6}}
    assert image.users == {"alice": (VERIFIER, OTHER)}
    assert image.delegation_tokens == {"id": replace(TOKEN, expiry_timestamp_ms=9)}
    assert image.brokers[1].kafka_port == 9092
    assert set(image.topics) == {"orders"}
    assert image.topic_names == {ORDERS: "orders"}
    assert image.topic_by_id(PAYMENTS) is None
    assert image.topics["orders"].configs == {"segment.bytes": "100"}
    assert len(image.topics["orders"].partitions) == image.partition_count == 3
    assert image.partition(TopicPartition("orders", 1)) == PartitionState(-1, 2, (1, 2), (), 2, (2,), (1,))
    assert [(broker.epoch, broker.is_fenced) for broker in image.brokers.values()] == [(2, True), (11, False)]
    assert (image.brokers[2].peer_host, image.brokers[2].peer_port) == ("peer", 9093)
    assert (image.brokers[2].is_clean, image.brokers[2].durability) == (False, "os")
    assert image.partition(TopicPartition("orders", 3)) is None
    assert image.partition(TopicPartition("orders", -1)) is None
    assert image.broker_configs == {1: {"num.partitions": "3"}}
    assert image.next_producer_id == 1000


def test_an_image_never_changes() -> None:
    before = EMPTY_IMAGE.apply_all(chained(CHANGES[:3]))
    copy = decode_image(encode_image(before), before.digest)
    before.apply_all(chained(CHANGES[3:], before.position))
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
    before = EMPTY_IMAGE.apply_all(chained(CHANGES[:cut]))
    snapshot = decode_image(encode_image(before), before.digest)
    assert snapshot.apply_all(chained(CHANGES[cut:], snapshot.position)) == whole()


@pytest.mark.parametrize(
    ("image", "change", "sequence"),
    [
        pytest.param(EMPTY_IMAGE, ClusterCreated("x"), 2, id="gap"),
        pytest.param(EMPTY_IMAGE, ClusterCreated("x"), 0, id="sequence-0"),
        pytest.param(EMPTY_IMAGE, TopicDeleted("orders", ORDERS), 1, id="no-such-topic"),
        pytest.param(EMPTY_IMAGE, ConfigsChanged("TOPIC", "orders", {}), 1, id="no-such-topics-configs"),
        pytest.param(whole(), TopicDeleted("orders", PAYMENTS), NEXT, id="other-topic-id"),
        pytest.param(whole(), PartitionsAdded("orders", ORDERS, 2, (STATE,)), NEXT, id="partitions-that-are-there"),
        pytest.param(whole(), PartitionChanged("orders", ORDERS, 0, STATE), NEXT, id="same-partition-epoch"),
        pytest.param(whole(), BrokerFenced(3, 1), NEXT, id="fence-of-no-such-node"),
        pytest.param(whole(), BrokerFenced(2, 10), NEXT, id="fence-of-a-former-start"),
        pytest.param(whole(), BrokerUnfenced(1, 11), NEXT, id="unfence-of-a-former-start"),
    ],
)
def test_R5_a_change_that_does_not_follow_is_refused(image: MetadataImage, change: Change, sequence: int) -> None:
    """A gap, a topic of another id, a partition epoch that is not the next, a node's former start: none may slip in."""
    with pytest.raises(MetadataCorruptError):
        image.apply(change, Position(sequence, ""))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("topic-exploded", "{}"),
        ("topic-created", "["),
        ("topic-created", "{}"),
        ("topic-created", '{"name":"x","topic_id":"short","partitions":[],"configs":{}}'),
        ("topic-created", '{"name":"x","topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":[[1]],"configs":{}}'),
        ("topic-created", '{"name":"x","topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":[[1,0,[1],[1],0,[2]]]}'),
    ],
)
def test_damaged_changes_are_named(kind: str, payload: str) -> None:
    with pytest.raises(MetadataCorruptError, match=kind):
        decode_change(kind, payload)


@pytest.mark.parametrize("payload", ["", "{}", '{"format":2}', encode_image(whole())[:-5]])
def test_damaged_snapshots_are_named(payload: str) -> None:
    with pytest.raises(MetadataCorruptError, match="snapshot"):
        decode_image(payload, "")


OLD_REGISTRATION = (
    '{"directory_id":"dir","grpc_host":"127.0.0.1","grpc_port":9094,"incarnation":"a1",'
    '"kafka_host":"127.0.0.1","kafka_port":9092,"node_id":1,"rack":"rack"}'
)
OLD_PARTITION = '{"name":"orders","partition":1,"state":[2,1,[1,2],[2],1],"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ"}'
OLD_SNAPSHOT = (
    '{"broker_configs":{},"brokers":[' + OLD_REGISTRATION + '],"cluster_id":"c","format":1,"next_producer_id":7,'
    '"sequence":3,"topics":[["orders","AAAAAAAAAAAAAAAAAAAAAQ",[[1,0,[1],[1],0]],{"retention.ms":"5"}]]}'
)


@pytest.mark.parametrize(
    ("kind", "payload"), [("broker-registered", OLD_REGISTRATION), ("partition-changed", OLD_PARTITION)]
)
def test_R10_what_an_older_version_wrote_is_written_with_the_same_bytes(kind: str, payload: str) -> None:
    """Digests are made of them."""
    assert encode_change(decode_change(kind, payload)) == (kind, payload)


def test_an_older_entry_has_the_defaults_of_the_fields_that_it_lacks() -> None:
    registered = decode_change("broker-registered", OLD_REGISTRATION)
    assert isinstance(registered, BrokerRegistered)
    assert registered == CHANGES[1]
    assert (registered.peer_host, registered.peer_port) == ("", 0)
    assert (registered.is_clean, registered.durability) == (True, "disk")
    changed = decode_change("partition-changed", OLD_PARTITION)
    assert isinstance(changed, PartitionChanged)
    assert (changed.state.elr, changed.state.last_known_elr) == ((), ())


def test_an_older_snapshot_is_read_and_written_as_it_was() -> None:
    image = decode_image(OLD_SNAPSHOT, "digest")
    assert (image.brokers[1].epoch, image.brokers[1].is_fenced) == (0, False)
    assert encode_image(image) == OLD_SNAPSHOT
    fenced = image.apply(decode_change(*encode_change(BrokerFenced(1, 0))), Position(4, ""))
    assert fenced.brokers[1].is_fenced, "a node that has not started since has the broker epoch 0"


def test_metadata_of_a_newer_version_is_not_read_and_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rolling upgrade: a node of the old version would skip what it does not know, or read it wrongly."""
    newer = METADATA_VERSION + 1
    monkeypatch.setattr(image_module, "METADATA_VERSION", newer)
    raised = whole().apply(MetadataVersionRaised(newer), Position(len(CHANGES) + 1, ""))
    snapshot = encode_image(raised)
    assert decode_image(snapshot, "").version == raised.version == newer
    monkeypatch.undo()
    says = f"version {newer}, and this semel reads up to {METADATA_VERSION}: .* install that one here"
    with pytest.raises(MetadataCorruptError, match=says):
        whole().apply(MetadataVersionRaised(newer), Position(len(CHANGES) + 1, ""))
    with pytest.raises(MetadataCorruptError, match=says):
        decode_image(snapshot, "")


def test_what_is_not_moved_is_written_as_older_versions_do() -> None:
    """Digests are made of it, and older nodes read it. Only a move has more fields, and each of them is read back."""
    settled = PartitionState(1, 2, (1, 2), (1,), 3)
    eligible = replace(settled, elr=(2,), last_known_elr=(3,))
    moving = replace(settled, replicas=(3, 1, 2), adding=(3,), removing=(1, 2))
    for state, fields in ((settled, 5), (eligible, 7), (moving, 9), (replace(moving, elr=(2,)), 9)):
        kind, payload = encode_change(PartitionChanged("orders", ORDERS, 0, state))
        assert len(json.loads(payload)["state"]) == fields
        assert decode_change(kind, payload) == PartitionChanged("orders", ORDERS, 0, state)
    for wrong in ([1, 2, [1], [1], 3, []], [1, 2, [1], [1], 3, [], [], []], [1, 2, [1]]):
        payload = json.dumps({**json.loads(payload), "state": wrong})
        with pytest.raises(MetadataCorruptError):
            decode_change("partition-changed", payload)


def test_a_field_of_a_newer_version_is_not_taken_for_damage() -> None:
    newer = OLD_REGISTRATION.replace("{", '{"zone":"a",', 1)
    with pytest.raises(MetadataCorruptError, match="the unknown field 'zone': that needs a newer semel"):
        decode_change("broker-registered", newer)


def test_R5_a_registration_has_its_place_in_the_log_as_epoch_and_lifts_the_fence() -> None:
    image = whole()
    again = image.apply(BrokerRegistered(1, "a2", "dir", "h", 1, "h", 2), Position(image.sequence + 1, ""))
    assert (again.brokers[1].epoch, again.brokers[1].is_fenced) == (image.sequence + 1, False)
    assert decode_image(encode_image(again), "").brokers == again.brokers
