"""Which partition one entry of a Fetch is about, and what keeps it from being read there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.broker.handlers.partitions.leader_hints import not_here
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.services import Services

TOPIC_ID_MIN_VERSION: Final = 13
STORAGE_ERROR_MIN_VERSION: Final = 6


def topic_name(node: Services, item: FetchPartition, version: int) -> str | None:
    """Return the name of the topic, None where its id is unknown."""
    if version < TOPIC_ID_MIN_VERSION:
        return item.topic
    return node.metadata.topic_name(item.topic_id)


def find_partition(
    node: Services, item: FetchPartition, version: int, response: FetchPartitionResponse
) -> Partition | None:
    """Return the partition, or put into `response` why there is none to be read."""
    by_id = version >= TOPIC_ID_MIN_VERSION
    name = topic_name(node, item, version)
    if name is None:
        response.error = ErrorCode.UNKNOWN_TOPIC_ID
        return None
    partition = node.partition(TopicPartition(name, item.partition))
    if partition is None:
        response.error = known_code(not_here(node, TopicPartition(name, item.partition)).code, version)
    elif by_id and item.topic_id != ZERO_TOPIC_ID and partition.topic_id != item.topic_id:
        response.error = ErrorCode.INCONSISTENT_TOPIC_ID
    elif item.current_leader_epoch >= 0 and item.current_leader_epoch != partition.leader_epoch:
        is_over = item.current_leader_epoch < partition.leader_epoch
        response.error = ErrorCode.FENCED_LEADER_EPOCH if is_over else ErrorCode.UNKNOWN_LEADER_EPOCH
    return partition


def diverges(partition: Partition, item: FetchPartition, response: FetchPartitionResponse) -> bool:
    """Tell a reader whose last epoch ended earlier here where the logs part (KIP-595).

    A follower can tell only of what is committed there: behind that its own log may be the one that is wrong.
    """
    if item.last_fetched_epoch < 0:
        return False
    if partition.leader is not None:
        end = partition.end_offset_for_epoch(item.last_fetched_epoch)
    elif item.fetch_offset > partition.high_watermark:
        return False
    else:
        end = partition.log.end_offset_for_epoch(item.last_fetched_epoch)
    if end is None:
        response.error = ErrorCode.OFFSET_OUT_OF_RANGE
        return True
    if end.leader_epoch >= item.last_fetched_epoch and end.end_offset >= item.fetch_offset:
        return False
    response.diverging_epoch = end.leader_epoch
    response.diverging_end_offset = end.end_offset
    response.high_watermark = partition.high_watermark
    response.last_stable_offset = partition.last_stable_offset
    response.log_start_offset = partition.log_start_offset
    return True


def known_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code that this version knows."""
    if code is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_MIN_VERSION:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code
