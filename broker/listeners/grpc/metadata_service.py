"""semel.v1.MetadataService."""

from __future__ import annotations

from semel.broker.handlers import metadata
from semel.broker.listeners.grpc.convert import filled, topic_id_of, topic_message
from semel.broker.listeners.grpc.edge import Context
from semel.broker.services import Services
from semel.protocol.v1 import metadata_pb2
from semel.runtime.turns import in_turns


class MetadataService:
    """Where things are."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def get_metadata(
        self, request: metadata_pb2.GetMetadataRequest, _context: Context
    ) -> metadata_pb2.GetMetadataResponse:
        found = await metadata.topics_by_name(
            self._node, list(dict.fromkeys(request.topics)), allow_auto_create=request.allow_auto_create
        )
        found += await metadata.topics_by_id(
            self._node, [topic_id_of(data) async for data in in_turns(request.topic_ids)]
        )
        if request.all_topics:
            found += await metadata.all_topics(self._node, include_internal=request.include_internal)
        cluster = metadata.cluster(self._node)
        message = metadata_pb2.GetMetadataResponse(
            cluster_id=cluster.cluster_id,
            controller_id=cluster.controller_id,
            nodes=[
                metadata_pb2.Node(
                    node_id=node.node_id,
                    kafka_host=node.kafka_host,
                    kafka_port=node.kafka_port,
                    grpc_host=node.grpc_host,
                    grpc_port=node.grpc_port,
                    rack=node.rack,
                )
                for node in cluster.nodes
            ],
        )
        return await filled(message, message.topics, map(topic_message, found))
