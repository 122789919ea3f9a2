"""Bytes of `__consumer_offsets` and of the consumer protocol against other implementations and against fixed bytes."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocol
from hypothesis import given
from hypothesis import strategies as st

from semel.group_coordinator.classic.assignment import _previous_assignment
from semel.group_coordinator.records.schemas import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    group_record,
    offset_record,
    record_size_bytes,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    decode_topics,
    encode_assignment,
    encode_subscription,
    protocol_version,
)
from semel.protocol.corruption import CorruptDataError
from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    # On Python 3.11, kafka-python loads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
    from kafka.protocol.data_container import DataContainer
    from kafka.protocol.schemas import StructField
    from kafka.structs import TopicPartition as ForeignPartition

# The fields of Kafka's message definitions, as facts about its format; kafka-python's codec makes bytes of them.
OFFSET_KEY = [("group", "string", "0+"), ("topic", "string", "0+"), ("partition", "int32", "0+")]
OFFSET_VALUE = [
    ("offset", "int64", "0+"),
    ("leaderEpoch", "int32", "3+"),
    ("metadata", "string", "0+"),
    ("commitTimestamp", "int64", "0+"),
    ("expireTimestamp", "int64", "1"),
]
MEMBER = [
    ("memberId", "string", "0+"),
    ("groupInstanceId", "string", "3+"),
    ("clientId", "string", "0+"),
    ("clientHost", "string", "0+"),
    ("rebalanceTimeout", "int32", "1+"),
    ("sessionTimeout", "int32", "0+"),
    ("subscription", "bytes", "0+"),
    ("assignment", "bytes", "0+"),
]
GROUP_VALUE = [
    ("protocolType", "string", "0+"),
    ("generation", "int32", "0+"),
    ("protocol", "string", "0+"),
    ("leader", "string", "0+"),
    ("currentStateTimestamp", "int64", "2+"),
    ("members", "[]MemberMetadata", "0+"),
]
NULLABLE = {"groupInstanceId", "protocol", "leader"}


def foreign(fields: list[tuple[str, str, str]], flexible: str = "none") -> type[DataContainer]:
    def describe(items: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
        described = []
        for name, kind, versions in items:
            field: dict[str, Any] = {"name": name, "type": kind, "versions": versions}
            if name in NULLABLE:
                field["nullableVersions"] = versions
            if kind == "[]MemberMetadata":
                field["fields"] = describe(MEMBER)
            described.append(field)
        return described

    json = {
        "type": "data",
        "name": "Struct",
        "validVersions": "0-4",
        "flexibleVersions": flexible,
        "fields": describe(fields),
    }
    struct = StructField(copy.deepcopy(json))
    kind = type("Struct", (DataContainer,), {"_struct": struct})
    struct.set_data_class(kind)
    return kind


def encode(fields: list[tuple[str, str, str]], version: int, *, first: int | None = None, **values: Any) -> bytes:
    compact = version >= 4
    data = foreign(fields, "4+")(version=version, **values)
    body: bytes = data.encode(version=version, compact=compact, tagged=compact)
    return (version if first is None else first).to_bytes(2, "big") + body


MEMBERS = (
    MemberMetadata("client-1", "instance-1", "client", "/10.0.0.1", 60_000, 10_000, b"\x00\x01sub", b"\x00\x01give"),
    MemberMetadata("client-2", None, "client", "/10.0.0.2", 30_000, 6_000, b"", b""),
)
GROUP = GroupMetadataValue("consumer", 7, "range", "client-1", 1_700_000_000_000, MEMBERS)
OFFSET = OffsetCommitValue(42, 5, "naïve", 1_700_000_000_000)


def foreign_members(version: int) -> list[Any]:
    kind = foreign(GROUP_VALUE, "4+").MemberMetadata
    members = []
    for member in MEMBERS:
        values: dict[str, Any] = {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_timeout": member.session_timeout_ms,
            "subscription": member.subscription,
            "assignment": member.assignment,
        }
        if version >= 1:
            values["rebalance_timeout"] = member.rebalance_timeout_ms
        if version >= 3:
            values["group_instance_id"] = member.group_instance_id
        members.append(kind(version=version, **values))
    return members


def test_keys_are_kafkas_bytes() -> None:
    key = OffsetCommitKey("enrich", TopicPartition("orders", 3))
    assert encode_offset_key(key) == b"\x00\x01\x00\x06enrich\x00\x06orders\x00\x00\x00\x03"
    assert encode_offset_key(key) == encode(OFFSET_KEY, 1, group="enrich", topic="orders", partition=3)
    assert encode_group_key(GroupMetadataKey("enrich")) == b"\x00\x02\x00\x06enrich"
    assert decode_key(encode_offset_key(key)) == key
    assert decode_key(encode(OFFSET_KEY, 0, group="enrich", topic="orders", partition=3)) == key
    assert decode_key(b"\x00\x02\x00\x06enrich") == GroupMetadataKey("enrich")
    assert decode_key(b"\x00\x63anything") == UnknownKey(99)


def test_offset_value_is_kafkas_bytes() -> None:
    golden = (
        bytes.fromhex("0003000000000000002a000000050006") + "naïve".encode() + (1_700_000_000_000).to_bytes(8, "big")
    )
    assert encode_offset_value(OFFSET) == golden
    values = {"offset": 42, "metadata": "naïve", "commit_timestamp": 1_700_000_000_000}
    assert golden == encode(OFFSET_VALUE, 3, leader_epoch=5, **values)
    assert decode_offset_value(golden) == OFFSET


def test_offset_value_with_an_expiry_of_its_own_is_kafkas_version_1() -> None:
    value = OffsetCommitValue(42, -1, "naïve", 1_700_000_000_000, 1_700_000_099_000)
    golden = encode(
        OFFSET_VALUE,
        1,
        offset=42,
        metadata="naïve",
        commit_timestamp=1_700_000_000_000,
        expire_timestamp=1_700_000_099_000,
    )
    assert encode_offset_value(value) == golden
    assert decode_offset_value(golden) == value


@pytest.mark.parametrize("version", range(5))
def test_offset_values_of_all_versions_are_read(version: int) -> None:
    values: dict[str, Any] = {"offset": 42, "metadata": "naïve", "commit_timestamp": 1_700_000_000_000}
    if version >= 3:
        values["leader_epoch"] = 5
    if version == 1:
        values["expire_timestamp"] = 99
    value = decode_offset_value(encode(OFFSET_VALUE, version, **values))
    assert (value.offset, value.metadata, value.commit_timestamp_ms) == (42, "naïve", 1_700_000_000_000)
    assert value.leader_epoch == (5 if version >= 3 else -1)
    assert value.expire_timestamp_ms == (99 if version == 1 else -1)


def test_group_value_is_kafkas_bytes() -> None:
    expected = encode(
        GROUP_VALUE,
        3,
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="client-1",
        current_state_timestamp=1_700_000_000_000,
        members=foreign_members(3),
    )
    assert encode_group_value(GROUP) == expected
    assert decode_group_value(expected) == GROUP
    empty = GroupMetadataValue("consumer", 8, None, None, 5, ())
    assert encode_group_value(empty) == (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x08\xff\xff\xff\xff" + (5).to_bytes(8, "big") + bytes(4)
    )
    assert decode_group_value(encode_group_value(empty)) == empty


@pytest.mark.parametrize("version", range(5))
def test_group_values_of_all_versions_are_read(version: int) -> None:
    values: dict[str, Any] = {
        "protocol_type": "consumer",
        "generation": 7,
        "protocol": "range",
        "leader": "client-1",
        "members": foreign_members(version),
    }
    if version >= 2:
        values["current_state_timestamp"] = 1_700_000_000_000
    value = decode_group_value(encode(GROUP_VALUE, version, **values))
    assert (value.generation, value.protocol, value.leader) == (7, "range", "client-1")
    assert value.state_timestamp_ms == (1_700_000_000_000 if version >= 2 else -1)
    assert [member.assignment for member in value.members] == [b"\x00\x01give", b""]
    assert value.members[0].rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)
    assert value.members[0].group_instance_id == ("instance-1" if version >= 3 else None)


def test_values_of_a_newer_version_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="newer"):
        decode_offset_value(b"\x00\x05")
    with pytest.raises(CorruptDataError, match="newer"):
        decode_group_value(b"\x00\x05")


def test_record_sizes_are_upper_bounds() -> None:
    records = [
        offset_record("group" * 20, TopicPartition("orders", number), OFFSET if number % 2 else None)
        for number in range(1_000)
    ]
    records.append(group_record("group", GROUP))
    batch = encode_batch([(1_700_000_000_000, record.key, record.value, ()) for record in records])
    assert len(batch) <= sum(map(record_size_bytes, records)) + 61


# --- The consumer protocol --------------------------------------------------------------------------------------------

PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 2), TopicPartition("returns", 1))


@pytest.mark.parametrize("version", range(4))
def test_subscription_is_the_same_in_kafka_python(version: int) -> None:
    said = Subscription(("orders", "returns"), b"\x01\x02", PARTITIONS, 17, "rack-1")
    data = encode_subscription(said, version)
    theirs = ConsumerProtocolSubscription.decode(data)
    assert list(theirs.topics) == ["orders", "returns"]
    assert theirs.user_data == b"\x01\x02"
    if version >= 1:
        owned = [(item.topic, list(item.partitions)) for item in theirs.owned_partitions]
        assert owned == [("orders", [0, 2]), ("returns", [1])]
    if version >= 2:
        assert theirs.generation_id == 17
    if version >= 3:
        assert theirs.rack_id == "rack-1"
    assert theirs.encode(version=version) == data
    read = decode_subscription(data)
    assert read.topics == said.topics
    assert read.owned_partitions == (PARTITIONS if version >= 1 else ())
    assert read.generation_id == (17 if version >= 2 else -1)
    assert read.rack_id == ("rack-1" if version >= 3 else None)
    assert decode_topics(data) == said.topics
    assert protocol_version(data) == version


def test_subscription_is_the_same_in_aiokafka() -> None:
    theirs = ConsumerProtocol.METADATA(0, ["orders", "returns"], b"")
    assert encode_subscription(Subscription(("orders", "returns"), b""), 0) == theirs.encode()
    assert decode_subscription(theirs.encode()) == Subscription(("orders", "returns"), b"")


def test_assignment_is_the_same_in_kafka_python_and_aiokafka() -> None:
    data = encode_assignment(Assignment(PARTITIONS), 1)
    theirs = ConsumerProtocolAssignment.decode(data)
    assert theirs.partitions() == [ForeignPartition(*partition) for partition in PARTITIONS]
    assert theirs.encode(version=1) == data
    other = ConsumerProtocol.ASSIGNMENT(0, [("orders", [0, 2]), ("returns", [1])], b"")
    assert encode_assignment(Assignment(PARTITIONS, b""), 0) == other.encode()
    assert ConsumerProtocol.ASSIGNMENT.decode(data).partitions() == list(PARTITIONS)
    assert decode_assignment(other.encode()) == Assignment(PARTITIONS, b"")
    assert decode_assignment(b"") == Assignment(())


def test_previous_assignment_in_the_user_data_of_kafkas_sticky_is_read() -> None:
    topics = b"\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02"
    partitions = (TopicPartition("orders", 0), TopicPartition("orders", 2))
    assert _previous_assignment(topics + b"\x00\x00\x00\x09") == (partitions, 9)
    assert _previous_assignment(topics) == (partitions, -1)
    assert _previous_assignment(b"\x00") is None
    assert _previous_assignment(None) is None


def test_newer_versions_are_read_as_the_latest_known() -> None:
    data = encode_subscription(Subscription(("orders",), None, PARTITIONS, 3, None), 3)
    newer = b"\x00\x09" + data[2:] + b"something new"
    assert decode_subscription(newer) == decode_subscription(data)
    with pytest.raises(CorruptDataError):
        decode_subscription(b"\xff\xff" + data[2:])
    with pytest.raises(ValueError, match="versions 0 to 3"):
        encode_subscription(Subscription(()), 4)


DECODERS = [decode_key, decode_offset_value, decode_group_value, decode_subscription, decode_assignment, decode_topics]


@given(st.sampled_from(DECODERS), st.integers(0, 4), st.binary(max_size=200))
def test_hostile_bytes_are_refused_or_read_never_worse(decode: Any, version: int, data: bytes) -> None:
    with contextlib.suppress(CorruptDataError):
        decode(version.to_bytes(2, "big") + data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_group_values_are_refused_or_read_never_worse(position: int, value: int) -> None:
    data = bytearray(encode_group_value(GROUP))
    data[position % len(data)] = value
    with contextlib.suppress(CorruptDataError):
        decode_group_value(bytes(data))
