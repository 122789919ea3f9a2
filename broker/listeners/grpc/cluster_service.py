"""semel.v1.ClusterService."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.acls.rights import rights_of_call
from semel.broker.handlers.partition_decisions import Outcomes
from semel.broker.listeners.grpc.convert import filled, unique_items
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.permitted import cluster
from semel.broker.services import Services
from semel.protocol.api.cluster import ReplicaSize
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.plain_messages import from_message, to_message
from semel.protocol.v1 import cluster_pb2, common_pb2


class ClusterService:
    """What operators do with the nodes of a cluster."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def describe_nodes(
        self, _request: cluster_pb2.DescribeNodesRequest, _context: Context
    ) -> cluster_pb2.DescribeNodesResponse:
        message = cluster_pb2.DescribeNodesResponse()
        for each in await cluster.describe_nodes(self._node, rights_of_call()):
            to_message(each, message.nodes.add())
        return message

    async def describe_replicas(
        self, _request: cluster_pb2.DescribeReplicasRequest, _context: Context
    ) -> cluster_pb2.DescribeReplicasResponse:
        here = cluster.data_folder(self._node, rights_of_call())
        message = cluster_pb2.DescribeReplicasResponse(total_bytes=here.total_bytes, free_bytes=here.usable_bytes)
        return await filled(
            message,
            message.replicas,
            (
                to_message(ReplicaSize(tp, one.size_bytes, one.fetched_bytes), cluster_pb2.ReplicaSize())
                for tp, one in here.partitions.items()
            ),
        )

    async def reassign_partitions(
        self, request: cluster_pb2.ReassignPartitionsRequest, _context: Context
    ) -> cluster_pb2.ReassignPartitionsResponse:
        wanted: dict[TopicPartition, Sequence[int] | None] = dict(
            await unique_items((_partition(item.partition), tuple(item.replicas) or None) for item in request.items)
        )
        message = cluster_pb2.ReassignPartitionsResponse()
        outcomes = await cluster.move_replicas(self._node, rights_of_call(), wanted)
        return await filled(message, message.results, _results(outcomes))

    async def list_reassignments(
        self, _request: cluster_pb2.ListReassignmentsRequest, _context: Context
    ) -> cluster_pb2.ListReassignmentsResponse:
        message = cluster_pb2.ListReassignmentsResponse()
        found = await cluster.moves(self._node, rights_of_call())
        return await filled(
            message, message.reassignments, (to_message(one, cluster_pb2.Reassignment()) for one in found)
        )

    async def elect_leaders(
        self, request: cluster_pb2.ElectLeadersRequest, _context: Context
    ) -> cluster_pb2.ElectLeadersResponse:
        wanted = await unique_items((_partition(each), None) for each in request.partitions)
        message = cluster_pb2.ElectLeadersResponse()
        outcomes = await cluster.elect(self._node, rights_of_call(), list(wanted), unclean=request.unclean)
        return await filled(message, message.results, _results(outcomes))

    async def cordon_node(
        self, request: cluster_pb2.CordonNodeRequest, _context: Context
    ) -> cluster_pb2.CordonNodeResponse:
        await cluster.cordon(self._node, rights_of_call(), request.node_id, is_cordoned=request.cordoned)
        return cluster_pb2.CordonNodeResponse()

    async def unregister_node(
        self, request: cluster_pb2.UnregisterNodeRequest, _context: Context
    ) -> cluster_pb2.UnregisterNodeResponse:
        await cluster.remove(self._node, rights_of_call(), request.node_id)
        return cluster_pb2.UnregisterNodeResponse()


def _partition(message: common_pb2.TopicPartition) -> TopicPartition:
    return from_message(message, TopicPartition)


def _results(outcomes: Outcomes) -> list[cluster_pb2.PartitionResult]:
    return [
        cluster_pb2.PartitionResult(
            partition=common_pb2.TopicPartition(topic=tp.topic, partition=tp.partition),
            error=item_error(ErrorCode.NONE, "") if error is None else item_error(error.code, error.message),
        )
        for tp, error in outcomes.items()
    ]
