"""DescribeCluster, versions 0 to 2 (KIP-700): the nodes and the controller.

From version 1 on a client says whether it wants brokers or controllers (KIP-919). This listener speaks for brokers.
Nodes that are fenced are in version 2 alone, where it asks for them: they would be sent what nobody answers.
"""

from __future__ import annotations

from typing import Any, Final

from semel.broker.handlers import metadata
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.metadata import operations_of_cluster
from semel.protocol.acls import NOT_ASKED_FOR
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
FENCED_MIN_VERSION: Final = 2


async def handle_describe_cluster(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.DESCRIBE_CLUSTER, version, body)
    asked_for = getattr(request, "endpoint_type", _BROKERS)
    values = _nodes(context, request) if asked_for == _BROKERS else _refusal(asked_for)
    return build_response(
        ApiKey.DESCRIBE_CLUSTER,
        version,
        throttle_time=context.throttle_ms(),
        endpoint_type=_BROKERS,
        **values,
    )


def _nodes(context: RequestContext, request: Any) -> dict[str, Any]:
    cluster = metadata.cluster_of_kafka(context.node, context.listener_name)
    fenced = metadata.fenced_nodes(context.node)
    has_fenced = getattr(request, "include_fenced_brokers", False)
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {
                "broker_id": each.node_id,
                "host": each.kafka_host,
                "port": each.kafka_port,
                "rack": each.rack or None,
                **({"is_fenced": each.node_id in fenced} if context.api_version >= FENCED_MIN_VERSION else {}),
            }
            for each in cluster.nodes
            if has_fenced or each.node_id not in fenced
        ],
        "cluster_authorized_operations": (
            operations_of_cluster(context.rights) if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    }


def _refusal(endpoint_type: int) -> dict[str, Any]:
    if endpoint_type == _CONTROLLERS:
        return {
            "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "error_message": "this is a listener for brokers: ask for brokers, one of which is the controller",
        }
    return {
        "error_code": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        "error_message": f"endpoint type {endpoint_type} is unknown: ask for brokers, {_BROKERS}",
    }


DESCRIBE_CLUSTER = Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, handle_describe_cluster)
