"""Disks that are full or fail under all logs of a node: what goes offline, and what the journal keeps (D1)."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from held_executor import HeldExecutor
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, read_all

from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.protocol.errors import RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedStorage


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


def test_a_duty_that_failed_is_told_until_it_succeeds() -> None:
    """The log said so; the doctor found nothing."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        node.storage.fail_next("append", PermissionError("not allowed"), path_part="checkpoint", times=1_000_000)
        maintenance = node.logs.maintenance
        running = asyncio.ensure_future(maintenance.run())

        async def next_flush(is_failing: bool) -> None:
            while bool(maintenance.error) is not is_failing:
                node.clock.advance(ms=node.config.log_flush_interval_ms)
                maintenance.wake_up()
                await asyncio.sleep(0)

        await next_flush(is_failing=True)
        assert maintenance.error == "could not flush the logs: not allowed"
        node.storage.fail_no_more()
        await next_flush(is_failing=False)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_duty_that_fails_again_for_the_same_reason_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A disk that was full for an hour filled the log with it, a line a second."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        maintenance = node.logs.maintenance

        async def fails(reason: str) -> None:
            async def duty() -> None:
                raise OSError(reason)

            await maintenance._guard("flush the logs", duty)

        for reason in ("full", "full", "failing", "failing"):
            await fails(reason)
        node.clock.advance(ms=60_000)
        await fails("failing")

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"could not flush the logs: {why}" for why in ("full", "failing", "failing")]


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
        await node.logs.maintenance.flush()
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
        await node.logs.maintenance.flush()
        assert partitions[0].offline_error is not None
        assert partitions[1].offline_error is None
        await append(partitions[1])
        await node.logs.maintenance.flush()
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


def test_cancelled_flush_waits_for_the_disk_and_counts_what_was_done() -> None:
    async def run() -> None:
        executor = HeldExecutor()
        storage = SimulatedStorage()
        logs = LogManager(storage, "/data", ManualClock(), LogManagerConfig(disk_min_free_bytes=0), executor=executor)
        logs.open(lambda tp, topic_id: CONFIG)
        partition = logs.create_partition(TP, TOPIC_ID, CONFIG)
        await append(partition)
        flush = asyncio.create_task(logs.maintenance.flush())
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


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_cancelled_flush_ends_though_the_disk_was_full_or_failed_meanwhile(error: int) -> None:
    """The cancellation was forgotten with the disk's error: the node that stopped waited for this for good."""

    async def run() -> None:
        executor = HeldExecutor()
        storage = SimulatedStorage()
        logs = LogManager(storage, "/data", ManualClock(), LogManagerConfig(disk_min_free_bytes=0), executor=executor)
        logs.open(lambda tp, topic_id: CONFIG)
        partition = logs.create_partition(TP, TOPIC_ID, CONFIG)
        await append(partition)
        storage.fail_next("append", OSError(error, "no"), path_part="leader-epoch-checkpoint")
        flush = asyncio.create_task(logs.maintenance.flush())
        for _ in range(5):
            await asyncio.sleep(0)
        assert executor.held
        flush.cancel()
        await asyncio.sleep(0)
        for _ in range(100):
            while executor.held:
                executor.run()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(flush, 10)
        assert partition.log.epochs.changed or partition.log.offline_error is not None, "the disk had failed"
        storage.crash(power=False)

    asyncio.run(run())


@pytest.mark.parametrize("what", [".index", "leader-epoch-checkpoint"])
def test_D1_a_log_that_a_full_disk_did_not_let_be_flushed_keeps_its_journal(what: str) -> None:
    async def run() -> None:
        node = Node(config=LogManagerConfig(disk_min_free_bytes=0, journal_file_bytes=200))
        node.start()
        config = LogConfig(segment_ms=1 << 60, retention_ms=-1, index_interval_bytes=1)
        partition = node.create(log_config=config)
        for _ in range(5):
            await append(partition)
        expected = read_all(partition)
        operation = "write_at" if what == ".index" else "append"
        node.storage.fail_next(operation, no_space(), path_part=what, times=3)
        await node.logs.maintenance.flush()
        node.storage.fail_no_more()
        assert partition.offline_error is None
        assert not node.failures
        assert node.storage.list_folder("/data/journal"), "it has what the log may lose"
        assert await append(partition) == 5
        node.storage.crash(power=True, torn=False)
        node.start(config)
        assert read_all(node.get())[: len(expected)] == expected
        assert node.get().high_watermark == 6
        await node.logs.maintenance.flush()
        await node.logs.close()

    asyncio.run(run())


def test_a_folder_that_could_not_be_deleted_is_told_and_tried_again() -> None:
    """It was forgotten until the next start, and the disk stayed full."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        maintenance = node.logs.maintenance
        node.storage.fail_next("remove_tree", PermissionError("not allowed"), times=1)
        assert node.logs.delete_partition(TP)
        running = asyncio.ensure_future(maintenance.run())
        for is_failing in (True, False):
            while bool(maintenance.error) is not is_failing:
                node.clock.advance(ms=60_000)
                maintenance.wake_up()
                await asyncio.sleep(0)
            assert maintenance.folders_to_delete == is_failing
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
