"""On which nodes the replicas of new partitions are: this one alone, or where whoever asks says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import ErrorCode, UsageError


def placed_here(node_id: int, count: int) -> tuple[PartitionState, ...]:
    """Return the states of `count` partitions with one replica, on this node."""
    return (_state((node_id,)),) * count


def placed_as_assigned(
    image: MetadataImage, topic: str, first: int, assignments: Mapping[int, Sequence[int]]
) -> tuple[PartitionState, ...]:
    """Return the states of the partitions `first` and following, as assigned.

    Raises `UsageError` (INVALID_REPLICA_ASSIGNMENT) for nodes that don't exist, gaps, and partitions that differ in
    their number of replicas.
    """
    if sorted(assignments) != list(range(first, first + len(assignments))):
        raise _refusal(f"the partitions of {topic} must be {first} and following, each once, not {sorted(assignments)}")
    wanted = [tuple(assignments[number]) for number in sorted(assignments)]
    for number, replicas in enumerate(wanted, start=first):
        unknown = sorted(set(replicas) - set(image.brokers))
        if unknown:
            nodes = ", ".join(map(str, image.brokers))
            raise _refusal(f"{topic}-{number} can't be on node {unknown[0]}: the cluster has the nodes {nodes}")
        if not replicas or len(set(replicas)) < len(replicas):
            raise _refusal(f"{topic}-{number} must be on at least one node, and once on each, not on {replicas}")
        if len(replicas) != len(wanted[0]):
            raise _refusal(
                f"{topic}-{number} has {len(replicas)} replicas and {topic}-{first} has {len(wanted[0])}: all "
                "partitions must have the same number"
            )
    return tuple(map(_state, wanted))


def _state(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(leader=replicas[0], leader_epoch=0, replicas=replicas, isr=replicas)


def _refusal(message: str) -> UsageError:
    return UsageError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
