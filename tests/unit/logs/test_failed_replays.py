"""Logs that fail while a start brings them to what the journal says: what is kept of them, and how they come back (D1).

Followers that were cut, too, which have become the only replica since.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest
from compiled_classes import set_method
from offline_logs import ONE, bring_back
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch

from semel.broker.log.config import LogConfig
from semel.broker.log.journal import Journal
from semel.broker.log.partition_log import PartitionLog
from semel.broker.logs import journal_replay
from semel.broker.logs.manager import NewPartition
from semel.broker.logs.partition import Partition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import ErrorCode, SemelError
from semel.runtime.inline_executor import InlineExecutor

LOG = "/data/orders-0/00000000000000000000.log"


def fetched(offsets: range, epoch: int, key: bytes = b"k") -> bytes:
    data = bytearray()
    for offset in offsets:
        one = batch(key=key)
        set_base_offset(one, 0, offset, epoch)
        data += one
    return bytes(data)


def start(node: Node, *, is_only: bool, config: LogConfig = CONFIG) -> None:
    node.logs = node.manager()
    node.logs.open(lambda tp, topic_id: config, is_only_replica=lambda tp, topic_id: is_only)


async def cut_and_killed(*, flushed: int = 8) -> Node:
    """A follower that had 0 to 9, was cut at 5 and got 5 to 7 of another leader, before its node was killed.

    flushed: up to where it was flushed before the cut
    """
    node = Node()
    node.executor = InlineExecutor()
    start(node, is_only=False)
    partition = node.create()
    partition.follow(0, 2)
    partition.replicate(fetched(range(flushed), 0))
    await partition.all_durable()
    partition.leader_committed(4)
    await node.logs.maintenance.flush()
    if flushed < 10:
        partition.replicate(fetched(range(flushed, 10), 0))
        await partition.all_durable()
    partition.follow(1, 3)
    partition.truncate_to(5)
    partition.replicate(fetched(range(5, 8), 1, b"n"))
    await partition.all_durable()
    # As an earlier version noted it, and a flush does after which another log's entries keep the journal.
    node.logs.folder.recovery_points.note(TP, flushed)
    node.storage.crash(power=False)
    return node


def fails_behind_the_cut(node: Node, patched: pytest.MonkeyPatch, *, can_flush: bool) -> None:
    """Have the first entry behind a cut find a disk that fails once, or for good."""
    real_cut, real_append = PartitionLog.replay_cut, PartitionLog.replay_append
    seen: list[str] = []

    def replay_cut(log: PartitionLog, *args: Any, **kwargs: Any) -> None:
        seen.append("cut")
        real_cut(log, *args, **kwargs)

    def replay_append(log: PartitionLog, *args: Any, **kwargs: Any) -> object:
        if seen == ["cut"]:
            seen.append("failed")
            node.storage.fail_next("append", OSError(errno.EIO, "I/O error"), path_part="orders-0/0")
            if not can_flush:
                node.storage.fail_next("sync", OSError(errno.EIO, "I/O error"), path_part="orders-0/0", times=99)
        return real_append(log, *args, **kwargs)

    set_method(patched, PartitionLog, "replay_cut", replay_cut)
    set_method(patched, PartitionLog, "replay_append", replay_append)


@pytest.mark.parametrize("how", ["power", "stop", "retry", "accepted"])
@pytest.mark.parametrize("can_flush", [True, False])
def test_D1_R3_an_only_replica_that_failed_behind_a_cut_comes_back_with_all(
    monkeypatch: pytest.MonkeyPatch, how: str, can_flush: bool
) -> None:
    """What is kept from before the cut was taken for records that are gone, and nothing could bring it back."""

    async def run() -> None:
        node = await cut_and_killed()
        with monkeypatch.context() as patched:
            fails_behind_the_cut(node, patched, can_flush=can_flush)
            start(node, is_only=True)
        node.storage.fail_no_more()
        assert [one.tp for one in node.logs.offline] == [TP]
        if how == "retry":
            await bring_back(node)
        elif how == "power":
            node.storage.crash(power=True)
            start(node, is_only=True)
        else:
            await node.logs.close()
            if how == "accepted":
                node.storage.rename("/data/orders-0", "/elsewhere")
            start(node, is_only=True)
            if how == "accepted":
                node.logs.take_offline_vanished([NewPartition(TP, TOPIC_ID, CONFIG)])
                node.logs.accept_loss(NewPartition(TP, TOPIC_ID, CONFIG))
        assert not list(node.logs.offline)
        assert node.get().log_end_offset == 8
        await node.logs.close()

    asyncio.run(run())


def test_D1_R3_a_start_that_was_killed_behind_a_cut_is_no_loss_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        node = await cut_and_killed()
        with monkeypatch.context() as patched:
            fails_behind_the_cut(node, patched, can_flush=True)
            patched.setattr(journal_replay, "_Taking", _KilledAfterCut)
            with pytest.raises(KeyboardInterrupt):
                start(node, is_only=True)
        node.storage.fail_no_more()
        node.storage.crash(power=False)
        start(node, is_only=True)
        assert not list(node.logs.offline)
        assert node.get().log_end_offset == 8
        await node.logs.close()

    asyncio.run(run())


class _KilledAfterCut(journal_replay._Taking):
    def _take_in(self, entry: Any) -> int:
        done = super()._take_in(entry)
        if not done:
            raise KeyboardInterrupt
        return done


@pytest.mark.parametrize("can_flush", [False, True])
def test_R4_what_a_follower_cut_is_no_loss_when_it_comes_back_after_it_failed(
    monkeypatch: pytest.MonkeyPatch, can_flush: bool
) -> None:
    async def run() -> None:
        node = await cut_and_killed(flushed=10)
        with monkeypatch.context() as patched:
            fails_behind_the_cut(node, patched, can_flush=can_flush)
            start(node, is_only=False)
        node.storage.fail_no_more()
        await bring_back(node)
        assert not node.logs.unreported.damaged
        assert node.get().log_end_offset == 8
        node.storage.crash(power=True)
        start(node, is_only=False)
        assert not node.logs.unreported.damaged
        assert node.get().log_end_offset == 8

    asyncio.run(run())


@pytest.mark.parametrize("free", [1.5, 1.9, 2.9])
def test_D1_one_write_that_fails_on_a_disk_with_little_room_does_not_keep_the_node_from_starting(free: float) -> None:
    """All of the journal's entries were to be kept where one would do, and the beginning took the last room."""

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        await append(node.create(ONE))
        for _ in range(20):
            await append(partition, batch(size=100_000))
        node.storage.crash(power=False)
        one = len(batch(size=100_000))
        node.storage.open(LOG).truncate(19 * one)
        node.storage.set_free_bytes(int(free * one))
        node.storage.fail_next("append", OSError(errno.EIO, "I/O error"), path_part="orders-0/0")
        node.start()
        if list(node.logs.offline):
            await bring_back(node)
        assert node.get().log_end_offset == 20
        await node.logs.close()

    asyncio.run(run())


def test_S3_what_a_full_disk_can_not_keep_is_neither_held_in_memory_nor_left_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for _ in range(48):
            await append(partition, batch(size=100_000))
        node.storage.crash(power=False)
        node.storage.open(LOG).truncate(0)
        node.storage.set_free_bytes(2 << 20)
        largest, real = 0, Journal._append_entry

        def appended(journal: Journal, *args: Any, **kwargs: Any) -> int:
            nonlocal largest
            position = real(journal, *args, **kwargs)
            largest = max(largest, len(journal._buffer))
            return position

        monkeypatch.setattr(Journal, "_append_entry", appended)
        for _ in range(3):
            with pytest.raises(SemelError, match=r"can't be kept in .*make room on the disk"):
                node.start()
            assert not node.storage.list_folder("/data/kept")
        assert largest < 1 << 20
        node.storage.set_free_bytes(None)
        node.start()
        assert node.get().log_end_offset == 48
        await node.logs.close()

    asyncio.run(run())


def broken_marker(offset: int) -> bytes:
    """A marker with a right checksum, of a kind that there is not."""
    unknown_kind = (1_700_000_000_000, b"\0\0\0\x09", bytes(6), ())
    data = bytearray(encode_batch([unknown_kind], producer_id=5, producer_epoch=0, transactional=True, control=True))
    set_base_offset(data, 0, offset, 0)
    return bytes(data)


def test_D1_a_fetch_that_brings_a_broken_marker_behind_a_segment_is_refused_for_that() -> None:
    """It is no disk that fails: what is in the segment by then is no part of the log."""

    async def run() -> None:
        config = replace(CONFIG, segment_bytes=4 * len(batch()))
        node = Node()
        node.executor = InlineExecutor()
        start(node, is_only=False, config=config)
        partition: Partition = node.create(log_config=config)
        partition.follow(0, 2)
        with pytest.raises(SemelError) as refused:
            partition.replicate(fetched(range(6), 0) + broken_marker(6))
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        await node.logs.maintenance.flush()
        assert partition.log.recovery_point <= partition.log_end_offset

    asyncio.run(run())


def test_the_loss_of_a_partition_can_be_accepted_though_what_is_kept_of_it_is_broken() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for _ in range(4):
            await append(partition)
        bad = bytearray(batch())
        set_base_offset(bad, 0, 4, 0)
        bad[-1] ^= 1
        journal = node.logs._journal
        assert journal is not None
        journal.append(TOPIC_ID, 0, 4, [bytes(bad)])
        journal.sync_now()
        node.storage.crash(power=False)
        node.start()
        assert [one.tp for one in node.logs.offline] == [TP]
        await node.logs.close()
        node.storage.rename("/data/orders-0", "/elsewhere")
        node.start()
        node.logs.take_offline_vanished([NewPartition(TP, TOPIC_ID, CONFIG)])
        back = node.logs.accept_loss(NewPartition(TP, TOPIC_ID, CONFIG))
        assert await append(back) >= 4, "no offset is given out twice (D3)"
        await node.logs.close()

    asyncio.run(run())
