"""After a failed sync the system shows what the disk never got, and no later sync writes it (fsyncgate).

A restart finds everything in the page cache. It has to write it again, or the power cut after that takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from dataclasses import replace

import pytest
from simulated_folder import CONFIG, TP, Node, append, batch, read_all

from semel.broker.logs.partition import Partition
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.simulated_storage import SimulatedStorage

SYNCED = (".log", ".txnindex", ".index", ".timeindex", ".snapshot", "checkpoint", "")
"""Parts of the names of the files that a flush syncs; the last one is in all."""
SEGMENTS = pytest.mark.parametrize("segment_bytes", [400, 1 << 20], ids=["several segments", "one segment"])


async def fail_a_flush(node: Node, path_part: str) -> None:
    node.storage.fail_next("sync", OSError(errno.EIO, "Input/output error"), path_part=path_part, times=6)
    with contextlib.suppress(SemelError, OSError):
        await node.logs.maintenance.flush()


@SEGMENTS
def test_D1_a_failed_sync_a_restart_and_a_power_cut_lose_nothing(segment_bytes: int) -> None:
    """The restart found all of the journal in the log, synced the log for nothing, and cut the journal."""

    async def run() -> None:
        node, config = Node(SimulatedStorage(3)), replace(CONFIG, segment_bytes=segment_bytes)
        node.start(config)
        partition = node.create(TP, config)
        for n in range(8):
            await append(partition, batch(2, size=n * 20 + 1))
        expected = read_all(partition)
        await fail_a_flush(node, ".log")
        assert partition.offline_error is not None
        node.storage.crash(power=False)
        assert node.start(config).recovery.journal_entries == 8
        assert read_all(node.get()) == expected
        node.storage.crash(power=True, torn=False)
        node.start(config)
        assert read_all(node.get()) == expected
        await node.logs.close()

    asyncio.run(run())


def aborted(partition: Partition) -> set[tuple[int, int]]:
    """Return producer and first offset of each aborted transaction that readers of committed records hear of."""
    found, offset = set(), partition.log_start_offset
    while offset < partition.high_watermark:
        read = partition.read(offset, max_bytes=1 << 20, isolation=IsolationLevel.READ_COMMITTED)
        found |= {(one.producer_id, one.first_offset) for one in read.aborted_transactions}
        offset = read.next_offset
    return found


@SEGMENTS
@pytest.mark.parametrize("path_part", SYNCED)
def test_L3_a_failed_sync_a_restart_and_a_power_cut_leave_aborted_records_aborted(
    path_part: str, segment_bytes: int
) -> None:
    async def run(seed: int, torn: bool) -> None:
        node, config = Node(SimulatedStorage(seed)), replace(CONFIG, segment_bytes=segment_bytes)
        node.start(config)
        partition = node.create(TP, config)
        for number in range(6):
            producer = ProducerIdAndEpoch(50 + number, 0)
            records = [(1_700_000_000_000, b"k", b"v" * 30, ())]
            data = encode_batch(records, producer_id=50 + number, producer_epoch=0, base_sequence=0, transactional=True)
            partition.append(bytearray(data), verified=True)
            marker = partition.append_marker(producer, 0, False)
            assert marker is not None
            await partition.wait_committed(marker)
        expected = aborted(partition)
        assert len(expected) == 6
        await fail_a_flush(node, path_part)
        node.storage.crash(power=False)
        node.start(config)
        assert aborted(node.get()) == expected
        node.storage.crash(power=True, torn=torn)
        node.start(config)
        assert aborted(node.get()) == expected
        await node.logs.close()

    for seed in range(4):
        asyncio.run(run(seed, torn=seed % 2 == 1))
