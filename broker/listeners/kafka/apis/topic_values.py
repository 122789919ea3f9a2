"""Topics and their partitions as Metadata and DescribeTopicPartitions tell them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from semel.broker.handlers.metadata import fenced_nodes
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
    is_denied = result.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return MetadataTopic(
        result.error,
        # A caller that asks by an id gets no name where it is unknown here, or he may not hear it.
        None if result.error is ErrorCode.UNKNOWN_TOPIC_ID or (is_denied and not result.name) else result.name,
        result.topic_id or ZERO_TOPIC_ID,
        not is_denied and result.name in INTERNAL_TOPICS,
        _told_partitions(node, result.name, partitions),
        operations,
    )


def _told_partitions(node: Services, topic: str, partitions: Iterable[PartitionDescription]) -> list[MetadataPartition]:
    alive = node.metadata.image.brokers.keys() - fenced_nodes(node)
    return [_told_partition(node, TopicPartition(topic, each.partition), each, alive) for each in partitions]


def _told_partition(
    node: Services, tp: TopicPartition, partition: PartitionDescription, alive: Collection[int]
) -> MetadataPartition:
    """One whose leader is not in the cluster, or has no log of it, has none.

    Replicas are offline whose nodes are away, and the one here whose log failed. Producers then send records without a
    key to the other partitions, as with an offline directory of Kafka's.
    """
    here, node_id = node.partition(tp), node.config.node_id
    has_failed = node.logs.offline.get(tp) is not None or (here is not None and here.offline_error is not None)
    is_closed = partition.leader_id == node_id and node.logs.offline.get(tp) is not None
    has_leader = partition.leader_id in node.metadata.image.brokers and not is_closed
    return MetadataPartition(
        ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition.partition,
        partition.leader_id if has_leader else NO_LEADER,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        tuple(each for each in partition.replicas if each not in alive or (each == node_id and has_failed)),
    )
