"""What a cluster looks like, from the facts of its nodes: `semel cluster status`. Pure: facts in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from semel.protocol.api.diagnostics import NodeSnapshot, Thresholds
from semel.protocol.ids import NO_LEADER, TopicPartition
from semel.sdk.diagnosis.cluster_rules import lacks_of_replicas
from semel.sdk.diagnosis.findings import Cluster
from semel.sdk.diagnosis.remote_costs import RemoteState, remote_state

UP: Final = "up"
STOPPING: Final = "stopping"
FULL: Final = "full"
FENCED: Final = "fenced"
UNREACHABLE: Final = "unreachable"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node. What it did not tell is None.

    address: for gRPC, as the cluster tells clients; empty where there is one node alone
    reason:  why it does not answer; empty where it does
    behind:  how many changes of the metadata it has not applied that another one has
    """

    node_id: int
    address: str
    state: str
    reason: str = ""
    leads: int | None = None
    behind: int | None = None
    version: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicationState:
    """A partition without a leader, or with replicas that are not in sync.

    leader: None where nobody leads it
    lacks:  how many records each of the others lacks; None where its leader has not heard of it, or nobody tells
    """

    partition: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    lacks: Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All nodes by their ids, who is the controller (None: nobody says so), and what is behind.

    behind_total:     how many partitions are, of which `behind` has the first
    moving_total:     how many partitions have replicas that are being moved
    throttled_topics: the first topics with replicas whose copying is throttled
    metadata_away_ms: for how long no node that answers has reached the metadata's database, in milliseconds: all that
                      is said of partitions is so old. 0 where one reaches it
    silent_leaders:   while it is away: how many partitions each node leads that does not answer
    remote:           the remote storage; None where there is none
    """

    nodes: tuple[NodeState, ...]
    controller: int | None
    behind: tuple[ReplicationState, ...]
    behind_total: int
    moving_total: int = 0
    throttled_topics: tuple[str, ...] = ()
    metadata_away_ms: int = 0
    silent_leaders: Mapping[int, int] = field(default_factory=dict)
    remote: RemoteState | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all nodes are up, and all replicas in sync, as far as that can be known now."""
        return not self.behind_total and not self.metadata_away_ms and all(node.state == UP for node in self.nodes)


def state_of_cluster(cluster: Cluster, thresholds: Thresholds | None = None) -> ClusterState:
    """Put together what the nodes say of themselves and of each other. Who knows the newest metadata is believed."""
    newest = cluster.newest
    is_frozen = cluster.is_metadata_frozen((thresholds or Thresholds()).metadata_ms)
    known = () if newest is None else newest.nodes
    return ClusterState(
        nodes=tuple(_nodes(cluster)),
        controller=next((node.node_id for node in cluster.nodes if node.is_controller), None),
        behind=() if newest is None else tuple(_replication(cluster, newest)),
        behind_total=0 if newest is None else newest.replication_total,
        moving_total=0 if newest is None else newest.moving_total,
        throttled_topics=() if newest is None else newest.throttled_topics,
        metadata_away_ms=min(node.metadata_away_ms for node in cluster.nodes) if is_frozen else 0,
        silent_leaders={one.node_id: one.leads for one in known if one.leads and one.node_id in cluster.unreachable}
        if is_frozen
        else {},
        remote=remote_state(cluster),
    )


def _nodes(cluster: Cluster) -> Iterator[NodeState]:
    newest = cluster.newest
    known = {} if newest is None else {one.node_id: one for one in newest.nodes}
    told = {node.node_id: node for node in cluster.nodes}
    for node_id in sorted({*known, *told, *cluster.unreachable}):
        fact, node = known.get(node_id), told.get(node_id)
        address = cluster.addresses.get(node_id, "")
        if node is None:
            reason = cluster.unreachable.get(node_id, "it was not asked: its address is not known")
            state = FENCED if fact is not None and fact.is_fenced else UNREACHABLE
            yield NodeState(node_id, address, state, reason)
            continue
        state = UP
        if fact is not None:
            state = FENCED if fact.is_fenced else STOPPING if fact.is_stopping else FULL if fact.is_full else UP
        yield NodeState(
            node_id,
            address,
            state,
            leads=node.leaders,
            behind=0 if newest is None else newest.metadata_sequence - node.metadata_sequence,
            version=node.version,
            free_bytes=node.disk.free_bytes if node.disk.free_bytes >= 0 else None,
            total_bytes=node.disk.total_bytes if node.disk.total_bytes >= 0 else None,
        )


def _replication(cluster: Cluster, newest: NodeSnapshot) -> Iterator[ReplicationState]:
    lacks = lacks_of_replicas(cluster)
    for one in newest.replication:
        yield ReplicationState(
            one.partition,
            None if one.leader == NO_LEADER else one.leader,
            one.replicas,
            one.isr,
            {node_id: lacks.get((one.partition, node_id)) for node_id in one.replicas if node_id not in one.isr},
        )
