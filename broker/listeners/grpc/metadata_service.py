"""semel.v1.MetadataService."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.handlers import metadata
from semel.broker.listeners.grpc.convert import filled, topic_id_of, topic_message
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.usage import mutations_of_call
from semel.broker.permitted.metadata import all_topics, topics_by_id, topics_by_name
from semel.broker.services import Services
from semel.protocol.v1 import metadata_pb2
from semel.runtime.turns import in_turns


class MetadataService:
    """Where things are."""

    def __init__(self, node: Services, listener: str) -> None:
        """`listener`: the name of the one that callers come by."""
        self._node = node
        self._listener = listener

    async def get_metadata(
        self, request: metadata_pb2.GetMetadataRequest, _context: Context
    ) -> metadata_pb2.GetMetadataResponse:
        rights = rights_of_call()
        found = list(
            await topics_by_name(
                self._node,
                rights,
                list(dict.fromkeys(request.topics)),
                allow_auto_create=request.allow_auto_create,
                mutations=mutations_of_call(),
            )
        )
        topic_ids = [topic_id_of(data) async for data in in_turns(request.topic_ids)]
        found += await topics_by_id(self._node, rights, topic_ids)
        if request.all_topics:
            found += await all_topics(self._node, rights, include_internal=request.include_internal)
        cluster = metadata.cluster_of_grpc(self._node, self._listener)
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
