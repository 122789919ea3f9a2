"""What a plan is made from: nodes, partitions, where their replicas are, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum, isfinite

from semel.protocol.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class NodeModel:
    """One node.

    rack:         empty for a node without one; these are in one rack together, as in Kafka
    may_get_more: False for a node that gets no new replica: cordoned, being drained, dead, or without a port for peers
    free_bytes:   free on its disk; None where that is not known, and then there is no limit
    """

    node_id: int
    rack: str
    is_alive: bool
    may_get_more: bool
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class PartitionModel:
    """One partition.

    replicas:        ids of the nodes that have one, the preferred leader first
    leader:          the node that leads it now; None where nobody does
    in_sync:         which of the replicas are in sync
    size_bytes:      of one replica
    bytes_in_per_s:  what producers write; each replica writes as much to its disk
    bytes_out_per_s: what consumers read, from whichever replicas
    is_moving:       its replicas are being moved already
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int | None
    in_sync: frozenset[int]
    size_bytes: int
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    is_moving: bool = False

    @property
    def led_bytes_out_per_s(self) -> float:
        """What its leader sends: to consumers what they read, and to each follower what producers write.

        Consumers that read from the nearest replica (KIP-392) count for the leader, too: which replica that is depends
        on where the replicas are, and that is what a plan decides.
        """
        return self.bytes_out_per_s + self.bytes_in_per_s * (len(self.replicas) - 1)


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """What one node has.

    leaders:         how many partitions have it as their preferred leader, no matter who leads them now
    size_bytes:      of all its replicas
    bytes_in_per_s:  of all its replicas
    bytes_out_per_s: of the partitions that have it as their preferred leader: what consumers read, also those that read
                     from the nearest replica, and what producers write times the number of the other replicas
    """

    node_id: int
    replicas: int
    leaders: int
    size_bytes: int
    bytes_in_per_s: float
    bytes_out_per_s: float


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """All nodes and partitions, in any order.

    Raises `ValueError`: a node or partition is there twice, a partition has no replica, two on one node, or one on a
    node that is not in the model; its leader or an in-sync replica is none of its replicas; a size or rate is negative.
    """

    nodes: tuple[NodeModel, ...]
    partitions: tuple[PartitionModel, ...]

    def __post_init__(self) -> None:
        known: set[int] = set()
        for node in self.nodes:
            if node.node_id in known:
                raise ValueError(f"node {node.node_id} is in the model twice")
            known.add(node.node_id)
            if node.free_bytes is not None and node.free_bytes < 0:
                raise ValueError(
                    f"node {node.node_id} can't have {node.free_bytes} bytes free: give 0 or more, or None"
                )
        seen: set[TopicPartition] = set()
        for one in self.partitions:
            if one.partition in seen:
                raise ValueError(f"{one.partition} is in the model twice")
            seen.add(one.partition)
            _check_partition(one, known)

    def totals(self) -> tuple[NodeTotals, ...]:
        """Return what each node has, by node id."""
        replicas = {node.node_id: 0 for node in self.nodes}
        leaders, sizes = replicas.copy(), replicas.copy()
        rates_in: dict[int, list[float]] = {node_id: [] for node_id in replicas}
        rates_out: dict[int, list[float]] = {node_id: [] for node_id in replicas}
        for one in self.partitions:
            leaders[one.replicas[0]] += 1
            rates_out[one.replicas[0]].append(one.led_bytes_out_per_s)
            for node_id in one.replicas:
                replicas[node_id] += 1
                sizes[node_id] += one.size_bytes
                rates_in[node_id].append(one.bytes_in_per_s)
        # fsum: the same in whatever order the partitions are.
        return tuple(
            NodeTotals(each, replicas[each], leaders[each], sizes[each], fsum(rates_in[each]), fsum(rates_out[each]))
            for each in sorted(replicas)
        )

    def moved(self, replicas: Mapping[TopicPartition, tuple[int, ...]]) -> ClusterModel:
        """Return the model as it is once partitions have these replicas: the new ones in sync, the old ones deleted.

        Raises `ValueError` where that is no valid model, or a node has not as many free bytes as it gets.
        """
        free = {node.node_id: node.free_bytes for node in self.nodes}
        partitions: list[PartitionModel] = []
        for one in self.partitions:
            after = replicas.get(one.partition, one.replicas)
            added, removed = set(after).difference(one.replicas), set(one.replicas).difference(after)
            for node_ids, size_bytes in ((added, -one.size_bytes), (removed, one.size_bytes)):
                for node_id in node_ids:
                    before = free.get(node_id)
                    if before is not None:
                        free[node_id] = before + size_bytes
            is_led_on = one.leader is None or one.leader in after
            partitions.append(
                replace(
                    one,
                    replicas=after,
                    leader=one.leader if is_led_on else after[0],
                    in_sync=one.in_sync.difference(removed) | added,
                )
            )
        return ClusterModel(
            tuple(replace(node, free_bytes=free[node.node_id]) for node in self.nodes), tuple(partitions)
        )


def _check_partition(one: PartitionModel, known: set[int]) -> None:
    name, replicas = one.partition, one.replicas
    if not replicas:
        raise ValueError(f"{name} has no replica")
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"{name} has two replicas on one node: {list(replicas)}")
    if not known.issuperset(replicas):
        raise ValueError(f"{name} has replicas on {list(replicas)}, of which the model does not have all nodes")
    if one.leader is not None and one.leader not in replicas:
        raise ValueError(f"{name} is led by node {one.leader}, which is none of its replicas {list(replicas)}")
    if not one.in_sync.issubset(replicas):
        raise ValueError(f"{name} has in-sync replicas {sorted(one.in_sync)}, not all of its replicas {list(replicas)}")
    if one.size_bytes < 0:
        raise ValueError(f"{name} can't have {one.size_bytes} bytes: give 0 or more")
    if not (isfinite(one.bytes_in_per_s) and one.bytes_in_per_s >= 0):
        raise ValueError(f"{name} can't get {one.bytes_in_per_s} bytes a second: give 0 or more")
    if not (isfinite(one.bytes_out_per_s) and one.bytes_out_per_s >= 0):
        raise ValueError(f"{name} can't be read at {one.bytes_out_per_s} bytes a second: give 0 or more")
