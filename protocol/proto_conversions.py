"""Conversions between protobuf messages and plain data that both ends of gRPC need, or several clients."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.topics import PartitionDescription
from semel.protocol.ids import ZERO_TOPIC_ID, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.v1 import common_pb2, metadata_pb2, shared_pb2


def producer_message(producer: ProducerIdAndEpoch) -> common_pb2.Producer:
    return common_pb2.Producer(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def producer_of(message: common_pb2.Producer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(message.producer_id, message.producer_epoch)


def decision_of(message: shared_pb2.CommitDecision) -> CommitDecision:
    return CommitDecision(
        message.token, message.sequence, message.payload, message.attempt, message.decided_ms, message.writers
    )


def by_topic(partitions: Iterable[TopicPartition]) -> list[common_pb2.TopicPartitions]:
    numbers: dict[str, list[int]] = {}
    for tp in partitions:
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return [common_pb2.TopicPartitions(topic=topic, partitions=found) for topic, found in numbers.items()]


def told_topic_id(message: metadata_pb2.Topic) -> TopicId:
    """Return the id of a topic as a node tells it: zero where it has none."""
    return TopicId(UUID(bytes=message.topic_id)) if len(message.topic_id) == 16 else ZERO_TOPIC_ID


def partition_of(message: metadata_pb2.Partition) -> PartitionDescription:
    return PartitionDescription(
        message.partition,
        message.leader_id,
        message.leader_epoch,
        tuple(message.replicas),
        tuple(message.isr),
        message.is_switching,
    )
