"""Keys and values of consumer groups in `__consumer_offsets`, byte for byte as Kafka's coordinator writes them
(KIP-848).

Source: Kafka's message definitions ConsumerGroupMetadata (key 3), MemberMetadata (5), TargetAssignmentMetadata (6),
TargetAssignmentMember (7) and CurrentMemberAssignment (8). The partition metadata of Kafka before 4.0 (4) is replaced
by a hash in the group's own record, which is how Kafka has it since; regular expressions (16) are resolved again
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar
from uuid import UUID

from semel.group_coordinator.records.consumer_state import ClassicMetadata, MemberAssignment, MemberDetails, MemberState
from semel.protocol.api.consumer_groups import Partitions, TopicIdPartition
from semel.protocol.api.groups import GroupProtocol
from semel.protocol.corruption import CorruptDataError
from semel.protocol.ids import TopicId
from semel.protocol.schema import Buffer, Reader, Writer
from semel.runtime.machine import CoordinatorRecord

_Value = TypeVar("_Value")

VALUE_VERSION: Final = 0
_HASH_TAG: Final = 0
_CLASSIC_TAG: Final = 0


class ConsumerKeyKind(IntEnum):
    """What a record is about; the numbers are the versions of the keys."""

    GROUP = 3
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT = 8


GROUP_KINDS: Final = frozenset({ConsumerKeyKind.GROUP, ConsumerKeyKind.TARGET})
CONSUMER_KEY_VERSIONS: Final = frozenset(int(kind) for kind in ConsumerKeyKind)


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """`member_id` is empty for records of the group as a whole."""

    kind: ConsumerKeyKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupEpochValue:
    """The epoch, and a hash of the topics as they were when it began (0: none)."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class AssignmentRecord(CoordinatorRecord):
    """A record that the machine just made: what its bytes say is at hand, so its replay needs no decoding.

    With ten thousand partitions that would take a turn of the event loop (S3). The model in tests/property holds both
    ways equal.
    """

    assignment: Partitions | MemberAssignment | None


def assignment_of(record: CoordinatorRecord) -> Partitions | MemberAssignment | None:
    """Return what a record says, where that needs no decoding."""
    return record.assignment if isinstance(record, AssignmentRecord) else None


def read_consumer_key(version: int, reader: Reader) -> ConsumerGroupKey:
    """Return the key of one of `CONSUMER_KEY_VERSIONS` whose version was read already. Raises `CorruptDataError`."""
    kind = ConsumerKeyKind(version)
    group_id = reader.string()
    return ConsumerGroupKey(kind, group_id, "" if kind in GROUP_KINDS else reader.string())


def encode_consumer_key(key: ConsumerGroupKey) -> bytes:
    writer = Writer()
    writer.int16(key.kind)
    writer.string(key.group_id)
    if key.kind not in GROUP_KINDS:
        writer.string(key.member_id)
    return writer.to_bytes()


# --- Records ----------------------------------------------------------------------------------------------------------


def epoch_record(group_id: str, value: GroupEpochValue | None) -> CoordinatorRecord:
    """Return the record that stores a group's epoch, or with None the one that deletes it."""

    def write(writer: Writer, value: GroupEpochValue) -> None:
        writer.int32(value.epoch)
        tags = {}
        if value.metadata_hash:
            tag = Writer()
            tag.int64(value.metadata_hash)
            tags[_HASH_TAG] = tag.to_bytes()
        writer.tagged_fields(tags)

    return _record(ConsumerGroupKey(ConsumerKeyKind.GROUP, group_id), value, write)


def target_epoch_record(group_id: str, epoch: int | None) -> CoordinatorRecord:
    """Return the record of the epoch that the target assignment was made for."""

    def write(writer: Writer, value: int) -> None:
        writer.int32(value)
        writer.tagged_fields({})

    return _record(ConsumerGroupKey(ConsumerKeyKind.TARGET, group_id), epoch, write)


def member_record(group_id: str, member_id: str, details: MemberDetails | None) -> CoordinatorRecord:
    return _record(ConsumerGroupKey(ConsumerKeyKind.MEMBER, group_id, member_id), details, _write_details)


def target_record(group_id: str, member_id: str, partitions: Partitions | None) -> CoordinatorRecord:
    """Return the record of what a member is to read."""

    def write(writer: Writer, value: Partitions) -> None:
        _write_partitions(writer, value)
        writer.tagged_fields({})

    record = _record(ConsumerGroupKey(ConsumerKeyKind.TARGET_MEMBER, group_id, member_id), partitions, write)
    return AssignmentRecord(record.key, record.value, partitions)


def current_record(group_id: str, member_id: str, current: MemberAssignment | None) -> CoordinatorRecord:
    """Return the record of what a member has."""

    def write(writer: Writer, value: MemberAssignment) -> None:
        writer.int32(value.epoch)
        writer.int32(value.previous_epoch)
        writer.int8(value.state)
        _write_partitions(writer, value.assigned)
        _write_partitions(writer, value.to_revoke)
        writer.tagged_fields({})

    record = _record(ConsumerGroupKey(ConsumerKeyKind.CURRENT, group_id, member_id), current, write)
    return AssignmentRecord(record.key, record.value, current)


# --- Values -----------------------------------------------------------------------------------------------------------


def decode_epoch(data: Buffer) -> GroupEpochValue:
    """Raises `CorruptDataError`, as the other functions here do."""
    reader = _begin(data, "ConsumerGroupMetadataValue")
    epoch = reader.int32()
    tag = reader.tagged_fields().get(_HASH_TAG)
    return GroupEpochValue(epoch, 0 if tag is None else Reader(tag).int64())


def decode_target_epoch(data: Buffer) -> int:
    reader = _begin(data, "ConsumerGroupTargetAssignmentMetadataValue")
    epoch = reader.int32()
    reader.tagged_fields()
    return epoch


def decode_details(data: Buffer) -> MemberDetails:
    reader = _begin(data, "ConsumerGroupMemberMetadataValue")
    instance_id, rack_id = reader.compact_nullable_string(), reader.compact_nullable_string()
    client_id, client_host = reader.compact_string(), reader.compact_string()
    topic_names = tuple(reader.compact_array(reader.compact_string))
    topic_regex = reader.compact_nullable_string()
    rebalance_timeout_ms = reader.int32()
    server_assignor = reader.compact_nullable_string()
    tag = reader.tagged_fields().get(_CLASSIC_TAG)
    classic = None if tag is None else _decode_classic(tag)
    return MemberDetails(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topic_names,
        topic_regex,
        rebalance_timeout_ms,
        server_assignor,
        classic,
    )


def decode_target(data: Buffer) -> Partitions:
    reader = _begin(data, "ConsumerGroupTargetAssignmentMemberValue")
    partitions = _read_partitions(reader)
    reader.tagged_fields()
    return partitions


def decode_current(data: Buffer) -> MemberAssignment:
    reader = _begin(data, "ConsumerGroupCurrentMemberAssignmentValue")
    epoch, previous_epoch, number = reader.int32(), reader.int32(), reader.int8()
    assigned, to_revoke = _read_partitions(reader), _read_partitions(reader)
    reader.tagged_fields()
    try:
        state = MemberState(number)
    except ValueError:
        state = MemberState.UNKNOWN
    return MemberAssignment(epoch, previous_epoch, state, assigned, to_revoke)


# --- Parts ------------------------------------------------------------------------------------------------------------


def _record(key: ConsumerGroupKey, value: _Value | None, write: Callable[[Writer, _Value], None]) -> CoordinatorRecord:
    if value is None:
        return CoordinatorRecord(encode_consumer_key(key), None)
    writer = Writer()
    writer.int16(VALUE_VERSION)
    write(writer, value)
    return CoordinatorRecord(encode_consumer_key(key), writer.to_bytes())


def _begin(data: Buffer, name: str) -> Reader:
    reader = Reader(data)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise CorruptDataError(f"{name} has version {version}, known is {VALUE_VERSION}: was a newer node here?")
    return reader


def _write_details(writer: Writer, details: MemberDetails) -> None:
    writer.compact_nullable_string(details.instance_id)
    writer.compact_nullable_string(details.rack_id)
    writer.compact_string(details.client_id)
    writer.compact_string(details.client_host)
    writer.compact_array(details.topic_names, writer.compact_string)
    writer.compact_nullable_string(details.topic_regex)
    writer.int32(details.rebalance_timeout_ms)
    writer.compact_nullable_string(details.server_assignor)
    writer.tagged_fields({} if details.classic is None else {_CLASSIC_TAG: _encode_classic(details.classic)})


def _encode_classic(classic: ClassicMetadata) -> bytes:
    writer = Writer()
    # A nullable struct says first that it is there.
    writer.int8(1)
    writer.int32(classic.session_timeout_ms)

    def write_protocol(protocol: GroupProtocol) -> None:
        writer.compact_string(protocol.name)
        writer.compact_bytes(protocol.metadata)
        writer.tagged_fields({})

    writer.compact_array(classic.protocols, write_protocol)
    writer.tagged_fields({})
    return writer.to_bytes()


def _decode_classic(data: Buffer) -> ClassicMetadata | None:
    reader = Reader(data)
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()

    def read_protocol() -> GroupProtocol:
        protocol = GroupProtocol(reader.compact_string(), reader.compact_bytes())
        reader.tagged_fields()
        return protocol

    protocols = tuple(reader.compact_array(read_protocol))
    reader.tagged_fields()
    return ClassicMetadata(session_timeout_ms, protocols)


def _write_partitions(writer: Writer, partitions: Partitions) -> None:
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)

    def write_topic(item: tuple[UUID, list[int]]) -> None:
        writer.uuid(item[0])
        writer.compact_array(sorted(item[1]), writer.int32)
        writer.tagged_fields({})

    # Sorting the ids is all that is left of sorting partitions by id and number: to compare ids is slow.
    writer.compact_array(sorted(by_topic.items()), write_topic)


def _read_partitions(reader: Reader) -> Partitions:
    def read_topic() -> list[TopicIdPartition]:
        topic_id = TopicId(reader.uuid())
        partitions = [TopicIdPartition(topic_id, number) for number in reader.compact_array(reader.int32)]
        reader.tagged_fields()
        return partitions

    return frozenset(partition for topic in reader.compact_array(read_topic) for partition in topic)
