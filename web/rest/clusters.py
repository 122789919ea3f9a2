"""/v3/clusters and their brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semel.web.problems import Problem
from semel.web.rest.service import Service, link, listing, named, related, resource

if TYPE_CHECKING:
    from semel.protocol.api.metadata import ClusterDescription, NodeDescription


class Clusters:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_clusters(self, request: Request) -> Response:
        cluster = await self._service.admin(request).cluster()
        return listing("KafkaClusterList", request, [_cluster(request, cluster)])

    async def get_cluster(self, request: Request) -> Response:
        await self._service.cluster_id(request)
        return JSONResponse(_cluster(request, await self._service.admin(request).cluster()))

    async def list_brokers(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        cluster = await self._service.admin(request).cluster()
        return listing("KafkaBrokerList", request, [_broker(request, cluster_id, node) for node in cluster.nodes])

    async def get_broker(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        wanted = named(request, "broker_id")
        for node in (await self._service.admin(request).cluster()).nodes:
            if str(node.node_id) == wanted:
                return JSONResponse(_broker(request, cluster_id, node))
        raise Problem(
            404, f"Broker {wanted[:200]} cannot be found: GET .../brokers says which there are", error_code=404
        )


def _cluster(request: Request, cluster: ClusterDescription) -> dict[str, Any]:
    cluster_id = cluster.cluster_id
    values: dict[str, Any] = {"cluster_id": cluster_id}
    if cluster.controller_id >= 0:
        values["controller"] = related(link(request, cluster_id, "brokers", cluster.controller_id))
    for name in ("brokers", "consumer-groups", "topics"):
        values[name.replace("-", "_")] = related(link(request, cluster_id, name))
    return resource("KafkaCluster", link(request, cluster_id), f"crn:///kafka={cluster_id}", **values)


def _broker(request: Request, cluster_id: str, node: NodeDescription) -> dict[str, Any]:
    return resource(
        "KafkaBroker",
        link(request, cluster_id, "brokers", node.node_id),
        f"crn:///kafka={cluster_id}/broker={node.node_id}",
        cluster_id=cluster_id,
        broker_id=node.node_id,
        host=node.kafka_host,
        port=node.kafka_port,
        rack=node.rack or None,
    )
