"""Finds the partition that a request is about, or the error that says why it can't be used."""

from __future__ import annotations

from semel.broker.partition import Partition
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import TopicPartition


def partition_of(node: Services, tp: TopicPartition) -> Partition:
    """Return the partition. Raises UNKNOWN_TOPIC_OR_PARTITION, or KAFKA_STORAGE_ERROR where its log is offline."""
    partition = node.partition(tp)
    if partition is not None:
        if partition.offline_error is not None:
            raise partition.offline_error
        return partition
    topic = node.metadata.topic(tp.topic)
    if topic is None:
        message = f"there is no topic {tp.topic[:300]!r}: create it, or check its name"
    elif not 0 <= tp.partition < len(topic.partitions):
        message = f"topic {tp.topic} has the partitions 0 to {len(topic.partitions) - 1}, not {tp.partition}"
    else:
        raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {tp} is offline: see the node's own log")
    raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
