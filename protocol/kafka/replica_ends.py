"""What a node asks the others where nobody knows which replica has most: where their logs end (R4).

Kafka's OffsetForLeaderEpoch v4, with the leader epoch in which the partition has no leader. A node answers for its own
log then, and not for where an epoch ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition
from semel.protocol.kafka.api import error_code_of
from semel.protocol.kafka.wire import ANY_NUMBER, Buffer, WireReader, WireWriter, join_parts

REPLICA_ENDS_VERSION: Final = 4

_TOPIC_BYTES_MIN: Final = 1 + 1 + 1
_PARTITION_BYTES_MIN: Final = 4 + 4 + 4 + 1
_END_BYTES_MIN: Final = 2 + 4 + 4 + 8 + 1

EpochAndEnd = tuple[int, int]
"""The epoch of the last record, -1 where there is none, and the offset behind it."""


def build_ends_asked(node_id: int, partitions: Mapping[TopicPartition, int]) -> bytes:
    """Return the body of the request of a node: partitions with the leader epochs in which they have no leader."""
    writer = WireWriter()
    writer.write_int32(node_id)
    writer.write_count(len(partitions), True)
    for tp, leader_epoch in partitions.items():
        writer.write_string(tp.topic, True)
        writer.write_count(1, True)
        writer.write_int32(tp.partition)
        writer.write_int32(leader_epoch)
        writer.write_int32(NO_LEADER_EPOCH)
        writer.write_no_tags()
        writer.write_no_tags()
    writer.write_no_tags()
    return join_parts(writer.finish())


def parse_ends_asked(body: Buffer, entries_max: int = ANY_NUMBER) -> dict[TopicPartition, int]:
    """Return the partitions of a request, with the leader epochs. Raises `WireFormatError`."""
    reader = WireReader(body, 0, entries_max)
    reader.read_int32()  # the node, which has proven who it is
    asked: dict[TopicPartition, int] = {}
    for _ in range(reader.read_count(True, _TOPIC_BYTES_MIN)):
        topic = reader.read_string(True)
        for _ in range(reader.read_count(True, _PARTITION_BYTES_MIN)):
            partition, leader_epoch = reader.read_int32(), reader.read_int32()
            reader.read_int32()
            reader.skip_tagged_fields()
            asked[TopicPartition(topic, partition)] = leader_epoch
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    return asked


def build_ends(ends: Mapping[TopicPartition, EpochAndEnd | ErrorCode]) -> bytes:
    """Return the body of the answer: where each log ends, or why that is not said."""
    writer = WireWriter()
    writer.write_int32(0)  # throttle time
    writer.write_count(len(ends), True)
    for tp, end in ends.items():
        error, (epoch, offset) = (end, (NO_LEADER_EPOCH, -1)) if isinstance(end, ErrorCode) else (ErrorCode.NONE, end)
        writer.write_string(tp.topic, True)
        writer.write_count(1, True)
        writer.write_int16(error)
        writer.write_int32(tp.partition)
        writer.write_int32(epoch)
        writer.write_int64(offset)
        writer.write_no_tags()
        writer.write_no_tags()
    writer.write_no_tags()
    return join_parts(writer.finish())


def parse_ends(body: Buffer) -> dict[TopicPartition, EpochAndEnd]:
    """Return where logs end, of those that were answered without an error. Raises `WireFormatError`."""
    reader = WireReader(body)
    reader.read_int32()  # throttle time
    ends: dict[TopicPartition, EpochAndEnd] = {}
    for _ in range(reader.read_count(True, _TOPIC_BYTES_MIN)):
        topic = reader.read_string(True)
        for _ in range(reader.read_count(True, _END_BYTES_MIN)):
            error = error_code_of(reader.read_int16())
            tp, end = TopicPartition(topic, reader.read_int32()), (reader.read_int32(), reader.read_int64())
            reader.skip_tagged_fields()
            if error is ErrorCode.NONE:
                ends[tp] = end
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    return ends
