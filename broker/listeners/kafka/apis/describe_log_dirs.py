"""DescribeLogDirs, versions 1 to 5: the data folder with the sizes of its partitions and (version 4) its disk.

A node has one folder. Null asks for all partitions; those that are not here are left out, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.broker.handlers.log_dirs import PartitionSize
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.cluster import data_folder
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns


async def handle_describe_log_dirs(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    try:
        found = data_folder(context.node, context.rights)
    except SemelError as error:
        # Versions before 3 have no room for the error: nothing is told, as in Kafka.
        return await write_response(context, error_code=error.code, results=())
    partitions: Mapping[TopicPartition, PartitionSize] = found.partitions
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, number)
            async for topic in in_turns(request.topics)
            async for number in in_turns(topic.partitions)
        }
        partitions = {tp: size for tp, size in partitions.items() if tp in wanted}
    return await write_response(
        context,
        results=[
            {
                "error_code": found.error,
                "log_dir": found.path,
                "total_bytes": found.total_bytes,
                "usable_bytes": found.usable_bytes,
                "topics": await _topics(partitions),
            }
        ],
    )


async def _topics(partitions: Mapping[TopicPartition, PartitionSize]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    async for tp in in_turns(sorted(partitions)):
        size = partitions[tp]
        values = {"partition_index": tp.partition, "partition_size": size.size_bytes, "offset_lag": size.offset_lag}
        topics.setdefault(tp.topic, []).append(values)
    return [{"name": name, "partitions": values} for name, values in topics.items()]


DESCRIBE_LOG_DIRS = Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, handle_describe_log_dirs)
