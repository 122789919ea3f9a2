"""CreatePartitions, versions 0 to 3 (KIP-195): gives topics more partitions, each for itself, one after the other."""

from __future__ import annotations

from collections import Counter
from typing import Any

from semel.broker.handlers.topics import create_partitions
from semel.broker.listeners.kafka.apis.deadline import within
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request, to_ms


async def handle_create_partitions(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.CREATE_PARTITIONS, version, body)
    results: dict[str, TopicResult] = {}
    try:
        await within(to_ms(request.timeout), _create(context.node, request, results))
    except SemelError as error:
        # Those that were not reached in time.
        for each in request.topics:
            results.setdefault(each.name, TopicResult(each.name, error.code, error.message))
    return build_response(
        ApiKey.CREATE_PARTITIONS,
        version,
        results=[
            {"name": each.name, "error_code": each.error, "error_message": each.message or None}
            for each in results.values()
        ],
    )


async def _create(node: Services, request: Any, results: dict[str, TopicResult]) -> None:
    times = Counter(each.name for each in request.topics)
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise UsageError(f"topic {topic.name} is in the request more than once")
            await create_partitions(
                node,
                topic.name,
                topic.count,
                assignments=None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
                validate_only=request.validate_only,
            )
        except SemelError as error:
            results[topic.name] = TopicResult(topic.name, error.code, error.message)
        else:
            results[topic.name] = TopicResult(topic.name)


CREATE_PARTITIONS = Api(ApiKey.CREATE_PARTITIONS, 0, 3, handle_create_partitions)
