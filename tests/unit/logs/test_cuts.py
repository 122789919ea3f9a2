"""A follower that is cut notes that first: no start takes for lost what was cut, or for cut what is lost (R4)."""

from __future__ import annotations

import asyncio
import contextlib
import errno

import pytest
from held_executor import HeldExecutor
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, batch

from semel.broker.log.config import AppendOrigin
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import ErrorCode, RetriableError
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage

KEY = TOPIC_ID, TP.partition


def start(node: Node) -> None:
    node.logs = node.manager()
    node.logs.open(lambda tp, topic_id: CONFIG, is_only_replica=lambda tp, topic_id: False)


async def flushed_follower(storage: SimulatedStorage, *, count: int = 6, committed: int = 2) -> Node:
    """Return a node with a follower whose records are flushed, and committed in part."""
    node = Node(storage)
    node.executor = InlineExecutor()
    start(node)
    partition = node.create()
    partition.follow(0, 2)
    append(node, 0, count)
    await partition.all_durable()
    partition.leader_committed(committed)
    await node.logs.maintenance.flush()
    assert node.logs.folder.recovery_points.get(TP) == count
    return node


def append(node: Node, offset: int, count: int, epoch: int = 0) -> None:
    for at in range(offset, offset + count):
        fetched = batch(key=b"epoch-%d" % epoch)
        set_base_offset(fetched, 0, at, epoch)
        node.get().append(fetched, origin=AppendOrigin.REPLICATION)


def test_R4_what_a_follower_was_cut_for_is_not_told_as_lost_wherever_a_crash_comes() -> None:
    async def attempt(seed: int, point: int, *, power: bool) -> bool:
        node = await flushed_follower(SimulatedStorage(seed))
        node.storage.crash_at(point)
        try:
            assert node.get().truncate_to(3)
            append(node, 3, 2, epoch=1)
            for _ in range(20):  # the journal's own task writes what came
                await asyncio.sleep(0)
        except SimulatedCrash:
            assert node.storage.crashed
        died = node.storage.crashed
        node.storage.crash_at(None)
        node.storage.crash(power=power)
        start(node)
        assert not node.logs.unreported.damaged
        assert node.get().log_end_offset >= 3
        assert died or node.get().log_end_offset == 5
        await node.logs.close()
        return died

    reached = 0
    for seed in range(6):
        point = 1
        while asyncio.run(attempt(seed, point, power=seed % 3 > 0)):
            point += 1
            reached += 1
    assert reached > 30


@pytest.mark.parametrize("committed", [2, 6])
def test_R4_what_is_gone_below_what_was_flushed_is_told_as_lost_committed_or_not(committed: int) -> None:
    """Its leader may have committed it, and the follower had not heard of that when it flushed."""

    async def run() -> None:
        node = await flushed_follower(SimulatedStorage(1), committed=committed)
        node.storage.crash(power=False)
        log = node.storage.open(f"/data/{TP}/{0:020d}.log")
        log.truncate(log.size() * 4 // 6)
        log.close()
        start(node)
        assert node.logs.unreported.damaged_from(KEY) == 4
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("powers", [(False, False), (False, True), (True, False), (True, True)])
def test_R4_a_start_that_dies_as_it_repeats_a_cut_tells_of_no_loss(powers: tuple[bool, bool]) -> None:
    """The journal still has the cut, and what came after it."""

    async def attempt(seed: int, point: int) -> bool:
        node = await flushed_follower(SimulatedStorage(seed))
        assert node.get().truncate_to(3)
        append(node, 3, 5, epoch=1)
        await node.get().all_durable()
        await flush_and_keep_the_journal(node)
        assert node.logs.folder.recovery_points.get(TP) == 8
        node.storage.crash(power=powers[0])
        node.storage.crash_at(point)
        died = False
        try:
            start(node)
        except SimulatedCrash:
            died = True
        node.storage.crash_at(None)
        node.storage.crash(power=powers[1])
        start(node)
        assert (node.get().log_end_offset, dict(node.logs.unreported.damaged)) == (8, {})
        await node.logs.close()
        return died

    for seed in range(2):
        point = 1
        while asyncio.run(attempt(seed, point)):
            point += 1
        assert point > 10


async def flush_and_keep_the_journal(node: Node) -> None:
    """Flush, and end before the journal's files are removed."""

    def stop(paths: object) -> None:
        raise SystemError("it ends here")

    journal = node.logs._journal
    assert journal is not None
    journal.remove_files = stop  # type: ignore[method-assign]
    with contextlib.suppress(SystemError):
        await node.logs.maintenance.flush()


def test_D1_R4_what_the_journal_gives_back_of_a_replica_is_not_lost() -> None:
    async def run() -> None:
        node = Node(SimulatedStorage(1))
        node.executor = InlineExecutor()
        start(node)
        partition = node.create()
        partition.follow(0, 2)
        append(node, 0, 6)
        await partition.all_durable()
        partition.leader_committed(2)
        await flush_and_keep_the_journal(node)
        assert node.logs.folder.recovery_points.get(TP) == 6
        node.storage.crash(power=False)
        log = node.storage.open(f"/data/{TP}/{0:020d}.log")
        log.truncate(log.size() * 4 // 6)
        log.close()
        start(node)
        assert (node.get().log_end_offset, dict(node.logs.unreported.damaged)) == (6, {})
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("cut", [5, 7, 9])
def test_R4_a_cut_within_a_batch_is_noted_where_the_log_ends_then(cut: int) -> None:
    """Leaders name such offsets: where records were deleted up to the middle of a batch."""

    async def run() -> None:
        node = Node(SimulatedStorage(1))
        node.executor = InlineExecutor()
        start(node)
        partition = node.create()
        partition.follow(0, 2)
        for offset in (0, 5):
            fetched = batch(5)
            set_base_offset(fetched, 0, offset, 0)
            partition.append(fetched, origin=AppendOrigin.REPLICATION)
        await partition.all_durable()
        await node.logs.maintenance.flush()
        partition.truncate_to(cut)
        assert partition.log_end_offset == node.logs.folder.recovery_points.get(TP) == 5
        node.storage.crash(power=True)
        start(node)
        assert not node.logs.unreported.damaged
        await node.logs.close()

    asyncio.run(run())


def test_R4_a_flush_that_notes_how_far_logs_are_synced_does_not_note_what_was_cut_meanwhile() -> None:
    """Whatever the flush is at, on the disk, as the follower is cut."""

    async def attempt(step: int) -> bool:
        executor = HeldExecutor()
        node = await flushed_follower(SimulatedStorage(1))
        node.executor = executor
        node.storage.crash(power=False)
        start(node)
        node.get().follow(0, 2)
        append(node, 6, 1)
        flushing = asyncio.ensure_future(node.logs.maintenance.flush())
        done = 0
        while not flushing.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if done == step:
                node.get().truncate_to(3)
            if executor.held:
                executor.run()
                done += 1
        assert done <= step or node.logs.folder.recovery_points.get(TP) <= 3
        return done > step

    step = 0
    while asyncio.run(attempt(step)):
        step += 1
    assert step > 3


def test_R4_a_follower_is_not_cut_where_that_can_not_be_noted() -> None:
    async def run() -> None:
        node = await flushed_follower(SimulatedStorage(1))
        node.storage.fail_next("open", OSError(errno.ENOSPC, "No space left on device"), path_part="recovery-point")
        with pytest.raises(RetriableError, match="can't be cut at 3 to follow its leader") as caught:
            node.get().truncate_to(3)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.get().log_end_offset == 6
        assert node.get().truncate_to(3)
        await node.logs.close()

    asyncio.run(run())
