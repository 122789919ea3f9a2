"""On which nodes the replicas of new partitions are: as the rule of `place_replicas` says, or as the caller does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from semel.broker.controller.membership import alive_nodes, cordoned_nodes, stopping_nodes
from semel.broker.controller.placement import new_partition, place_replicas
from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.randomness import source


def placed_by_rule(
    image: MetadataImage,
    nodes: Collection[int],
    topic: str,
    count: int,
    factor: int,
    existing: Sequence[PartitionState] = (),
) -> tuple[PartitionState, ...]:
    """Return the states of `count` new partitions with `factor` replicas on `nodes`, beside those that the topic has.

    Raises `UsageError` (INVALID_REPLICATION_FACTOR).
    """
    start = source().randrange(len(nodes)) if len(nodes) > 1 else 0
    return place_replicas(
        image, topic, count, factor, nodes=nodes, start=start, existing=existing, stopping=stopping_nodes(image)
    )


def placed_as_assigned(
    image: MetadataImage,
    topic: str,
    first: int,
    assignments: Mapping[int, Sequence[int]],
    existing: Sequence[PartitionState] = (),
) -> tuple[PartitionState, ...]:
    """Return the states of the partitions `first` and following, as assigned, beside those that the topic has.

    Raises `UsageError` (INVALID_REPLICA_ASSIGNMENT) for nodes that don't exist, gaps, and partitions that differ in
    their number of replicas.
    """
    if sorted(assignments) != list(range(first, first + len(assignments))):
        raise _refusal(f"the partitions of {topic} must be {first} and following, each once, not {sorted(assignments)}")
    wanted = [tuple(assignments[number]) for number in sorted(assignments)]
    alive = alive_nodes(image)
    like, count = (0, len(existing[0].replicas_after)) if existing else (first, len(wanted[0]) if wanted else 0)
    for number, replicas in enumerate(wanted, start=first):
        unknown = sorted(set(replicas) - set(image.brokers))
        if unknown:
            nodes = ", ".join(map(str, image.brokers))
            raise _refusal(f"{topic}-{number} can't be on node {unknown[0]}: the cluster has the nodes {nodes}")
        if cordoned := cordoned_nodes(image).intersection(replicas):
            raise _refusal(
                f"{topic}-{number} can't be on node {min(cordoned)}: it is cordoned, and gets no new replicas"
            )
        if not replicas or len(set(replicas)) < len(replicas):
            raise _refusal(f"{topic}-{number} must be on at least one node, and once on each, not on {replicas}")
        if alive.isdisjoint(replicas):
            nodes = ", ".join(map(str, replicas))
            raise _refusal(
                f"{topic}-{number} can't be on {nodes} alone: none of these nodes is alive. Name one that is"
            )
        if len(replicas) != count:
            raise _refusal(
                f"{topic}-{number} has {len(replicas)} replicas and {topic}-{like} has {count}: all partitions must "
                "have the same number"
            )
    return tuple(new_partition(replicas, alive) for replicas in wanted)


def _refusal(message: str) -> UsageError:
    return UsageError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
