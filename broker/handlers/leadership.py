"""ElectLeaders and the reassignment of replicas, as far as they concern replicas that stay where they are.

A partition's replicas are on this node alone, so its leader is the preferred one and nothing can be moved elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.metadata.changes import PartitionState
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, FatalError, UsageError, error_for
from semel.protocol.ids import TopicPartition


def check_election(node: Services, tp: TopicPartition) -> None:
    """Raise what answers the election of a leader: ELECTION_NOT_NEEDED, or UNKNOWN_TOPIC_OR_PARTITION."""
    leader = _existing(node, tp).leader
    raise FatalError(f"node {leader} leads {tp} already, and is its preferred leader", ErrorCode.ELECTION_NOT_NEEDED)


def check_reassignment(node: Services, tp: TopicPartition, replicas: Sequence[int] | None) -> None:
    """Raise what is wrong with moving a partition's replicas, or return where they are there. None cancels a move."""
    state = _existing(node, tp)
    if replicas is None:
        raise FatalError(f"the replicas of {tp} are not being moved", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if tuple(replicas) != state.replicas:
        raise UsageError(
            f"the replicas of {tp} can't be moved from {list(state.replicas)} to {list(replicas)[:10]}: a partition "
            "stays on the node that it was created on",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )


def _existing(node: Services, tp: TopicPartition) -> PartitionState:
    state = node.metadata.image.partition(tp)
    if state is None:
        name = TopicPartition(tp.topic[:300], tp.partition)
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}: check its name")
    return state
