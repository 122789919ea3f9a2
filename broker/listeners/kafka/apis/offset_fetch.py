"""OffsetFetch, versions 1 to 10: a group's positions, from version 8 on of many groups at once (KIP-709).

Null for the topics asks for all that the group has (from version 2 on). Members of consumer groups say who they are
from version 9 on (KIP-848), and topics have ids instead of names from version 10 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.groups import fetch_offsets
from semel.broker.services import Services
from semel.protocol.api.groups import FetchedOffset, OffsetFetchRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER_EPOCH, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values, to_topic_id
from semel.runtime.turns import in_turns

FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
FIRST_VERSION_WITH_REQUIRE_STABLE: Final = 7
FIRST_BATCHED_VERSION: Final = 8
FIRST_VERSION_WITH_MEMBERS: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10

NOT_FETCHED_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic asked for; `name` is None where there is no topic with its id."""

    name: str | None
    topic_id: bytes
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Group:
    """One group's part of a request; `topics` None asks for all."""

    group_id: str
    topics: Sequence[_Topic] | None
    member_id: str | None = None
    member_epoch: int = -1


async def handle_offset_fetch(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    node = context.node
    request = await read_request(context, body)
    require_stable = version >= FIRST_VERSION_WITH_REQUIRE_STABLE and request.require_stable
    if version < FIRST_BATCHED_VERSION:
        topics = None if request.topics is None else [_Topic(t.name, b"", t.partition_indexes) for t in request.topics]
        values = await _fetch(context, _Group(request.group_id, topics), require_stable)
        del values["group_id"]
        return await write_response(context, **values)
    # Each group once: a short request could otherwise have the same offsets written out without end.
    asked: dict[str, Any] = {}
    for each in request.groups:
        asked.setdefault(each.group_id, each)
    groups = await bounded_concurrency(
        list(asked.values()), lambda group: _fetch(context, _group(node, group, version), require_stable)
    )
    return await write_response(context, groups=groups)


def _group(node: Services, group: Any, version: int) -> _Group:
    topics: list[_Topic] | None = None
    if group.topics is not None:
        topics = [_topic(node, topic, version) for topic in group.topics]
    if version < FIRST_VERSION_WITH_MEMBERS:
        return _Group(group.group_id, topics)
    return _Group(group.group_id, topics, group.member_id, group.member_epoch)


def _topic(node: Services, topic: Any, version: int) -> _Topic:
    if version < FIRST_VERSION_WITH_TOPIC_IDS:
        return _Topic(topic.name, b"", topic.partition_indexes)
    found = None if topic.topic_id is None else node.metadata.image.topic_by_id(topic.topic_id)
    return _Topic(None if found is None else found.name, to_topic_id(topic.topic_id), topic.partition_indexes)


async def _fetch(context: RequestContext, group: _Group, require_stable: bool) -> dict[str, Any]:
    """Return the values of one group in the response."""
    node, version = context.node, context.api_version
    partitions = None
    if group.topics is not None:
        partitions = tuple(
            dict.fromkeys(
                [
                    TopicPartition(topic.name, number)
                    async for topic in in_turns(group.topics)
                    if topic.name is not None
                    async for number in in_turns(topic.partitions)
                ]
            )
        )
    try:
        response = await fetch_offsets(
            node,
            context.rights,
            OffsetFetchRequest(group.group_id, partitions, require_stable, group.member_id, group.member_epoch),
        )
    except SemelError as error:
        return _refusal(group, coordinator_code(error), version)
    topics = await _all_topics(node, response.offsets, version) if group.topics is None else group.topics
    return {
        "group_id": group.group_id,
        "topics": [await _topic_values(topic, response.offsets) async for topic in in_turns(topics)],
    }


async def _all_topics(node: Services, offsets: Mapping[TopicPartition, FetchedOffset], version: int) -> list[_Topic]:
    numbers: dict[str, list[int]] = {}
    async for tp in in_turns(offsets):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    if version < FIRST_VERSION_WITH_TOPIC_IDS:
        return [_Topic(name, b"", found) for name, found in numbers.items()]
    images = ((node.metadata.topic(name), found) for name, found in numbers.items())
    return [_Topic(image.name, image.topic_id.bytes, found) for image, found in images if image is not None]


async def _topic_values(topic: _Topic, offsets: Mapping[TopicPartition, FetchedOffset]) -> Values:
    if topic.name is None:
        unknown = FetchedOffset(NOT_FETCHED_OFFSET, NO_LEADER_EPOCH, "", ErrorCode.UNKNOWN_TOPIC_ID)
        partitions = [_partition_values(number, unknown) async for number in in_turns(topic.partitions)]
    else:
        partitions = [
            _partition_values(number, offsets[TopicPartition(topic.name, number)])
            async for number in in_turns(topic.partitions)
        ]
    return {"name": topic.name or "", "topic_id": topic.topic_id, "partitions": partitions}


def _partition_values(number: int, found: FetchedOffset) -> Values:
    return {
        "partition_index": number,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": found.error,
    }


def _refusal(group: _Group, code: ErrorCode, version: int) -> dict[str, Any]:
    """A group as a whole is refused, which version 1 can only say of each partition."""
    if version >= FIRST_VERSION_WITH_GROUP_ERROR:
        return {"group_id": group.group_id, "error_code": code}
    refused = FetchedOffset(NOT_FETCHED_OFFSET, NO_LEADER_EPOCH, "", code)
    topics = [
        {"name": topic.name, "partitions": [_partition_values(number, refused) for number in topic.partitions]}
        for topic in group.topics or ()
    ]
    return {"group_id": group.group_id, "topics": topics}


OFFSET_FETCH = Api(ApiKey.OFFSET_FETCH, 1, 10, handle_offset_fetch)
