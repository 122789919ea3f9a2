"""Topics and their partitions as Metadata and DescribeTopicPartitions tell them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from semel.broker.handlers.metadata import fenced_nodes
from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import PartitionDescription
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import INTERNAL_TOPICS, NO_LEADER, ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.metadata import MetadataPartition, MetadataTopic


class ToldBy(NamedTuple):
    """The listener that an answer goes by.

    without_leader: the error of a partition whose leader has no listener of this name
    """

    listener: str
    without_leader: ErrorCode


def told_topic(
    node: Services,
    result: TopicResult,
    partitions: Iterable[PartitionDescription],
    told_by: ToldBy,
    operations: int,
) -> MetadataTopic:
    """Return a topic with the partitions given, or what is wrong with it."""
    is_denied = result.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return MetadataTopic(
        result.error,
        # A caller that asks by an id gets no name where it is unknown here, or he may not hear it.
        None if result.error is ErrorCode.UNKNOWN_TOPIC_ID or (is_denied and not result.name) else result.name,
        result.topic_id or ZERO_TOPIC_ID,
        not is_denied and result.name in INTERNAL_TOPICS,
        _told_partitions(node, result.name, partitions, told_by),
        operations,
    )


def _told_partitions(
    node: Services, topic: str, partitions: Iterable[PartitionDescription], told_by: ToldBy
) -> list[MetadataPartition]:
    brokers = node.metadata.image.brokers
    reached = {node_id for node_id, one in brokers.items() if one.kafka_at(told_by.listener) is not None}
    alive = reached - fenced_nodes(node)
    return [
        _told_partition(node, TopicPartition(topic, each.partition), each, alive, reached, told_by.without_leader)
        for each in partitions
    ]


def _told_partition(
    node: Services,
    tp: TopicPartition,
    partition: PartitionDescription,
    alive: Collection[int],
    reached: Collection[int],
    without_leader: ErrorCode,
) -> MetadataPartition:
    """One whose leader is not in the cluster, has no log of it, or no listener for this client, has none.

    Replicas are offline whose nodes are away, or have no such listener, and the one here whose log failed. Producers
    then send records without a key to the other partitions, as with an offline directory of Kafka's.
    """
    here, node_id = node.partition(tp), node.config.node_id
    has_failed = node.logs.offline.get(tp) is not None or (here is not None and here.offline_error is not None)
    is_closed = partition.leader_id == node_id and node.logs.offline.get(tp) is not None
    error = ErrorCode.NONE
    if partition.leader_id not in node.metadata.image.brokers or is_closed:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif partition.leader_id not in reached:
        error = without_leader
    return MetadataPartition(
        error,
        partition.partition,
        partition.leader_id if error is ErrorCode.NONE else NO_LEADER,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        tuple(each for each in partition.replicas if each not in alive or (each == node_id and has_failed)),
    )
