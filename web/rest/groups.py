"""/v3/clusters/{cluster_id}/consumer-groups: groups, their consumers, lags and committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.web.problems import Problem
from semel.web.rest.bodies import Fields, json_body, wrong
from semel.web.rest.bounds import OFFSETS_MAX
from semel.web.rest.service import Service, link, listing, named, own_link, related, resource

if TYPE_CHECKING:
    from semel.protocol.api.groups import GroupDescription, GroupMemberDescription
    from semel.sdk.admin.core import PartitionLag


class Groups:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_groups(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        admin = self._service.admin(request)
        groups = [
            _group(request, cluster_id, group.group_id, group.state, "", not group.protocol_type)
            for group in await admin.groups()
        ]
        return listing("KafkaConsumerGroupList", request, groups)

    async def get_group(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        group = await self._described(request)
        return JSONResponse(
            _group(request, cluster_id, group.group_id, group.state, group.protocol_name, not group.protocol_type)
        )

    async def list_consumers(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        group = await self._described(request)
        data = [_consumer(request, cluster_id, group.group_id, member) for member in group.members]
        return listing("KafkaConsumerList", request, data)

    async def get_consumer(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        group = await self._described(request)
        wanted = named(request, "consumer_id")
        for member in group.members:
            if member.member_id == wanted:
                return JSONResponse(_consumer(request, cluster_id, group.group_id, member))
        raise Problem(404, f"Consumer {wanted[:200]} cannot be found: GET .../consumers lists all", error_code=404)

    async def list_lags(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        return listing("KafkaConsumerLagList", request, [lag for _, lag in await self._lags(request, cluster_id)])

    async def lag_summary(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        group_id = named(request, "consumer_group_id")
        lags = [lag for _, lag in await self._lags(request, cluster_id)]
        if not lags:
            raise Problem(404, f"group {group_id[:200]} has no offsets, so it has no lag", error_code=404)
        most = max(lags, key=lambda lag: int(lag["lag"]))
        return JSONResponse(
            resource(
                "KafkaConsumerGroupLagSummary",
                own_link(request),
                f"crn:///kafka={cluster_id}/consumer-group={group_id}/lag-summary",
                cluster_id=cluster_id,
                consumer_group_id=group_id,
                max_lag_consumer_id=most["consumer_id"],
                max_lag_instance_id=most["instance_id"],
                max_lag_client_id=most["client_id"],
                max_lag_topic_name=most["topic_name"],
                max_lag_partition_id=most["partition_id"],
                max_lag=most["lag"],
                total_lag=sum(lag["lag"] for lag in lags),
            )
        )

    async def get_offsets(self, request: Request) -> Response:
        """Where the group stands for certain: not told while a transaction is about to move it (O2)."""
        cluster_id = await self._service.cluster_id(request)
        group_id = named(request, "consumer_group_id")
        offsets = await self._service.admin(request).group_offsets(group_id, stable=True)
        data = [
            {
                "cluster_id": cluster_id,
                "consumer_group_id": group_id,
                "topic_name": partition.topic,
                "partition_id": partition.partition,
                "offset": place.offset,
            }
            for partition, place in sorted(offsets.items())
            if place.offset >= 0
        ]
        return listing("KafkaConsumerGroupOffsetList", request, data)

    async def commit_offsets(self, request: Request) -> Response:
        """Move the group, wherever it stands: for the guarded commit there is POST .../transactions."""
        await self._service.cluster_id(request)
        fields = Fields(await json_body(request), "", ("offsets",))
        offsets: dict[TopicPartition, int] = {}
        for number, item in enumerate(fields.items("offsets", OFFSETS_MAX)):
            partition, each = partition_of(item, f"offsets[{number}]", ("offset",))
            if partition in offsets:
                raise wrong(f"offsets names {partition} twice")
            offset = each.number("offset", 0, INT64_MAX)
            assert offset is not None
            offsets[partition] = offset
        if not offsets:
            raise wrong("offsets is a list that is not empty")
        await self._service.admin(request).alter_group_offsets(named(request, "consumer_group_id"), offsets)
        return Response(status_code=204)

    async def _described(self, request: Request) -> GroupDescription:
        name = named(request, "consumer_group_id")
        group = await self._service.admin(request).group(name)
        if group.state == "Dead":
            raise Problem(404, f"Group {name[:200]} cannot be found: GET .../consumer-groups lists all", error_code=404)
        return group

    async def _lags(self, request: Request, cluster_id: str) -> list[tuple[TopicPartition, dict[str, Any]]]:
        group = await self._described(request)
        admin = self._service.admin(request)
        owners = admin.group_owners(group)
        members = {member.member_id: member for member in group.members}
        found = []
        for partition, lag in sorted((await admin.look_up_lag(group.group_id)).items()):
            if isinstance(lag.error, SemelError):
                raise lag.error
            member = members.get(owners.get(partition, ""))
            found.append((partition, _lag(request, cluster_id, group.group_id, partition, lag, member)))
        return found


def partition_of(item: object, where: str, more: tuple[str, ...]) -> tuple[TopicPartition, Fields]:
    """Return the partition that a JSON object names, and its fields. Raises `Problem` 422."""
    fields = Fields(item, where, ("topic_name", "partition_id", *more))
    number = fields.number("partition_id", 0, INT32_MAX)
    assert number is not None
    return TopicPartition(fields.text("topic_name"), number), fields


def _group(
    request: Request, cluster_id: str, group_id: str, state: str, assignor: str, is_simple: bool
) -> dict[str, Any]:
    place = (cluster_id, "consumer-groups", group_id)
    return resource(
        "KafkaConsumerGroup",
        link(request, *place),
        f"crn:///kafka={cluster_id}/consumer-group={group_id}",
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        is_simple=is_simple,
        partition_assignor=assignor,
        state=state.upper(),
        consumer=related(link(request, *place, "consumers")),
        lag_summary=related(link(request, *place, "lag-summary")),
        offsets=related(link(request, *place, "offsets")),
    )


def _consumer(request: Request, cluster_id: str, group_id: str, member: GroupMemberDescription) -> dict[str, Any]:
    return resource(
        "KafkaConsumer",
        link(request, cluster_id, "consumer-groups", group_id, "consumers", member.member_id),
        f"crn:///kafka={cluster_id}/consumer-group={group_id}/consumer={member.member_id}",
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        consumer_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
    )


def _lag(
    request: Request,
    cluster_id: str,
    group_id: str,
    partition: TopicPartition,
    lag: PartitionLag,
    member: GroupMemberDescription | None,
) -> dict[str, Any]:
    name = f"crn:///kafka={cluster_id}/consumer-group={group_id}/lag={partition.topic}/partition={partition.partition}"
    return resource(
        "KafkaConsumerLag",
        link(request, cluster_id, "consumer-groups", group_id, "lags"),
        name,
        cluster_id=cluster_id,
        consumer_group_id=group_id,
        topic_name=partition.topic,
        partition_id=partition.partition,
        current_offset=lag.committed,
        log_end_offset=lag.end_offset,
        lag=lag.lag,
        consumer_id="" if member is None else member.member_id,
        instance_id=None if member is None else member.group_instance_id,
        client_id="" if member is None else member.client_id,
    )
