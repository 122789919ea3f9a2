"""First segments that are deleted while the node is stopped are a loss, and what retention deleted is not (D6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from simulated_folder import TP, Node, append, batch, read_all

from semel.broker.log.config import CleanupPolicy, LogConfig
from semel.broker.logs.data_folder import LOG_START_FILE
from semel.broker.logs.partition import Partition
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import SemelError
from semel.runtime.storage import read_whole, write_whole

CONFIG = LogConfig(segment_bytes=200, segment_ms=1 << 60, retention_ms=-1, file_delete_delay_ms=0)
FOLDER = f"/data/{TP}"


async def started(config: LogConfig = CONFIG, count: int = 10) -> tuple[Node, Partition]:
    """A node with a partition of many segments."""
    node = Node()
    node.start(config)
    partition = node.create(TP, config)
    for number in range(count):
        await append(partition, batch(size=60, sequence=number))
    await node.logs.maintenance.flush()
    assert len(partition.log.segments) > 3
    return node, partition


def remove_first(node: Node, count: int) -> int:
    """Remove the files of the first segments, and return where the next one begins."""
    bases = sorted(name for name in node.storage.list_folder(FOLDER) if name.endswith(".log"))
    for log in bases[:count]:
        for name in node.storage.list_folder(FOLDER):
            if name.startswith(log[:20]):
                node.storage.remove(f"{FOLDER}/{name}")
    return int(bases[count][:20])


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("kept_from", [0, 1, 4])
def test_D6_first_segments_that_are_gone_after_a_clean_stop_are_a_loss(
    kept_from: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log began later then, without a word. `kept_from`: what DeleteRecords had deleted before."""

    async def run() -> None:
        node, partition = await started()
        partition.delete_records(kept_from)
        await node.logs.close()
        first = remove_first(node, kept_from + 2)
        report = node.start(CONFIG).recovery
        named = f"offsets {kept_from} to {first - 1}"
        [error] = errors(caplog)
        assert f"{TP}: the records at {named} are lost" in error
        assert f"The log begins at offset {first} now" in error
        assert f"gone from {FOLDER}" in error
        assert "from a backup" in error
        assert report.damage == {TP: f"{TP}: {named} lost"}, "the doctor reads it from the note"
        assert node.logs.last_unclean.damage == report.damage[TP]
        again = node.get()
        assert (again.log_start_offset, again.log_end_offset) == (first, 10)
        with pytest.raises(SemelError, match="is not within"):
            again.read(first - 1, max_bytes=100)
        assert [header.base_offset for header in iter_batches(read_all(again))] == list(range(first, 10))
        assert again.append(batch(size=60, sequence=9)).duplicate, "the state is that of the stop (P7)"
        await node.logs.close()
        caplog.clear()
        node.start(CONFIG)
        assert not caplog.records, "once is enough"
        assert node.logs.last_unclean.damage == report.damage[TP]
        await node.logs.close()

    asyncio.run(run())


def test_D6_first_segments_and_a_tail_that_are_gone_are_both_named(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node, partition = await started()
        path = partition.log.segments.active.path(".log")
        base = partition.log.segments.active.base_offset
        await node.logs.close()
        first = remove_first(node, 2)
        node.storage.open(path).truncate(0)
        report = node.start(CONFIG).recovery
        assert len(errors(caplog)) == 1
        [damage] = report.damage.values()
        assert damage.startswith(f"{TP}: offsets 0 to {first - 1} lost, offset")
        assert str(base) in damage
        assert node.get().log_start_offset == first
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["retention", "DeleteRecords", "compaction"])
def test_D6_what_was_deleted_in_order_is_no_loss(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        config = CONFIG
        if how == "retention":
            config = replace(CONFIG, retention_bytes=300)
        if how == "compaction":
            compacted = frozenset({CleanupPolicy.COMPACT})
            config = replace(CONFIG, cleanup_policy=compacted, min_cleanable_dirty_ratio=0.0, segment_bytes=400)
        node, partition = await started(config)
        before = partition.log.size_bytes
        if how == "DeleteRecords":
            partition.delete_records(6)
        if how == "compaction":
            assert await node.logs.maintenance.compact_logs() == 1
        else:
            assert await node.logs.maintenance.check_retention() > 0
        assert partition.log.size_bytes < before
        start = partition.log_start_offset
        await node.logs.close()
        assert node.start(config).recovery.damage == {}
        assert not caplog.records
        assert node.get().log_start_offset == start
        await node.logs.close()

    asyncio.run(run())


def test_D6_a_kill_after_retention_and_before_its_note_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    """Segments are deleted before the checkpoint says so; only a clean stop makes it the truth."""

    async def run() -> None:
        config = replace(CONFIG, retention_bytes=300)
        node, partition = await started(config)
        await node.logs.maintenance._write_log_starts()
        assert await node.logs.maintenance.check_retention() > 0
        start = partition.log_start_offset
        node.storage.crash(power=False)
        assert node.start(config).recovery.damage == {}
        assert not errors(caplog)
        assert node.get().log_start_offset == start
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("checkpoint", ["missing", "damaged", "of an earlier version"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_D6_without_the_checkpoint_nothing_is_called_lost_and_a_later_beginning_is_said(
    is_gone: bool, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier versions had no entry for a log that begins at offset 0."""

    async def run() -> None:
        node, _ = await started()
        await node.logs.close()
        path = f"/data/{LOG_START_FILE}"
        assert b"orders 0 0\n" in read_whole(node.storage, path, size_bytes_max=1000)
        if checkpoint == "missing":
            node.storage.remove(path)
        else:
            write_whole(node.storage, path, b"0\n0\n" if checkpoint == "of an earlier version" else b"not one")
        first = remove_first(node, 2) if is_gone else 0
        assert node.start(CONFIG).recovery.damage == {}
        assert not errors(caplog)
        told = [each.getMessage() for each in caplog.records if "no checkpoint says" in each.getMessage()]
        assert len(told) == is_gone
        if is_gone:
            assert f"begins at offset {first}" in told[0]
        assert node.get().log_start_offset == first
        await node.logs.close()

    asyncio.run(run())
