"""DescribeQuorum, versions 0 to 2 (KIP-595, KIP-836, KIP-853): who keeps the log of the metadata, and how far it is.

The metadata is an ordered log of changes in a SQL database, written by the node that holds the controller's lease.
In Kafka's words, that node is the quorum's one voter and its leader; the lease's epoch is the leader's, and the
number of changes is the log's end. The database's own replicas, if it has any, are its operator's business and
not shown here.
"""

from __future__ import annotations

from typing import Final

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.metadata.image import BrokerImage
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.runtime.turns import in_turns

METADATA_TOPIC: Final = "__cluster_metadata"
"""The name that Kafka's log of the metadata has in this request."""

_LISTENER: Final = "PLAINTEXT"
_MESSAGES_MIN_VERSION: Final = 2


async def handle_describe_quorum(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    node = context.node
    try:
        context.rights.check_cluster()
    except SemelError as error:
        told = {"error_message": error.message} if version >= _MESSAGES_MIN_VERSION else {}
        return await write_response(context, error_code=error.code, **told, topics=(), nodes=())
    if node.metadata.controller_epoch < 0:
        refusal = {"error_message": "this node is not the controller now"} if version >= _MESSAGES_MIN_VERSION else {}
        return await write_response(
            context, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, **refusal, topics=(), nodes=()
        )
    return await write_response(
        context,
        topics=[
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    _described(node, topic.topic_name, partition.partition_index)
                    async for partition in in_turns(topic.partitions)
                ],
            }
            async for topic in in_turns(request.topics)
        ],
        nodes=[
            {
                "node_id": broker.node_id,
                "listeners": _listeners(broker, context.listener_name),
            }
            for broker in node.metadata.image.brokers.values()
            if broker.node_id == node.config.node_id
        ],
    )


def _listeners(broker: BrokerImage, listener: str) -> list[Values]:
    """Return where the client reaches a node, as Kafka's controllers name where they are reached."""
    endpoint = broker.kafka_at(listener)
    return [] if endpoint is None else [{"name": _LISTENER, "host": endpoint.host, "port": endpoint.port}]


def _described(node: Services, topic: str, partition: int) -> Values:
    if (topic, partition) != (METADATA_TOPIC, 0):
        return {
            "partition_index": partition,
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": f"the metadata's log is {METADATA_TOPIC}-0, and no other partition has a quorum",
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
        }
    now_ms, end = node.clock.now_ms(), node.metadata.image.sequence
    return {
        "partition_index": partition,
        "leader_id": node.config.node_id,
        "leader_epoch": node.metadata.controller_epoch,
        "high_watermark": end,
        "current_voters": [
            {
                "replica_id": node.config.node_id,
                "log_end_offset": end,
                "last_fetch_timestamp": now_ms,
                "last_caught_up_timestamp": now_ms,
            }
        ],
    }


DESCRIBE_QUORUM = Api(ApiKey.DESCRIBE_QUORUM, 0, 2, handle_describe_quorum)
