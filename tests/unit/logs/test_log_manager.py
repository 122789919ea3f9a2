"""All logs of a node: opening, recovering, making, deleting, flushing, cleaning, closing (D1, D2, D3, D4, P8)."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from held_executor import HeldExecutor
from log_model import read_batches
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch, read_all

from semel.broker.log.config import CleanupPolicy, LogConfig
from semel.broker.log.journal import JournalConfig
from semel.broker.logs.config import DurabilityMode, LogManagerConfig
from semel.broker.logs.manager import LogManager, NewPartition
from semel.broker.logs.offline import OfflineKind
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, format_topic_id, new_topic_id
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import ManualClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage
from semel.runtime.storage import Storage, read_whole, write_whole


async def turns_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # everything that it waits for runs on this loop
        await asyncio.sleep(0)


def split(data: bytes) -> list[bytes]:
    found, position = [], 0
    for header in iter_batches(data):
        found.append(data[position : position + header.size_bytes])
        position += header.size_bytes
    return found


def test_folder_has_kafkas_files() -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(node_id=4, min_free_bytes=0))
        logs = node.start()
        node.create()
        await append(node.get())
        meta = read_whole(node.storage, "/data/meta.properties", size_bytes_max=1000).decode()
        assert f"version=1\ncluster.id={logs.cluster_id}\nnode.id=4\ndirectory.id=" in meta
        assert len(logs.cluster_id) == 22
        text = read_whole(node.storage, "/data/orders-0/partition.metadata", size_bytes_max=1000).decode()
        assert text == f"version: 0\ntopic_id: {format_topic_id(TOPIC_ID)}\n"
        await logs.close()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert read_whole(node.storage, f"/data/{name}", size_bytes_max=1000) == b"0\n1\norders 0 1\n"
        clean = json.loads(read_whole(node.storage, "/data/.kafka_cleanshutdown", size_bytes_max=1000))
        assert clean == {"version": 0, "brokerEpoch": -1}
        assert node.storage.list_folder("/data/journal") == []

    asyncio.run(run())


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
                        await node.logs.upkeep.flush()
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
        node = Node(config=LogManagerConfig(min_free_bytes=0, journal=JournalConfig(file_bytes=200)))
        node.start()
        node.create()
        for _ in range(3):
            await append(node.get())
        await node.logs.upkeep.flush()
        await append(node.get())
        node.storage.crash(power=False)
        node.storage.open("/data/orders-0/00000000000000000000.log").truncate(0)
        report = node.start().recovery
        assert report.damage == ("orders-0: offsets 0 to 2 lost",)
        assert report.restored_batches == 1
        log = node.get().log
        assert log.log_end_offset == 4, "none of their offsets is given to another record"
        assert [one.record_count for one, _ in read_batches(log)] == [0, 1]
        [error] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert "orders-0: the records at offsets 0 to 2 are lost" in error
        assert node.logs.last_unclean.damage == report.damage[0]
        await node.logs.close()
        assert node.start().last_unclean.damage == report.damage[0], "until somebody has seen to it"
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
        await node.logs.upkeep.flush()
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


@pytest.mark.parametrize("held_calls", range(4))
def test_D1_what_comes_while_a_flush_runs_stays_in_the_journal(held_calls: int) -> None:
    """Whichever of its calls the disk is busy with: syncing the log, or writing one of the checkpoints."""

    async def run() -> None:
        node = Node()
        executor = HeldExecutor()
        node.start(executor=executor)
        node.create()
        await append(node.get())
        flush = asyncio.create_task(node.logs.upkeep.flush())
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
        node = Node(config=LogManagerConfig(min_free_bytes=0, durability=DurabilityMode.OS))
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
        node = Node(config=LogManagerConfig(min_free_bytes=0, journal_flush_bytes=2000))
        node.start()
        node.create()
        task = asyncio.create_task(node.logs.upkeep.run())
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
        node.config = LogManagerConfig(min_free_bytes=0, durability=DurabilityMode.OS)
        node.start()
        assert read_all(node.get()) == expected
        assert node.logs.statistics().journal is None
        assert node.get().append(batch()).base_offset == 4
        assert node.get().high_watermark == 5
        await node.logs.upkeep.flush()
        await node.logs.close()
        assert node.start().recovery.clean
        await node.logs.close()

    asyncio.run(run())


def test_data_folder_is_locked_with_a_message_that_names_the_holder(tmp_path: Path) -> None:
    async def run() -> None:
        folder = str(tmp_path / "data")
        first = LogManager(DiskStorage(), folder, ManualClock())
        first.open()
        second = LogManager(DiskStorage(), folder, ManualClock())
        with pytest.raises(FatalError, match=r"is in use: held by process \d+\. Stop that process"):
            second.open()
        await first.close()
        second.open()
        await second.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LogManagerConfig(node_id=2), "belongs to node 1, not to node 2"),
        (LogManagerConfig(node_id=1, cluster_id="other"), "belongs to the cluster mine, not to other"),
    ],
)
def test_folder_of_another_node_or_cluster_is_refused(config: LogManagerConfig, message: str) -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(node_id=1, cluster_id="mine"))
        await node.start().close()
        node.config = config
        with pytest.raises(FatalError, match=message):
            node.start()

    asyncio.run(run())


def test_foreign_folders_are_left_alone_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node()
        node.storage.make_folder("/data/notes-1")
        write_whole(node.storage, "/data/notes-1/todo.txt", b"1")
        node.storage.make_folder("/data/orders-3.0123456789abcdef0123456789abcdef-stray")
        node.storage.make_folder("/data/half-7")
        write_whole(node.storage, "/data/file-2", b"")
        write_whole(node.storage, "/data/metadata.db", b"")
        with caplog.at_level(logging.WARNING):
            node.start()
        assert node.logs.partitions() == []
        warned = caplog.text
        assert "/data/notes-1 has no partition.metadata" in warned
        assert "orders-3.0123456789abcdef0123456789abcdef-stray is a log that was set aside" in warned
        assert "/data/file-2 has the name of a log's folder and is a file" in warned
        assert "metadata.db" not in warned
        assert node.storage.list_folder("/data/notes-1") == ["todo.txt"]
        assert not node.storage.exists("/data/half-7"), "a crash came while it was made"
        with pytest.raises(FatalError, match="/data/notes-1 is there and was not opened"):
            node.create(TopicPartition("notes", 1))
        await node.logs.close()

    asyncio.run(run())


def test_damaged_partition_metadata_is_an_error_that_says_what_to_write() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        await node.logs.close()
        write_whole(node.storage, "/data/orders-0/partition.metadata", b"version: 0\ntopic_id: short\n")
        assert node.start().partitions() == []
        [offline] = node.logs.offline
        assert (offline.tp, offline.kind) == (TP, OfflineKind.DAMAGED)
        assert "Rewrite it as 'version: 0'" in offline.reason
        await node.logs.close()

    asyncio.run(run())


def test_creating_twice_gives_the_same_partition_and_another_topics_is_refused() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        assert node.logs.create_partition(TP, TOPIC_ID, CONFIG, leader_epoch=5) is partition
        assert partition.leader_epoch == 5
        with pytest.raises(FatalError, match="is there already with the topic id") as caught:
            node.logs.create_partition(TP, new_topic_id(), CONFIG)
        assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
        await node.logs.close()

    asyncio.run(run())


def test_creation_that_fails_leaves_nothing_and_can_be_repeated() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.storage.fail_next("open", OSError(errno.ENOSPC, "No space left on device"), path_part=".log")
        with pytest.raises((OSError, SemelError), match="No space"):
            node.create()
        assert node.logs.partition(TP) is None
        assert not node.storage.exists("/data/orders-0")
        await append(node.create())
        await node.logs.close()

    asyncio.run(run())


MANY_ID = new_topic_id()


def many(count: int) -> list[NewPartition]:
    return [NewPartition(TopicPartition("many", number), MANY_ID, CONFIG, 3) for number in range(count)]


def test_many_are_made_at_once_and_a_failure_is_of_one_alone() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        node.storage.make_folder("/data/many-2")
        write_whole(node.storage, "/data/many-2/something", b"else")
        node.storage.fail_next("open", OSError(errno.ENOSPC, "No space left on device"), path_part="many-4/0")
        other = NewPartition(TP, new_topic_id(), CONFIG)
        failures = await node.logs.create_partitions([*many(12), other])
        assert sorted(str(tp) for tp in failures) == ["many-2", "many-4", "orders-0"]
        assert not node.storage.exists("/data/many-4")
        assert node.storage.exists("/data/many-2/something")
        for one in many(12):
            if one.tp not in failures:
                assert await append(node.get(one.tp)) == 0
                assert node.get(one.tp).leader_epoch == 3
        assert list(await node.logs.create_partitions(many(12))) == [TopicPartition("many", 2)]
        await node.logs.close()
        assert node.start().recovery.partitions == 12
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("power", [False, True])
def test_D1_many_partitions_that_a_crash_interrupts_are_made_whole_by_the_next_start(power: bool) -> None:
    """At every point: what is there is whole or taken away, and what was acknowledged in a partition stays."""

    async def attempt(seed: int, point: int) -> bool:
        """Return whether the crash point was reached."""
        storage = SimulatedStorage(seed)
        storage.make_folder("/data")
        storage.sync_folder("/")
        node = Node(storage)
        node.start(executor=InlineExecutor())
        acknowledged: list[TopicPartition] = []
        died = asyncio.Event()  # in a callback of the loop, of which nobody hears
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: died.set())

        async def work() -> None:
            for part in (many(2), many(4)):
                assert not await node.logs.create_partitions(part)
                for one in part:
                    await append(node.get(one.tp))
                    acknowledged.append(one.tp)

        storage.crash_at(point)
        tasks = [asyncio.ensure_future(work()), asyncio.ensure_future(died.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        crashed = storage.crashed
        if not crashed:
            await tasks[0]
        for task in tasks:
            task.cancel()
        assert all(
            outcome is None or isinstance(outcome, (SimulatedCrash, SemelError, asyncio.CancelledError, bool))
            for outcome in await asyncio.gather(*tasks, return_exceptions=True)
        )
        storage.crash(power=power)
        node.start()
        for tp in set(acknowledged):
            assert node.get(tp).high_watermark >= acknowledged.count(tp)
        assert not await node.logs.create_partitions(many(4))
        for one in many(4):
            await append(node.get(one.tp))
        await node.logs.close()
        return crashed

    point = 1
    while asyncio.run(attempt(point, point)):
        point += 1
    assert point > 40


def test_deleted_partition_is_gone_at_once_and_its_files_later() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        await append(partition)
        waiting = asyncio.create_task(partition.wait_committed(100))
        await asyncio.sleep(0)
        assert node.logs.delete_partition(TP)
        assert not node.logs.delete_partition(TP)
        assert node.logs.partition(TP) is None
        with pytest.raises(SemelError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(SemelError):
            partition.append(batch())
        (going,) = [name for name in node.storage.list_folder("/data") if name.endswith("-delete")]
        assert going.startswith("orders-0.")
        await node.logs.upkeep.delete_folders()
        assert node.logs.statistics().folders_to_delete == 1
        node.clock.advance(ms=1000)
        await node.logs.upkeep.delete_folders()
        assert not node.storage.exists(f"/data/{going}")
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("lost", [False, True])
def test_D1_records_deleted_up_to_the_middle_of_a_batch_do_not_keep_the_node_from_starting(lost: bool) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        await append(partition, batch(3))
        partition.delete_records(1)
        await node.logs.upkeep._write_log_starts()
        if not lost:
            await append(partition, batch(2))
        node.storage.crash(power=False)
        if lost:
            # As after a power cut that took the log's bytes and left the journal's.
            node.storage.open("/data/orders-0/00000000000000000000.log").truncate(0)
        node.start()
        again = node.get()
        assert again.log_start_offset == 1, "what was deleted stays deleted"
        assert again.log_end_offset == (3 if lost else 5)
        offsets = [record.offset for found in split(read_all(again)) for record in decode_records(found)]
        assert offsets == [0, 1, 2] + ([] if lost else [3, 4]), "batches are read whole"

    asyncio.run(run())


def test_deletion_is_finished_after_a_crash_and_its_journal_entries_are_skipped() -> None:
    async def run() -> None:
        node = Node(SimulatedStorage(1))
        node.start()
        await append(node.create())
        await append(node.create(TopicPartition("orders", 1)))
        node.logs.delete_partition(TP)
        node.storage.crash(power=True)
        report = node.start().recovery
        # Whether the power cut took the note of the deletion, too: then it is forgotten by the metadata's word.
        assert (report.partitions, report.skipped_entries + report.kept_entries) == (1, 1)
        node.logs.forget_all_but([(TOPIC_ID, 1)])
        assert not node.storage.exists("/data/kept") or not node.storage.list_folder("/data/kept")
        await node.logs.upkeep.delete_folders()
        assert not [name for name in node.storage.list_folder("/data") if name.endswith("-delete")]
        await node.logs.close()

    asyncio.run(run())


def test_long_topic_names_fit_when_deleted() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        tp = TopicPartition("t" * 249, 12)
        node.create(tp)
        node.logs.delete_partition(tp)
        assert max(map(len, node.storage.list_folder("/data"))) <= 255
        await node.logs.close()

    asyncio.run(run())


def test_D3_topic_of_an_earlier_ones_name_does_not_inherit_its_offsets() -> None:
    async def run() -> None:
        node = Node(SimulatedStorage(5))
        node.start()
        partition = node.create()
        for _ in range(10):
            await append(partition)
        partition.delete_records(8)
        await node.logs.upkeep.flush()
        assert node.logs.delete_partition(TP)
        node.storage.crash(power=True)
        node.start()
        new = node.logs.create_partition(TP, new_topic_id(), CONFIG)
        for _ in range(3):
            await append(new)
        expected = read_all(new)
        node.storage.crash(power=True)
        node.start()
        assert (node.get().log_start_offset, node.get().high_watermark) == (0, 3)
        assert read_all(node.get()) == expected
        await node.logs.close()

    asyncio.run(run())


def test_D1_failed_journal_takes_every_log_offline_and_the_stop_is_not_clean() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partitions = [node.create(TopicPartition("orders", number)) for number in range(3)]
        await append(partitions[0])
        node.storage.fail_next("sync", OSError(errno.EIO, "Input/output error"), path_part="journal")
        with pytest.raises(RetriableError, match="Input/output error"):
            await append(partitions[1])
        assert len(node.failures) == 1
        assert node.logs.statistics().offline_partitions == 3
        await node.logs.close()
        assert not node.storage.exists("/data/.kafka_cleanshutdown")
        report = node.start().recovery
        assert not report.clean
        assert node.get().high_watermark == 1
        await node.logs.close()

    asyncio.run(run())


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stops", ["with room", "full", "by a power cut"])
def test_D1_a_disk_that_is_full_for_the_journal_loses_nothing_that_was_acknowledged(stops: str) -> None:
    """The node ended, with exit code 6, where the guarantee says that producers are refused and readers continue."""

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for _ in range(3):
            await append(partition)
        expected = read_all(partition)
        node.storage.fail_next("append", no_space(), path_part="journal", times=1_000_000)
        waiting = asyncio.ensure_future(append(partition))
        while node.logs.write_error == "":  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(RetriableError, match="the disk is full"):
            await append(partition)
        assert read_all(partition) == expected, "readers continue, and see nothing that is not durable"
        assert not waiting.done()
        assert not node.failures
        await node.logs.upkeep.flush()
        if stops == "with room":
            node.storage.fail_no_more()
            assert await waiting == 3
            assert await append(partition) == 4
            assert node.logs.write_error == ""
            await node.logs.close()
            assert node.storage.exists("/data/.kafka_cleanshutdown")
        elif stops == "full":
            await node.logs.close()
            with pytest.raises(SemelError):
                await waiting
            assert not node.storage.exists("/data/.kafka_cleanshutdown")
            node.storage.fail_no_more()
        else:
            node.storage.crash(power=True)
            waiting.cancel()
        node.start()
        found = read_all(node.get())
        assert found[: len(expected)] == expected
        assert await append(node.get()) == node.get().high_watermark - 1
        await node.logs.close()

    asyncio.run(run())


def test_D1_log_that_cannot_be_flushed_goes_offline_and_the_journal_is_kept() -> None:
    async def run() -> None:
        node = Node(SimulatedStorage(2))
        node.start()
        partitions = [node.create(TopicPartition("orders", number)) for number in range(2)]
        for partition in partitions:
            await append(partition)
        node.storage.fail_next("sync", OSError(errno.EIO, "Input/output error"), path_part="orders-0")
        await node.logs.upkeep.flush()
        assert partitions[0].offline_error is not None
        assert partitions[1].offline_error is None
        await append(partitions[1])
        await node.logs.upkeep.flush()
        journal = node.logs.statistics().journal
        assert journal is not None
        assert journal.size_bytes > 0
        await node.logs.close()
        node.storage.crash(power=True)
        node.start()
        assert [node.get(TopicPartition("orders", number)).high_watermark for number in range(2)] == [1, 2]
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["broken", "full"])
def test_D1_a_log_that_can_not_be_flushed_at_the_stop_is_a_failure_of_the_node(number: int) -> None:
    """Also where the sync failed for want of room: what the disk holds then is unknown."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        node.storage.fail_next("sync", OSError(number, "it fails"), path_part="orders-0")
        await node.logs.close()
        [failure] = node.failures
        assert "orders-0 is offline" in failure.message
        assert "it fails" in failure.message
        assert not node.storage.exists("/data/.kafka_cleanshutdown")
        node.storage.crash(power=True)
        assert not node.start().recovery.clean
        assert node.get().high_watermark == 1
        await node.logs.close()

    asyncio.run(run())


def test_D1_a_second_attempt_to_flush_at_the_stop_that_fails_is_a_failure_too() -> None:
    """The first one found no room for an index, which is no failure."""

    async def run() -> None:
        node = Node()
        config = LogConfig(segment_ms=1 << 60, retention_ms=-1, index_interval_bytes=1)
        node.start(config)
        partition = node.create(log_config=config)
        for _ in range(5):
            await append(partition)
        node.storage.fail_next("write_at", no_space(), path_part=".index")
        node.storage.fail_next("sync", no_space(), path_part="orders-0/")
        with pytest.raises(SemelError, match="orders-0 is offline"):
            await node.logs.close()
        assert len(node.failures) == 1
        assert not node.storage.exists("/data/.kafka_cleanshutdown")
        node.storage.crash(power=True)
        node.start(config)
        assert node.get().high_watermark == 5
        await node.logs.close()

    asyncio.run(run())


def test_retention_and_producer_expiry_go_over_all_logs() -> None:
    async def run() -> None:
        config = LogConfig(segment_bytes=200, segment_ms=1 << 60, retention_bytes=300, retention_ms=-1)
        node = Node()
        node.start(config)
        for number in range(3):
            partition = node.create(TopicPartition("orders", number), config)
            for sequence in range(10):
                await append(partition, batch(sequence=sequence, size=60))
        await node.logs.upkeep.flush()
        assert await node.logs.upkeep.check_retention() > 0
        starts = [partition.log_start_offset for partition in node.logs.partitions()]
        assert min(starts) > 0
        node.clock.advance(ms=2 * 24 * 60 * 60 * 1000)
        assert await node.logs.upkeep.expire_producers() == 3
        await node.logs.close()
        node.start(config)
        assert [partition.log_start_offset for partition in node.logs.partitions()] == starts
        await node.logs.close()

    asyncio.run(run())


def test_D4_compaction_keeps_the_last_of_each_key_below_the_recovery_point_and_survives_crashes() -> None:
    async def run() -> None:
        config = LogConfig(
            segment_bytes=300,
            segment_ms=1 << 60,
            cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
            min_cleanable_dirty_ratio=0.0,
        )
        for seed in range(10):
            node = Node(SimulatedStorage(seed))
            node.start(config)
            partition = node.create(TP, config)
            for n in range(40):
                await append(partition, batch(1, key=b"%d" % (n % 3), size=30))
            assert await node.logs.upkeep.compact_logs() == 0, "nothing is flushed yet"
            await node.logs.upkeep.flush()
            for n in range(4):
                await append(partition, batch(1, key=b"%d" % (n % 3), size=30))
            assert await node.logs.upkeep.compact_logs() == 1
            assert await node.logs.upkeep.compact_logs() == 0, "it is clean"
            assert node.logs.statistics().compactions == 1
            kept = [header.base_offset for header in iter_batches(read_all(partition)) if header.record_count > 0]
            assert len(kept) < 12
            assert kept[-4:] == [40, 41, 42, 43]
            expected = read_all(partition)
            node.storage.crash(power=True)
            node.start(config)
            assert read_all(node.get()) == expected
            assert node.get().high_watermark == 44
            await node.logs.close()

    asyncio.run(run())


def test_compaction_of_a_partition_that_is_deleted_meanwhile_is_given_up() -> None:
    async def run() -> None:
        config = LogConfig(
            segment_bytes=300, cleanup_policy=frozenset({CleanupPolicy.COMPACT}), min_cleanable_dirty_ratio=0.0
        )
        node = Node()
        node.start(config)
        partition = node.create(TP, config)
        for _ in range(20):
            await append(partition, batch(1, size=60))
        await node.logs.upkeep.flush()
        task = asyncio.create_task(node.logs.upkeep.compact_logs())
        await asyncio.sleep(0)
        node.logs.delete_partition(TP)
        assert await task == 0
        await node.logs.close()

    asyncio.run(run())


def test_config_updates_reach_all_partitions_of_the_topic() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        mine = [node.create(TopicPartition("orders", number)) for number in range(2)]
        other = node.create(TopicPartition("other", 0))
        changed = LogConfig(retention_bytes=5)
        node.logs.update_config("orders", changed)
        assert [partition.config for partition in mine] == [changed, changed]
        assert other.config == CONFIG
        await node.logs.close()

    asyncio.run(run())


def test_progress_is_told_for_each_log() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        for number in range(3):
            node.create(TopicPartition("orders", number))
        await node.logs.close()
        seen: list[tuple[int, int, TopicPartition]] = []
        node.logs = node.manager()
        node.logs.open(progress=lambda done, total, tp: seen.append((done, total, tp)))
        assert seen == [(n + 1, 3, TopicPartition("orders", n)) for n in range(3)]
        await node.logs.close()

    asyncio.run(run())


def test_damaged_checkpoint_costs_work_and_no_records(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create()
        await append(node.get(), batch(5))
        await node.logs.upkeep.flush()
        node.storage.crash(power=False)
        write_whole(node.storage, "/data/recovery-point-offset-checkpoint", b"rubbish")
        with caplog.at_level(logging.WARNING):
            node.start()
        assert "recovery-point-offset-checkpoint is malformed" in caplog.text
        assert node.get().high_watermark == 5
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("real", [False, True])
def test_same_on_the_real_disk(real: bool, tmp_path: Path) -> None:
    async def run() -> None:
        storage: Storage = DiskStorage() if real else SimulatedStorage()
        folder = str(tmp_path / "data")
        logs = LogManager(storage, folder, ManualClock(), LogManagerConfig(min_free_bytes=0))
        logs.open(lambda tp, topic_id: CONFIG)
        partition = logs.create_partition(TP, TOPIC_ID, CONFIG)
        for n in range(20):
            await append(partition, batch(3, size=n * 100 + 1))
        await logs.upkeep.flush()
        partition.append_marker(ProducerIdAndEpoch(1, 0), 0, True)
        await partition.wait_committed(partition.log_end_offset - 1)
        values = [record.value for header in [0] for record in decode_records(partition.read(0, max_bytes=1).read())]
        assert values == [b"0", b"1", b"2"]
        await logs.close()
        logs = LogManager(storage, folder, ManualClock(), LogManagerConfig(min_free_bytes=0))
        assert logs.open(lambda tp, topic_id: CONFIG).clean
        again = logs.partition(TP)
        assert again is not None
        assert again.high_watermark == 61
        await logs.close()

    asyncio.run(run())


def test_config_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="journal_flush_bytes"):
        LogManagerConfig(journal_flush_bytes=100, journal_bytes_max=50)


def test_cancelled_flush_waits_for_the_disk_and_counts_what_was_done() -> None:
    async def run() -> None:
        executor = HeldExecutor()
        storage = SimulatedStorage()
        logs = LogManager(storage, "/data", ManualClock(), LogManagerConfig(min_free_bytes=0), executor=executor)
        logs.open(lambda tp, topic_id: CONFIG)
        partition = logs.create_partition(TP, TOPIC_ID, CONFIG)
        await append(partition)
        flush = asyncio.create_task(logs.upkeep.flush())
        for _ in range(5):
            await asyncio.sleep(0)
        for _ in range(3):
            flush.cancel()
            await asyncio.sleep(0)
        assert not flush.done()
        executor.run()
        with pytest.raises(asyncio.CancelledError):
            await flush
        assert partition.log.recovery_point == 1
        assert executor.held == []
        storage.crash(power=False)

    asyncio.run(run())


@pytest.mark.parametrize("what", [".index", "leader-epoch-checkpoint"])
def test_D1_a_log_that_a_full_disk_did_not_let_be_flushed_keeps_its_journal(what: str) -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(min_free_bytes=0, journal=JournalConfig(file_bytes=200)))
        node.start()
        config = LogConfig(segment_ms=1 << 60, retention_ms=-1, index_interval_bytes=1)
        partition = node.create(log_config=config)
        for _ in range(5):
            await append(partition)
        expected = read_all(partition)
        operation = "write_at" if what == ".index" else "append"
        node.storage.fail_next(operation, no_space(), path_part=what, times=3)
        await node.logs.upkeep.flush()
        node.storage.fail_no_more()
        assert partition.offline_error is None
        assert not node.failures
        assert node.storage.list_folder("/data/journal"), "it has what the log may lose"
        assert await append(partition) == 5
        node.storage.crash(power=True, torn=False)
        node.start(config)
        assert read_all(node.get())[: len(expected)] == expected
        assert node.get().high_watermark == 6
        await node.logs.upkeep.flush()
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
