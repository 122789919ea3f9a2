"""A node's logs on a simulated disk, and little helpers to write and read them."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedStorage

TP = TopicPartition("orders", 0)
TOPIC_ID = new_topic_id()
CONFIG = LogConfig(segment_ms=1 << 60, retention_ms=-1, file_delete_delay_ms=1000)


def batch(count: int = 1, *, key: bytes = b"k", size: int = 10, sequence: int | None = None) -> bytearray:
    records = [(1_700_000_000_000, key, b"%d" % n * size, ()) for n in range(count)]
    if sequence is None:
        return bytearray(encode_batch(records))
    return bytearray(encode_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence))


class Node:
    """A data folder on a simulated disk, and the manager that has it open."""

    def __init__(
        self, storage: SimulatedStorage | None = None, config: LogManagerConfig | None = None, **owner: Any
    ) -> None:
        self.storage = storage or SimulatedStorage()
        self.clock = ManualClock()
        self.failures: list[SemelError] = []
        self.config = config or LogManagerConfig(disk_min_free_bytes=0)
        self.owner = owner
        """`node_id` and `cluster_id`, where a test is about them."""
        self.executor: Executor | None = None
        """What work on the disk is done by, where a start says nothing else."""
        self.logs = self.manager()

    def manager(self, executor: Executor | None = None) -> LogManager:
        executor = executor or self.executor
        return LogManager(
            self.storage,
            "/data",
            self.clock,
            self.config,
            on_failure=self.failures.append,
            executor=executor,
            **self.owner,
        )

    def start(self, log_config: LogConfig = CONFIG, executor: Executor | None = None) -> LogManager:
        self.logs = self.manager(executor)
        self.logs.open(lambda tp, topic_id: log_config)
        return self.logs

    def create(self, tp: TopicPartition = TP, log_config: LogConfig = CONFIG) -> Partition:
        return self.logs.create_partition(tp, TOPIC_ID, log_config)

    def get(self, tp: TopicPartition = TP) -> Partition:
        partition = self.logs.partition(tp)
        assert partition is not None
        return partition


async def append(partition: Partition, data: bytearray | None = None) -> int:
    result = partition.append(data if data is not None else batch())
    await partition.wait_committed(result.last_offset)
    return result.base_offset


def read_all(partition: Partition) -> bytes:
    parts, offset = [], partition.log_start_offset
    while offset < partition.high_watermark:
        found = partition.read(offset, max_bytes=1 << 20)
        parts.append(found.read())
        offset = found.next_offset
    return b"".join(parts)
