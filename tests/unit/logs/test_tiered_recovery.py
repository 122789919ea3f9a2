"""A log whose first records are in the remote storage alone, after a kill and after a power cut (D1, P1, P7, L3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from simulated_folder import CONFIG, Node

from semel.broker.logs.partition import Partition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.ids import ProducerIdAndEpoch

TIERED = replace(CONFIG, remote_storage_enable=True, segment_bytes=600, local_retention_bytes=1, file_delete_delay_ms=0)
NOW_MS = 1_700_000_000_000


def data(**options: Any) -> bytearray:
    return bytearray(encode_batch([(NOW_MS, None, b"v" * 90, ())], **options))


async def put(partition: Partition, **options: Any) -> None:
    await partition.wait_committed(partition.append(data(**options), verified=True).last_offset)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("copied", ["some", "all that is closed"])
def test_D1_P1_P7_L3_all_that_was_acknowledged_is_there_whatever_had_left_the_disk(
    flushed: bool, power: bool, copied: str
) -> None:
    async def run() -> None:
        node = Node()
        node.start(TIERED)
        partition = node.create(log_config=TIERED)
        aborted = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
        await put(partition, producer_id=7, producer_epoch=0, base_sequence=0)
        await put(partition, base_sequence=0, **aborted)
        for _ in range(8):
            await put(partition)
        if flushed:
            await node.logs.maintenance.flush()
        await put(partition, base_sequence=1, **aborted)  # at offset 10
        for _ in range(5):
            await put(partition)
        marker = partition.append_marker(ProducerIdAndEpoch(9, 0), 0, False)
        assert marker is not None
        await partition.wait_committed(marker)
        for _ in range(12):
            await put(partition)
        log = partition.log
        end = log.log_end_offset
        last = log.segments.active if copied != "some" else log.segments.inactive()[-2]
        log.tiered_end = last.base_offset
        log.delete_old_segments(NOW_MS, partition.high_watermark)
        await node.logs.maintenance.log_starts_noted([partition])
        node.storage.crash(power=power, torn=False)
        node.start(TIERED)
        assert not list(node.logs.offline)
        log = node.get().log
        assert log.log_end_offset == end
        assert {entry.producer_id for entry in log.producer_state} >= {7}
        if log.local_start_offset <= 10:
            assert log.aborted_transactions(10, end)
        assert node.get().append(data(producer_id=7, producer_epoch=0, base_sequence=0)).duplicate

    asyncio.run(run())


@pytest.mark.parametrize("power", [False, True])
def test_D1_a_replica_that_began_again_where_its_leaders_disk_does_keeps_what_it_got_since(power: bool) -> None:
    """Its log begins in the remote storage, far before its files; the journal has what it had before."""

    async def run() -> None:
        node = Node()
        node.start(TIERED)
        partition = node.create(log_config=TIERED)
        partition.follow(0, 2)
        for offset in range(4):
            partition.replicate(data(base_offset=offset, leader_epoch=0))
        await partition.all_durable()
        partition.truncate_to(0)
        await node.logs.restart_at(partition, 50, ())
        partition = node.get()
        partition.follow(0, 2)
        for offset in (50, 51):
            partition.replicate(data(base_offset=offset, leader_epoch=0))
        await partition.all_durable()
        partition.leader_committed(52)
        partition.log.begin_at(0, [(0, 0)])
        await node.logs.maintenance._write_log_starts()
        node.storage.crash(power=power, torn=False)
        node.start(TIERED)
        assert not list(node.logs.offline)
        log = node.get().log
        assert (log.local_start_offset, log.log_end_offset) == (50, 52)

    asyncio.run(run())
