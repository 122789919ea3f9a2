"""What consumers tell each other through the group coordinator: subscriptions and assignments (KIP-429, 792, 881).

Versions only ever append fields, so a version newer than 3 is read as version 3. Source: Kafka's message definitions
ConsumerProtocolSubscription and ConsumerProtocolAssignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semel.protocol.corruption import CorruptDataError
from semel.protocol.ids import TopicPartition
from semel.protocol.schema import Buffer, Reader, Writer

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3
NO_GENERATION: Final = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants and holds.

    topics:           the topics it subscribes to.
    user_data:        the assignor's own; Kafka's `sticky` keeps the previous assignment there.
    owned_partitions: what it still holds while it joins (version 1 on).
    generation_id:    the generation it got them in, -1 where unknown (version 2 on).
    rack_id:          where it runs (version 3 on).
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader gives a member."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Return the bytes of `subscription` in `version` (0 to 3); what the version has no field for is left out."""
    writer = _begin(version)
    writer.array(subscription.topics, writer.string)
    writer.nullable_bytes(subscription.user_data)
    if version >= 1:
        _write_partitions(writer, subscription.owned_partitions)
    if version >= 2:
        writer.int32(subscription.generation_id)
    if version >= 3:
        writer.nullable_string(subscription.rack_id)
    return writer.to_bytes()


def decode_subscription(data: Buffer) -> Subscription:
    """Return the subscription in `data`, of any version. Raises `CorruptDataError`."""
    reader = Reader(data)
    version = _read_version(reader)
    topics = tuple(reader.array(reader.string))
    user_data = reader.nullable_bytes()
    owned = _read_partitions(reader) if version >= 1 else ()
    generation_id = reader.int32() if version >= 2 else NO_GENERATION
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(topics, user_data, owned, generation_id, rack_id)


def decode_topics(data: Buffer) -> tuple[str, ...]:
    """Return the topics alone: the part that all versions share. Raises `CorruptDataError`."""
    reader = Reader(data)
    _read_version(reader)
    return tuple(reader.array(reader.string))


def encode_assignment(assignment: Assignment, version: int = VERSION_MAX) -> bytes:
    """Return the bytes of `assignment`; all versions look the same."""
    writer = _begin(version)
    _write_partitions(writer, assignment.partitions)
    writer.nullable_bytes(assignment.user_data)
    return writer.to_bytes()


def decode_assignment(data: Buffer) -> Assignment:
    """Return the assignment in `data`; empty bytes are an empty assignment. Raises `CorruptDataError`."""
    if not len(data):
        return Assignment(())
    reader = Reader(data)
    _read_version(reader)
    partitions = _read_partitions(reader)
    return Assignment(partitions, reader.nullable_bytes())


def protocol_version(data: Buffer) -> int:
    """Return the version that `data` says it has, at most 3. Raises `CorruptDataError`."""
    return _read_version(Reader(data))


def _begin(version: int) -> Writer:
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"the consumer protocol has the versions 0 to {VERSION_MAX}, not {version}")
    writer = Writer()
    writer.int16(version)
    return writer


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise CorruptDataError(f"the consumer protocol's version is {version}")
    return min(version, VERSION_MAX)


def _write_partitions(writer: Writer, partitions: Iterable[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)

    def write_topic(item: tuple[str, list[int]]) -> None:
        writer.string(item[0])
        writer.array(item[1], writer.int32)

    writer.array(by_topic.items(), write_topic)


def _read_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    def read_topic() -> list[TopicPartition]:
        topic = reader.string()
        return [TopicPartition(topic, partition) for partition in reader.array(reader.int32)]

    return tuple(partition for topic in reader.array(read_topic) for partition in topic)
