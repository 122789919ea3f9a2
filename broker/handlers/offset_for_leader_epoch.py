"""OffsetForLeaderEpoch: where a leader epoch ended in a partition's log (KIP-101, KIP-320)."""

from __future__ import annotations

from dataclasses import dataclass

from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class LeaderEpochEnd:
    """The largest epoch that is known at or below the one asked for, and where it ended; -1 for both if none is."""

    leader_epoch: int = NO_LEADER_EPOCH
    end_offset: int = -1
    error: ErrorCode = ErrorCode.NONE


def offset_for_leader_epoch(
    node: Services, tp: TopicPartition, leader_epoch: int, *, current_leader_epoch: int
) -> LeaderEpochEnd:
    """Return where `leader_epoch` ended. `current_leader_epoch` is what the caller knows, -1 for nothing."""
    try:
        end = partition_of(node, tp, current_leader_epoch).end_offset_for_epoch(leader_epoch)
    except SemelError as error:
        return LeaderEpochEnd(error=error.code)
    return LeaderEpochEnd() if end is None else LeaderEpochEnd(end.leader_epoch, end.end_offset)
