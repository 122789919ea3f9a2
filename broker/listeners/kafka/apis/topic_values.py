"""Topics and their partitions as Metadata and DescribeTopicPartitions tell them."""

from __future__ import annotations

from collections.abc import Iterable

from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import PartitionDescription
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import INTERNAL_TOPICS, NO_LEADER, ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.metadata import MetadataPartition, MetadataTopic


def told_topic(
    node: Services, result: TopicResult, partitions: Iterable[PartitionDescription], operations: int
) -> MetadataTopic:
    """Return a topic with the partitions given, or what is wrong with it."""
    return MetadataTopic(
        result.error,
        # A caller that asks by an id that is unknown here gets no name.
        None if result.error is ErrorCode.UNKNOWN_TOPIC_ID else result.name,
        result.topic_id or ZERO_TOPIC_ID,
        result.name in INTERNAL_TOPICS,
        [_told_partition(node, result.name, each) for each in partitions],
        operations,
    )


def _told_partition(node: Services, topic: str, partition: PartitionDescription) -> MetadataPartition:
    """One whose leader is not in the cluster, or has no log of it, has none; one whose log failed here is offline.

    Producers then send records without a key to the other partitions, as with an offline directory of Kafka's.
    """
    tp = TopicPartition(topic, partition.partition)
    here = node.partition(tp)
    node_id = node.config.node_id
    is_closed = partition.leader_id == node_id and node.logs.offline.get(tp) is not None
    has_leader = partition.leader_id in node.metadata.image.brokers and not is_closed
    offline = node_id in partition.replicas and (here is None or here.offline_error is not None)
    return MetadataPartition(
        ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition.partition,
        partition.leader_id if has_leader else NO_LEADER,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        (node_id,) if offline else (),
    )
