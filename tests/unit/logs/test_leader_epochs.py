"""R7: a new leader notes where its epoch begins, durably, before it says where an epoch ended (KIP-101, KIP-279)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from running_node import run_with_node
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch, read_all

from semel.broker.handlers.offset_for_leader_epoch import LeaderEpochEnd, offset_for_leader_epoch
from semel.broker.log.config import AppendOrigin
from semel.broker.log.leader_epochs import LeaderEpochs
from semel.broker.logs.config import Durability, LogManagerConfig
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.partition import Partition
from semel.broker.node import Node as WholeNode
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.storage import write_whole

OS = LogManagerConfig(disk_min_free_bytes=0, durability=Durability.OS.value)


def started() -> tuple[Node, Partition]:
    """A node that syncs when the operating system likes, and does at once what is done beside its loop."""
    node = Node(config=OS)
    node.start(executor=InlineExecutor())
    return node, node.create()


async def lead(node: Node, epoch: int, tp: TopicPartition = TP) -> Partition:
    partition = node.get(tp)
    await node.logs.lead([(partition, LeaderState.alone(epoch, partition.log_end_offset))])
    return partition


def lead_now(node: Node, epoch: int) -> Partition:
    """The same, and nothing else runs meanwhile."""
    partition = node.get()
    note = partition.lead(LeaderState.alone(epoch, partition.log_end_offset))
    if note is not None:
        note.run()
    return partition


def follow(follower: Partition, leader: Partition) -> list[int]:
    """Fetch as a follower of Kafka's does, until it has all; return the offsets that it cut its log at.

    It asks with its last epoch, and cuts to where that ended, here or there, until the leader says that they agree.
    """
    cuts: list[int] = []
    for _ in range(20):
        offset, epoch = follower.log_end_offset, follower.log.epochs.latest
        end = leader.end_offset_for_epoch(epoch) if epoch >= 0 else None
        if end is not None and (end.leader_epoch < epoch or end.end_offset < offset):
            own = follower.log.end_offset_for_epoch(end.leader_epoch)
            cuts.append(end.end_offset if own is None else min(end.end_offset, own.end_offset))
            assert follower.truncate_to(cuts[-1])
        elif offset < leader.log_end_offset:
            follower.append(bytearray(leader.read_batches(offset, 1)), origin=AppendOrigin.REPLICATION)
        else:
            return cuts
    raise AssertionError(f"the follower never has all: it cut at {cuts}")


def test_R7_R3_logs_do_not_fork_over_an_epoch_in_which_nothing_was_written() -> None:
    """B has epoch 3 up to offset 10, A up to 8. A leads epoch 5 and writes 8 to 12. B leads epoch 6 and writes nothing.

    Without B's note that 6 begins at 10, A hears that its epoch 5 ended there, keeps its own 8 and 9, and never learns.
    """

    async def run() -> None:
        # A commits nothing, for its journal is not synced before this gives way: so it may cut all.
        a, b = Node(), Node(config=OS)
        for node in (a, b):
            node.start(executor=InlineExecutor())
            node.create()
        at_b = lead_now(b, 3)
        for _ in range(8):
            at_b.append(batch())
        at_a = a.get()
        assert follow(at_a, at_b) == []
        at_b.append(batch(size=20))
        at_b.append(batch(size=20))
        lead_now(a, 5)
        for _ in range(4):
            at_a.append(batch(size=30))
        assert (at_a.log_end_offset, at_b.log_end_offset) == (12, 10)
        assert at_a.high_watermark == 0

        lead_now(b, 6)

        assert at_b.end_offset_for_epoch(5) == (3, 10)
        assert follow(at_a, at_b) == [8]
        assert at_a.read_batches(0, 1 << 20) == at_b.read_batches(0, 1 << 20)
        assert (at_a.log_end_offset, at_a.log.epochs.latest) == (10, 3)
        at_b.append(batch())
        assert follow(at_a, at_b) == []
        assert at_a.log.epochs.entries() == at_b.log.epochs.entries() == [(3, 0), (6, 10)]
        at_a.go_offline(SemelError("the test is over"))
        await b.logs.close()

    asyncio.run(run())


def test_R7_what_a_leader_answers_is_what_kafka_answers() -> None:
    async def run() -> None:
        node, _ = started()
        partition = await lead(node, 2)
        assert [partition.end_offset_for_epoch(epoch) for epoch in (-1, 0, 2, 3)] == [None, (0, 0), (2, 0), None]
        for epoch in (2, 2, 4):
            await lead(node, epoch)
            partition.append(batch())
        await lead(node, 7)
        await lead(node, 9)
        asked = [partition.end_offset_for_epoch(epoch) for epoch in range(11)]
        assert asked == [
            *((0, 0), (1, 0), (2, 2), (2, 2)),
            *((4, 3), (4, 3), (4, 3), (4, 3), (4, 3)),
            *((9, 3), None),
        ]
        partition.append(batch())
        assert partition.end_offset_for_epoch(9) == (9, 4)
        assert partition.end_offset_for_epoch(7) == (4, 3)
        assert await lead(node, 8) is partition
        assert partition.leader_epoch == 9, "an epoch that is over is not led again"
        await node.logs.close()

    asyncio.run(run())


def test_R7_nobody_hears_where_an_epoch_ended_before_the_next_one_is_on_the_disk() -> None:
    async def run() -> None:
        node, partition = started()
        partition.append(batch(3))
        note = partition.lead(LeaderState.alone(6, partition.log_end_offset))
        assert note is not None
        for asked in (0, 5, 6):
            with pytest.raises(SemelError, match="is being noted") as caught:
                partition.end_offset_for_epoch(asked)
            assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        # What is appended meanwhile is of the new epoch, behind its beginning.
        partition.append(batch(2))
        note.run()
        assert [partition.end_offset_for_epoch(asked) for asked in (0, 5, 6)] == [(0, 3), (0, 3), (6, 5)]
        node.storage.crash(power=False)

    asyncio.run(run())


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_R7_an_epoch_that_a_leader_has_begun_survives_a_crash(power: bool, flushed: bool) -> None:
    """Also where the power cut took from the log what is before it, and the journal gives that back."""

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for _ in range(3):
            await append(partition)
        if flushed:
            await node.logs.maintenance.flush()
        await lead(node, 6)
        node.storage.crash(power=power, torn=False)
        node.start()
        partition = node.get()
        assert partition.log_end_offset == 3
        assert partition.log.epochs.entries() == [(0, 0), (6, 3)]
        await node.logs.close()
        node.start()
        assert node.get().log.epochs.entries() == [(0, 0), (6, 3)], "after a clean stop, too"
        assert len(read_all(node.get()))
        await node.logs.close()

    asyncio.run(run())


def test_R7_R3_a_power_cut_leaves_where_epochs_began_also_where_the_journal_has_what_was_cut() -> None:
    """A follower was cut to follow the next leader, and has led since; its journal has both, and its log nothing.

    Where the epoch that was cut seems to have ended later, who diverges from there on would keep it.
    """

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()

        async def fetch(epoch: int, count: int) -> None:
            partition.follow(epoch, 2)
            for _ in range(count):
                fetched = batch()
                set_base_offset(fetched, 0, partition.log_end_offset, epoch)
                partition.append(fetched, origin=AppendOrigin.REPLICATION)
            await partition.all_durable()

        await fetch(0, 2)
        await fetch(3, 4)
        partition.follow(4, 2)
        partition.truncate_to(5)
        await fetch(4, 2)
        await lead(node, 6)
        expected = [(0, 0), (3, 2), (4, 5), (6, 7)]
        assert partition.log.epochs.entries() == expected
        node.storage.crash(power=True, torn=False)
        node.start()
        assert node.get().log_end_offset == 7
        assert node.get().log.epochs.entries() == expected
        await node.logs.close()

    asyncio.run(run())


def test_R7_an_epoch_behind_what_a_power_cut_left_is_forgotten() -> None:
    async def run() -> None:
        node, partition = started()
        partition.append(batch())
        await node.logs.maintenance.flush()
        partition.append(batch(4))
        await lead(node, 6)
        node.storage.crash(power=True, torn=False)
        node.start(executor=InlineExecutor())
        partition = node.get()
        assert partition.log_end_offset == 1
        assert partition.log.epochs.entries() == [(0, 0)]
        await lead(node, 7)
        assert partition.end_offset_for_epoch(6) == (0, 1)
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("damage", [None, b"rubbish", b"0\n1\n6 5\n"], ids=["lost", "damaged", "its beginning is lost"])
@pytest.mark.parametrize("clean", [True, False])
def test_R7_leader_epochs_whose_file_was_lost_are_read_from_the_batches(damage: bytes | None, clean: bool) -> None:
    """A new leader's note alone would say that all before it is of one epoch that ended there."""

    async def run() -> None:
        node, partition = started()
        for epoch in (3, 3, 5, 6):
            await lead(node, epoch)
            partition.append(batch(2 if epoch == 3 else 1))
        path = "/data/orders-0/leader-epoch-checkpoint"
        await node.logs.maintenance.flush()
        if clean:
            await node.logs.close()
        else:
            node.storage.crash(power=False)
        node.storage.remove(path)
        if damage is not None:
            write_whole(node.storage, path, damage)
        node.start(executor=InlineExecutor())
        partition = await lead(node, 7)
        assert partition.log.epochs.entries() == [(3, 0), (5, 4), (6, 5), (7, 6)]
        assert partition.end_offset_for_epoch(4) == (3, 4)
        await node.logs.close()
        node.start(executor=InlineExecutor())
        assert node.get().log.epochs.entries() == [(3, 0), (5, 4), (6, 5), (7, 6)]
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["stopped", "killed", "power lost"])
def test_R4_R3_a_log_whose_records_are_all_deleted_still_says_of_which_epoch_they_were(how: str) -> None:
    """Otherwise a replica that has less would be taken for the one that has most, after metadata was lost."""

    async def run() -> None:
        node, partition = started()
        await lead(node, 3)
        partition.append(batch(2))
        await lead(node, 5)
        partition.append(batch(2))
        await node.logs.maintenance.flush()
        await lead(node, 8)  # it notes its epoch, and nothing is written in it
        assert partition.delete_records(4) == 4
        await node.logs.maintenance.flush()
        partition.log.delete_old_segments(node.clock.now_ms(), 4)
        await node.logs.maintenance.flush()
        partition.follow(9, 2)
        assert (partition.log.epochs.latest, partition.log_end_offset) == (5, 4)
        if how == "stopped":
            await node.logs.close()
        else:
            node.storage.crash(power=how == "power lost", torn=False)
        node.start(executor=InlineExecutor())
        partition = node.get()
        partition.follow(9, 2)
        assert (partition.log.epochs.latest, partition.log_start_offset, partition.log_end_offset) == (5, 4, 4)
        await lead(node, 10)
        assert partition.end_offset_for_epoch(5) == (5, 4)
        partition.append(batch())
        assert (partition.end_offset_for_epoch(9), partition.log.epochs.latest) == ((5, 4), 10)
        await node.logs.close()

    asyncio.run(run())


def test_R7_a_flush_that_began_before_does_not_write_over_the_note() -> None:
    async def run() -> None:
        node, partition = started()
        partition.append(batch())
        flush = partition.log.begin_flush()
        await lead(node, 6)
        flush.run()
        partition.log.end_flush(flush)
        node.storage.crash(power=True, torn=False)
        node.start(executor=InlineExecutor())
        assert node.get().log.epochs.entries() == [(0, 0), (6, 1)]
        await node.logs.close()

    asyncio.run(run())


def test_R7_on_a_full_disk_the_note_is_written_by_the_next_flush() -> None:
    async def run() -> None:
        node, partition = started()
        partition.append(batch())
        await node.logs.maintenance.flush()
        path = "leader-epoch-checkpoint"
        node.storage.fail_next("open", OSError(errno.ENOSPC, "No space left on device"), path_part=path)
        await lead(node, 6)
        assert partition.offline_error is None
        with pytest.raises(SemelError, match="is being noted"):
            partition.end_offset_for_epoch(0)
        await node.logs.maintenance.flush()
        assert partition.end_offset_for_epoch(0) == (0, 1)
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("times", [1, 3])
def test_R7_what_a_full_disk_did_not_note_is_noted_soon_after_there_is_room(times: int) -> None:
    """Followers are refused until then. They leave the in-sync set, and then no append may come that brings a flush."""

    async def run() -> None:
        node, partition = started()
        partition.append(batch())
        await node.logs.maintenance.flush()
        running = asyncio.create_task(node.logs.maintenance.run())
        await asyncio.sleep(0)
        path = "leader-epoch-checkpoint"
        node.storage.fail_next("open", OSError(errno.ENOSPC, "No space left on device"), path_part=path, times=times)
        await lead(node, 6)
        seconds = 0
        while partition.log.epochs.changed or node.logs.maintenance.flushes < times + 1:
            seconds += 1
            assert seconds < 10, "the next flush would be due after 60 s"
            node.clock.advance(ms=1000)
            node.logs.maintenance.wake_up()
            for _ in range(20):
                await asyncio.sleep(0)
        assert partition.end_offset_for_epoch(0) == (0, 1)
        flushes = node.logs.maintenance.flushes
        for _ in range(5):
            node.clock.advance(ms=1000)
            node.logs.maintenance.wake_up()
            await asyncio.sleep(0)
        assert node.logs.maintenance.flushes == flushes, "with nothing to wait for, it is flushed now and then"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await node.logs.close()

    asyncio.run(run())


def test_R7_where_the_note_can_not_be_written_the_partition_is_offline() -> None:
    async def run() -> None:
        node, partition = started()
        partition.append(batch())
        await node.logs.maintenance.flush()
        node.storage.fail_next("sync", OSError(errno.EIO, "I/O error"), path_part="leader-epoch-checkpoint")
        await lead(node, 6)
        assert "noting the leader epoch" in str(partition.offline_error)
        with pytest.raises(SemelError, match="noting the leader epoch") as caught:
            partition.end_offset_for_epoch(0)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        node.storage.crash(power=False)

    asyncio.run(run())


def test_R7_a_partition_that_is_made_again_is_led_from_where_it_continues() -> None:
    """One sync more is not paid for the many logs that are new: an empty one has nothing to fork."""

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.logs.create_partition(TP, TOPIC_ID, CONFIG, leader_epoch=4)
        assert not node.storage.exists("/data/orders-0/leader-epoch-checkpoint")
        await append(partition)
        assert partition.log.epochs.entries() == [(4, 0)]
        assert node.logs.create_partition(TP, TOPIC_ID, CONFIG, leader_epoch=5) is partition
        assert partition.end_offset_for_epoch(4) == (4, 1)
        await node.logs.close()

    asyncio.run(run())


def test_R7_KIP320_a_consumer_hears_where_the_epoch_of_a_former_leader_ended(tmp_path: Path) -> None:
    async def test(node: WholeNode) -> None:
        tp = TopicPartition("orders", 0)
        partition = node.partition(tp)
        assert partition is not None
        await partition.wait_committed(partition.append(batch(10)).last_offset)
        await node.logs.lead([(partition, LeaderState.alone(6, partition.log_end_offset))])
        assert offset_for_leader_epoch(node, tp, 5, current_leader_epoch=6) == LeaderEpochEnd(0, 10)
        assert offset_for_leader_epoch(node, tp, 6, current_leader_epoch=6) == LeaderEpochEnd(6, 10)
        assert offset_for_leader_epoch(node, tp, 7, current_leader_epoch=6) == LeaderEpochEnd()

    run_with_node(tmp_path, test, topics={"orders": 1})


def test_what_is_replayed_before_an_epoch_leaves_it_and_what_contradicts_it_does_not() -> None:
    epochs = LeaderEpochs([(3, 0), (6, 10)])
    epochs.assign(3, 8)
    assert (epochs.entries(), epochs.changed) == ([(3, 0), (6, 10)], False)
    epochs.assign(6, 12)
    assert (epochs.entries(), epochs.changed) == ([(3, 0), (6, 10)], False)
    epochs.assign(4, 8)
    assert (epochs.entries(), epochs.changed) == ([(3, 0), (4, 8)], True)
    epochs.assign(6, 10)
    epochs.assign(4, 12)
    assert epochs.entries() == [(3, 0), (4, 8)]
