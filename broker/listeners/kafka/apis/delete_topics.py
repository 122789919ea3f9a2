"""DeleteTopics, versions 1 to 6: deletes topics by name, from version 6 on also by id (KIP-516).

Each topic succeeds or fails for itself. TOPIC_DELETION_DISABLED came with version 3, and messages with 5, which also
refuses what is beyond the client's quota (KIP-599).
"""

from __future__ import annotations

from typing import Any

from semel.broker.listeners.kafka.apis.deadline import within
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.topics import delete_topics
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import to_ms

_FIRST_VERSION_WITH_IDS = 6
_FIRST_VERSION_WITH_DISABLED = 3
_FIRST_VERSION_WITH_QUOTA_CODE = 5


async def handle_delete_topics(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    refused: list[TopicResult] = []
    wanted: list[str | TopicId] = []
    if version < _FIRST_VERSION_WITH_IDS:
        wanted.extend(request.topic_names)
    else:
        for each in request.topics:
            if (each.name is None) == (each.topic_id is None):
                message = "a topic to delete needs its name or its id, and not both"
                refused.append(TopicResult(each.name or "", ErrorCode.INVALID_REQUEST, message, topic_id=each.topic_id))
            else:
                wanted.append(each.name if each.name is not None else TopicId(each.topic_id))
    mutations = context.mutations(strict=version >= _FIRST_VERSION_WITH_QUOTA_CODE)
    deleting = delete_topics(context.node, context.rights, wanted, mutations=mutations)
    try:
        results = await within(to_ms(request.timeout), deleting)
    except SemelError as error:
        results = tuple(
            TopicResult(each, error.code, error.message)
            if isinstance(each, str)
            else TopicResult("", error.code, error.message, topic_id=each)
            for each in wanted
        )
    # What is asked for twice is answered once.
    told = dict.fromkeys((*refused, *results))
    return await write_response(context, responses=[_answer(each, version) for each in told])


def _answer(result: TopicResult, version: int) -> dict[str, Any]:
    error = result.error
    if error is ErrorCode.TOPIC_DELETION_DISABLED and version < _FIRST_VERSION_WITH_DISABLED:
        error = ErrorCode.INVALID_REQUEST
    return {
        "name": result.name or None if version >= _FIRST_VERSION_WITH_IDS else result.name,
        "topic_id": (result.topic_id or ZERO_TOPIC_ID).bytes,
        "error_code": error,
        "error_message": result.message or None,
    }


DELETE_TOPICS = Api(ApiKey.DELETE_TOPICS, 1, 6, handle_delete_topics)
