"""All logs of a node: making, deleting, cleaning, configuring (D1, D3, D4)."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from held_executor import HeldExecutor
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch, read_all

from semel.broker.log.config import AppendOrigin, CleanupPolicy, LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.manager import NewPartition
from semel.broker.logs.offline import OfflineKind
from semel.protocol.batch_header import iter_batches, set_base_offset
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.protocol.record_decoder import decode_records
from semel.protocol.time_units import DAY_MS
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage
from semel.runtime.storage import write_whole


def split(data: bytes) -> list[bytes]:
    found, position = [], 0
    for header in iter_batches(data):
        found.append(data[position : position + header.size_bytes])
        position += header.size_bytes
    return found


async def fetch(node: Node, offset: int, *, count: int = 1, epoch: int = 0) -> bytes:
    """Take over a batch from the leader, and wait until it is durable; return it as it is in the log."""
    fetched = batch(count, key=b"other")
    set_base_offset(fetched, 0, offset, epoch)
    node.get().append(fetched, origin=AppendOrigin.REPLICATION)
    await node.get().all_durable()
    return bytes(fetched)


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
        await node.logs.maintenance.delete_folders()
        assert node.logs.statistics().folders_to_delete == 1
        node.clock.advance(ms=1000)
        await node.logs.maintenance.delete_folders()
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
        # As earlier versions did, though the log was not on the disk up to there.
        node.logs.folder.log_starts.write({partition.tp: (partition.topic_id, 1)})
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


@pytest.mark.parametrize("rest", [False, True])
def test_P7_P1_a_power_cut_after_records_were_deleted_leaves_what_tells_of_their_producers(rest: bool) -> None:
    """What was deleted was in the journal alone: the log ended below its start, and began again there, empty."""

    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for sequence in range(3):
            await append(partition, batch(sequence=sequence))
        partition.delete_records(3)
        await node.logs.maintenance.log_starts_noted([partition])
        if rest:
            await append(partition, batch())
        known = partition.log.producer_state
        for _ in range(2):
            node.storage.crash(power=True, torn=False)
            node.start()
            again = node.get()
            assert again.log_start_offset == 3
            assert again.log.producer_state == known
            await node.logs.maintenance.flush()
        assert await append(again, batch(sequence=2)) == 2, "a batch that comes once more is known"
        assert await append(again, batch(sequence=3)) == known.end_offset, "and the next in line is not refused"

    asyncio.run(run())


def test_P7_a_start_that_nobody_waits_for_is_noted_up_to_what_is_on_the_disk() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        for sequence in range(3):
            await append(partition, batch(sequence=sequence))
        partition.delete_records(3)
        await node.logs.maintenance._write_log_starts()  # as the maintenance does it, in a round without a flush
        known = partition.log.producer_state
        node.storage.crash(power=True, torn=False)
        node.start()
        again = node.get()
        assert again.log.producer_state == known
        assert again.log_start_offset <= 3

    asyncio.run(run())


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "amid appends"])
def test_R5_D3_what_the_journal_has_of_a_partition_that_was_moved_away_stays_away(busy: bool) -> None:
    """The node gets it again, and loses its power: nothing of the former life comes back, and nothing of this goes."""

    async def run() -> None:
        node = Node()
        node.start()
        other = node.create(TopicPartition("orders", 1))
        partition = node.create()
        for _ in range(5):
            await append(partition)
        await node.logs.move_away([(TOPIC_ID, TP.partition)])
        assert node.logs.partition(TP) is None
        assert node.logs.was_moved(TP, TOPIC_ID)
        assert not node.storage.exists(f"/data/{TP}")

        async def write() -> None:
            while True:
                await append(other)

        writing = asyncio.ensure_future(write()) if busy else None
        assert await node.logs.create_partitions([NewPartition(TP, TOPIC_ID, CONFIG, 0)]) == {}
        assert not node.logs.was_moved(TP, TOPIC_ID)
        if writing is not None:
            writing.cancel()
        node.storage.crash(power=True, torn=False)
        node.start()
        assert node.get().log_end_offset == 0
        node.get().follow(0, 2)
        await node.logs.restart_at(node.get(), 3, ())
        node.get().follow(0, 2)
        fetched = await fetch(node, 3)
        node.storage.crash(power=True, torn=False)
        node.start()
        assert (node.get().log_start_offset, node.get().log_end_offset) == (3, 4)
        assert read_all(node.get()) == fetched
        await node.logs.close()

    asyncio.run(run())


def test_R5_what_was_moved_away_is_made_again_once_the_journal_can_be_cut_and_others_do_not_wait() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create(TopicPartition("orders", 1)).append(batch())
        await append(node.create())
        await node.logs.move_away([(TOPIC_ID, TP.partition)])
        new = TopicPartition("orders", 2)
        wanted = [NewPartition(tp, TOPIC_ID, CONFIG, 0) for tp in (TP, new)]
        node.storage.fail_next("rename", OSError(errno.EIO, "I/O error"), path_part="journal/")
        assert list(await node.logs.create_partitions(wanted)) == [TP]
        assert node.get(new).log_end_offset == 0
        offline = node.logs.offline.get(TP)
        assert offline is not None
        assert (offline.kind, node.logs.was_moved(TP, TOPIC_ID)) == (OfflineKind.NOT_MADE, True)
        node.clock.advance(ms=60_000)
        assert [one.tp for one in await node.logs.bring_back()] == [TP]
        assert (node.get().log_end_offset, node.logs.was_moved(TP, TOPIC_ID)) == (0, False)

    asyncio.run(run())


def test_R10_a_move_that_is_cancelled_leaves_no_directory_of_what_is_noted_as_moved() -> None:
    """A clean stop in the midst of it left directories that the list of known partitions did not have."""

    async def run() -> None:
        executor = HeldExecutor()
        node = Node()
        node.start(executor=executor)
        other = TopicPartition("orders", 1)
        for tp in (TP, other):
            node.create(tp)
        moving = asyncio.ensure_future(node.logs.move_away([(TOPIC_ID, TP.partition), (TOPIC_ID, 1)]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(executor.held) == 1
        moving.cancel()
        await asyncio.sleep(0)
        executor.run()
        with pytest.raises(asyncio.CancelledError):
            await moving
        for tp in (TP, other):
            assert node.logs.was_moved(tp, TOPIC_ID)
            assert not node.logs.has_directory(tp)

    asyncio.run(run())


def test_who_is_cancelled_while_many_are_made_waits_for_all_of_them() -> None:
    """It waited for the first, so that a node could call its stop a clean one while others were still being made."""

    async def run() -> None:
        executor = HeldExecutor()
        node = Node()
        node.start(executor=executor)
        making = asyncio.ensure_future(node.logs.create_partitions(many(8)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(executor.held) > 1
        making.cancel()
        for work in range(len(executor.held)):
            for _ in range(20):
                await asyncio.sleep(0)
            assert not making.done(), work
            executor.run()
        with pytest.raises(asyncio.CancelledError):
            await making

    asyncio.run(run())


@pytest.mark.parametrize("skipped", [1, 2])
def test_R5_a_flush_that_could_not_cut_the_journal_is_made_once_more(
    monkeypatch: pytest.MonkeyPatch, skipped: int
) -> None:
    """One that runs while a log is moved away or deleted leaves the journal. The disk is not to be checked."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await node.logs.move_away([(TOPIC_ID, TP.partition)])
        flush, left = node.logs.maintenance.flush, skipped

        async def flush_later() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                await flush()

        monkeypatch.setattr(node.logs.maintenance, "flush", flush_later)
        failures = await node.logs.create_partitions([NewPartition(TP, TOPIC_ID, CONFIG, 0)])
        assert list(failures) == ([] if skipped == 1 else [TP])
        if skipped == 2:
            offline = node.logs.offline.get(TP)
            assert offline is not None
            assert "this is tried again" in offline.reason
            assert "check the disk" not in offline.reason

    asyncio.run(run())


def test_D3_a_cut_from_before_a_log_was_begun_again_takes_nothing_from_it() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.create().follow(0, 2)
        await fetch(node, 0, count=4)
        node.get().truncate_to(0)
        await node.logs.restart_at(node.get(), 50, ())
        node.get().follow(0, 2)
        fetched = await fetch(node, 50, count=2)
        node.storage.crash(power=True, torn=False)
        node.start()
        assert (node.get().log_start_offset, node.get().log_end_offset) == (50, 52)
        assert read_all(node.get()) == fetched
        await node.logs.close()

    asyncio.run(run())


def test_D3_a_log_that_is_begun_again_is_made_by_nobody_else_meanwhile() -> None:
    """The metadata says something new of the partition while its directory is being made again."""

    async def run() -> None:
        executor = HeldExecutor()
        node = Node()
        node.start(executor=executor)
        partition = node.create()
        partition.follow(0, 2)
        restarting = asyncio.ensure_future(node.logs.restart_at(partition, 7, ()))
        await asyncio.sleep(0)
        creating = asyncio.ensure_future(node.logs.create_partitions([NewPartition(TP, TOPIC_ID, CONFIG, 0)]))
        while not creating.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if executor.held:
                executor.run()
        await restarting
        assert creating.result() == {}
        assert (node.get().log_start_offset, node.get().log_end_offset) == (7, 7)

    asyncio.run(run())


def test_D1_R5_the_leader_hears_where_a_log_was_begun_again_although_others_starts_are_noted_meanwhile() -> None:
    """While its directory is made again there is no such log, so notes of that moment have nothing of it."""

    async def run() -> None:
        executor = HeldExecutor()
        node = Node()
        node.start(executor=executor)
        node.create().follow(0, 2)
        duties = asyncio.ensure_future(node.logs.maintenance.run())
        for start in (3, 7):  # the first has a start that is taken out as its log is dropped
            node.get().follow(0, 2)
            restarting = asyncio.ensure_future(node.logs.restart_at(node.get(), start, ()))
            for _ in range(10):
                for _ in range(20):
                    await asyncio.sleep(0)
                if executor.held:
                    executor.run()
            await restarting
            assert (node.get().log_start_offset, node.logs.noted_start(TP)) == (start, start)
        duties.cancel()

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
        await node.logs.maintenance.delete_folders()
        assert not [name for name in node.storage.list_folder("/data") if name.endswith("-delete")]
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
        await node.logs.maintenance.flush()
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


def test_retention_and_producer_expiry_go_over_all_logs() -> None:
    async def run() -> None:
        config = LogConfig(segment_bytes=200, segment_ms=1 << 60, retention_bytes=300, retention_ms=-1)
        node = Node()
        node.start(config)
        for number in range(3):
            partition = node.create(TopicPartition("orders", number), config)
            for sequence in range(10):
                await append(partition, batch(sequence=sequence, size=60))
        await node.logs.maintenance.flush()
        assert await node.logs.maintenance.check_retention() > 0
        starts = [partition.log_start_offset for partition in node.logs.partitions()]
        assert min(starts) > 0
        node.clock.advance(ms=2 * 24 * 60 * 60 * 1000)
        assert await node.logs.maintenance.expire_producers() == 3
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
            assert await node.logs.maintenance.compact_logs() == 0, "nothing is flushed yet"
            await node.logs.maintenance.flush()
            for n in range(4):
                await append(partition, batch(1, key=b"%d" % (n % 3), size=30))
            assert await node.logs.maintenance.compact_logs() == 1
            assert await node.logs.maintenance.compact_logs() == 0, "it is clean"
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
        await node.logs.maintenance.flush()
        task = asyncio.create_task(node.logs.maintenance.compact_logs())
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
        node.logs.update_config("orders", lambda number: changed)
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


def test_config_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"journal\.flush\.bytes = 100 is more than journal\.max\.bytes = 50"):
        LogManagerConfig(journal_flush_bytes=100, journal_max_bytes=50)


def test_D6_a_follower_keeps_what_its_leader_keeps_whatever_its_own_clock_says() -> None:
    async def run() -> None:
        config = replace(CONFIG, segment_bytes=200, retention_ms=1_000, retention_bytes=1_000)
        node = Node()
        node.start(config)
        partition = node.create(log_config=config)
        for _ in range(20):
            await append(partition)
        await node.logs.maintenance.flush()
        partition.follow(1, 2)
        node.clock.jump(ms=3_600_000)
        assert await node.logs.maintenance.check_retention() == 0
        assert partition.log_start_offset == 0
        partition.leader_deleted(8)
        assert await node.logs.maintenance.check_retention() > 0
        assert partition.log_start_offset == 8
        await node.logs.lead([(partition, LeaderState.alone(2, partition.log_end_offset))])
        assert await node.logs.maintenance.check_retention() > 0
        assert partition.log_start_offset == 20
        await node.logs.close()

    asyncio.run(run())


def test_P8_a_jump_of_the_clock_forgets_no_producer() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        partition = node.create()
        await append(partition, batch(sequence=0))
        for jump_ms in (2 * DAY_MS, -4 * DAY_MS, 4 * DAY_MS):
            node.clock.jump(ms=jump_ms)
            node.clock.advance(ms=1)
            assert await node.logs.maintenance.expire_producers() == 0
        node.clock.advance(ms=DAY_MS)
        assert await node.logs.maintenance.expire_producers() == 1
        await node.logs.close()

    asyncio.run(run())
