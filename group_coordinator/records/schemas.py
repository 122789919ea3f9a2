"""Keys and values of `__consumer_offsets`, byte for byte as Kafka's coordinator writes them.

Written are the versions that every Kafka since 2.3 reads (keys 1 and 2, values 3, and 1 for an offset with an expiry
of its own); read are all versions.
Source: Kafka's message definitions OffsetCommitKey, OffsetCommitValue, GroupMetadataKey, GroupMetadataValue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from semel.group_coordinator.records.consumer_schemas import CONSUMER_KEY_VERSIONS, ConsumerGroupKey, read_consumer_key
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import UsageError
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition
from semel.protocol.schema import Buffer, Reader, Writer
from semel.runtime.machine import CoordinatorRecord

OFFSET_KEY_VERSION: Final = 1
OFFSET_KEY_VERSIONS: Final = frozenset({0, 1})
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
OFFSET_VALUE_VERSION_MAX: Final = 4
GROUP_VALUE_VERSION: Final = 3
GROUP_VALUE_VERSION_MAX: Final = 4
FIRST_FLEXIBLE_VERSION: Final = 4
CACHED_KEYS_MAX: Final = 4_096
"""Groups commit the same few partitions over and over, so keys are worth keeping."""


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    group_id: str
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    """`expire_timestamp_ms` is -1 unless an old client asked for a retention of its own (KIP-211)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class OffsetRecord(CoordinatorRecord):
    """The record of an offset, with what it says: who made it need not read it again."""

    offset_key: OffsetCommitKey
    offset_value: OffsetCommitValue | None


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key of a kind that this version does not know; such records are kept, and passed over."""

    version: int


def encode_offset_key(key: OffsetCommitKey) -> bytes:
    topic, partition = key.partition
    try:
        return _offset_key_front(key.group_id, topic) + partition.to_bytes(4, signed=True)
    except OverflowError:
        raise UsageError(f"{partition} does not fit an int32") from None


@lru_cache(maxsize=CACHED_KEYS_MAX)
def _offset_key_front(group_id: str, topic: str) -> bytes:
    writer = Writer()
    writer.int16(OFFSET_KEY_VERSION)
    writer.string(group_id)
    writer.string(topic)
    return writer.to_bytes()


def encode_group_key(key: GroupMetadataKey) -> bytes:
    writer = Writer()
    writer.int16(GROUP_KEY_VERSION)
    writer.string(key.group_id)
    return writer.to_bytes()


@lru_cache(maxsize=CACHED_KEYS_MAX)
def decode_key(key: bytes) -> OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey | UnknownKey:
    """Return what a record of the topic is about. Raises `CorruptDataError`."""
    reader = Reader(key)
    version = reader.int16()
    if version in CONSUMER_KEY_VERSIONS:
        return read_consumer_key(version, reader)
    if version in OFFSET_KEY_VERSIONS:
        group_id, topic = reader.string(), reader.string()
        return OffsetCommitKey(group_id, TopicPartition(topic, reader.int32()))
    if version == GROUP_KEY_VERSION:
        return GroupMetadataKey(reader.string())
    return UnknownKey(version)


def encode_offset_value(value: OffsetCommitValue) -> bytes:
    """Return the value in version 3, or with an expiry of its own in version 1, the only one that has room for it."""
    has_expiry = value.expire_timestamp_ms != -1
    writer = Writer()
    writer.int16(OFFSET_VALUE_VERSION_WITH_EXPIRY if has_expiry else OFFSET_VALUE_VERSION)
    writer.int64(value.offset)
    if not has_expiry:
        writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_timestamp_ms)
    if has_expiry:
        writer.int64(value.expire_timestamp_ms)
    return writer.to_bytes()


def decode_offset_value(data: Buffer) -> OffsetCommitValue:
    """Return a value of any version from 0 to 4. Raises `CorruptDataError`."""
    reader = Reader(data)
    version = _value_version(reader, "OffsetCommitValue", OFFSET_VALUE_VERSION_MAX)
    flexible = version >= FIRST_FLEXIBLE_VERSION
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.compact_string() if flexible else reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else -1
    if flexible:
        reader.tagged_fields()
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


def encode_group_value(value: GroupMetadataValue) -> bytes:
    writer = Writer()
    writer.int16(GROUP_VALUE_VERSION)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.nullable_string(value.protocol)
    writer.nullable_string(value.leader)
    writer.int64(value.state_timestamp_ms)

    def write_member(member: MemberMetadata) -> None:
        writer.string(member.member_id)
        writer.nullable_string(member.group_instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.bytes_(member.subscription)
        writer.bytes_(member.assignment)

    writer.array(value.members, write_member)
    return writer.to_bytes()


def decode_group_value(data: Buffer) -> GroupMetadataValue:
    """Return a value of any version from 0 to 4. Raises `CorruptDataError`."""
    reader = Reader(data)
    version = _value_version(reader, "GroupMetadataValue", GROUP_VALUE_VERSION_MAX)
    flexible = version >= FIRST_FLEXIBLE_VERSION
    string = reader.compact_string if flexible else reader.string
    nullable_string = reader.compact_nullable_string if flexible else reader.nullable_string
    bytes_ = reader.compact_bytes if flexible else reader.bytes_
    array = reader.compact_array if flexible else reader.array

    def read_member() -> MemberMetadata:
        member_id = string()
        group_instance_id = nullable_string() if version >= 3 else None
        client_id, client_host = string(), string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        subscription, assignment = bytes_(), bytes_()
        if flexible:
            reader.tagged_fields()
        return MemberMetadata(
            member_id,
            group_instance_id,
            client_id,
            client_host,
            session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
            session_timeout_ms,
            subscription,
            assignment,
        )

    protocol_type = string()
    generation = reader.int32()
    protocol, leader = nullable_string(), nullable_string()
    state_timestamp_ms = reader.int64() if version >= 2 else -1
    members = tuple(array(read_member))
    if flexible:
        reader.tagged_fields()
    return GroupMetadataValue(protocol_type, generation, protocol, leader, state_timestamp_ms, members)


def offset_record(group_id: str, partition: TopicPartition, value: OffsetCommitValue | None) -> OffsetRecord:
    """Return the record that commits an offset, or with None the one that deletes it."""
    key = OffsetCommitKey(group_id, partition)
    if value is None:
        return OffsetRecord(encode_offset_key(key), None, key, None)
    if value.expire_timestamp_ms != -1 and value.leader_epoch != NO_LEADER_EPOCH:
        value = replace(value, leader_epoch=NO_LEADER_EPOCH)  # its version has no room for one
    return OffsetRecord(encode_offset_key(key), encode_offset_value(value), key, value)


def group_record(group_id: str, value: GroupMetadataValue | None) -> CoordinatorRecord:
    """Return the record that stores a group's generation, or with None the one that deletes the group."""
    key = encode_group_key(GroupMetadataKey(group_id))
    return CoordinatorRecord(key, None if value is None else encode_group_value(value))


def record_size_bytes(record: CoordinatorRecord) -> int:
    """Return an upper bound of what a record takes in a batch: varint lengths and deltas come to less than 32 bytes."""
    return len(record.key) + len(record.value or b"") + 32


def offset_record_size_bytes(group_id: str, partition: TopicPartition, metadata: str, *, has_expiry: bool) -> int:
    """Return `record_size_bytes` of the record that commits an offset, without making it."""
    texts = sum(len(text.encode("utf-8", "surrogatepass")) for text in (group_id, partition.topic, metadata))
    return (10 + (28 if has_expiry else 24)) + texts + 32


def _value_version(reader: Reader, name: str, version_max: int) -> int:
    version = reader.int16()
    if not 0 <= version <= version_max:
        raise CorruptDataError(f"{name} has version {version}, known are 0 to {version_max}: was a newer node here?")
    return version
