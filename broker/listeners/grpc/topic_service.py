"""semel.v1.TopicService."""

from __future__ import annotations

from typing import Final

from semel.broker.acls.rights import rights_of_call
from semel.broker.handlers.newest import know_topics
from semel.broker.listeners.grpc.convert import filled, isolation_of, topic_message, unique_items
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.listeners.grpc.usage import mutations_of_call
from semel.broker.listeners.grpc.whereabouts import address_of_other
from semel.broker.permitted import configs, topics
from semel.broker.services import Services
from semel.protocol.api.elsewhere import elsewhere
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import ListOffsetsRequest, NewTopic
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import topics_pb2
from semel.runtime.turns import in_turns

_CHANGED_SETTINGS_MAX: Final = 1_000


class TopicService:
    """Topics, their settings and their offsets."""

    def __init__(self, node: Services, listener: str) -> None:
        """`listener`: the name of the one that callers come by."""
        self._node = node
        self._listener = listener

    async def create_topics(
        self, request: topics_pb2.CreateTopicsRequest, _context: Context
    ) -> topics_pb2.CreateTopicsResponse:
        wanted = [
            # 0 is what protobuf sends for a number left out.
            NewTopic(topic.name, topic.num_partitions or -1, topic.replication_factor or -1, dict(topic.configs))
            async for topic in in_turns(request.topics)
        ]
        results = await topics.create_topics(
            self._node,
            rights_of_call(),
            wanted,
            validate_only=request.validate_only,
            mutations=mutations_of_call(),
        )
        message = topics_pb2.CreateTopicsResponse()
        return await filled(message, message.topics, map(topic_message, results))

    async def delete_topics(
        self, request: topics_pb2.DeleteTopicsRequest, _context: Context
    ) -> topics_pb2.DeleteTopicsResponse:
        results = await topics.delete_topics(
            self._node, rights_of_call(), request.topics, mutations=mutations_of_call()
        )
        message = topics_pb2.DeleteTopicsResponse()
        return await filled(
            message,
            message.results,
            (
                topics_pb2.TopicResult(topic=result.name, error=item_error(result.error, result.message))
                for result in results
            ),
        )

    async def create_partitions(
        self, request: topics_pb2.CreatePartitionsRequest, _context: Context
    ) -> topics_pb2.CreatePartitionsResponse:
        await topics.create_partitions(
            self._node,
            rights_of_call(),
            request.topic,
            request.total_count,
            validate_only=request.validate_only,
            mutations=mutations_of_call(),
        )
        return topics_pb2.CreatePartitionsResponse()

    async def describe_configs(
        self, request: topics_pb2.DescribeConfigsRequest, _context: Context
    ) -> topics_pb2.DescribeConfigsResponse:
        rights = rights_of_call()
        kind = self._resource_here(request)
        configs.check(rights, kind.value, request.resource_name)
        if kind is ResourceType.TOPIC:
            await know_topics(self._node, [request.resource_name])
        entries = configs.describe_configs(
            self._node,
            rights,
            kind,
            request.resource_name,
            tuple(dict.fromkeys(request.names)),
            listener=self._listener,
        )
        return topics_pb2.DescribeConfigsResponse(
            entries=[
                topics_pb2.ConfigEntry(
                    name=entry.name,
                    value=entry.value,
                    source=entry.source,
                    is_sensitive=entry.is_sensitive,
                    is_read_only=entry.is_read_only,
                    documentation=entry.documentation,
                    type=entry.type,
                )
                for entry in entries
            ]
        )

    async def alter_configs(
        self, request: topics_pb2.AlterConfigsRequest, _context: Context
    ) -> topics_pb2.AlterConfigsResponse:
        removed = tuple(dict.fromkeys(request.remove))
        if len(request.set) + len(removed) > _CHANGED_SETTINGS_MAX:
            raise UsageError(
                f"AlterConfigs: more than {_CHANGED_SETTINGS_MAX} settings are named, which is more than there are: "
                "check the names, or send several requests"
            )
        await configs.alter_configs(
            self._node,
            rights_of_call(),
            AlterConfigsRequest(
                self._resource_here(request),
                request.resource_name,
                dict(request.set),
                removed,
                request.validate_only,
            ),
        )
        return topics_pb2.AlterConfigsResponse()

    async def list_offsets(
        self, request: topics_pb2.ListOffsetsRequest, _context: Context
    ) -> topics_pb2.ListOffsetsResponse:
        timestamps = await unique_items(
            (TopicPartition(item.topic, item.partition), item.timestamp_ms) for item in request.items
        )
        found = await topics.offsets(
            self._node, rights_of_call(), ListOffsetsRequest(timestamps, isolation_of(request.isolation))
        )
        message = topics_pb2.ListOffsetsResponse()
        return await filled(
            message,
            message.items,
            (
                topics_pb2.ListOffsetsResponse.Item(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=item.offset,
                    timestamp_ms=item.timestamp_ms,
                    leader_epoch=item.leader_epoch,
                    error=item_error(item.error),
                )
                for tp, item in found.items()
            ),
        )

    async def delete_records(
        self, request: topics_pb2.DeleteRecordsRequest, _context: Context
    ) -> topics_pb2.DeleteRecordsResponse:
        before = await unique_items(
            (TopicPartition(item.topic, item.partition), item.before_offset) for item in request.items
        )
        deleted = await topics.delete(self._node, rights_of_call(), before)
        message = topics_pb2.DeleteRecordsResponse()
        return await filled(
            message,
            message.items,
            (
                topics_pb2.DeleteRecordsResponse.Item(
                    topic=tp.topic,
                    partition=tp.partition,
                    log_start_offset=item.log_start_offset,
                    error=item_error(item.error, item.message),
                )
                for tp, item in deleted.items()
            ),
        )

    def _resource_here(
        self, request: topics_pb2.DescribeConfigsRequest | topics_pb2.AlterConfigsRequest
    ) -> ResourceType:
        """Return what kind of resource has the settings. Each node answers for its own: raises who to ask instead."""
        kind, name = _resource_type(request.resource_type), request.resource_name
        if kind is ResourceType.BROKER and name.isdecimal() and len(name) < 11:
            address = address_of_other(self._node, int(name), self._listener)
            if address:
                raise elsewhere(ErrorCode.BROKER_NOT_AVAILABLE, f"node {name} answers for its own settings", address)
        return kind


def _resource_type(value: topics_pb2.ResourceType) -> ResourceType:
    match value:
        case topics_pb2.TOPIC:
            return ResourceType.TOPIC
        case topics_pb2.BROKER:
            return ResourceType.BROKER
        case _:
            raise UsageError("resource_type is missing: use TOPIC or BROKER")
