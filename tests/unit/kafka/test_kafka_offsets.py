"""ListOffsets and OffsetForLeaderEpoch on the Kafka listener, in every version."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import create_topic, run_with_node

from semel.broker.logs.partition import Partition
from semel.broker.node import Node
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey

LATEST, EARLIEST, LARGEST, EARLIEST_LOCAL, TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NEVER = (0, -1, -1)

with_node = partial(run_with_node, topics={"a": 1})


def partition_a(node: Node) -> Partition:
    partition = node.partition(TopicPartition("a", 0))
    assert partition is not None
    return partition


async def append(node: Node, *timestamps_ms: int, **producer: Any) -> None:
    for timestamp_ms in timestamps_ms:
        data = encode_batch([(timestamp_ms, b"k", b"v", ())], **producer)
        result = partition_a(node).append(bytearray(data), verified=bool(producer))
        await partition_a(node).wait_committed(result.last_offset)


async def ask(node: Node, version: int, *partitions: dict[str, Any], **values: Any) -> list[tuple[int, int, int]]:
    """Return error, offset and timestamp of each."""
    topics = [{"name": "a", "partitions": [{"partition_index": 0, **each} for each in partitions]}]
    response = await call(node.kafka_address.port, ApiKey.LIST_OFFSETS, version, replica_id=-1, topics=topics, **values)
    (topic,) = response.topics
    assert topic.name == "a"
    return [(int(each.error_code), each.offset, each.timestamp) for each in topic.partitions]


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_by_name_and_by_time(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        assert await ask(node, version, {"timestamp": 0}) == [NEVER]
        await append(node, 100, 300, 200)
        partition_a(node).delete_records(1)
        for timestamp, offset, found_ms in (
            (EARLIEST, 1, -1),
            (LATEST, 3, -1),
            (101, 1, 300),
            (0, 1, 300),
            (301, -1, -1),
        ):
            assert await ask(node, version, {"timestamp": timestamp}) == [(0, offset, found_ms)]
        refused = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        for timestamp, since, answer in (
            (LARGEST, 7, (0, 1, 300)),
            (EARLIEST_LOCAL, 8, (0, 1, -1)),
            (TIERED, 9, NEVER),
            (PENDING_UPLOAD, 11, NEVER),
            (-7, 99, None),
            (-(1 << 63), 99, None),
        ):
            assert await ask(node, version, {"timestamp": timestamp}) == [answer if version >= since else refused]

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(1, 12))
def test_L2_what_is_last_depends_on_the_isolation_level(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await append(node, 100)
        await append(node, 200, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        assert await ask(node, version, {"timestamp": LATEST}, isolation_level=0) == [(0, 2, -1)]
        assert await ask(node, version, {"timestamp": 150}, isolation_level=0) == [(0, 1, 200)]
        if version >= 2:
            assert await ask(node, version, {"timestamp": LATEST}, isolation_level=1) == [(0, 1, -1)]
            assert await ask(node, version, {"timestamp": 150}, isolation_level=1) == [NEVER]
            refused = (ErrorCode.INVALID_REQUEST, -1, -1)
            assert await ask(node, version, {"timestamp": LATEST}, isolation_level=2) == [refused]

    with_node(tmp_path, test)


def test_each_partition_has_its_own_error(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "b", 2)
        asked = {"a": (0, 0, 1), "b": (0, 1), "c": (0,)}
        topics = [
            {"name": name, "partitions": [{"partition_index": number, "timestamp": LATEST} for number in numbers]}
            for name, numbers in asked.items()
        ]
        response = await call(node.kafka_address.port, ApiKey.LIST_OFFSETS, 11, replica_id=-1, topics=topics)
        twice, unknown = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert {topic.name: [int(each.error_code) for each in topic.partitions] for topic in response.topics} == {
            "a": [twice, twice, unknown],
            "b": [0, 0],
            "c": [unknown],
        }

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(4, 12))
def test_a_leader_epoch_that_is_not_the_current_one_is_refused(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        partition_a(node).leader_epoch = 5
        for epoch, error in ((4, ErrorCode.FENCED_LEADER_EPOCH), (5, 0), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)):
            ((found, _, _),) = await ask(node, version, {"timestamp": LATEST, "current_leader_epoch": epoch})
            assert found == error

    with_node(tmp_path, test)


def test_the_epoch_told_is_that_of_the_record_at_the_offset(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        async def epoch_of(timestamp: int) -> int:
            topics = [{"name": "a", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
            response = await call(node.kafka_address.port, ApiKey.LIST_OFFSETS, 8, replica_id=-1, topics=topics)
            epoch: int = response.topics[0].partitions[0].leader_epoch
            return epoch

        partition_a(node).leader_epoch = 2
        assert (await epoch_of(EARLIEST), await epoch_of(LATEST), await epoch_of(1)) == (2, 2, -1)
        await append(node, 100)
        partition_a(node).leader_epoch = 4
        await append(node, 200)
        epochs = {timestamp: await epoch_of(timestamp) for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST, 100, 101)}
        assert epochs == {EARLIEST: 2, EARLIEST_LOCAL: 2, LATEST: 4, 100: 2, 101: 4}

    with_node(tmp_path, test)


# --- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------------


async def end_of(node: Node, version: int, epoch: int, current: int = -1, topic: str = "a") -> tuple[int, int, int]:
    """Return error, epoch and end offset."""
    item = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
    response = await call(
        node.kafka_address.port,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        version,
        topics=[{"topic": topic, "partitions": [item]}],
    )
    found = response.topics[0].partitions[0]
    assert (response.topics[0].topic, found.partition) == (topic, 0)
    return int(found.error_code), found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", range(2, 5))
def test_where_leader_epochs_ended(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        partition = partition_a(node)
        partition.leader_epoch = 2
        await append(node, 1, 2)
        partition.leader_epoch = 4
        await append(node, 3)
        # Nothing was written in 5 and 6.
        partition.leader_epoch = 6
        unknown = (0, -1, -1)
        expected = {-1: unknown, 0: (0, 0, 0), 2: (0, 2, 2), 3: (0, 2, 2), 4: (0, 4, 3), 6: (0, 6, 3), 7: unknown}
        assert {epoch: await end_of(node, version, epoch) for epoch in expected} == expected
        assert await end_of(node, version, 4, current=5) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
        assert await end_of(node, version, 4, current=6) == (0, 4, 3)
        assert await end_of(node, version, 4, current=7) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await end_of(node, version, 4, topic="b") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)

    with_node(tmp_path, test)


def test_an_epoch_in_which_nothing_was_written_is_known(tmp_path: Path) -> None:
    """Without an answer, consumers at the start of an empty partition would take it for truncated, and jump."""

    async def test(node: Node) -> None:
        assert await end_of(node, 4, 0) == (0, 0, 0)

    with_node(tmp_path, test)
