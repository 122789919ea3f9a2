"""Records of diskless topics are in the database and the store: what a node has on its disk may go at any time."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import shutil
from pathlib import Path

import pytest
from diskless_topic import (
    DISKLESS,
    TP,
    claim_one,
    claimed_by_another,
    diskless_node,
    diskless_of,
    entries_of,
    lose_disk,
    objects_of,
    outside,
    rows_of,
    run_diskless,
    writer_of,
)
from memory_objects import MemoryObjects
from running_node import batch, create_topic, running_node
from tiered_topic import (
    all_copied,
    append,
    end_transaction,
    fetch_once,
    fill,
    partition_of,
    read_all,
    serving,
    tier_of,
    until,
)

from semel.broker.diskless import commits as commits_module
from semel.broker.diskless import diskless as diskless_module
from semel.broker.diskless.rows import DisklessRows, Entry, NewEntry, PartitionKey
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.handlers.list_offsets import list_offsets
from semel.broker.handlers.topics.changes import create_partitions, create_topics, delete_topics
from semel.broker.inspection.findings import Check
from semel.broker.inspection.verify import verify
from semel.broker.log import producer_snapshot as producer_snapshot_module
from semel.broker.logs.leader_state import LeaderState
from semel.broker.metadata.tables import DISKLESS_ENTRIES
from semel.broker.node import Node
from semel.broker.tiers.object_store import longest_upload_ms
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.tier import WORKED_S
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import MAX_TIMESTAMP, ListOffsetsRequest, NewTopic
from semel.protocol.batch_builder import encode_batch
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, format_topic_id
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest

SMALL_SEGMENTS = {"segment_bytes": "600"}
LARGE = 20_000
"""More than goes into a row."""


async def values_of(node: Node, offset: int = 0, *, committed: bool = False) -> list[bytes | None]:
    return [value for _, value in await read_all(node, offset, committed=committed)]


async def delete_before(node: Node, offset: int) -> None:
    found = await confirm_deletion(node, await begin_deletion(node, {TP: offset}))
    assert found[TP].error is ErrorCode.NONE, found[TP]


async def append_of(node: Node, producer_id: int, sequence: int, value: bytes = b"." * 95, **options: bool) -> int:
    """Append a record of an idempotent producer, and return its offset."""
    return await append(node, [value], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **options)


def few_entries(patch: pytest.MonkeyPatch, count: int = 5) -> None:
    """From so many entries on, records go to a segment."""
    patch.setattr(diskless_module, "ENTRIES_MAX", count)


# --- What was acknowledged ----------------------------------------------------------------------------------------


def test_D1_all_is_there_after_the_disk_is_gone(tmp_path: Path) -> None:
    values: list[bytes] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        values.extend(await fill(node, 40))
        assert not objects.objects, "small appends need no object"
        assert await values_of(node) == values

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await values_of(node) == values
        values.extend(await fill(node, 5))
        assert await values_of(node) == values

    run_diskless(tmp_path, before, after, after)


def test_D1_large_and_small_appends_are_all_there_in_order(tmp_path: Path) -> None:
    values: list[bytes] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        chance = random.Random(1)
        waiting = []
        for number in range(40):
            value = b"%05d" % number + b"." * chance.choice((10, LARGE))
            values.append(value)
            waiting.append(asyncio.ensure_future(append(node, [value])))
            if chance.random() < 0.3:
                await asyncio.sleep(0.003)
        assert await asyncio.gather(*waiting) == list(range(40))
        assert objects.objects

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await values_of(node) == values

    run_diskless(tmp_path, before, after)


def test_D1_a_killed_node_and_one_that_was_stopped_leave_the_same(tmp_path: Path) -> None:
    """What the disk has is not looked at: it may be of a time before another node led."""

    async def main() -> None:
        objects = MemoryObjects()
        async with diskless_node(tmp_path, objects) as node:
            await create_topic(node, "t", **DISKLESS)
            await serving(node)
            values = await fill(node, 10)
            await node.logs.maintenance.flush()
        async with diskless_node(tmp_path, objects) as node:
            await serving(node)
            assert await values_of(node) == values

    asyncio.run(main())


def test_S2_producers_are_refused_while_much_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits_module, "WAITING_BYTES_MAX", 3 * LARGE)

    async def test(node: Node, objects: MemoryObjects) -> None:
        objects.fault = lambda kind, key: "fail"
        waiting = [asyncio.ensure_future(append(node, [b"." * LARGE])) for _ in range(2)]
        await until(lambda: writer_of(node).error)
        request = ProduceRequest([ProducePartition("t", 0, batch(b"." * LARGE))], None, ACKS_ALL, 1_000)
        (answer,) = (await node.produce.produce(request, version=12)).partitions
        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "could not write an object" in (answer.error_message or "")
        assert not any(one.done() for one in waiting)
        end_offset = partition_of(node).log_end_offset
        objects.fault = lambda kind, key: ""
        assert await asyncio.gather(*waiting) == [0, 1]
        assert await append(node, [b"after"]) == end_offset == 2

    run_diskless(tmp_path, test)


def test_R3_what_a_leader_of_before_appends_is_neither_acknowledged_nor_read(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 3)
        partition = partition_of(node)
        await claimed_by_another(node)
        late = partition.append(bytearray(batch(b"late")))
        waiting = asyncio.ensure_future(partition.wait_committed(late.last_offset))
        await until(lambda: partition.refused is not None)
        assert partition.high_watermark == 3
        assert [one.end_offset for one in await entries_of(node)] == [1, 2, 3]
        with pytest.raises(RetriableError) as refused:
            await append(node, [b"later"])
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch_once(node, 0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: "claimed by a later leader" in tier_of(node).error)
        assert not waiting.done() or waiting.exception() is not None
        waiting.cancel()

    run_diskless(tmp_path, test)


def test_R3_a_leader_that_learns_of_another_while_it_looks_up_serves_nobody(tmp_path: Path) -> None:
    """The next leader has copied a segment, so that this one looks up what is there."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 3)
        await claimed_by_another(node)
        tier_of(node).look_up()
        await until(lambda: "claimed by a later leader" in tier_of(node).error)
        with pytest.raises(RetriableError) as refused:
            await append(node, [b"late"])
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_diskless(tmp_path, test)


def test_R3_a_leader_that_leads_again_reads_what_another_one_has_committed_before_it_heard_of_it(
    tmp_path: Path,
) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 3)
        partition = partition_of(node)
        key, epoch = (partition.topic_id, 0), partition.leader_epoch
        await claimed_by_another(node)
        theirs = bytearray(batch(b"theirs"))
        theirs[:8], theirs[12:16] = (3).to_bytes(8, "big"), (epoch + 1).to_bytes(4, "big")  # offset, leader epoch
        entry = Entry(3, 4, "", 0, len(theirs), crc32c(theirs), bytes(theirs))
        assert (await diskless_of(node).ask(lambda: rows_of(node).commit([NewEntry(key, "another", entry)]))).led
        await node.logs.lead([(partition, LeaderState.alone(epoch + 2, partition.log_end_offset))])
        assert partition.refused is not None, "nobody is served before it is known who led in between"
        await until(lambda: node.partition(TP) is not partition)
        await serving(node)
        assert await values_of(node) == [*values, b"theirs"]
        assert await append(node, [b"after"]) == 4

    run_diskless(tmp_path, test)


def test_R3_who_waits_for_what_was_given_up_is_told(tmp_path: Path) -> None:
    """The partition is claimed again under the same epoch, so that this node reads it again, and serves."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 3)
        partition = partition_of(node)
        key, epoch = (partition.topic_id, 0), partition.leader_epoch
        await diskless_of(node).ask(lambda: claim_one(rows_of(node), key, "again", epoch, 99))
        late = partition.append(bytearray(batch(b"late")))
        with pytest.raises(SemelError):
            await partition.wait_committed(late.last_offset)
        await until(lambda: node.partition(TP) is not partition)
        await serving(node)
        assert await values_of(node) == values
        assert await append(node, [b"after"]) == 3

    run_diskless(tmp_path, test)


def test_R3_a_reader_beyond_the_end_is_sent_on_once_another_node_leads(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 3)
        partition = partition_of(node)
        async with asyncio.timeout(30):
            while (answer := await fetch_once(node, 10)).error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER, (
                    "until the database says that nobody else leads"
                )
                await asyncio.sleep(0.01)
        assert (await fetch_once(node, 10)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        await claimed_by_another(node)
        diskless_of(node)._claims[partition.topic_id, 0].proven_s = float("-inf")  # that word is old by now
        assert (await fetch_once(node, 10)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: partition.refused is not None)
        assert (await fetch_once(node, 10)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_diskless(tmp_path, test)


@pytest.mark.parametrize("are_copied", [False, True])
def test_times_are_found_after_the_disk_is_gone(tmp_path: Path, are_copied: bool) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        for number in range(30):
            data = bytearray(encode_batch([(1_000 + number * 10, None, b"." * 95, ())]))
            await partition.wait_committed(partition.append(data).last_offset)
        if are_copied:
            await all_copied(node)

    async def after(node: Node, objects: MemoryObjects) -> None:
        for timestamp_ms, expected in ((1_000, 0), (1_055, 6), (1_290, 29), (1_291, -1), (MAX_TIMESTAMP, 29)):
            found = (await list_offsets(node, ListOffsetsRequest({TP: timestamp_ms})))[TP]
            assert (found.offset, found.error) == (expected, ErrorCode.NONE)

    run_diskless(tmp_path, before, after, topic=SMALL_SEGMENTS if are_copied else {})


def test_a_partition_that_another_node_has_taken_over_is_no_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 1)
        await claimed_by_another(node)
        with caplog.at_level(logging.INFO):
            partition_of(node).append(bytearray(batch(b"late")), verified=True)
            await until(lambda: "was claimed by a later leader" in caplog.text)
        told = [one for one in caplog.records if one.name == "semel.tiers"]
        assert {one.levelname for one in told} == {"INFO"}

    run_diskless(tmp_path, test)


# --- Producers and transactions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("are_copied", [False, True])
def test_P1_P2_duplicates_are_recognised_after_the_disk_is_gone(tmp_path: Path, are_copied: bool) -> None:
    """Also of a producer whose records are in segments alone, by the snapshot that was copied with the last one."""

    async def before(node: Node, objects: MemoryObjects) -> None:
        assert [await append_of(node, 7, sequence) for sequence in range(3)] == [0, 1, 2]
        assert [await append_of(node, 8, sequence) for sequence in range(20)] == list(range(3, 23))
        if are_copied:
            await all_copied(node)
            await until(lambda: tier_of(node).end_offset > 15)

    async def after(node: Node, objects: MemoryObjects) -> None:
        end = partition_of(node).log_end_offset
        assert [await append_of(node, 7, sequence) for sequence in range(3)] == [0, 1, 2]
        assert [await append_of(node, 8, sequence) for sequence in range(15, 20)] == list(range(18, 23))
        assert partition_of(node).log_end_offset == end
        for producer_id, sequence in ((7, 5), (8, 21)):
            with pytest.raises(SemelError) as refused:
                await append_of(node, producer_id, sequence)
            assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert len(await values_of(node)) == 23

    async def more(node: Node, objects: MemoryObjects) -> None:
        assert await append_of(node, 7, 3) == 23
        assert await append_of(node, 8, 20) == 24

    topic = SMALL_SEGMENTS if are_copied else {}
    run_diskless(tmp_path, before, after, after, more, topic=topic)


def test_P1_P7_producers_are_known_though_all_their_records_are_deleted(tmp_path: Path) -> None:
    """The last segment stays, which has the snapshot of the producers: there is nothing of this one in entries."""

    async def before(node: Node, objects: MemoryObjects) -> None:
        for sequence in range(10):
            await append_of(node, 7, sequence)
        await fill(node, 20)
        await all_copied(node)
        await delete_before(node, -1)
        await until(lambda: len(tier_of(node).remote.segments) <= 1)

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert (partition_of(node).log_start_offset, partition_of(node).log_end_offset) == (30, 30)
        assert await append_of(node, 7, 9) == 9
        assert await values_of(node, 30) == []

    run_diskless(tmp_path, before, after, after, topic=SMALL_SEGMENTS)


@pytest.mark.parametrize("are_copied", [False, True])
def test_L1_L3_transactions_are_decided_as_before_the_disk_was_lost(tmp_path: Path, are_copied: bool) -> None:
    expected: list[bytes | None] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        for producer_id, is_committed in ((1, True), (2, False)):
            for sequence in range(5):
                value = b"%d-%d" % (producer_id, sequence) + b"." * 95
                await append_of(node, producer_id, sequence, value, transactional=True)
                if is_committed:
                    expected.append(value)
            await end_transaction(node, ProducerIdAndEpoch(producer_id, 0), committed=is_committed)
        if are_copied:
            await all_copied(node)
        for producer_id in (3, 4):
            value = b"%d-open" % producer_id + b"." * 95
            await append_of(node, producer_id, 0, value, transactional=True)

    async def open_still(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert partition.last_stable_offset == 12
        assert partition.high_watermark == 14
        assert await values_of(node, committed=True) == expected
        with pytest.raises(SemelError) as refused:
            await append_of(node, 3, 1)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE

    async def decided(node: Node, objects: MemoryObjects) -> None:
        await append_of(node, 3, 1, b"3-more", transactional=True)
        await end_transaction(node, ProducerIdAndEpoch(4, 0), committed=False)
        await end_transaction(node, ProducerIdAndEpoch(3, 0), committed=True)
        expected.extend((b"3-open" + b"." * 95, b"3-more"))
        assert await values_of(node, committed=True) == expected

    async def after(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert partition.last_stable_offset == partition.high_watermark == 17
        assert await values_of(node, committed=True) == expected
        assert partition.append_marker(ProducerIdAndEpoch(3, 0), 0, True) is None, "P9: it repeats the last one"

    topic = SMALL_SEGMENTS if are_copied else {}
    run_diskless(tmp_path, before, open_still, decided, after, topic=topic)


# --- Deleting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("are_copied", [False, True])
def test_D6_deleted_records_stay_deleted_after_the_disk_is_gone(tmp_path: Path, are_copied: bool) -> None:
    values: list[bytes] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        values.extend(await fill(node, 30))
        if are_copied:
            await all_copied(node)
        await delete_before(node, 13)

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert partition_of(node).log_start_offset == 13
        assert (await fetch_once(node, 12)).error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await values_of(node, 13) == values[13:]

    async def all_deleted(node: Node, objects: MemoryObjects) -> None:
        await delete_before(node, -1)

    async def empty(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert (partition.log_start_offset, partition.log_end_offset) == (30, 30)
        assert await append(node, [b"next"]) == 30, "D3: no offset twice"

    async def more(node: Node, objects: MemoryObjects) -> None:
        assert await read_all(node, 30) == [(30, b"next")]
        await fill(node, 20)
        await all_copied(node)
        assert len(await values_of(node, 30)) == 21

    topic = {} if not are_copied else SMALL_SEGMENTS
    run_diskless(tmp_path, before, after, after, all_deleted, empty, *([more] if are_copied else []), topic=topic)


def test_D6_what_is_deleted_before_it_was_copied_is_no_hole(tmp_path: Path) -> None:
    """The segments that are copied next begin behind it."""

    async def before(node: Node, objects: MemoryObjects) -> None:
        for count in (20, 20, 20):
            await fill(node, count)
            await delete_before(node, partition_of(node).log_end_offset - 2)
        await fill(node, 20)
        await all_copied(node)

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert partition_of(node).log_start_offset == 58
        assert [offset for offset, _ in await read_all(node, 58)] == list(range(58, 80))

    run_diskless(tmp_path, before, after, topic=SMALL_SEGMENTS)


def test_D6_retention_by_size_goes_on_after_the_disk_is_gone(tmp_path: Path) -> None:
    starts: list[int] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 60)
        await until(lambda: partition_of(node).log_start_offset >= 40)
        await all_copied(node)
        starts.append(partition_of(node).log_start_offset)

    async def after(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert partition.log_start_offset >= starts[-1]
        found = await read_all(node, partition.log_start_offset)
        assert [offset for offset, _ in found] == list(range(partition.log_start_offset, partition.log_end_offset))
        await fill(node, 40)
        await until(lambda: partition.log_start_offset >= starts[-1] + 30)
        await all_copied(node)
        starts.append(partition.log_start_offset)
        await until(lambda: len(objects.objects) == len(tier_of(node).remote.segments))

    run_diskless(tmp_path, before, after, after, topic={**SMALL_SEGMENTS, "retention_bytes": "2500"})


def test_D6_retention_by_time_deletes_all_and_keeps_the_offsets(tmp_path: Path) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 20)  # of the year 1970
        await until(lambda: partition_of(node).log_start_offset == 20)
        await until(lambda: tier_of(node).remote.start_offset == 20)

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert partition_of(node).log_start_offset == partition_of(node).log_end_offset == 20
        assert len(tier_of(node).remote.segments) <= 1
        assert await values_of(node, 20) == []

    async def more(node: Node, objects: MemoryObjects) -> None:
        assert await append(node, [b"after"]) == 20

    run_diskless(tmp_path, before, after, more, topic={**SMALL_SEGMENTS, "retention_ms": "1000"})


def test_D6_many_entries_go_to_a_segment_and_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_entries(monkeypatch)
    values: list[bytes] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        values.extend(await fill(node, 40))
        async with asyncio.timeout(30):
            while len(await entries_of(node)) >= 5:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        part = tier_of(node)
        assert part.end_offset > 30
        assert len(part.remote.segments) <= 12
        assert await values_of(node) == values

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await values_of(node) == values
        values.extend(await fill(node, 7))

    run_diskless(tmp_path, before, after, after)


def test_D6_much_data_in_entries_goes_to_a_segment_and_its_objects_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskless_module, "BYTES_MAX", 5 * LARGE)
    values: list[bytes] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        for number in range(12):
            values.append(b"%d" % number + b"." * LARGE)
            await append(node, [values[-1]])
        async with asyncio.timeout(30):
            while True:
                needed = {one.object_key for one in await entries_of(node)}
                segments = {one.key for one in tier_of(node).remote.segments}
                if tier_of(node).end_offset > 6 and set(objects.objects) == needed | segments:
                    break
                await asyncio.sleep(0.02)
        assert await objects_of(node) == needed
        assert await values_of(node) == values

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await values_of(node) == values

    run_diskless(tmp_path, before, after)


def test_T8_what_is_open_in_a_copy_is_not_called_hanging(tmp_path: Path) -> None:
    """The node may have had that copy since before another one led the partition, and the coordinator's."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        await append_of(node, 7, 0, transactional=True)

    run_diskless(tmp_path, test)
    report = verify(str(tmp_path / "data"), metadata_url=outside(tmp_path))
    assert report.open_transactions == 1
    assert [one for one in report.findings if one.check is Check.TRANSACTIONS] == []


def test_S2_an_open_transaction_does_not_make_a_segment_of_each_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what is behind it can be copied, so that there are many entries all the time."""
    few_entries(monkeypatch)

    async def test(node: Node, objects: MemoryObjects) -> None:
        await append_of(node, 7, 0, transactional=True)
        await fill(node, 60)
        assert len(partition_of(node).log.segments) <= 60 // 5 + 2
        await end_transaction(node, ProducerIdAndEpoch(7, 0), committed=True)
        await fill(node, 5)
        async with asyncio.timeout(30):
            while len(await entries_of(node)) >= 10:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    run_diskless(tmp_path, test)


def test_S2_an_open_transaction_does_not_make_each_append_look_for_what_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_entries(monkeypatch)

    async def test(node: Node, objects: MemoryObjects) -> None:
        looks, tail = 0, diskless_of(node)
        before_copying = tail.before_copying

        async def count(part: PartitionTier) -> None:
            nonlocal looks
            looks += 1
            await before_copying(part)

        monkeypatch.setattr(tail, "before_copying", count)
        began_s = node.clock.monotonic()
        await append_of(node, 7, 0, transactional=True)
        await fill(node, 100)
        assert len(await entries_of(node)) > 50
        assert 0 < looks <= 2 + (node.clock.monotonic() - began_s) / WORKED_S

    run_diskless(tmp_path, test, remote_log_manager_task_interval_ms=60_000)


def test_D6_objects_of_a_run_that_has_ended_go_once_nobody_needs_them(tmp_path: Path) -> None:
    """One was written and not committed, when the node ended."""

    async def before(node: Node, objects: MemoryObjects) -> None:
        await append(node, [b"." * LARGE])
        tail = diskless_of(node)
        key = tail.key_prefix + "never-committed"
        objects.objects[key] = b"x"
        await tail.ask(lambda: tail.rows.begin_object(key, tail.run, 1, 1))
        tail.writer.busy.add(key)  # the node ends while it is being committed

    async def after(node: Node, objects: MemoryObjects) -> None:
        await until(lambda: not any("never-committed" in key for key in objects.objects))
        while any("never-committed" in key for key in await objects_of(node)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # its row goes after it
        assert await objects_of(node) == set(objects.objects)
        assert await values_of(node) == [b"." * LARGE]

    run_diskless(tmp_path, before, after)


def test_D6_an_object_of_a_run_that_has_ended_stays_while_its_upload_may_be_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted before the store has it comes back, and nobody knows of it then."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        tail, began_ms = diskless_of(node), node.clock.now_ms()
        now_ms = began_ms
        monkeypatch.setattr(RemoteStorage, "now_ms", property(lambda storage: now_ms))
        await tail.ask(lambda: tail.rows.begin_object("late", "former-run", 1, began_ms))
        longest_ms = math.ceil(longest_upload_ms(1, node.config.remote_storage_timeout_ms))
        for waited_ms in (0, 1, longest_ms // 2, longest_ms - 1):
            now_ms = began_ms + waited_ms
            await tail.clean_up()
            assert await objects_of(node) == {"late"}, f"it went after {waited_ms} ms"
        objects.objects["late"] = b"x"  # now the store has it
        now_ms = began_ms + longest_ms
        await tail.clean_up()
        assert await objects_of(node) == set()
        assert not objects.objects

    run_diskless(tmp_path, test, log_segment_delete_delay_ms=0, remote_log_manager_task_interval_ms=60_000)


def test_D6_rows_and_objects_of_a_deleted_topic_go(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        other = TopicPartition("u", 0)
        await create_topic(node, "u", **DISKLESS)
        await serving(node, other)
        await fill(node, 20)
        await append(node, [b"u"], other)
        await all_copied(node)
        assert tier_of(node).remote.segments
        assert len(await objects_of(node)) > 1
        await delete_topics(node, ["t"])
        rows = rows_of(node)
        async with asyncio.timeout(30):
            while len(await diskless_of(node).ask(rows.topic_ids)) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        needed = {one.object_key for one in await entries_of(node, other)}
        await until(lambda: set(objects.objects) == needed)
        async with asyncio.timeout(30):
            while await objects_of(node) != needed:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert len(await read_all(node, 0, other)) == 1

    run_diskless(tmp_path, test, topic=SMALL_SEGMENTS, diskless_inline_max_bytes=0)


def test_D3_a_topic_that_is_created_again_begins_empty(tmp_path: Path) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 10)
        await delete_topics(node, ["t"])
        await create_topic(node, "t", **DISKLESS)
        await serving(node)
        assert await append(node, [b"new"]) == 0

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await read_all(node) == [(0, b"new")]

    run_diskless(tmp_path, before, after)


# --- Compacted topics ---------------------------------------------------------------------------------------------

COMPACTED = {**SMALL_SEGMENTS, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}


async def put(node: Node, key: bytes, value: bytes | None) -> None:
    data = bytearray(encode_batch([(1_000, key, value, ())]))
    partition = partition_of(node)
    await partition.wait_committed(partition.append(data).last_offset)


async def put_of(node: Node, producer_id: int, sequence: int) -> tuple[int, bool]:
    """Append a record of an idempotent producer. Returns its offset, and whether it was new."""
    data = encode_batch(
        [(1_000, b"k", b"." * 95, ())], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    partition = partition_of(node)
    result = partition.append(bytearray(data))
    await partition.wait_committed(result.last_offset)
    return result.base_offset, bool(result.appended)


async def compact(node: Node) -> None:
    await node.logs.maintenance.flush()
    await node.logs.maintenance.compact_logs()


def test_D4_D6_a_compacted_topic_has_the_last_value_of_each_key_after_the_disk_is_gone(tmp_path: Path) -> None:
    last: dict[bytes, bytes] = {}
    number = 0

    async def put_some(node: Node) -> None:
        nonlocal number
        for _ in range(30):
            key = b"k%d" % (number % 4)
            last[key] = key + b"=%d" % number + b"." * 95
            await put(node, key, last[key])
            number += 1

    def last_of(values: list[bytes | None]) -> dict[bytes, bytes]:
        return {value.partition(b"=")[0]: value for value in values if value}

    async def before(node: Node, objects: MemoryObjects) -> None:
        await put_some(node)
        await all_copied(node)
        copied = set(objects.objects)
        await compact(node)
        assert len(await values_of(node)) < 15
        await until(lambda: tier_of(node).remote.size_bytes < 15 * 200)
        await until(lambda: set(objects.objects) == {one.key for one in tier_of(node).remote.segments})
        assert set(objects.objects) != copied, "the objects are what the segments are now"
        assert last_of(await values_of(node)) == last

    async def after(node: Node, objects: MemoryObjects) -> None:
        offsets = [offset for offset, _ in await read_all(node)]
        assert len(offsets) < number
        assert partition_of(node).log_end_offset == number
        assert last_of(await values_of(node)) == last
        await put_some(node)
        await all_copied(node)
        await compact(node)

    async def at_last(node: Node, objects: MemoryObjects) -> None:
        assert last_of(await values_of(node)) == last
        assert partition_of(node).log_end_offset == number

    run_diskless(tmp_path, before, after, after, at_last, topic=COMPACTED)


def test_P1_P7_a_compacted_topic_knows_its_producers_after_the_disk_is_gone(tmp_path: Path) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        for sequence in range(20):
            await put_of(node, 7, sequence)
        for _ in range(20):
            await put(node, b"k", b"." * 95)
        await all_copied(node)
        await compact(node)
        await until(lambda: tier_of(node).remote.size_bytes < 2_000)

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await put_of(node, 7, 19) == (19, False)

    run_diskless(tmp_path, before, after, topic=COMPACTED)


def test_D4_aborted_records_stay_aborted_in_a_compacted_topic(tmp_path: Path) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        await put(node, b"k", b"committed")
        data = encode_batch(
            [(1_000, b"k", b"aborted", ())], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        await partition.wait_committed(partition.append(bytearray(data), verified=True).last_offset)
        await end_transaction(node, ProducerIdAndEpoch(7, 0), committed=False)
        for number in range(20):
            await put(node, b"other", b"%d" % number + b"." * 95)
        await all_copied(node)
        await compact(node)

    async def after(node: Node, objects: MemoryObjects) -> None:
        found = await values_of(node, committed=True)
        assert b"committed" in found
        assert b"aborted" not in found

    run_diskless(tmp_path, before, after, after, topic=COMPACTED)


def test_D6_a_topic_that_is_compacted_and_deleted_keeps_where_it_begins(tmp_path: Path) -> None:
    starts: list[int] = []

    async def before(node: Node, objects: MemoryObjects) -> None:
        for number in range(60):
            await put(node, b"k%d" % number, b"%05d" % number + b"." * 95)
        await until(lambda: partition_of(node).log_start_offset >= 35)
        await until(lambda: tier_of(node).remote.start_offset == partition_of(node).log_start_offset)
        starts.append(partition_of(node).log_start_offset)

    async def after(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert partition.log_start_offset >= starts[-1]
        found = await read_all(node, partition.log_start_offset)
        assert [offset for offset, _ in found] == list(range(partition.log_start_offset, 60))

    run_diskless(
        tmp_path, before, after, after,
        topic={**COMPACTED, "cleanup_policy": "compact,delete", "retention_bytes": "2500"},
    )  # fmt: skip


COMPACTED_AND_DELETED = {**COMPACTED, "cleanup_policy": "compact,delete"}


def test_D6_P7_a_segment_that_is_left_for_its_producers_is_not_in_the_log_that_is_taken_over(tmp_path: Path) -> None:
    """It is below the start of the log, and what was between it and the next one is deleted."""

    async def before(node: Node, objects: MemoryObjects) -> None:
        await put_of(node, 7, 0)
        for number in range(12):
            await put(node, b"k%d" % number, b"." * 95)
        await all_copied(node)
        objects.fault = lambda kind, key: "fail" if kind == "put" else ""
        for number in range(12):
            await put(node, b"k%d" % number, b"." * 95)
        await delete_before(node, partition_of(node).log.segments.active.base_offset)
        objects.fault = lambda kind, key: ""
        for number in range(12):
            await put(node, b"k%d" % number, b"." * 95)
        await all_copied(node)

    async def after(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert partition.log.segments.first.base_offset >= partition.log_start_offset > 12
        assert await put_of(node, 7, 0) == (0, False)

    no_retention = {"log_retention_check_interval_ms": 3_600_000}
    run_diskless(tmp_path, before, after, after, topic=COMPACTED_AND_DELETED, **no_retention)


@pytest.mark.parametrize("some_are_left", [False, True])
def test_P1_P7_a_compacted_topic_knows_the_producers_of_deleted_records_after_the_disk_is_gone(
    some_are_left: bool, tmp_path: Path
) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        for sequence in range(6):
            await put_of(node, 7, sequence)
        for number in range(12):
            await put(node, b"k%d" % number, b"." * 95)
        await all_copied(node)
        partition = partition_of(node)
        await delete_before(node, 9 if some_are_left else partition.log_end_offset)

    async def after(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        assert partition.log_start_offset >= 9
        assert await put_of(node, 7, 5) == (5, False)

    run_diskless(tmp_path, before, after, after, topic=COMPACTED_AND_DELETED)


def test_P1_P7_a_compacted_topic_with_many_producers_copies_no_segment_before_their_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next flush writes the snapshot of a roll then: a segment copied before that says nothing of them."""
    monkeypatch.setattr(producer_snapshot_module, "AT_ONCE_MAX", 3)

    async def before(node: Node, objects: MemoryObjects) -> None:
        for producer_id in range(1, 6):
            await put_of(node, producer_id, 0)
        for number in range(30):
            await put(node, b"k%d" % number, b"." * 95)
        await delete_before(node, partition_of(node).log.segments.active.base_offset)
        for number in range(20):
            await put(node, b"k%d" % number, b"." * 95)
        await all_copied(node)
        assert tier_of(node).remote.segments[-1].producers.size_bytes

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await put_of(node, 5, 0) == (4, False)

    run_diskless(tmp_path, before, after, topic=COMPACTED_AND_DELETED)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_P1_P7_a_snapshot_of_producers_that_a_power_cut_has_broken_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Nobody could take the partition over that begins with it; what its batches say is enough."""
    encode = producer_snapshot_module.encode_packed
    monkeypatch.setattr(producer_snapshot_module, "encode_packed", lambda entries: encode(entries)[:9])

    async def before(node: Node, objects: MemoryObjects) -> None:
        for sequence in range(20):
            await put_of(node, 7, sequence)
        await all_copied(node)
        assert len(tier_of(node).remote.segments) > 1
        assert not any(one.producers.size_bytes for one in tier_of(node).remote.segments)
        snapshots = partition_of(node).log.local.snapshots
        assert snapshots.offsets
        snapshots.remove(list(snapshots.offsets))
        monkeypatch.undo()

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert await put_of(node, 7, 19) == (19, False)
        assert await put_of(node, 7, 20) == (20, True)

    run_diskless(tmp_path, before, after, topic={**SMALL_SEGMENTS, "cleanup_policy": policy})


def test_P1_P7_a_topic_that_is_compacted_no_more_knows_its_producers(tmp_path: Path) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        for sequence in range(10):
            await put_of(node, 7, sequence)
        for number in range(20):
            await put(node, b"k%d" % (number % 2), b"." * 95)
        await all_copied(node)
        await compact(node)
        await until(lambda: tier_of(node).remote.size_bytes < 2_000)
        await alter_configs(node, alter(cleanup_policy="delete"))

    async def after(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        data = encode_batch([(1_000, b"k", b"." * 95, ())], producer_id=7, producer_epoch=0, base_sequence=9)
        result = partition.append(bytearray(data))
        assert (result.base_offset, bool(result.appended)) == (9, False)
        await fill(node, 20)
        await all_copied(node)

    run_diskless(tmp_path, before, after, after, topic=COMPACTED)


def test_D4_a_topic_is_compacted_from_its_creation_on_or_never(tmp_path: Path) -> None:
    """Compaction sees what is on the disk: it would drop what deletes a key, and leave the key in the store."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        for policy in ("compact", "compact,delete"):
            with pytest.raises(SemelError, match=r"can't become compact: .*Create another topic"):
                await alter_configs(node, alter(cleanup_policy=policy))
        replaced = {"retention.ms": "5000"}
        await alter_configs(node, AlterConfigsRequest(ResourceType.TOPIC, "t", replaced, replace=True))
        topic = node.metadata.topic("t")
        assert topic is not None
        assert topic.is_diskless
        assert partition_of(node).config.retention_ms == 5_000

    run_diskless(tmp_path, test)


# --- What is missing or damaged -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("fault", ["missing", "damaged", "short", "row", "gap", "end"])
def test_D6_what_can_not_be_read_is_named_and_served_again_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, is_large: bool
) -> None:
    """A log whose records are too many for memory is begun while they are read, and begun again."""
    if is_large:
        monkeypatch.setattr(diskless_module, "_READ_BEFORE_BYTES_MAX", 0)

    async def main() -> None:
        objects = MemoryObjects()
        async with diskless_node(tmp_path, objects) as node:
            await create_topic(node, "t", **DISKLESS)
            await create_topic(node, "u", **DISKLESS)
            await serving(node)
            await append(node, [b"small"])
            await append(node, [b"." * LARGE])
            await append(node, [b"behind"])
            entries = await entries_of(node)
            key = (partition_of(node).topic_id, 0)
            ((name, whole),) = objects.objects.items()
        lose_disk(tmp_path)
        spoiled = [*entries]
        if fault == "missing":
            del objects.objects[name]
            expected = f"offsets 1 to 1 of t-0 can't be read: the object {name} is missing"
        elif fault == "damaged":
            objects.objects[name] = bytes([whole[0] ^ 1]) + whole[1:]
            expected = f"offsets 1 to 1 of t-0 can't be read: the object {name} is damaged at 0"
        elif fault == "short":
            objects.objects[name] = whole[:-1]
            expected = f"offsets 1 to 1 of t-0 can't be read: the object {name} is damaged at 0"
        elif fault == "row":
            spoiled[2] = entries[2]._replace(data=b"x" + entries[2].data[1:])
            expected = "offsets 2 to 2 of t-0 can't be read: their row in the metadata's database is damaged"
        elif fault == "end":
            del spoiled[2]
            expected = "offsets 2 to 2 of t-0 are missing"
        else:
            del spoiled[1]
            expected = "offsets 1 to 1 of t-0 are missing"
        await replace_entries(tmp_path, key, spoiled)
        async with diskless_node(tmp_path, objects) as node:
            await serving(node, TopicPartition("u", 0))
            await until(lambda: node.partition(TP) is not None and expected in tier_of(node).error)
            assert partition_of(node).refused is not None
            assert (await fetch_once(node, 0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            with pytest.raises(SemelError):
                await append(node, [b"not taken"])
            assert node.tier is not None
            assert expected in node.tier.troubles()[TP]
            objects.objects[name] = whole
            await diskless_of(node).ask(lambda: put_back(rows_of(node), key, entries))
            await serving(node)
            assert await values_of(node) == [b"small", b"." * LARGE, b"behind"]
            assert await append(node, [b"after"]) == 3
            await until(lambda: not tier_of(node).error)

    asyncio.run(main())


async def replace_entries(folder: Path, key: PartitionKey, entries: list[Entry]) -> None:
    rows = DisklessRows(outside(folder))
    put_back(rows, key, entries)
    rows.close()


def put_back(rows: DisklessRows, key: PartitionKey, entries: list[Entry]) -> None:
    """Have these entries in the rows, and no others."""
    rows.trim(key, 1 << 60)
    with rows._transaction() as connection:
        for one in entries:
            values = {"topic_id": format_topic_id(key[0]), "partition": key[1], **one._asdict()}
            connection.execute(DISKLESS_ENTRIES.insert().values(**values))


def test_D6_a_compacted_segment_that_is_missing_is_named(tmp_path: Path) -> None:
    kept: dict[str, bytes] = {}

    async def before(node: Node, objects: MemoryObjects) -> None:
        for number in range(20):
            await put(node, b"k%d" % number, b"." * 95)
        await all_copied(node)

    async def main() -> None:
        objects = MemoryObjects()
        async with diskless_node(tmp_path, objects) as node:
            await create_topic(node, "t", **DISKLESS, **COMPACTED)
            await serving(node)
            await before(node, objects)
            first = tier_of(node).remote.segments[0]
        lose_disk(tmp_path)
        kept[first.key] = objects.objects.pop(first.key)
        async with diskless_node(tmp_path, objects) as node:
            await until(lambda: node.partition(TP) is not None and first.key in tier_of(node).error)
            assert partition_of(node).refused is not None
            objects.objects.update(kept)
            await serving(node)
            assert len(await values_of(node)) == 20

    asyncio.run(main())


def test_D6_a_directory_that_is_removed_under_the_node_is_read_again(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 10)
        partition = partition_of(node)
        await node.logs.maintenance.flush()
        shutil.rmtree(tmp_path / "data" / "t-0")
        await until(lambda: node.partition(TP) is not partition)
        await serving(node)
        assert await values_of(node) == values
        assert await append(node, [b"after"]) == 10

    run_diskless(tmp_path, test)


# --- Settings -----------------------------------------------------------------------------------------------------


def alter(**values: str | None) -> AlterConfigsRequest:
    return AlterConfigsRequest(
        ResourceType.TOPIC, "t", {name.replace("_", "."): value for name, value in values.items()}
    )


def test_D6_a_diskless_topic_stays_one(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        for value in ("false", None):
            with pytest.raises(SemelError, match="can't be taken back") as refused:
                await alter_configs(node, alter(diskless_enable=value))
            assert refused.value.code is ErrorCode.INVALID_CONFIG
        await alter_configs(node, alter(diskless_enable="true", retention_ms="-1"))
        await delete_topics(node, ["t"])
        await create_topic(node, "t")
        await alter_configs(node, alter(diskless_enable="false"))
        await alter_configs(node, alter(diskless_enable=None))

    run_diskless(tmp_path, test)


def test_R2_a_diskless_topic_has_one_replica(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        said = {"diskless.enable": "true"}
        results = await create_topics(
            node,
            [
                NewTopic("three", replication_factor=3, configs=said),
                NewTopic("assigned", assignments={0: (1, 2)}, configs=said),
                NewTopic("one", replication_factor=1, configs=said),
                NewTopic("any", configs=said),
                NewTopic("chosen", assignments={0: (1,)}, configs=said),
            ],
        )
        assert [one.error for one in results] == [
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            *[ErrorCode.NONE] * 3,
        ]
        for name in ("one", "any", "chosen"):
            found = node.metadata.image.topic(name)
            assert found is not None
            assert found.is_diskless
            assert found.partitions[0].replicas == (1,)

    run_diskless(tmp_path, test)


def test_topics_are_diskless_where_the_node_says_so_and_they_say_nothing_else(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        results = await create_topics(
            node,
            [
                NewTopic("more", replication_factor=3),
                NewTopic("plain"),
                NewTopic("disk", configs={"diskless.enable": "false"}),
            ],
        )
        assert [one.error for one in results] == [ErrorCode.NONE] * 3
        image = node.metadata.image
        found = {name: image.topic(name) for name in ("more", "plain", "disk")}
        assert {name: one is not None and one.is_diskless for name, one in found.items()} == {
            "more": True,
            "plain": True,
            "disk": False,
        }

    run_diskless(tmp_path, test, log_diskless_enable=True)


def test_R2_one_replica_suffices_whatever_is_said_of_others(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        request = ProduceRequest([ProducePartition("t", 0, batch(b"x"))], None, ACKS_ALL, 1_000)
        (answer,) = (await node.produce.produce(request, version=12)).partitions
        assert answer.error is ErrorCode.NONE, answer.error_message

    run_diskless(tmp_path, test, topic={"min_insync_replicas": "2"})


def test_a_diskless_topic_gets_more_partitions(tmp_path: Path) -> None:
    async def before(node: Node, objects: MemoryObjects) -> None:
        await create_partitions(node, "t", 3)
        tp = TopicPartition("t", 2)
        await serving(node, tp)
        await append(node, [b"third"], tp)

    async def after(node: Node, objects: MemoryObjects) -> None:
        tp = TopicPartition("t", 2)
        await serving(node, tp)
        assert await read_all(node, 0, tp) == [(0, b"third")]

    run_diskless(tmp_path, before, after)


def test_a_node_without_remote_storage_refuses_diskless_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            (result,) = await create_topics(node, [NewTopic("t", configs={"diskless.enable": "true"})])
            assert result.error is ErrorCode.INVALID_CONFIG
            assert "remote.storage.url" in (result.message or "")

    asyncio.run(main())


def test_a_node_without_remote_storage_does_not_start_with_diskless_topics_as_the_default(tmp_path: Path) -> None:
    """Its groups and transactions would wait for ever."""

    async def main() -> None:
        with pytest.raises(SemelError, match=r"remote\.storage\.url"):
            async with running_node(tmp_path, log_diskless_enable=True):
                pass

    asyncio.run(main())
