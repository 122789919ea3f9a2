"""semel.v1.GroupService."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.convert import filled, offset_commit, topic_partitions
from semel.broker.listeners.grpc.edge import Context, client_host
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.permitted import groups
from semel.broker.permitted.groups import PartitionCounts
from semel.broker.services import Services
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from semel.protocol.v1 import common_pb2, groups_pb2
from semel.runtime.turns import in_turns


class GroupService:
    """Consumer groups and committed offsets."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def join_group(self, request: groups_pb2.JoinGroupRequest, context: Context) -> groups_pb2.JoinGroupResponse:
        protocols = [GroupProtocol(offer.name, offer.metadata) async for offer in in_turns(request.protocols)]
        response = await groups.join(
            self._node,
            rights_of_call(),
            JoinGroupRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id or None,
                protocol_type=request.protocol_type,
                protocols=tuple(protocols),
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                client_id=request.client_id,
                client_host=client_host(context),
                reason=request.reason,
            ),
        )
        return groups_pb2.JoinGroupResponse(
            generation_id=response.generation_id,
            protocol_type=response.protocol_type or "",
            protocol_name=response.protocol_name or "",
            leader_id=response.leader_id,
            member_id=response.member_id,
            members=[
                groups_pb2.JoinGroupResponse.Member(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id or "",
                    metadata=member.metadata,
                )
                for member in response.members
            ],
            skip_assignment=response.skip_assignment,
            error=item_error(response.error),
        )

    async def sync_group(self, request: groups_pb2.SyncGroupRequest, _context: Context) -> groups_pb2.SyncGroupResponse:
        rights = rights_of_call()
        response = await groups.sync(
            self._node,
            rights,
            SyncGroupRequest(
                group_id=request.group_id,
                generation_id=request.generation_id,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id or None,
                assignments={} if request.assign else dict(request.assignments),
                protocol_type=request.protocol_type or None,
                protocol_name=request.protocol_name or None,
                partition_counts=PartitionCounts(self._node.metadata.image, rights) if request.assign else None,
            ),
        )
        return groups_pb2.SyncGroupResponse(
            assignment=response.assignment,
            protocol_type=response.protocol_type or "",
            protocol_name=response.protocol_name or "",
        )

    async def heartbeat(self, request: groups_pb2.HeartbeatRequest, _context: Context) -> groups_pb2.HeartbeatResponse:
        await groups.heartbeat(
            self._node,
            rights_of_call(),
            HeartbeatRequest(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id or None
            ),
        )
        return groups_pb2.HeartbeatResponse()

    async def leave_group(
        self, request: groups_pb2.LeaveGroupRequest, _context: Context
    ) -> groups_pb2.LeaveGroupResponse:
        members = [
            MemberIdentity(member.member_id, member.group_instance_id or None, member.reason)
            async for member in in_turns(request.members)
        ]
        response = await groups.leave(self._node, rights_of_call(), LeaveGroupRequest(request.group_id, tuple(members)))
        return groups_pb2.LeaveGroupResponse(
            # A list of messages has no holes: success is an Error of code 0.
            errors=[item_error(error) or common_pb2.Error() for error in response.errors]
        )

    async def commit_offsets(
        self, request: groups_pb2.CommitOffsetsRequest, _context: Context
    ) -> groups_pb2.CommitOffsetsResponse:
        response = await groups.commit_offsets(self._node, rights_of_call(), await offset_commit(request))
        message = groups_pb2.CommitOffsetsResponse()
        return await filled(
            message,
            message.items,
            (
                groups_pb2.CommitOffsetsResponse.Item(topic=tp.topic, partition=tp.partition, error=item_error(error))
                for tp, error in response.errors.items()
            ),
        )

    async def fetch_offsets(
        self, request: groups_pb2.FetchOffsetsRequest, _context: Context
    ) -> groups_pb2.FetchOffsetsResponse:
        partitions = None if request.all else await topic_partitions(request.topics)
        response = await groups.fetch_offsets(
            self._node, rights_of_call(), OffsetFetchRequest(request.group_id, partitions, request.require_stable)
        )
        message = groups_pb2.FetchOffsetsResponse()
        return await filled(
            message,
            message.items,
            (
                groups_pb2.FetchOffsetsResponse.Item(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=found.offset,
                    leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                    error=item_error(found.error),
                )
                for tp, found in response.offsets.items()
            ),
        )

    async def delete_offsets(
        self, request: groups_pb2.DeleteOffsetsRequest, _context: Context
    ) -> groups_pb2.DeleteOffsetsResponse:
        response = await groups.delete_offsets(
            self._node,
            rights_of_call(),
            OffsetDeleteRequest(request.group_id, await topic_partitions(request.topics)),
        )
        message = groups_pb2.DeleteOffsetsResponse()
        return await filled(
            message,
            message.items,
            (
                groups_pb2.DeleteOffsetsResponse.Item(topic=tp.topic, partition=tp.partition, error=item_error(error))
                for tp, error in response.errors.items()
            ),
        )

    async def list_groups(
        self, request: groups_pb2.ListGroupsRequest, _context: Context
    ) -> groups_pb2.ListGroupsResponse:
        listed = ListGroupsRequest(frozenset(request.states), frozenset(request.types))
        response = await groups.list_groups(self._node, rights_of_call(), listed, partial=True)
        message = groups_pb2.ListGroupsResponse(unreadable=response.unreadable)
        return await filled(
            message,
            message.items,
            (
                groups_pb2.ListGroupsResponse.Item(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.state,
                    group_type=group.group_type,
                )
                for group in response.groups
            ),
        )

    async def describe_group(
        self, request: groups_pb2.DescribeGroupRequest, _context: Context
    ) -> groups_pb2.GroupDescription:
        group = await groups.describe(self._node, rights_of_call(), DescribeGroupRequest(request.group_id))
        return groups_pb2.GroupDescription(
            group_id=group.group_id,
            state=group.state,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            generation_id=group.generation_id,
            leader_id=group.leader_id,
            members=[
                groups_pb2.GroupDescription.Member(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id or "",
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata,
                    assignment=member.assignment,
                )
                async for member in in_turns(group.members)
            ],
        )

    async def delete_group(
        self, request: groups_pb2.DeleteGroupRequest, _context: Context
    ) -> groups_pb2.DeleteGroupResponse:
        await groups.delete(self._node, rights_of_call(), DeleteGroupRequest(request.group_id))
        return groups_pb2.DeleteGroupResponse()
