"""A topic's closed segments go to the remote storage, leave the disk, and are read from there (KIP-405)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from memory_objects import MemoryObjects
from running_node import SMALL, batch, create_topic
from tiered_topic import (
    NOTHING_LOCAL,
    QUICK,
    TP,
    all_copied,
    append,
    end_transaction,
    fetch_once,
    fill,
    left_the_disk,
    partition_of,
    read_all,
    run_tiered,
    serving,
    tier_of,
    tiered_node,
    until,
)

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.handlers.list_offsets import list_offsets
from semel.broker.handlers.topics.changes import create_topics, delete_topics
from semel.broker.node import Node
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsRequest,
    NewTopic,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, RetriableError, UsageError
from semel.protocol.ids import ProducerIdAndEpoch


def test_D6_closed_segments_leave_the_disk_and_all_is_read_as_before(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 40)
        await left_the_disk(node)
        log = partition_of(node).log
        assert (log.log_start_offset, log.log_end_offset) == (0, 40)
        assert log.local_start_offset > 30
        assert len(objects.objects) == len(tier_of(node).remote.segments) > 5
        expected = list(enumerate(values))
        for max_bytes in (1, 150, 1_000, 1 << 20):
            assert await read_all(node, max_bytes=max_bytes) == expected
        for offset in (1, 7, 33):
            assert await read_all(node, offset) == expected[offset:]

    run_tiered(tmp_path, test)


def test_D6_after_a_clean_stop_and_after_a_crash_all_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(tmp_path, objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            values = await fill(node, 30)
            await left_the_disk(node)
        async with tiered_node(tmp_path, objects) as node:
            await serving(node)
            assert partition_of(node).log_start_offset == 0
            assert await read_all(node) == list(enumerate(values))

    asyncio.run(main())


def test_L1_nothing_of_an_open_transaction_is_copied(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        producer = ProducerIdAndEpoch(7, 0)
        await append(node, [b"undecided"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        await fill(node, 20)
        await asyncio.sleep(0.3)
        assert not objects.objects
        await end_transaction(node, producer, committed=True)
        await all_copied(node)
        assert tier_of(node).end_offset > 15

    run_tiered(tmp_path, test)


@pytest.mark.parametrize("seed", range(6))
def test_L3_readers_of_committed_records_get_the_same_from_the_remote_storage(tmp_path: Path, seed: int) -> None:
    """Transactions overlap, some are aborted, and their markers lie in other segments than their records."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        chance = random.Random(seed)
        sequences = dict.fromkeys(range(1, 4), 0)
        begun: dict[int, list[tuple[int, bytes]]] = {}
        expected: dict[int, bytes] = {}
        for number in range(80):
            producer_id = chance.choice((0, 1, 2, 3))
            value = b"%d-%d" % (producer_id, number) + b"." * chance.randrange(120)
            if producer_id == 0:
                expected[await append(node, [value])] = value
            elif chance.random() < 0.3 and producer_id in begun:
                committed = chance.random() < 0.5
                await end_transaction(node, ProducerIdAndEpoch(producer_id, 0), committed=committed)
                records = begun.pop(producer_id)
                expected |= dict(records) if committed else {}
            else:
                offset = await append(
                    node, [value], producer_id=producer_id, producer_epoch=0,
                    base_sequence=sequences[producer_id], transactional=True,
                )  # fmt: skip
                sequences[producer_id] += 1
                begun.setdefault(producer_id, []).append((offset, value))
        for producer_id in list(begun):
            await end_transaction(node, ProducerIdAndEpoch(producer_id, 0), committed=False)
        await fill(node, 8)
        await left_the_disk(node)
        local = partition_of(node).log.local_start_offset
        tail = partition_of(node).log_end_offset - 8
        for max_bytes in (1, 400, 1 << 20):
            found = await read_all(node, max_bytes=max_bytes, committed=True)
            assert [one for one in found if one[0] < tail] == sorted(expected.items())
        assert local > 60

    run_tiered(tmp_path, test)


def test_D6_retention_counts_what_is_in_both_places_and_deletes_the_objects(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 60)
        partition = partition_of(node)
        await until(lambda: partition.log_start_offset >= 40)
        await until(lambda: len(objects.objects) == len(tier_of(node).remote.segments) <= 4)
        held = tier_of(node).remote.size_bytes + partition.log.segments.active.size
        assert held < 2_500 + 600  # a segment goes once all of it is too much
        found = await read_all(node, partition.log_start_offset)
        assert [offset for offset, _ in found] == list(range(partition.log_start_offset, 60))
        assert (await fetch_once(node, 0)).error is ErrorCode.OFFSET_OUT_OF_RANGE

    run_tiered(tmp_path, test, topic={"retention_bytes": "2500"})


def test_D6_retention_by_time_deletes_in_the_remote_storage(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 20)  # of the year 1970
        partition = partition_of(node)
        await until(lambda: partition.log_start_offset == 20)  # the active segment is too old, too
        await until(lambda: not objects.objects)
        assert await append(node, [b"after"]) == 20

    run_tiered(tmp_path, test, topic={"retention_ms": "1000", "local_retention_ms": "-2"})


def test_D1_D6_deleted_records_stay_deleted_wherever_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(tmp_path, objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 40)
            await left_the_disk(node)
            before = len(objects.objects)
            found = await confirm_deletion(node, await begin_deletion(node, {TP: 17}))
            assert (found[TP].log_start_offset, found[TP].error) == (17, ErrorCode.NONE)
            assert tier_of(node).remote.start_offset == 17, "the next leader goes by that"
            await until(lambda: len(objects.objects) < before)
            assert tier_of(node).remote.first_offset <= 17
            assert [offset for offset, _ in await read_all(node, 17)] == list(range(17, 40))
        async with tiered_node(tmp_path, objects) as node:
            await serving(node)
            assert partition_of(node).log_start_offset == 17
            assert (await fetch_once(node, 16)).error is ErrorCode.OFFSET_OUT_OF_RANGE
            assert [offset for offset, _ in await read_all(node, 17)] == list(range(17, 40))

    asyncio.run(main())


def test_list_offsets_tells_where_each_part_begins_and_finds_times_in_both(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        for number in range(40):
            data = bytearray(timed(number * 10, 95))
            await partition.wait_committed(partition.append(data).last_offset)
        await left_the_disk(node)
        local, tiered = partition.log.local_start_offset, tier_of(node).end_offset

        async def offset(timestamp_ms: int) -> int:
            found = (await list_offsets(node, ListOffsetsRequest({TP: timestamp_ms})))[TP]
            assert found.error is ErrorCode.NONE
            return found.offset

        assert await offset(EARLIEST_TIMESTAMP) == 0
        assert await offset(EARLIEST_LOCAL_TIMESTAMP) == local
        assert await offset(LATEST_TIERED_TIMESTAMP) == tiered - 1
        assert await offset(EARLIEST_PENDING_UPLOAD_TIMESTAMP) == tiered
        assert await offset(LATEST_TIMESTAMP) == 40
        assert await offset(MAX_TIMESTAMP) == 39
        for number in range(1, 40):
            assert await offset(number * 10) == number
            assert await offset(number * 10 - 5) == number
        assert await offset(400) == -1

    run_tiered(tmp_path, test, topic={"retention_ms": "-1"})


def test_the_largest_timestamp_may_be_in_the_remote_storage(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        for number in range(20):
            data = bytearray(timed(5_000 if number == 3 else number, 95))
            await partition.wait_committed(partition.append(data).last_offset)
        await left_the_disk(node)
        found = (await list_offsets(node, ListOffsetsRequest({TP: MAX_TIMESTAMP})))[TP]
        assert (found.offset, found.timestamp_ms) == (3, 5_000)

    run_tiered(tmp_path, test)


def test_a_deleted_topic_leaves_nothing_in_the_remote_storage(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 20)
        await all_copied(node)
        assert objects.objects
        await delete_topics(node, ["t"])
        await until(lambda: not objects.objects)
        async with asyncio.timeout(30):
            while await topics_noted(node):  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.02)

    run_tiered(tmp_path, test)


def test_D6_a_store_that_fails_keeps_everything_on_the_disk(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        objects.fault = lambda kind, key: "fail" if kind == "put" else ""
        values = await fill(node, 20)
        await until(lambda: objects.requests["put"] > 2 and "planned" in tier_of(node).error)  # not while it tries
        assert partition_of(node).log.local_start_offset == 0
        assert await read_all(node) == list(enumerate(values))
        objects.fault = lambda kind, key: ""
        await left_the_disk(node)
        assert not tier_of(node).error
        assert await read_all(node) == list(enumerate(values))

    run_tiered(tmp_path, test)


def test_D6_an_upload_whose_answer_is_lost_is_repeated_and_the_first_object_goes(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        lost: list[str] = []

        def lose_first(kind: str, key: str) -> str:
            if kind == "put" and not lost:
                lost.append(key)
                return "lose"
            return ""

        objects.fault = lose_first
        values = await fill(node, 20)
        await left_the_disk(node)
        assert lost
        await until(lambda: set(objects.objects) == {one.key for one in tier_of(node).remote.segments})
        assert await read_all(node) == list(enumerate(values))

    run_tiered(tmp_path, test)


def test_a_reader_is_told_of_a_missing_object_and_nothing_is_skipped(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 40)
        await left_the_disk(node)
        segment = tier_of(node).remote.segments[2]
        kept = objects.objects.pop(segment.key)
        with pytest.raises(RetriableError, match="KAFKA_STORAGE_ERROR"):
            await read_all(node)
        objects.objects[segment.key] = kept
        await asyncio.sleep(1.1)  # so long the failure is remembered
        assert await read_all(node) == list(enumerate(values))

    run_tiered(tmp_path, test)


@pytest.mark.parametrize("where", ["batches", "list of aborted transactions"])
def test_L3_a_damaged_object_is_told_and_nothing_of_it_is_given(tmp_path: Path, where: str) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        producer = ProducerIdAndEpoch(7, 0)
        await append(node, [b"x" * 100], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        await end_transaction(node, producer, committed=False)
        await fill(node, 20)
        await left_the_disk(node)
        segment = tier_of(node).remote.segments[0]
        data = bytearray(objects.objects[segment.key])
        data[80 if where == "batches" else segment.aborted.position + 20] ^= 1
        objects.objects[segment.key] = bytes(data)
        with pytest.raises(RetriableError, match="CORRUPT_MESSAGE"):
            await read_all(node, committed=True)

    run_tiered(tmp_path, test)


def test_D2_a_segment_that_is_damaged_on_the_disk_is_not_copied(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 5)
        log = partition_of(node).log
        file = log.segments.first.file
        byte = file.read_at(1, 80)
        file.write_at(bytes([byte[0] ^ 1]), 80)
        await fill(node, 20)
        await until(lambda: "damaged" in tier_of(node).error)
        assert tier_of(node).end_offset == 0
        assert log.local_start_offset == 0
        file.write_at(byte, 80)
        await left_the_disk(node)

    run_tiered(tmp_path, test)


def test_only_topics_that_are_deleted_by_age_can_have_it_and_it_stays(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        wrong = {"remote.storage.enable": "true", "cleanup.policy": "compact"}
        (result,) = await create_topics(node, [NewTopic("c", configs=wrong)])
        assert result.error is ErrorCode.INVALID_CONFIG
        assert "compact" in result.message
        with pytest.raises(UsageError, match="can't be taken back"):
            await alter_configs(node, AlterConfigsRequest(ResourceType.TOPIC, "t", {"remote.storage.enable": "false"}))
        with pytest.raises(UsageError, match=r"local\.retention\.ms"):
            await alter_configs(
                node, AlterConfigsRequest(ResourceType.TOPIC, "t", {"retention.ms": "5", "local.retention.ms": "6"})
            )

    run_tiered(tmp_path, test)


def test_a_topic_can_get_it_later(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 20)
        assert not objects.objects
        configs = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        await alter_configs(node, AlterConfigsRequest(ResourceType.TOPIC, "t", configs))
        await serving(node)
        await left_the_disk(node)
        assert await read_all(node) == list(enumerate(values))

    run_tiered(tmp_path, test, topic={"remote_storage_enable": "false", "local_retention_bytes": "-2"})


def test_without_a_remote_storage_a_topic_with_it_is_refused_and_one_there_is_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(tmp_path, objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 20)
            await left_the_disk(node)
        async with tiered_node(tmp_path, objects, remote_storage_url="") as node:
            answer = await fetch_once(node, 0)
            assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
            (result,) = await create_topics(node, [NewTopic("u", configs={"remote.storage.enable": "true"})])
            assert result.error is ErrorCode.INVALID_CONFIG
            assert "remote.storage.url" in result.message
            await asyncio.sleep(0.1)
            assert len(partition_of(node).log.segments) == 1
        async with tiered_node(tmp_path, objects) as node:
            await serving(node)
            assert len(await read_all(node)) == 20

    asyncio.run(main())


@pytest.mark.damages_data("its metadata is elsewhere, and it alone says what is in the remote storage")
def test_P1_producers_are_known_after_a_lost_log_came_back_from_the_remote_storage(tmp_path: Path) -> None:
    """The data directory is gone, and the metadata is elsewhere: what was copied is there, and the log continues."""

    async def main() -> None:
        objects = MemoryObjects()
        outside = {"metadata_url": f"sqlite:///{tmp_path}/outside.sqlite"}
        async with tiered_node(tmp_path, objects, **outside) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            values = []
            for number in range(30):
                values.append(b"%d" % number + b"." * 95)
                await append(node, [values[-1]], producer_id=5, producer_epoch=0, base_sequence=number)
            await left_the_disk(node)
            copied = tier_of(node).end_offset
        (tmp_path / "data").rename(tmp_path / "lost")
        config = NodeConfig(data_dir=str(tmp_path / "data"), **{**SMALL, **QUICK, **outside})
        node = await Node.start(config, object_store=objects, listeners=(), accept_data_loss=True)
        try:
            await serving(node)
            partition = partition_of(node)
            assert (partition.log_start_offset, partition.log_end_offset) == (0, copied)
            assert await read_all(node) == list(enumerate(values))[:copied]
            result = partition.append(
                bytearray(batch(values[copied - 1], producer_id=5, producer_epoch=0, base_sequence=copied - 1))
            )
            assert result.duplicate
            following = await append(node, [b"next"], producer_id=5, producer_epoch=0, base_sequence=copied)
            assert following == copied
        finally:
            await node.stop(grace_ms=0)

    asyncio.run(main())


def timed(timestamp_ms: int, size: int) -> bytes:
    return encode_batch([(timestamp_ms, None, b"." * size, ())])


async def topics_noted(node: Node) -> set[str]:
    assert node.tier is not None
    return await node.tier.storage.ask(node.tier.storage.rows.topic_ids)
