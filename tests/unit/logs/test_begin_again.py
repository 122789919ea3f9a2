"""A follower's log begins again at an offset with the producers that wrote before it: all of that, or nothing (P7)."""

from __future__ import annotations

import asyncio
import errno

import pytest
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, batch

from semel.broker.log.config import AppendOrigin
from semel.broker.log.producer_state import ProducerEntry, RememberedBatch
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.manager import NewPartition
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import SemelError
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage

START = 50
PRODUCERS = (
    ProducerEntry(7, 2, 3, 1_000, -1, [RememberedBatch(4, 5, 46, 47, 1_000)]),
    ProducerEntry(9, 0, -1, 2_000, 48, [RememberedBatch(0, 0, 48, 48, 2_000), RememberedBatch(1, 1, 49, 49, 2_000)]),
)
PACKED = [one.packed() for one in PRODUCERS]


async def following(storage: SimulatedStorage) -> Node:
    """Return a node with a follower that has two records, on the disk."""
    node = Node(storage)
    node.executor = InlineExecutor()
    node.start()
    partition = node.create()
    partition.follow(0, 2)
    for offset in range(2):
        fetched = batch(key=b"old")
        set_base_offset(fetched, 0, offset, 0)
        partition.append(fetched, origin=AppendOrigin.REPLICATION)
    await partition.all_durable()
    await node.logs.maintenance.flush()
    return node


def known(node: Node) -> list[ProducerEntry]:
    return list(node.get().log.producer_state)


@pytest.mark.parametrize("stop", ["kill", "power", "clean"])
def test_P7_a_log_that_began_again_knows_who_wrote_before_however_it_is_opened(stop: str) -> None:
    async def run() -> None:
        node = await following(SimulatedStorage(1))
        await node.logs.restart_at(node.get(), START, PACKED)
        assert known(node) == list(PRODUCERS)
        node.get().follow(0, 2)
        assert (node.get().log_start_offset, node.get().log_end_offset) == (START, START)
        fetched = batch(sequence=2)
        set_base_offset(fetched, 0, START, 0)
        if stop == "clean":
            node.get().append(fetched, origin=AppendOrigin.REPLICATION)
            await node.get().all_durable()
            await node.logs.close()
        else:
            node.storage.crash(power=stop == "power")
        node.start()
        expected = [PRODUCERS[0], PRODUCERS[1]]
        if stop == "clean":
            batches = (*PRODUCERS[1].batches, RememberedBatch(2, 2, START, START, 1_700_000_000_000))
            expected[1] = ProducerEntry(9, 0, -1, 1_700_000_000_000, 48, batches)
        assert known(node) == expected
        assert node.get().log.producer_state.open_transactions == {48: 9}
        assert node.get().log.truncate_to(START, now_ms=0) is (stop == "clean")
        assert known(node) == list(PRODUCERS), "what was cut takes none of them along"
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("begins", [0, START])
def test_P7_D3_a_crash_while_a_log_begins_again_leaves_none_that_does_not_know_who_wrote_before(begins: int) -> None:
    """At no point: there is the old log, or none, or one that is not there yet, or all of it."""

    async def attempt(seed: int, point: int) -> tuple[bool, str]:
        node = await following(SimulatedStorage(seed))
        node.storage.crash_at(point)
        died = False
        try:
            await node.logs.restart_at(node.get(), begins, PACKED)
        except SimulatedCrash:
            died = True
        node.storage.crash_at(None)
        node.storage.crash(power=True)
        node.start()
        assert not node.logs.offline
        partition = node.logs.partition(TP)
        if partition is None:
            assert await node.logs.create_partitions([NewPartition(TP, TOPIC_ID, CONFIG, 0)]) == {}
            found = "none"
        elif partition.log_end_offset == 2:
            found = "old"
        else:
            assert (partition.log_start_offset, partition.log_end_offset) == (begins, begins)
            assert known(node) == list(PRODUCERS)
            found = "new"
        node.get().follow(0, 2)
        assert await node.logs.restart_at(node.get(), START + 5, PACKED)
        assert known(node) == list(PRODUCERS)
        await node.logs.close()
        return died, found

    reached = []
    for seed in range(4):
        point, died = 1, True
        while died:
            died, found = asyncio.run(attempt(seed, point))
            reached.append(found)
            point += 1
    assert set(reached) == {"old", "none", "new"}
    assert len(reached) > 60


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("rename", f"{TP}"),
        ("make_folder", f"{TP}"),
        ("open", ".metadata.tmp"),
        ("append", ".metadata.tmp"),
        ("sync", ".metadata.tmp"),
        ("sync_folder", f"{TP}"),
        ("open", f"{START:020d}.log"),
        ("open", ".snapshot"),
        ("append", ".snapshot"),
        ("sync", ".snapshot"),
        ("rename", ".metadata.tmp"),
        ("sync_folder", "/data"),
    ],
)
def test_D3_a_log_that_could_not_begin_again_begins_again_later(operation: str, part: str) -> None:
    """The leader says once more where it starts."""

    async def run() -> None:
        node = await following(SimulatedStorage(1))
        node.storage.fail_next(operation, OSError(errno.EIO, "I/O error"), path_part=part)
        with pytest.raises((SemelError, OSError)):
            await node.logs.restart_at(node.get(), START, PACKED)
        node.storage.fail_no_more()
        node.clock.advance(ms=60_000)
        assert [one.tp for one in await node.logs.bring_back()] == [TP]
        if (node.get().log_start_offset, node.get().log_end_offset) == (START, START):
            assert known(node) == list(PRODUCERS)
        node.get().follow(0, 2)
        await node.logs.restart_at(node.get(), START + 20, PACKED)
        assert known(node) == list(PRODUCERS)
        node.storage.crash(power=True)
        node.start()
        assert (node.get().log_start_offset, known(node)) == (START + 20, list(PRODUCERS))
        await node.logs.close()

    asyncio.run(run())


def test_D3_a_log_that_leads_by_now_does_not_begin_again() -> None:
    """Its records would be gone, and their offsets given to others."""

    async def run() -> None:
        node = await following(SimulatedStorage(1))
        partition = node.get()
        await node.logs._making.acquire()  # others are being made
        restarting = asyncio.ensure_future(node.logs.restart_at(partition, START, PACKED))
        await asyncio.sleep(0)
        partition.lead(
            LeaderState(
                1, leader_epoch=1, partition_epoch=1, replicas=(1, 2), isr=(1,), min_isr=1, begin_offset=2, now_s=0
            )
        )
        node.logs._making.release()
        assert await restarting is False
        assert node.get() is partition
        assert partition.log_end_offset == 2

    asyncio.run(run())


def test_D3_the_directory_of_a_log_without_records_whose_topic_id_is_gone_is_not_taken_for_half_made() -> None:
    """It tells where its partition continues. Made again, it would give offsets out twice."""

    async def run() -> None:
        node = await following(SimulatedStorage(1))
        await node.logs.restart_at(node.get(), START, PACKED)
        node.storage.crash(power=False)
        node.storage.remove(f"/data/{TP}/partition.metadata")
        node.start()
        assert node.logs.partition(TP) is None
        assert node.storage.exists(f"/data/{TP}/{START:020d}.log")
        await node.logs.close()

    asyncio.run(run())
