"""All logs of a node after a clean stop, a kill or a power cut; journal, flush and recovery point (D1, D2, D3)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from held_executor import HeldExecutor
from log_model import read_batches
from offline_logs import bring_back
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch, read_all

from semel.broker.log.config import AppendOrigin
from semel.broker.log.journal import Journal
from semel.broker.logs.config import Durability, LogManagerConfig
from semel.broker.logs.partition import Partition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage
from semel.runtime.storage import read_whole, write_whole


async def turns_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # everything that it waits for runs on this loop
        await asyncio.sleep(0)


def test_clean_stop_leaves_nothing_to_read_or_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        for number in range(5):
            await append(node.create(TopicPartition("orders", number)), batch(3, sequence=0))
        await node.logs.close()
        reads: list[str] = []
        real = node.storage.open

        def watched(path: str, *, create: bool = False) -> Any:
            reads.append(path)
            return real(path, create=create)

        monkeypatch.setattr(node.storage, "open", watched)
        report = node.start().recovery
        assert (report.clean, report.partitions, report.journal_entries) == (True, 5, 0)
        assert not [path for path in reads if path.endswith(".journal")]
        assert not node.storage.exists("/data/.kafka_cleanshutdown")
        partition = node.get(TopicPartition("orders", 3))
        assert (partition.high_watermark, partition.log_end_offset) == (3, 3)
        assert partition.append(batch(3, sequence=0)).duplicate, "P7"
        await node.logs.close()

    asyncio.run(run())


def test_D1_killed_and_powerless_nodes_have_everything_acknowledged() -> None:
    for seed in range(20):
        for power in (False, True):

            async def run(seed: int, power: bool) -> None:
                node = Node(SimulatedStorage(seed))
                node.start()
                partitions = [node.create(TopicPartition("orders", number)) for number in range(3)]
                for n in range(12):
                    await append(partitions[n % 3], batch(2, size=n * 40 + 1))
                    if n == 6:
                        await node.logs.maintenance.flush()
                expected = [read_all(partition) for partition in partitions]
                node.storage.crash(power=power)
                report = node.start().recovery
                assert not report.clean
                assert [read_all(node.get(TopicPartition("orders", number))) for number in range(3)] == expected
                assert node.storage.list_folder("/data/journal") == [], "all is in the logs"
                await node.logs.close()

            asyncio.run(run(seed, power))


def test_D1_the_journal_stays_until_the_recovered_logs_are_synced() -> None:
    """A power cut at any moment of a recovery takes nothing: what only the journal has is there for the next one."""

    async def run(point: int) -> bool:
        node = Node(SimulatedStorage(point))
        node.start()
        partition = node.create()
        for n in range(4):
            await append(partition, batch(2, size=n * 40 + 1))
        expected = read_all(partition)
        node.storage.crash(power=True)
        node.storage.crash_at(point)
        try:
            node.start()
            recovered = True
        except SimulatedCrash:
            recovered = False
        node.storage.crash(power=True)
        node.start()
        assert read_all(node.get()) == expected
        await node.logs.close()
        return recovered

    assert not asyncio.run(run(1))
    point = 2
    while not asyncio.run(run(point)):
        point += 1
    assert point > 5


def test_D1_acks_1_survives_a_killed_process_before_any_sync() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for _ in range(5):
            partition.append(batch(), acks=1)
        node.storage.crash(power=False)
        node.start()
        assert node.get().high_watermark == 5
        await node.logs.close()

    asyncio.run(run())


def test_D1_D3_log_that_kept_older_bytes_gets_the_acknowledged_ones_back() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        await append(node.get(), batch(1, size=50))
        await append(node.get(), batch(1, size=50))
        expected = read_all(node.get())
        # What a disk may hold that kept a write which had been taken back, and lost the one that came in its place.
        other = bytearray(encode_batch([(1_700_000_000_000, b"k", b"x" * 50, ())], base_offset=1))
        assert len(other) * 2 == len(expected)
        node.storage.crash(power=False)
        node.storage.corrupt("/data/orders-0/00000000000000000000.log", len(other), bytes(other))
        report = node.start().recovery
        assert report.restored_batches == 1
        assert read_all(node.get()) == expected
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one fetch"])
def test_D1_R5_a_power_cut_takes_nothing_from_a_follower_of_a_compacted_log(together: bool) -> None:
    """What its leader sends has gaps, which are no lost records: what comes behind them was acknowledged."""

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        await append(partition)
        await node.logs.maintenance.flush()
        expected = read_all(partition)
        partition.follow(0, 2)
        fetched = []
        for offset in (4, 5, 9):
            fetched.append(batch())
            set_base_offset(fetched[-1], 0, offset, 0)
        for some in (fetched[:1], fetched[1:]) if together else ([one] for one in fetched):
            partition.append(bytearray(b"".join(some)), origin=AppendOrigin.REPLICATION)
        await partition.all_durable()
        expected += b"".join(fetched)
        node.storage.crash(power=True, torn=False)
        report = node.start().recovery
        assert report.restored_batches == 3
        assert node.get().log_end_offset == 10
        assert read_all(node.get()) == expected
        node.storage.crash(power=True, torn=False)
        node.start()
        assert read_all(node.get()) == expected, "and after the next one"
        await node.logs.close()

    asyncio.run(run())


def test_D2_torn_log_gets_its_bytes_from_the_journal() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        for _ in range(5):
            await append(node.get())
        expected = read_all(node.get())
        node.storage.crash(power=False)
        file = node.storage.open("/data/orders-0/00000000000000000000.log")
        file.truncate(len(expected) - len(expected) // 5 * 3 + 7)
        report = node.start().recovery
        assert report.restored_batches == 3
        assert read_all(node.get()) == expected
        await node.logs.close()

    asyncio.run(run())


def test_D2_flushed_records_that_are_gone_are_a_loud_error(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(disk_min_free_bytes=0, journal_file_bytes=200))
        node.start()
        node.create()
        for _ in range(3):
            await append(node.get())
        await node.logs.maintenance.flush()
        await append(node.get())
        node.storage.crash(power=False)
        node.storage.open("/data/orders-0/00000000000000000000.log").truncate(0)
        report = node.start().recovery
        assert list(report.damage.values()) == ["orders-0: offsets 0 to 2 lost"]
        assert report.restored_batches == 1
        log = node.get().log
        assert log.log_end_offset == 4, "none of their offsets is given to another record"
        assert [one.record_count for one, _ in read_batches(log)] == [0, 1]
        [error] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert "orders-0: the records at offsets 0 to 2 are lost" in error
        assert node.logs.last_unclean.damage == "orders-0: offsets 0 to 2 lost"
        await node.logs.close()
        assert node.start().last_unclean.damage == "orders-0: offsets 0 to 2 lost", "until somebody has seen to it"
        await node.logs.close()

    asyncio.run(run())


def test_flush_notes_the_recovery_point_and_cuts_the_journal() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        for _ in range(10):
            await append(node.get())
        assert node.logs.statistics().dirty_partitions == 1
        before = node.logs.statistics().journal
        assert before is not None
        assert before.size_bytes > 0
        await node.logs.maintenance.flush()
        after = node.logs.statistics()
        assert after.journal is not None
        assert (after.journal.size_bytes, after.dirty_partitions, after.dirty_bytes, after.flushes) == (0, 0, 0, 1)
        text = read_whole(node.storage, "/data/recovery-point-offset-checkpoint", size_bytes_max=1000)
        assert text == b"0\n1\norders 0 10\n"
        await append(node.get())
        node.storage.crash(power=True)
        assert node.start().recovery.journal_entries == 1
        assert node.get().high_watermark == 11
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("power", [False, True])
def test_R3_D1_a_crash_does_not_bring_back_what_was_truncated(power: bool) -> None:
    """The journal has those bytes, too, from before the truncation."""

    async def run() -> None:
        node = Node()
        node.start(executor=HeldExecutor())
        partition = node.create()
        await append(partition)
        partition.append(batch(key=b"of a deposed leader"))
        assert partition.high_watermark == 1
        assert partition.truncate_to(1)
        kept = partition.append(batch(key=b"of the leader"))
        await partition.wait_committed(kept.last_offset)
        assert partition.truncate_to(2) is False
        expected = read_all(partition)
        node.storage.crash(power=power, torn=False)
        node.start()
        assert read_all(node.get()) == expected
        assert b"deposed" not in expected
        node.get().append(batch(key=b"of a deposed leader"))
        assert node.get().truncate_to(2)
        node.logs._journal.sync_now()  # type: ignore[union-attr]
        node.storage.crash(power=power, torn=False)
        node.start()
        assert read_all(node.get()) == expected, "with nothing behind the truncation, too"
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("cuts", ["known", "not known"])
def test_R4_what_a_follower_cut_is_not_lost_where_it_is_the_only_replica_by_now(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cuts: str
) -> None:
    """The flush before the cut noted more as synced. A replica that lacks records would wait for an operator.

    cuts: not known before a log is opened are those in entries that were kept apart
    """
    if cuts == "not known":
        monkeypatch.setattr(Journal, "cuts", lambda journal: {})

    async def run(crash_point: int) -> bool:
        """Returns whether the first start crashed, before its operation `crash_point`."""
        node = Node()
        node.start()
        partition = node.create()
        await append(partition)
        partition.follow(0, 2)
        for value in (b"a", b"b"):
            partition.append(_replicated(value, partition.log_end_offset), origin=AppendOrigin.REPLICATION)
        await partition.all_durable()
        await node.logs.maintenance.flush()
        assert partition.truncate_to(1)
        for value in (b"c", b"d", b"e"):
            partition.append(_replicated(value, partition.log_end_offset), origin=AppendOrigin.REPLICATION)
        await partition.all_durable()
        expected = [bytes(data) for _, data in read_batches(partition.log)]
        if cuts == "not known":
            node.logs.folder.recovery_points.note(TP, 3)  # as an earlier version noted it
        node.storage.crash(power=True, torn=False)
        node.storage.crash_at(crash_point)
        has_crashed = False
        try:
            node.start()
        except SimulatedCrash:
            has_crashed = True
        for _ in range(2):
            node.storage.crash(power=True, torn=False)
            node.start()
            assert [bytes(data) for _, data in read_batches(node.get().log)] == expected
            assert node.logs.recovery.damage == {}
            assert not node.logs.unreported.may_be_damaged((TOPIC_ID, 0))
        return has_crashed

    crash_point = 1
    while asyncio.run(run(crash_point)):
        crash_point += 1
    assert crash_point > 10
    assert ("had been cut before the crash, so nothing is lost" in caplog.text) is (cuts == "not known")


def _replicated(value: bytes, offset: int) -> bytearray:
    data = batch(key=value)
    set_base_offset(data, 0, offset, 0)
    return data


@pytest.mark.parametrize("held_calls", range(4))
def test_D1_what_comes_while_a_flush_runs_stays_in_the_journal(held_calls: int) -> None:
    """Whichever of its calls the disk is busy with: syncing the log, or writing one of the checkpoints."""

    async def run() -> None:
        node = Node()
        executor = HeldExecutor()
        node.start(executor=executor)
        node.create()
        await append(node.get())
        flush = asyncio.create_task(node.logs.maintenance.flush())
        for _ in range(held_calls):
            await turns_until(lambda: bool(executor.held))
            executor.run()
        await turns_until(lambda: bool(executor.held))
        await append(node.get())
        while not flush.done():
            await asyncio.sleep(0)
            if executor.held:
                executor.run()
        await flush
        assert node.logs.folder.recovery_points.get(TP) == 1, "only what was there before the flush is on the disk"
        node.storage.crash(power=True, torn=False)
        node.start()
        assert node.get().high_watermark == 2
        await node.logs.close()

    asyncio.run(run())


def test_D1_a_clean_mark_with_entries_in_the_journal_is_no_clean_stop() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        await append(node.get())
        node.logs.folder.mark_clean()  # as from a stop before, whose removal a power cut took back
        node.storage.crash(power=True, torn=False)
        assert not node.start().recovery.clean
        assert node.get().high_watermark == 1
        await node.logs.close()

    asyncio.run(run())


def test_D2_without_a_journal_a_power_cut_after_the_start_is_no_clean_stop() -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(disk_min_free_bytes=0, durability=Durability.OS.value))
        node.start()
        node.create()
        await append(node.get())
        await node.logs.close()
        assert node.start().recovery.clean
        await append(node.get())
        node.storage.crash(power=True, torn=False)
        assert not node.start().recovery.clean
        await node.logs.close()

    asyncio.run(run())


def test_background_flushes_when_the_journal_has_grown_and_ends_when_cancelled() -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(disk_min_free_bytes=0, journal_flush_bytes=2000))
        node.start()
        node.create()
        task = asyncio.create_task(node.logs.maintenance.run())
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while node.logs.statistics().flushes < 3:
                await append(node.get(), batch(5))
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await node.logs.close()
        assert node.start().recovery.clean
        await node.logs.close()

    asyncio.run(run())


def test_durability_os_has_no_journal_and_replays_one_that_is_there() -> None:
    async def run() -> None:
        node = Node(SimulatedStorage(3))
        node.start()
        node.create()
        for _ in range(4):
            await append(node.get())
        expected = read_all(node.get())
        node.storage.crash(power=True)
        node.config = LogManagerConfig(disk_min_free_bytes=0, durability=Durability.OS.value)
        node.start()
        assert read_all(node.get()) == expected
        assert node.logs.statistics().journal is None
        assert node.get().append(batch()).base_offset == 4
        assert node.get().high_watermark == 5
        await node.logs.maintenance.flush()
        await node.logs.close()
        assert node.start().recovery.clean
        await node.logs.close()

    asyncio.run(run())


def test_damaged_checkpoint_costs_work_and_no_records(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        await append(node.get(), batch(5))
        await node.logs.maintenance.flush()
        node.storage.crash(power=False)
        write_whole(node.storage, "/data/recovery-point-offset-checkpoint", b"rubbish")
        with caplog.at_level(logging.WARNING):
            node.start()
        assert "recovery-point-offset-checkpoint is malformed" in caplog.text
        assert node.get().high_watermark == 5
        await node.logs.close()

    asyncio.run(run())


def test_a_recovery_writes_the_leader_epochs_that_it_found() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        path = "/data/orders-0/leader-epoch-checkpoint"
        assert not node.storage.exists(path)
        node.storage.crash(power=False)
        node.start()
        assert read_whole(node.storage, path, size_bytes_max=1000) == b"0\n1\n0 0\n"
        node.storage.crash(power=False)
        node.start()
        assert read_whole(node.storage, path, size_bytes_max=1000) == b"0\n1\n0 0\n"
        await node.logs.close()

    asyncio.run(run())


def test_D1_many_logs_that_are_synced_side_by_side_after_a_kill_are_on_the_disk_before_the_journal_is_cut() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        tps = [TopicPartition("orders", number) for number in range(40)]
        for tp in tps:
            await append(node.create(tp))
        node.storage.crash(power=False)
        node.start()
        assert node.storage.list_folder("/data/journal") == []
        node.storage.crash(power=True, torn=False)
        node.start()
        assert [node.get(tp).high_watermark for tp in tps] == [1] * 40
        for tp in tps:
            await append(node.get(tp))
        node.storage.crash(power=False)
        node.storage.fail_next("sync", OSError(errno.EIO, "I/O error"), path_part="orders-17/")
        with pytest.raises(SemelError, match="orders-17 is offline, because syncing"):
            node.start()
        node.storage.crash(power=True, torn=False)
        node.start()
        assert [node.get(tp).high_watermark for tp in tps] == [2] * 40, "the journal was kept"
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("hole", range(5, 14))
@pytest.mark.parametrize("way", ["zeros", "old"])
@pytest.mark.parametrize("opened", ["at once", "by a later start", "when the disk is back"])
def test_D1_R3_what_is_written_again_below_the_recovery_point_after_a_cut_may_be_torn(
    hole: int, way: str, opened: str
) -> None:
    """A follower that was cut below what it had flushed, and lost its power before the next flush."""

    async def run() -> None:
        size = len(batch(key=b"old", sequence=0))
        config = replace(CONFIG, index_interval_bytes=1, segment_bytes=4 * size)
        node = Node(SimulatedStorage(1))
        node.executor = InlineExecutor()
        node.start(config)
        partition = node.create(log_config=config)
        partition.follow(0, 2)
        replicate(partition, range(10), b"old", 0)
        await partition.all_durable()
        await node.logs.maintenance.flush()
        old = log_files(node)
        partition.follow(1, 3)
        partition.truncate_to(5)
        replicate(partition, range(5, 14), b"new", 1)
        await partition.all_durable()
        expected = log_files(node)
        # As an earlier version noted it, and a flush does after which another log's entries keep the journal.
        node.logs.folder.recovery_points.note(TP, 10)
        node.storage.crash(power=False)
        path = max(path for path in expected if int(path.rpartition("/")[2][:20]) <= hole)
        position = (hole - int(path.rpartition("/")[2][:20])) * size
        before = old.get(path, b"")[position : position + size] or bytes(size)
        node.storage.corrupt(path, position, bytes(size) if way == "zeros" else before)

        def start() -> None:
            node.logs = node.manager()
            node.logs.open(lambda tp, topic_id: config, is_only_replica=lambda tp, topic_id: False)

        if opened != "at once":  # what the journal has of it is kept until then
            epochs = "orders-0/leader-epoch-checkpoint"
            node.storage.fail_next("open", OSError(errno.EIO, "I/O error"), path_part=epochs)
            start()
            assert [one.tp for one in node.logs.offline] == [TP]
        if opened == "by a later start":
            node.storage.crash(power=False)
        if opened == "when the disk is back":
            await bring_back(node)
        else:
            start()
        assert not list(node.logs.offline)
        assert (node.get().log_end_offset, log_files(node)) == (14, expected)

    asyncio.run(run())


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("hole", range(4, 14))
def test_D1_R3_a_cut_is_noted_before_it_is_made_whatever_becomes_of_the_journal(
    hole: int, durability: Durability
) -> None:
    """A power cut took the journal's word of the cut with it, and left a hole in what counted as synced before.

    The node was not to be started again: the log could not be read, below its recovery point.
    """

    async def run() -> None:
        size = len(batch(key=b"old", sequence=0))
        config = replace(CONFIG, index_interval_bytes=1, segment_bytes=4 * size)
        node = Node(SimulatedStorage(1), LogManagerConfig(disk_min_free_bytes=0, durability=durability.value))
        node.executor = InlineExecutor()
        node.start(config)
        partition = node.create(log_config=config)
        partition.follow(0, 2)
        replicate(partition, range(4), b"old", 0)
        fetched = bytearray()
        for offset in range(4, 10):
            one = batch(key=b"old", sequence=offset)
            set_base_offset(one, 0, offset, 0)
            fetched += one
        partition.replicate(bytes(fetched))
        await node.logs.maintenance.flush()
        partition.follow(1, 3)
        partition.truncate_to(4)
        replicate(partition, range(4, 14), b"new", 1)
        node.storage.crash(power=False)
        for name in node.storage.list_folder("/data/journal") if durability is Durability.DISK else ():
            node.storage.remove(f"/data/journal/{name}")
        base = max(base for path in log_files(node) if (base := int(path.rpartition("/")[2][:20])) <= hole)
        node.storage.corrupt(f"/data/orders-0/{base:020}.log", (hole - base) * size, bytes(size))
        node.logs = node.manager()
        node.logs.open(lambda tp, topic_id: config, is_only_replica=lambda tp, topic_id: False)
        assert not list(node.logs.offline)
        assert node.get().log_end_offset == hole
        assert not node.logs.unreported.damaged
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("durability", list(Durability))
def test_D1_R3_a_follower_that_is_stopped_anywhere_in_a_cut_opens_with_one_log_or_the_other(
    power: bool, durability: Durability
) -> None:
    """At each change of the disk, from before the cut until it has written again."""

    def content(partition: Partition) -> list[bytes]:
        return [bytes(data) for _, data in read_batches(partition.log)]

    async def run(crash_point: int) -> bool:
        node = Node(SimulatedStorage(crash_point), LogManagerConfig(disk_min_free_bytes=0, durability=durability.value))
        node.executor = InlineExecutor()
        node.start()
        partition = node.create()
        partition.follow(0, 2)
        replicate(partition, range(10), b"old", 0)
        await partition.all_durable()
        await node.logs.maintenance.flush()
        old = content(partition)
        partition.follow(1, 3)
        node.storage.crash_at(crash_point)
        new = old[:5]
        try:
            partition.truncate_to(5)
            replicate(partition, range(5, 14), b"new", 1)
            # A sync of the journal that is stopped has nobody to tell.
            await turns_until(lambda: partition.durable_end == 14 or node.storage.crashed)
            new = content(partition)
        except SimulatedCrash:
            pass
        has_crashed = node.storage.crashed
        node.storage.crash(power=power)
        node.logs = node.manager()
        node.logs.open(lambda tp, topic_id: CONFIG, is_only_replica=lambda tp, topic_id: False)
        assert not list(node.logs.offline)
        found = content(node.get())
        is_new = [b"new" in data for data in found]
        assert found[:5] == old[:5], "what was not cut is there"
        assert found == old[: len(found)] or all(is_new[5:]), "what is behind is of one leader"
        if not has_crashed and (durability is Durability.DISK or not power):
            assert found == new, "what counted is there"
        return has_crashed

    crash_point = 1
    while asyncio.run(run(crash_point)):
        crash_point += 1
    assert crash_point > 10


def test_D1_R3_a_cut_amid_a_batch_is_noted_where_that_begins() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        partition.follow(0, 2)
        for base in (0, 3):
            fetched = batch(3, sequence=base)
            set_base_offset(fetched, 0, base, 0)
            partition.replicate(fetched)
        await partition.all_durable()
        await node.logs.maintenance.flush()
        assert node.logs.folder.recovery_points.get(TP) == 6
        partition.truncate_to(5)
        assert (partition.log_end_offset, node.logs.folder.recovery_points.get(TP)) == (3, 3)
        partition.truncate_to(0)
        assert node.logs.folder.recovery_points.all() == {}
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("before", range(6))
def test_D1_a_flush_that_was_under_way_does_not_note_more_than_a_cut_has_left(before: int) -> None:
    """before: so many of the flush's calls to the disk's thread are through when the log is cut"""

    async def run() -> None:
        node = Node()
        node.executor = executor = HeldExecutor()
        node.start()
        partition = node.create()
        partition.follow(0, 2)
        replicate(partition, range(6), b"old", 0)
        flush = asyncio.ensure_future(node.logs.maintenance.flush())
        calls = 0
        while not flush.done():
            if executor.held:
                if calls == before:
                    partition.truncate_to(2)
                executor.run()
                calls += 1
            await asyncio.sleep(0)
        assert calls > before
        assert node.logs.folder.recovery_points.get(TP) <= 2
        assert partition.log_end_offset == 2

    asyncio.run(run())


def test_a_log_is_not_cut_while_that_can_not_be_noted() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        partition.follow(0, 2)
        replicate(partition, range(6), b"old", 0)
        await partition.all_durable()
        await node.logs.maintenance.flush()
        node.storage.fail_next("open", OSError(errno.ENOSPC, "no room"), path_part="recovery-point", times=9)
        node.storage.fail_next("create", OSError(errno.ENOSPC, "no room"), path_part="recovery-point", times=9)
        with pytest.raises(SemelError, match=r"orders-0 can't be cut now \(.*no room.*make room on the disk"):
            partition.truncate_to(2)
        assert partition.log_end_offset == 6
        assert partition.offline_error is None
        node.storage.fail_no_more()
        assert partition.truncate_to(2)
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("operation", ["open", "append"])
def test_D1_R2_of_a_fetch_that_fails_amid_its_segments_the_journal_has_what_the_log_has(operation: str) -> None:
    """The leader sends the rest once more, and what was first survives a power cut as all that the leader counts."""

    async def run() -> None:
        size = len(batch(key=b"new", sequence=0))
        config = replace(CONFIG, segment_bytes=4 * size)
        node = Node()
        node.start(config)
        partition = node.create(log_config=config)
        partition.follow(0, 2)
        fetched = bytearray()
        for offset in range(10):
            one = batch(key=b"new", sequence=offset)
            set_base_offset(one, 0, offset, 0)
            fetched += one
        # Twice, because a write that fails is tried again.
        node.storage.fail_next(operation, OSError(errno.ENOSPC, "no room"), path_part="00000004.log", times=2)
        with pytest.raises(SemelError, match=r"only what comes before offset 4 was appended.*no room"):
            partition.replicate(bytes(fetched))
        assert partition.log_end_offset == 4
        assert partition.durable_end == 0, "it counts when the journal is synced"
        node.storage.fail_no_more()
        await partition.all_durable()
        partition.replicate(bytes(fetched))
        assert partition.log_end_offset == 10
        await partition.all_durable()
        node.storage.crash(power=True, torn=False)
        node.logs = node.manager()
        node.logs.open(lambda tp, topic_id: config, is_only_replica=lambda tp, topic_id: False)
        assert node.get().log_end_offset == 10
        assert b"".join(log_files(node).values()) == fetched

    asyncio.run(run())


def log_files(node: Node) -> dict[str, bytes]:
    """The segments of the partition, by their paths."""
    folder = "/data/orders-0"
    names = [name for name in node.storage.list_folder(folder) if name.endswith(".log")]
    return {f"{folder}/{name}": read_whole(node.storage, f"{folder}/{name}", size_bytes_max=1 << 20) for name in names}


def replicate(partition: Partition, offsets: range, key: bytes, leader_epoch: int) -> None:
    for offset in offsets:
        fetched = batch(key=key, sequence=offset)
        set_base_offset(fetched, 0, offset, leader_epoch)
        partition.append(fetched, origin=AppendOrigin.REPLICATION)
