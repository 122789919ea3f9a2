"""Where this node's replicas end, as it tells the controller where no leader is known to have most (R4)."""

from __future__ import annotations

from collections.abc import Mapping

from semel.broker.services import Services
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.replica_ends import EpochAndEnd
from semel.runtime.turns import in_turns


async def replica_ends(
    node: Services, asked: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochAndEnd | ErrorCode]:
    """Return where logs end that have no leader in the epochs that are asked about, and why others are not told."""
    return {tp: _end(node, tp, epoch) async for tp, epoch in in_turns(asked.items())}


def _end(node: Services, tp: TopicPartition, leader_epoch: int) -> EpochAndEnd | ErrorCode:
    """Only what has heard of that epoch takes no record of an earlier one any more."""
    partition = node.partition(tp)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader_epoch != leader_epoch or partition.leader is not None:
        return (
            ErrorCode.UNKNOWN_LEADER_EPOCH if partition.leader_epoch < leader_epoch else ErrorCode.FENCED_LEADER_EPOCH
        )
    lacks_some = node.logs.unreported.may_be_damaged((partition.topic_id, tp.partition))
    if partition.offline_error is not None or lacks_some or partition.durable_end < partition.log_end_offset:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return partition.log.epochs.latest, partition.log_end_offset
