"""CreatePartitions, versions 0 to 3 (KIP-195): gives topics more partitions, each for itself.

Version 3 refuses what is beyond the client's quota (KIP-599).
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.broker.handlers.topics.changes import MorePartitions
from semel.broker.listeners.kafka.apis.deadline import within
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.topics import create_partitions_of_many
from semel.protocol.api.metadata import TopicResult
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import to_ms

_FIRST_VERSION_WITH_QUOTA_CODE = 3


async def handle_create_partitions(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted = [
        MorePartitions(
            each.name,
            each.count,
            None if each.assignments is None else [assigned.broker_ids for assigned in each.assignments],
        )
        for each in request.topics
    ]
    results: Iterable[TopicResult]
    try:
        results = await within(
            to_ms(request.timeout),
            create_partitions_of_many(
                context.node,
                context.rights,
                wanted,
                validate_only=request.validate_only,
                mutations=context.mutations(strict=context.api_version >= _FIRST_VERSION_WITH_QUOTA_CODE),
            ),
        )
    except SemelError as error:
        results = [TopicResult(each.topic, error.code, error.message) for each in wanted]
    # What is asked for twice is answered once.
    told = {each.name: each for each in results}
    return await write_response(
        context,
        results=[
            {"name": each.name, "error_code": each.error, "error_message": each.message or None}
            for each in told.values()
        ],
    )


CREATE_PARTITIONS = Api(ApiKey.CREATE_PARTITIONS, 0, 3, handle_create_partitions)
