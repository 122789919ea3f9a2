"""Topics whose closed segments go to a remote storage in memory, and reading them as clients do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from memory_objects import MemoryObjects
from running_node import SMALL, batch, create_topic

from semel.broker.config.node_config import NodeConfig
from semel.broker.logs.partition import Partition
from semel.broker.node import Node
from semel.broker.tiers.partition_tier import PartitionTier
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import ZERO_TOPIC_ID, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.record_decoder import decode_records

TP = TopicPartition("t", 0)
QUICK: dict[str, Any] = {
    "remote_storage_url": "s3://bucket/prefix",
    "remote_log_manager_task_interval_ms": 100,
    "remote_storage_timeout_ms": 1_000,
    "log_flush_interval_ms": 100,
    "log_retention_check_interval_ms": 20,
    "log_segment_delete_delay_ms": 0,
    "log_retention_ms": -1,
}
"""Settings of a node that copies and deletes soon."""
NOTHING_LOCAL = {"remote_storage_enable": "true", "local_retention_bytes": "1", "segment_bytes": "600"}
"""Settings of a topic with small segments, which leave the disk as soon as they are copied."""
WITHIN_S = 30.0


@asynccontextmanager
async def tiered_node(folder: Path, objects: MemoryObjects, **settings: Any) -> AsyncIterator[Node]:
    """Start a node, and stop it at the end."""
    config = NodeConfig(data_dir=str(folder / "data"), **{**SMALL, **QUICK, **settings})
    node = await Node.start(config, object_store=objects, listeners=())
    try:
        yield node
    finally:
        await node.stop(grace_ms=500)


def run_tiered(
    folder: Path,
    test: Callable[[Node, MemoryObjects], Awaitable[None]],
    *,
    topic: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Run a test against a node that has the topic `t`."""

    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(folder, objects, **settings) as node:
            await create_topic(node, "t", **{**NOTHING_LOCAL, **(topic or {})})
            await serving(node)
            await test(node, objects)

    asyncio.run(main())


def partition_of(node: Node, tp: TopicPartition = TP) -> Partition:
    found = node.partition(tp)
    assert found is not None
    return found


def tier_of(node: Node, tp: TopicPartition = TP) -> PartitionTier:
    found = partition_of(node, tp).tier
    assert isinstance(found, PartitionTier)
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 (there is nothing that tells of it)
            await asyncio.sleep(0.01)


async def serving(node: Node, tp: TopicPartition = TP) -> None:
    """Wait until the partition is served: it is known what the remote storage has."""
    await until(lambda: (here := node.partition(tp)) is not None and here.refused is None)


async def append(node: Node, values: list[bytes], tp: TopicPartition = TP, **options: Any) -> int:
    """Append a batch, wait until it is committed, and return its first offset."""
    partition = partition_of(node, tp)
    result = partition.append(bytearray(batch(*values, **options)), verified=True)
    await partition.wait_committed(result.last_offset)
    return result.base_offset


async def fill(node: Node, count: int, tp: TopicPartition = TP) -> list[bytes]:
    """Append so many records, each in a batch of its own, and return their values."""
    values = [b"%05d" % number + b"." * 95 for number in range(count)]
    for value in values:
        await append(node, [value], tp)
    return values


async def end_transaction(node: Node, producer: ProducerIdAndEpoch, *, committed: bool) -> None:
    partition = partition_of(node)
    offset = partition.append_marker(producer, 0, committed)
    assert offset is not None
    await partition.wait_committed(offset)


async def all_copied(node: Node, tp: TopicPartition = TP) -> None:
    """Wait until all closed segments are in the remote storage."""
    log = partition_of(node, tp).log
    await until(lambda: tier_of(node, tp).end_offset == log.segments.active.base_offset)


async def left_the_disk(node: Node, tp: TopicPartition = TP) -> None:
    """Wait until all closed segments are copied, and in the remote storage alone."""
    await all_copied(node, tp)
    log = partition_of(node, tp).log
    await until(lambda: len(log.segments) == 1)


async def fetch_once(
    node: Node, offset: int, tp: TopicPartition = TP, *, max_bytes: int = 1 << 20, committed: bool = False
) -> Any:
    """Return one partition's answer to a Fetch."""
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    item = FetchPartition(tp.topic, ZERO_TOPIC_ID, tp.partition, offset, max_bytes)
    (answer,) = (await node.fetch.fetch(FetchRequest([item], 500, isolation=isolation), 12)).partitions
    return answer


async def read_all(
    node: Node, offset: int = 0, tp: TopicPartition = TP, *, max_bytes: int = 1 << 20, committed: bool = False
) -> list[tuple[int, bytes | None]]:
    """Read up to the end as a consumer does: each batch once, without aborted records where `committed`.

    Raises `RetriableError` for what the node answers otherwise.
    """
    partition = partition_of(node, tp)
    end = partition.last_stable_offset if committed else partition.high_watermark
    found: list[tuple[int, bytes | None]] = []
    async with asyncio.timeout(WITHIN_S):
        while offset < end:
            answer = await fetch_once(node, offset, tp, max_bytes=max_bytes, committed=committed)
            if answer.error is not ErrorCode.NONE:
                raise RetriableError(f"fetch at {offset}: {answer.error.name}", answer.error)
            data = answer.records
            if data is None or not len(data):
                continue
            data = bytes(data if isinstance(data, (bytes, bytearray, memoryview)) else data.read())
            aborted = sorted((first, producer_id) for producer_id, first in answer.aborted or ())
            open_aborts: set[int] = set()
            for header in iter_batches(data):
                while aborted and aborted[0][0] <= header.last_offset:
                    open_aborts.add(aborted.pop(0)[1])
                if header.is_control:
                    open_aborts.discard(header.producer_id)
                elif not (committed and header.is_transactional and header.producer_id in open_aborts):
                    found += [
                        (record.offset, record.value)
                        for record in decode_records(data, header.position)
                        if record.offset >= offset
                    ]
                following = header.next_offset
            offset = max(offset, following)
    return found
