"""What `Admin` asks of nodes about the cluster itself: its nodes, where replicas are, and who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.protocol.api.cluster import NodeState, Reassignment
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.plain_messages import from_message
from semel.protocol.v1 import cluster_pb2, common_pb2, metadata_pb2
from semel.sdk.admin.parts import in_parts
from semel.sdk.transport import rpcs as rpc
from semel.sdk.transport.item_errors import item_error
from semel.sdk.transport.known_nodes import addresses_of

if TYPE_CHECKING:
    from semel.sdk.transport.control import Control

_PARTITIONS_PER_REQUEST: Final = 500
"""A node decides on them a part at a time, and one that dies meanwhile has done whole requests."""
_OTHER_NODE_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class NodeReplicas:
    """What a node has on its disk, and what consumers read of it.

    sizes:                   the bytes of each replica's log
    total_bytes, free_bytes: of the disk; -1 where that can't be told
    fetched_bytes:           the bytes that this node has sent to consumers of each replica, since it opened it. What
                             followers fetch does not count. It begins at 0 again when the node starts, and where a
                             replica is moved to the node; nodes of versions that do not count say 0
    """

    node_id: int
    sizes: Mapping[TopicPartition, int]
    total_bytes: int
    free_bytes: int
    fetched_bytes: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ReplicasOfNodes:
    """What the nodes have on their disks, and why the others could not be asked, by their numbers."""

    nodes: Mapping[int, NodeReplicas]
    unreachable: Mapping[int, str]


async def describe_nodes(control: Control) -> list[NodeState]:
    response = await control.call(rpc.DESCRIBE_NODES, cluster_pb2.DescribeNodesRequest())
    return [from_message(each, NodeState) for each in response.nodes]


async def describe_replicas(control: Control) -> ReplicasOfNodes:
    """Ask each node for what it has. One that is taken for dead is not waited for."""
    metadata, states = await asyncio.gather(
        control.call(rpc.GET_METADATA, metadata_pb2.GetMetadataRequest()), describe_nodes(control)
    )
    addresses = addresses_of(metadata)
    dead = {node.node_id for node in states if not node.is_alive}
    # A single node may be known under an address that can't be reached from here: a container's, a tunnel's.
    asked = {
        node_id: address if len(addresses) > 1 else None
        for node_id, address in addresses.items()
        if node_id not in dead
    }
    answers = await asyncio.gather(
        *(_replicas_of(control, node_id, address) for node_id, address in asked.items()), return_exceptions=True
    )
    nodes: dict[int, NodeReplicas] = {}
    unreachable = dict.fromkeys(sorted(dead.intersection(addresses)), "the cluster takes it for dead")
    for node_id, answer in zip(asked, answers, strict=True):
        if isinstance(answer, NodeReplicas):
            nodes[node_id] = answer
        elif isinstance(answer, SemelError):
            unreachable[node_id] = answer.message
        else:
            raise answer
    return ReplicasOfNodes(nodes, unreachable)


async def _replicas_of(control: Control, node_id: int, address: str | None) -> NodeReplicas:
    found = await control.call(
        rpc.DESCRIBE_REPLICAS,
        cluster_pb2.DescribeReplicasRequest(),
        address=address,
        timeout_ms=None if address is None else _OTHER_NODE_TIMEOUT_MS,
    )
    sizes: dict[TopicPartition, int] = {}
    fetched_bytes: dict[TopicPartition, int] = {}
    for one in found.replicas:
        tp = from_message(one.partition, TopicPartition)
        sizes[tp], fetched_bytes[tp] = one.size_bytes, one.fetched_bytes
    return NodeReplicas(node_id, sizes, found.total_bytes, found.free_bytes, fetched_bytes)


async def reassign_partitions(
    control: Control, wanted: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, SemelError | None]:
    """Move each partition's replicas to these nodes; no nodes cancel a move."""
    outcomes: dict[TopicPartition, SemelError | None] = {}
    for part in in_parts(dict.fromkeys(wanted), _PARTITIONS_PER_REQUEST):
        items = [cluster_pb2.ReassignPartitionsRequest.Item(partition=_message(tp), replicas=wanted[tp]) for tp in part]
        response = await control.call(rpc.REASSIGN_PARTITIONS, cluster_pb2.ReassignPartitionsRequest(items=items))
        outcomes |= _outcomes(response.results)
    return outcomes


async def list_reassignments(control: Control) -> list[Reassignment]:
    response = await control.call(rpc.LIST_REASSIGNMENTS, cluster_pb2.ListReassignmentsRequest())
    return [from_message(each, Reassignment) for each in response.reassignments]


async def elect_leaders(
    control: Control, partitions: Iterable[TopicPartition], unclean: bool
) -> dict[TopicPartition, SemelError | None]:
    outcomes: dict[TopicPartition, SemelError | None] = {}
    for part in in_parts(dict.fromkeys(partitions), _PARTITIONS_PER_REQUEST):
        request = cluster_pb2.ElectLeadersRequest(partitions=map(_message, part), unclean=unclean)
        outcomes |= _outcomes((await control.call(rpc.ELECT_LEADERS, request)).results)
    return outcomes


async def cordon_node(control: Control, node_id: int, cordoned: bool) -> None:
    await control.call(rpc.CORDON_NODE, cluster_pb2.CordonNodeRequest(node_id=node_id, cordoned=cordoned))


async def unregister_node(control: Control, node_id: int) -> None:
    await control.call(rpc.UNREGISTER_NODE, cluster_pb2.UnregisterNodeRequest(node_id=node_id))


def _message(tp: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=tp.topic, partition=tp.partition)


def _outcomes(results: Iterable[cluster_pb2.PartitionResult]) -> dict[TopicPartition, SemelError | None]:
    outcomes: dict[TopicPartition, SemelError | None] = {}
    for one in results:
        tp = from_message(one.partition, TopicPartition)
        outcomes[tp] = item_error(one.error, str(tp)) if one.error.code else None
    return outcomes
