"""What goes wrong between the log, its rows and its objects, and what becomes of it (D1, D3, D6, L1, S2, S3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_objects import MemoryObjects
from running_node import SMALL, create_topic
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
from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.node import Node
from semel.broker.tiers.remote_log import RemoteLog
from semel.broker.tiers.rows import PartitionKey, RemoteRows
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.storage import Buffer


def rows_of(node: Node) -> RemoteRows:
    assert node.tier is not None
    return node.tier.storage.rows


def alter(**values: str) -> AlterConfigsRequest:
    return AlterConfigsRequest(
        ResourceType.TOPIC, "t", {name.replace("_", "."): value for name, value in values.items()}
    )


class HeldPuts(MemoryObjects):
    """Uploads do not end until `release`, those of topics that begin with `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._gate = asyncio.Event()
        self.held: list[str] = []

    def release(self) -> None:
        self._gate.set()

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        content = b"".join(bytes(piece) for piece in data)
        if not self._gate.is_set() and f"/{self._prefix}" in key:
            self.held.append(key)
            await self._gate.wait()
        self.objects[key] = content


def test_S3_D6_readers_pass_over_what_compaction_has_left_out(tmp_path: Path) -> None:
    """A topic was compacted before it got its remote storage: most of its offsets have no records."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        for number in range(40):
            data = bytearray(encode_batch([(1000, b"k%d" % (number % 3), b"v" * 95, ())]))
            await partition.wait_committed(partition.append(data).last_offset)
        await node.logs.maintenance.flush()
        await node.logs.maintenance.compact_logs()
        expected = [offset for offset, _ in await read_all(node)]
        assert 3 <= len(expected) < 20
        await alter_configs(node, alter(cleanup_policy="delete"))
        await alter_configs(node, alter(remote_storage_enable="true", local_retention_bytes="1"))
        await serving(node)
        await left_the_disk(node)
        before = objects.requests["read"]
        for max_bytes in (1, 1 << 20):
            for offset in (0, 7, 30):
                found = [one for one, _ in await read_all(node, offset, max_bytes=max_bytes)]
                assert found == [one for one in expected if one >= offset]
        assert objects.requests["read"] - before < 40

    compacted = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    run_tiered(tmp_path, test, topic={"remote_storage_enable": "false", "local_retention_bytes": "-2", **compacted})


def test_D6_the_log_begins_where_its_rows_say_also_where_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        rows, lost = rows_of(node), list[int]()
        real = rows.move_start

        def lose(key: PartitionKey, known: RemoteLog, start_offset: int, now_ms: int, **more: bool) -> RemoteLog:
            moved = real(key, known, start_offset, now_ms, **more)
            if not lost:
                lost.append(start_offset)
                raise MetadataUnavailableError("the answer is lost")
            return moved

        await fill(node, 40)
        await left_the_disk(node)
        monkeypatch.setattr(rows, "move_start", lose)
        await alter_configs(node, alter(retention_bytes="2500"))
        await until(lambda: lost and partition_of(node).log_start_offset >= lost[0])
        assert (await fetch_once(node, partition_of(node).log_start_offset)).error is ErrorCode.NONE

    run_tiered(tmp_path, test)


def test_D6_a_leader_learns_that_another_has_moved_the_start(tmp_path: Path) -> None:
    """A leader of before, who does not know yet that he is none, has applied the retention."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 40)
        await left_the_disk(node)
        rows, key = rows_of(node), tier_of(node).key
        other = RemoteRows(rows._engine.url.render_as_string(hide_password=False))
        other.move_start(key, other.load(key), 21, 1)
        other.close()
        await until(lambda: partition_of(node).log_start_offset == 21)
        await fill(node, 20)
        await left_the_disk(node)
        assert [offset for offset, _ in await read_all(node, 21)] == list(range(21, 60))

    run_tiered(tmp_path, test)


def test_D3_what_was_looked_up_before_a_node_led_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 40)
        await left_the_disk(node)
        part, rows = tier_of(node), rows_of(node)
        real, may_go, inside = rows.load, threading.Event(), threading.Event()

        def load(key: PartitionKey) -> RemoteLog:
            found = real(key)
            if not inside.is_set():
                inside.set()
                may_go.wait(20)
            return found

        monkeypatch.setattr(rows, "load", load)
        part.look_up()
        await until(inside.is_set)
        other = RemoteRows(rows._engine.url.render_as_string(hide_password=False))
        other.move_start(part.key, other.load(part.key), 21, 1)
        other.close()
        partition_of(node)._look_up_tier(part)  # as it begins to lead
        may_go.set()
        await serving(node)
        assert partition_of(node).log_start_offset == 21

    run_tiered(tmp_path, test, remote_log_manager_task_interval_ms=500)


def test_D6_deleted_records_that_the_rows_do_not_know_of_are_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(tmp_path, objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 20)
            await left_the_disk(node)
            with monkeypatch.context() as patched:

                def away(*_: object, **__: object) -> None:
                    raise MetadataUnavailableError("away")

                patched.setattr(rows_of(node), "move_start", away)
                patched.setattr(rows_of(node), "begin_copy", away)
                await fill(node, 20)
                found = await confirm_deletion(node, await begin_deletion(node, {TP: 35}))
                assert found[TP].error is ErrorCode.KAFKA_STORAGE_ERROR
                await asyncio.sleep(0.3)
        async with tiered_node(tmp_path, objects) as node:
            await serving(node)
            partition = partition_of(node)
            start = partition.log_start_offset
            assert [offset for offset, _ in await read_all(node, start)] == list(range(start, 40))
            await fill(node, 10)
            await left_the_disk(node)

    asyncio.run(main())


def test_D6_the_object_of_a_deleted_topic_goes_also_where_its_upload_ends_later(tmp_path: Path) -> None:
    async def main() -> None:
        objects = HeldPuts()
        async with tiered_node(tmp_path, objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 10)
            await until(lambda: objects.held)
            await delete_topics(node, ["t"])
            assert node.tier is not None
            await node.tier.clean_up()
            objects.release()
            await until(lambda: not objects.objects)
            async with asyncio.timeout(30):
                while await node.tier.storage.ask(rows_of(node).topic_ids):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert not objects.objects

    asyncio.run(main())


def test_D6_a_copy_that_was_given_up_and_ends_later_leaves_no_object(tmp_path: Path) -> None:
    async def main() -> None:
        objects = HeldPuts()
        async with tiered_node(tmp_path, objects) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 20)
            await until(lambda: objects.held)
            part, rows = tier_of(node), rows_of(node)
            assert node.tier is not None
            await node.tier.storage.ask(lambda: rows.give_up_copies([part.key], busy=(), now_ms=1))
            objects.release()
            await all_copied(node)
            await until(lambda: set(objects.objects) == {one.key for one in part.remote.segments})

    asyncio.run(main())


def test_S2_an_upload_that_hangs_holds_up_no_other_partition(tmp_path: Path) -> None:
    async def main() -> None:
        objects = HeldPuts("t-")
        other = TopicPartition("u", 0)
        async with tiered_node(tmp_path, objects) as node:
            for topic in ("t", "u"):
                await create_topic(node, topic, **NOTHING_LOCAL)
                await serving(node, TopicPartition(topic, 0))
            await fill(node, 20)
            await until(lambda: objects.held)
            for _ in range(2):
                await fill(node, 20, other)
                await all_copied(node, other)
            objects.release()
            await all_copied(node)

    asyncio.run(main())


async def without_its_disk(folder: Path, objects: MemoryObjects, **settings: str) -> Node:
    """Start a node again whose data directory is gone."""
    (folder / "data").rename(folder / "lost")
    config = NodeConfig(data_dir=str(folder / "data"), **{**SMALL, **QUICK, **settings})
    node = await Node.start(config, object_store=objects, listeners=(), accept_data_loss=True)
    await serving(node)
    return node


ELSEWHERE = "its metadata is elsewhere, and it alone says what is in the remote storage"


@pytest.mark.damages_data(ELSEWHERE)
def test_D3_a_lost_log_does_not_give_out_offsets_of_deleted_records_again(tmp_path: Path) -> None:
    async def main() -> None:
        objects, outside = MemoryObjects(), {"metadata_url": f"sqlite:///{tmp_path}/outside.sqlite"}
        async with tiered_node(tmp_path, objects, **outside) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 29)
            await left_the_disk(node)
            await confirm_deletion(node, await begin_deletion(node, {TP: -1}))
        node = await without_its_disk(tmp_path, objects, **outside)
        try:
            assert await append(node, [b"next"]) == 29
        finally:
            await node.stop(grace_ms=0)

    asyncio.run(main())


@pytest.mark.damages_data(ELSEWHERE)
def test_L1_a_transaction_whose_marker_is_lost_holds_nobody_back(tmp_path: Path) -> None:
    """It was decided, or its records would not be in the remote storage."""

    async def main() -> None:
        objects, outside = MemoryObjects(), {"metadata_url": f"sqlite:///{tmp_path}/outside.sqlite"}
        async with tiered_node(tmp_path, objects, **outside) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 2)
            await append(node, [b"x" * 95], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
            await fill(node, 1)
            await end_transaction(node, ProducerIdAndEpoch(7, 0), committed=True)
            await left_the_disk(node)
        node = await without_its_disk(tmp_path, objects, **outside)
        try:
            await fill(node, 30)
            await left_the_disk(node)
            assert partition_of(node).last_stable_offset == partition_of(node).high_watermark
        finally:
            await node.stop(grace_ms=0)

    asyncio.run(main())


def test_D6_records_without_timestamps_are_kept_as_long_as_others(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        partition = partition_of(node)
        for _ in range(20):
            data = bytearray(encode_batch([(-1, None, b"." * 95, ())]))
            await partition.wait_committed(partition.append(data).last_offset)
        await left_the_disk(node)
        assert objects.objects
        await alter_configs(node, alter(retention_ms="1"))
        await until(lambda: not objects.objects)

    run_tiered(tmp_path, test)
