"""DescribeLogDirs: the data folder, its disk, and how much of it each partition takes (KIP-113, KIP-827)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.broker.services import Services
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """What one partition takes, and gives.

    offset_lag:    how far the log's end is behind the high watermark: never, but on a replica that catches up
    fetched_bytes: of records that consumers were sent since the node opened the partition
    """

    size_bytes: int
    offset_lag: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """The data folder. Sizes of its disk are -1 where they can't be told."""

    path: str
    partitions: Mapping[TopicPartition, PartitionSize]
    total_bytes: int
    usable_bytes: int
    error: ErrorCode = ErrorCode.NONE


def describe_log_dir(node: Services) -> LogDir:
    """Return the data folder with all partitions that are online. It is KAFKA_STORAGE_ERROR where none of many is."""
    here = node.logs.partitions()
    online = {
        each.tp: PartitionSize(
            each.log.size_bytes, max(0, each.high_watermark - each.log_end_offset), each.fetched_bytes
        )
        for each in here
        if each.offline_error is None
    }
    error = ErrorCode.KAFKA_STORAGE_ERROR if here and not online else ErrorCode.NONE
    try:
        total_bytes, usable_bytes = node.logs.disk_bytes()
    except OSError:
        total_bytes, usable_bytes, error = -1, -1, ErrorCode.KAFKA_STORAGE_ERROR
    return LogDir(node.logs.folder.path, online, total_bytes, usable_bytes, error)
