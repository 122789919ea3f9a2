"""OffsetCommit, versions 2 to 10: a group's positions; topics by id from version 10 on (KIP-848).

A retention of the offsets' own (versions 2 to 4) is honoured (KIP-211).
"""

from __future__ import annotations

from typing import Any, Final

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import commit_offsets
from semel.broker.services import Services
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import to_ms, to_topic_id
from semel.runtime.turns import in_turns

FIRST_VERSION_WITH_MEMBER_EPOCHS: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10


async def handle_offset_commit(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    names = [_topic_name(context.node, topic, version) async for topic in in_turns(request.topics)]
    offsets = {
        TopicPartition(name, item.partition_index): OffsetAndMetadata(
            item.committed_offset,
            item.committed_leader_epoch if version >= 6 else NO_LEADER_EPOCH,
            item.committed_metadata or "",
        )
        async for name, topic in in_turns(zip(names, request.topics, strict=True))
        if name is not None
        async for item in in_turns(topic.partitions)
    }
    retention_ms = to_ms(request.retention_time) if version <= 4 else -1
    errors: dict[TopicPartition, ErrorCode] = {}
    try:
        response = await commit_offsets(
            context.node,
            context.rights,
            OffsetCommitRequest(
                group_id=request.group_id,
                generation_id=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id if version >= 7 else None,
                offsets=offsets,
                retention_ms=None if retention_ms < 0 else retention_ms,
            ),
        )
        errors.update(response.errors)
    except SemelError as error:
        code = coordinator_code(error)
        if code is ErrorCode.STALE_MEMBER_EPOCH and version < FIRST_VERSION_WITH_MEMBER_EPOCHS:
            code = ErrorCode.UNSUPPORTED_VERSION
        errors.update(dict.fromkeys(offsets, code))
    return await write_response(
        context,
        topics=[
            {
                **_name_of(topic, version),
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": ErrorCode.UNKNOWN_TOPIC_ID
                        if name is None
                        else errors[TopicPartition(name, item.partition_index)],
                    }
                    async for item in in_turns(topic.partitions)
                ],
            }
            async for name, topic in in_turns(zip(names, request.topics, strict=True))
        ],
    )


def _topic_name(node: Services, topic: Any, version: int) -> str | None:
    """Return a topic's name, None where there is no topic with its id."""
    if version < FIRST_VERSION_WITH_TOPIC_IDS:
        return str(topic.name)
    found = None if topic.topic_id is None else node.metadata.image.topic_by_id(topic.topic_id)
    return None if found is None else found.name


def _name_of(topic: Any, version: int) -> dict[str, Any]:
    return {"name": topic.name} if version < FIRST_VERSION_WITH_TOPIC_IDS else {"topic_id": to_topic_id(topic.topic_id)}


OFFSET_COMMIT = Api(ApiKey.OFFSET_COMMIT, 2, 10, handle_offset_commit)
