"""/v3/clusters/{cluster_id}/topics: list, create, get and delete, and the partitions of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semel.protocol.int_bounds import INT16_MAX, INT32_MAX
from semel.web.problems import Problem
from semel.web.rest.bodies import Fields, json_body, wrong
from semel.web.rest.service import Service, link, listing, named, related, resource

if TYPE_CHECKING:
    from semel.protocol.api.topics import PartitionDescription, TopicDescription

_CONFIGS_MAX: Final = 100
_FIELDS: Final = ("topic_name", "partitions_count", "replication_factor", "configs", "validate_only")


class Topics:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_topics(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        topics = await self._service.admin(request).topics()
        return listing("KafkaTopicList", request, [_topic(request, cluster_id, topic) for topic in topics])

    async def create_topic(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        fields = Fields(await json_body(request), "", _FIELDS)
        validate_only = fields.flag("validate_only")
        topic = await self._service.admin(request).create_topic(
            fields.text("topic_name"),
            partitions=fields.number("partitions_count", 1, INT32_MAX, None) or -1,
            replication_factor=fields.number("replication_factor", 1, INT16_MAX, None) or -1,
            configs=_configs(fields),
            validate_only=validate_only,
        )
        shown = _topic(request, cluster_id, topic)
        headers = {} if validate_only else {"Location": shown["metadata"]["self"]}
        return JSONResponse(shown, 200 if validate_only else 201, headers)

    async def get_topic(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        topic = await self._service.admin(request).topic(named(request, "topic_name"))
        return JSONResponse(_topic(request, cluster_id, topic))

    async def delete_topic(self, request: Request) -> Response:
        await self._service.cluster_id(request)
        await self._service.admin(request).delete_topic(named(request, "topic_name"))
        return Response(status_code=204)

    async def list_partitions(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        topic = await self._service.admin(request).topic(named(request, "topic_name"))
        data = [_partition(request, cluster_id, topic.name, partition) for partition in topic.partitions]
        return listing("KafkaPartitionList", request, data)

    async def get_partition(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        topic = await self._service.admin(request).topic(named(request, "topic_name"))
        wanted = named(request, "partition_id")
        for partition in topic.partitions:
            if str(partition.partition) == wanted:
                return JSONResponse(_partition(request, cluster_id, topic.name, partition))
        raise no_partition(topic.name, wanted, len(topic.partitions))


def no_partition(topic: str, wanted: str, count: int) -> Problem:
    return Problem(
        404,
        f"topic {topic!r} has the partitions 0 to {count - 1}, and no {wanted[:100]!r}",
        error_code=40403,
    )


def _configs(fields: Fields) -> dict[str, str]:
    configs = {}
    for number, item in enumerate(fields.items("configs", _CONFIGS_MAX)):
        config = Fields(item, f"configs[{number}]", ("name", "value"))
        name = config.text("name")
        if name in configs:
            raise wrong(f"configs names {name[:100]!r} twice")
        value = config.raw("value")
        if not isinstance(value, str):
            raise wrong(f'{config.name("value")} is a text, also for numbers: "3600000"')
        configs[name] = value
    return configs


def _topic(request: Request, cluster_id: str, topic: TopicDescription) -> dict[str, Any]:
    return resource(
        "KafkaTopic",
        link(request, cluster_id, "topics", topic.name),
        f"crn:///kafka={cluster_id}/topic={topic.name}",
        cluster_id=cluster_id,
        topic_name=topic.name,
        is_internal=topic.is_internal,
        replication_factor=max((len(partition.replicas) for partition in topic.partitions), default=0),
        partitions_count=len(topic.partitions),
        partitions=related(link(request, cluster_id, "topics", topic.name, "partitions")),
        configs=related(link(request, cluster_id, "topics", topic.name, "configs")),
    )


def _partition(request: Request, cluster_id: str, topic: str, partition: PartitionDescription) -> dict[str, Any]:
    place = (cluster_id, "topics", topic, "partitions", partition.partition)
    leader = partition.leader_id
    return resource(
        "KafkaPartition",
        link(request, *place),
        f"crn:///kafka={cluster_id}/topic={topic}/partition={partition.partition}",
        cluster_id=cluster_id,
        topic_name=topic,
        partition_id=partition.partition,
        leader=related(link(request, cluster_id, "brokers", leader)) if leader >= 0 else None,
        records=related(link(request, *place, "records")),
    )
