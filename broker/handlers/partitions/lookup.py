"""Finds the partition that a request is about, or the error that says why it can't be used."""

from __future__ import annotations

from semel.broker.handlers.partitions.leader_hints import not_here
from semel.broker.logs.partition import Partition
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition


def partition_of(node: Services, tp: TopicPartition, leader_epoch: int = NO_LEADER_EPOCH) -> Partition:
    """Return the partition. Raises UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR where its log is offline, or
    NOT_LEADER_OR_FOLLOWER where another node leads it.

    A `leader_epoch` that the caller knows must be the current one (KIP-320): FENCED_LEADER_EPOCH where it is over,
    UNKNOWN_LEADER_EPOCH where this node has not heard of it.
    """
    partition = node.partition(tp)
    if partition is not None:
        if partition.offline_error is not None:
            raise partition.offline_error
        check_leader_epoch(partition, leader_epoch)
        return partition
    raise not_here(node, tp)


def check_leader_epoch(partition: Partition, leader_epoch: int) -> None:
    """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH where `leader_epoch` is given and not the current one."""
    if leader_epoch < 0 or leader_epoch == partition.leader_epoch:
        return
    is_over = leader_epoch < partition.leader_epoch
    raise error_for(
        ErrorCode.FENCED_LEADER_EPOCH if is_over else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"{partition.tp} is in leader epoch {partition.leader_epoch}, not {leader_epoch}: "
        + ("ask for the metadata again" if is_over else "try again, this node is behind"),
    )
