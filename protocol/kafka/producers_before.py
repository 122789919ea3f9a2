"""What a node asks a partition's leader where it begins that partition's log: which producers came before (P2).

Kafka's DescribeProducers v0 for one partition. What Kafka's lacks is in tagged fields: which topic a name means (R8),
the leader epoch, the offset, and in the answer a page of producers as a snapshot file has them. Its own list of
producers has their last sequence alone, and stays empty.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import error_code_of
from semel.protocol.kafka.tagged_fields import read_tags, write_tag
from semel.protocol.kafka.wire import ANY_NUMBER, Buffer, WireFormatError, WireReader, WireWriter, join_parts

DESCRIBE_PRODUCERS_VERSION: Final = 0

_ASKED_TAG: Final = 10_000
_SNAPSHOT_TAG: Final = 10_000
_MORE_TAG: Final = 10_001
_ASKED: Final = struct.Struct(">16siqq")
_TOPIC_BYTES_MIN: Final = 1 + 1 + 1
_PARTITION_BYTES: Final = 4
_PARTITION_RESULT_BYTES_MIN: Final = 4 + 2 + 1 + 1 + 1


@dataclass(frozen=True, slots=True)
class ProducersBefore:
    """The question: who had written to a partition before `offset`, by producer id, from behind `after_id` on."""

    tp: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    """In which the node that is asked leads."""
    offset: int
    after_id: int = -1

    def build(self) -> bytes:
        """Return the body of the request."""
        writer = WireWriter()
        writer.write_count(1, True)
        writer.write_string(self.tp.topic, True)
        writer.write_count(1, True)
        writer.write_int32(self.tp.partition)
        writer.write_uvarint(1)
        asked = _ASKED.pack(self.topic_id.bytes, self.leader_epoch, self.offset, self.after_id)
        write_tag(writer, _ASKED_TAG, asked)
        writer.write_no_tags()
        return join_parts(writer.finish())

    @classmethod
    def parse(cls, body: Buffer, entries_max: int = ANY_NUMBER) -> ProducersBefore:
        """Read the body of a request. Raises `WireFormatError`."""
        reader = WireReader(body, 0, entries_max)
        _expect_one(reader, _TOPIC_BYTES_MIN)
        topic = reader.read_string(True)
        _expect_one(reader, _PARTITION_BYTES)
        tp = TopicPartition(topic, reader.read_int32())
        asked = read_tags(reader).get(_ASKED_TAG, b"")
        if len(asked) != _ASKED.size:
            raise WireFormatError(f"what is asked of a partition has {_ASKED.size} bytes, not {len(asked)}")
        topic_id, leader_epoch, offset, after_id = _ASKED.unpack(asked)
        reader.skip_tagged_fields()
        return cls(tp, TopicId(UUID(bytes=topic_id)), leader_epoch, offset, after_id)


@dataclass(frozen=True, slots=True)
class ProducersBeforeAnswer:
    """One page of producers, or why there is none."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    snapshot: bytes = b""
    """As a producer snapshot file has them, by growing id."""
    has_more: bool = False
    """Whether others follow, behind the last of these."""

    def build(self, tp: TopicPartition) -> bytes:
        """Return the body of the answer."""
        writer = WireWriter()
        writer.write_int32(0)  # throttle time
        writer.write_count(1, True)
        writer.write_string(tp.topic, True)
        writer.write_count(1, True)
        writer.write_int32(tp.partition)
        writer.write_int16(self.error)
        writer.write_string(self.message or None, True)
        writer.write_count(0, True)
        writer.write_uvarint(2)
        write_tag(writer, _SNAPSHOT_TAG, self.snapshot)
        write_tag(writer, _MORE_TAG, bytes([self.has_more]))
        writer.write_no_tags()
        writer.write_no_tags()
        return join_parts(writer.finish())

    @classmethod
    def parse(cls, body: Buffer, tp: TopicPartition) -> ProducersBeforeAnswer:
        """Read the body of the answer for a partition. Raises `WireFormatError`, also where it is for another one."""
        reader = WireReader(body)
        reader.read_int32()  # throttle time
        _expect_one(reader, _TOPIC_BYTES_MIN)
        topic = reader.read_string(True)
        _expect_one(reader, _PARTITION_RESULT_BYTES_MIN)
        answered = TopicPartition(topic, reader.read_int32())
        if answered != tp:
            raise WireFormatError(f"the answer is about {answered}, and {tp} was asked about")
        error, message = error_code_of(reader.read_int16()), reader.read_nullable_string(True)
        if reader.read_count(True, 1) > 0:
            raise WireFormatError("the producers are in a list that has no batches")
        tags = read_tags(reader)
        reader.skip_tagged_fields()
        reader.skip_tagged_fields()
        return cls(error, message or "", tags.get(_SNAPSHOT_TAG, b""), tags.get(_MORE_TAG) == b"\x01")


def _expect_one(reader: WireReader, element_bytes_min: int) -> None:
    count = reader.read_count(True, element_bytes_min)
    if count != 1:
        raise WireFormatError(f"it is about one topic and one partition, not {count}")
