"""Topics and their partitions as Metadata and DescribeTopicPartitions tell them."""

from __future__ import annotations

from typing import Any

from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import PartitionDescription
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import INTERNAL_TOPICS, ZERO_TOPIC_ID, TopicPartition

NO_LEADER = -1


def topic_values(result: TopicResult, operations: int) -> dict[str, Any]:
    """Return a topic without its partitions."""
    return {
        "error_code": result.error,
        # Whoever asks by an id that is unknown here gets no name.
        "name": None if result.error is ErrorCode.UNKNOWN_TOPIC_ID else result.name,
        "topic_id": (result.topic_id or ZERO_TOPIC_ID).bytes,
        "is_internal": result.name in INTERNAL_TOPICS,
        "topic_authorized_operations": operations,
    }


def partition_values(node: Services, topic: str, partition: PartitionDescription) -> dict[str, Any]:
    """Return a partition. One whose leader is not in the cluster has none; one whose log failed here is offline."""
    has_leader = partition.leader_id in node.metadata.image.brokers
    here = node.partition(TopicPartition(topic, partition.partition))
    node_id = node.config.node_id
    offline = node_id in partition.replicas and (here is None or here.offline_error is not None)
    return {
        "error_code": ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": partition.partition,
        "leader_id": partition.leader_id if has_leader else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": (node_id,) if offline else (),
    }
