"""What a broker's topics hold, read past the listeners: as a consumer sees it, but with no faults in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.broker.logs.partition import Partition
from semel.broker.node import Node
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.fetched import FetchedChunk

_READ_BYTES = 1 << 20


def partitions_of(node: Node, topic: str, partition: int | None = None) -> list[Partition]:
    """Return a topic's partitions, or the one that is named. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    image = node.metadata.topic(topic)
    numbers = [partition] if partition is not None else range(0 if image is None else len(image.partitions))
    found = [node.partition(TopicPartition(topic, number)) for number in numbers]
    present = [one for one in found if one is not None]
    if not present or len(present) < len(found):
        what = topic if partition is None else f"{topic}-{partition}"
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the broker has no {what}: create_topic makes one")
    return present


async def read_records(
    node: Node, topic: str, partition: int | None, isolation: IsolationLevel, at_least: int, timeout_s: float
) -> list[Record]:
    """Return a topic's records by partition and offset, once there are `at_least` so many. Raises `TimeoutError`."""
    partitions = partitions_of(node, topic, partition)
    more = asyncio.Event()

    def woken(_: Partition) -> None:
        more.set()

    for one in partitions:
        one.add_append_listener(woken)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                more.clear()
                records = [record for one in partitions for record in _read(one, isolation)]
                if len(records) >= at_least:
                    return records
                await more.wait()
    except TimeoutError:
        raise TimeoutError(
            f"{topic} has {len(records)} {isolation.name.lower()} records after {timeout_s} s, not {at_least}"
        ) from None
    finally:
        for one in partitions:
            one.remove_append_listener(woken)


def _read(partition: Partition, isolation: IsolationLevel) -> Sequence[Record]:
    records: list[Record] = []
    offset = partition.log_start_offset
    while True:
        found = partition.read(offset, max_bytes=_READ_BYTES, isolation=isolation)
        if not found.size:
            return records
        aborted = None
        if isolation is IsolationLevel.READ_COMMITTED:
            aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
        chunk = FetchedChunk(partition.tp, memoryview(found.read()), offset, aborted)
        while taken := chunk.take(1 << 30):
            records += taken
        offset = found.next_offset
