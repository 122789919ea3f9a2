"""CreateTopics, versions 2 to 7: makes topics with their settings, or only says whether it could (KIP-4).

Each topic succeeds or fails for itself. From version 4 on -1 takes the node's defaults (KIP-464; older ones may, too);
the answer tells the settings that the topic has from 5 on (KIP-525) and its id with 7. What is beyond the client's
quota is refused from 6 on, and before that done, and paid for by waiting (KIP-599).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.broker.handlers.configs import topic_entries
from semel.broker.listeners.kafka.apis.config_values import config_source
from semel.broker.listeners.kafka.apis.deadline import within
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.topics import create_topics, may_see_configs
from semel.protocol.api.metadata import TopicResult
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import to_ms
from semel.runtime.turns import in_turns

_FIRST_VERSION_WITH_CONFIGS = 5
_FIRST_VERSION_WITH_QUOTA_CODE = 6


async def handle_create_topics(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    refused = {each.name: error async for each in in_turns(request.topics) if (error := _refusal(each)) is not None}
    wanted = [_new_topic(each) async for each in in_turns(request.topics) if each.name not in refused]
    try:
        results = await within(
            to_ms(request.timeout),
            create_topics(
                context.node,
                context.rights,
                wanted,
                validate_only=request.validate_only,
                mutations=context.mutations(strict=context.api_version >= _FIRST_VERSION_WITH_QUOTA_CODE),
            ),
        )
    except SemelError as error:
        results = tuple(TopicResult(each.name, error.code, error.message) for each in wanted)
    told = refused | {each.name: each for each in results}
    configs = {each.name: each.configs for each in wanted}
    return await write_response(
        context,
        topics=[_answer(context, each, configs, request.validate_only) async for each in in_turns(list(told.values()))],
    )


def _refusal(topic: Any) -> TopicResult | None:
    """Return what is wrong with the request itself."""
    nulls = sorted(each.name for each in topic.configs if each.value is None)
    if nulls:
        return TopicResult(topic.name, ErrorCode.INVALID_CONFIG, f"{', '.join(nulls)[:300]}: a setting can't be null")
    numbers = [each.partition_index for each in topic.assignments]
    if len(set(numbers)) < len(numbers):
        message = "a partition is assigned more than once"
        return TopicResult(topic.name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return None


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {each.name: each.value for each in topic.configs},
        {each.partition_index: each.broker_ids for each in topic.assignments},
    )


def _answer(
    context: RequestContext, result: TopicResult, configs: Mapping[str, Mapping[str, str]], validate_only: bool
) -> dict[str, Any]:
    if result.topic is None:
        return {
            "name": result.name,
            "error_code": result.error,
            "error_message": result.message or None,
            "topic_id": ZERO_TOPIC_ID.bytes,
            "configs": (),
        }
    partitions = result.topic.partitions
    made = {
        "name": result.name,
        "topic_id": (ZERO_TOPIC_ID if validate_only else result.topic.topic_id).bytes,
    }
    if not may_see_configs(context.rights, result.name):
        # Neither its settings nor what comes of them are told, as in Kafka.
        return {**made, "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "configs": ()}
    return {
        **made,
        "num_partitions": len(partitions),
        "replication_factor": len(partitions[0].replicas),
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": entry.is_read_only,
                "config_source": config_source(entry.source),
                "is_sensitive": entry.is_sensitive,
            }
            for entry in topic_entries(context.node, configs[result.name])
        ]
        if context.api_version >= _FIRST_VERSION_WITH_CONFIGS
        else (),
    }


CREATE_TOPICS = Api(ApiKey.CREATE_TOPICS, 2, 7, handle_create_topics)
