"""How a producer commits a group's offsets in its transaction: TxnOffsetCommit v5 (KIP-98, KIP-447, KIP-890).

Written by hand, as Produce and Fetch are: a client needs few other Kafka messages, and so none of kio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import error_code_of
from semel.protocol.kafka.wire import Buffer, Part, WireReader, WireWriter

TXN_OFFSET_COMMIT_VERSION: Final = 5
"""The first version that adds the offsets' partition to the transaction itself."""
_TOPIC_BYTES_MIN: Final = 3
_PARTITION_BYTES_MIN: Final = 7


def txn_offset_commit_request(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: GroupMetadata,
) -> list[Part]:
    """Return the body of a request to commit the offsets of a group."""
    writer = WireWriter()
    writer.write_string(transactional_id, True)
    writer.write_string(group.group_id, True)
    writer.write_int64(producer.producer_id)
    writer.write_int16(producer.producer_epoch)
    writer.write_int32(group.generation_id)
    writer.write_string(group.member_id, True)
    writer.write_string(group.group_instance_id, True)
    by_topic: dict[str, list[tuple[int, OffsetAndMetadata]]] = {}
    for tp, position in offsets.items():
        by_topic.setdefault(tp.topic, []).append((tp.partition, position))
    writer.write_count(len(by_topic), True)
    for topic, positions in by_topic.items():
        writer.write_string(topic, True)
        writer.write_count(len(positions), True)
        for partition, position in positions:
            writer.write_int32(partition)
            writer.write_int64(position.offset)
            writer.write_int32(position.leader_epoch)
            writer.write_string(position.metadata, True)
            writer.write_no_tags()
        writer.write_no_tags()
    writer.write_no_tags()
    return writer.finish()


def read_txn_offset_commit(body: Buffer) -> dict[TopicPartition, ErrorCode]:
    """Return what is answered to it, for each partition. Raises `WireFormatError`."""
    reader = WireReader(body)
    reader.read_int32()  # for how long this client's requests are held up: the node waits by itself
    errors: dict[TopicPartition, ErrorCode] = {}
    for _ in range(reader.read_count(True, _TOPIC_BYTES_MIN)):
        topic = reader.read_string(True)
        for _ in range(reader.read_count(True, _PARTITION_BYTES_MIN)):
            partition = reader.read_int32()
            errors[TopicPartition(topic, partition)] = error_code_of(reader.read_int16())
            reader.skip_tagged_fields()
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    reader.expect_end()
    return errors
