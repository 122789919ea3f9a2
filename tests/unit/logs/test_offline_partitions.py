"""Partitions that can't be made or opened, and those whose directories vanished: offline, each for itself (D1, D3)."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from damaged_folder import open_logs
from running_node import SMALL, create_topic, running_node
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch, read_all
from special_files import SPECIAL, make_special

from semel.broker.config.node_config import NodeConfig
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.handlers.topics import create_topics, delete_topics
from semel.broker.log.config import LogConfig
from semel.broker.logs.config import DurabilityMode, LogManagerConfig
from semel.broker.logs.data_folder import DataFolder
from semel.broker.logs.known_partitions import KNOWN_FILE
from semel.broker.logs.manager import NewPartition
from semel.broker.logs.offline import RETRY_SECONDS_MAX, OfflineKind, OfflineLog
from semel.broker.logs.opening import next_step
from semel.broker.logs.partition import Partition
from semel.broker.node import Node as WholeNode
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.api.topics import NewTopic
from semel.protocol.api.transactions import InitProducerIdRequest
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage
from semel.runtime.storage import StorageFile, read_whole

LOG = "/data/orders-0/00000000000000000000.log"
ONE = TopicPartition("orders", 1)


def wanted(tp: TopicPartition = TP) -> NewPartition:
    return NewPartition(tp, TOPIC_ID, CONFIG, 3)


def inline(node: Node) -> Node:
    """What waits for the disk is done at once, so that a run depends on its seed alone."""
    node.executor = InlineExecutor()
    return node


async def bring_back(node: Node, expected: int = 1) -> None:
    node.clock.advance(ms=int(RETRY_SECONDS_MAX * 1000))
    assert len(await node.logs.bring_back()) == expected


# --- Vanished ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
def test_D3_a_vanished_partition_goes_on_behind_its_last_offset_once_its_loss_is_accepted(
    power: bool, flushed: bool
) -> None:
    async def run() -> None:
        node = inline(Node())
        node.start()
        for _ in range(3):
            await append(node.create())
        if flushed:
            await node.logs.upkeep.flush()
            await append(node.get())
        await append(node.create(ONE))
        tail = read_all(node.get())[-len(batch()) * (1 if flushed else 3) :]
        end = node.get().high_watermark
        node.storage.crash(power=power)
        node.storage.remove_tree("/data/orders-0")
        node.storage.sync_folder("/data")
        for _ in range(2):  # however often it is started
            node.start()
            assert node.logs.was_made(TP, TOPIC_ID)
            assert not node.logs.has_directory(TP)
            node.logs.take_offline_vanished([wanted()])
            assert node.logs.partition(TP) is None
            assert node.get(ONE).high_watermark == 1
            await node.logs.close()
        node.start()
        partition = node.logs.accept_loss(wanted())
        assert (partition.high_watermark, partition.leader_epoch) == (end, 3)
        assert read_all(partition) == tail, "what only the journal had is not lost"
        assert await append(partition) == end
        node.storage.crash(power=True)
        node.start()
        assert node.get().high_watermark == end + 1
        assert not node.storage.list_folder("/data/kept")
        await node.logs.close()

    asyncio.run(run())


def test_D3_a_partition_that_vanished_after_a_clean_stop_goes_on_where_the_checkpoints_say_it_ended() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        for _ in range(3):
            await append(node.create())
        await append(node.create(ONE))
        await node.logs.close()
        node.storage.remove_tree("/data/orders-0")
        for _ in range(2):
            node.start()
            await append(node.get(ONE))
            await node.logs.upkeep.flush()
            node.logs.take_offline_vanished([wanted()])
            node.logs.release_missing()
            await node.logs.upkeep.flush()
            await node.logs.close()
        node.start()
        partition = node.logs.accept_loss(wanted())
        assert (partition.log_start_offset, partition.high_watermark) == (3, 3)
        assert await append(partition) == 3
        await node.logs.close()

    asyncio.run(run())


def test_D3_a_crash_amid_the_acceptance_of_a_loss_never_lets_offsets_begin_anew() -> None:
    async def attempt(seed: int, point: int) -> bool:
        node = inline(Node(SimulatedStorage(seed)))
        node.start()
        for _ in range(2):
            await append(node.create())
        await node.logs.upkeep.flush()
        node.storage.crash(power=False)
        node.storage.remove_tree("/data/orders-0")
        node.storage.sync_folder("/data")
        node.start()
        node.storage.crash_at(point)
        died = False
        try:
            node.logs.accept_loss(wanted())
        except SimulatedCrash:
            died = True
        node.storage.crash_at(None)
        node.storage.crash(power=True)
        node.start()
        partition = node.logs.partition(TP)
        if partition is None:
            assert node.logs.was_made(TP, TOPIC_ID), "or it would be made again, from offset 0"
            partition = node.logs.accept_loss(wanted())
        assert partition.high_watermark == 2
        await node.logs.close()
        return died

    reached = 0
    for seed in range(3):
        point = 1
        while asyncio.run(attempt(seed, point)):
            point += 1
            reached += 1
    assert reached > 20


def test_a_crash_between_a_topics_entry_and_its_directory_is_not_taken_for_a_vanished_one() -> None:
    """At every point of the making: what took no record is made again, and what is noted as made has its directory."""

    async def attempt(point: int) -> bool:
        node = inline(Node(SimulatedStorage(point)))
        node.start()
        node.storage.crash_at(point)
        died = False
        try:
            node.create()
        except SimulatedCrash:
            died = True
        node.storage.crash_at(None)
        node.storage.crash(power=True)
        node.start()
        assert node.logs.partition(TP) is not None or not node.logs.was_made(TP, TOPIC_ID)
        assert not await node.logs.create_partitions([wanted()])
        assert await append(node.get()) == 0
        await node.logs.close()
        return died

    point = 1
    while asyncio.run(attempt(point)):
        point += 1
    assert point > 8


def test_a_deleted_partition_is_known_no_more_and_one_of_its_name_is_another() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await node.logs.upkeep.flush()
        node.logs.delete_partition(TP)
        assert not node.logs.was_made(TP, TOPIC_ID)
        assert node.logs.folder.recovery_points.get(TP) == 1
        node.storage.crash(power=False)
        node.start()
        assert not node.logs.was_made(TP, TOPIC_ID)
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["torn", "garbage", "gone"])
def test_a_list_of_known_partitions_that_is_damaged_is_written_anew(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        await node.logs.upkeep.flush()
        node.storage.crash(power=False)
        path = f"/data/{KNOWN_FILE}"
        whole = read_whole(node.storage, path, size_bytes_max=1 << 20)
        if how == "gone":
            node.storage.remove(path)
        else:
            file = node.storage.open(path)
            file.truncate(len(whole) - 5 if how == "torn" else 0)
            file.append([b"" if how == "torn" else b"\x00garbage"])
        node.storage.remove_tree("/data/orders-0")
        node.start()
        assert node.logs.was_made(TP, TOPIC_ID), "the checkpoints name it, too"
        node.logs.take_offline_vanished([wanted()])
        await node.logs.close()
        node.start()
        assert node.logs.was_made(TP, TOPIC_ID)
        assert node.logs.was_made(ONE, TOPIC_ID)
        await node.logs.close()

    asyncio.run(run())


def test_D3_a_directory_that_vanished_under_a_running_node_is_not_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", 2)
            await create_topic(node, "b")
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            await append(partition)
        gone = tmp_path / "data" / "a-0"
        gone.rename(tmp_path / "aside")
        async with running_node(tmp_path) as node:
            assert node.partition(TopicPartition("a", 0)) is None
            assert node.partition(TopicPartition("a", 1)) is not None
            assert not gone.exists()
            [offline] = node.logs.offline
            assert offline.kind is OfflineKind.VANISHED
        (tmp_path / "aside").rename(gone)
        async with running_node(tmp_path) as node:
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            assert partition.high_watermark == 1, "it came back, and with it what was in it"
        shutil.rmtree(gone)
        node = await WholeNode.start(
            NodeConfig(data_dir=str(tmp_path / "data"), **SMALL), accept_loss_of=[TopicPartition("a", 0)]
        )
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        assert (partition.log_start_offset, partition.high_watermark) == (1, 1)
        await node.stop()

    asyncio.run(main())


@pytest.mark.parametrize("starts", [True, False], ids=["the node starts", "the start is given up"])
@pytest.mark.parametrize("seed", range(6))
def test_D1_D2_a_directory_that_is_away_for_a_while_after_a_power_cut_is_recovered_when_it_is_back(
    seed: int, starts: bool
) -> None:
    """The clean stops meanwhile say nothing of it: its torn tail was taken for damage."""

    async def run() -> None:
        node = Node(SimulatedStorage(seed))
        node.start()
        for _ in range(3):
            await append(node.create(), batch(3, size=300))
        await append(node.create(ONE))
        await node.logs.upkeep.flush()
        for _ in range(2):
            await append(node.get(), batch(3, size=300))
        expected = read_all(node.get())
        node.storage.crash(power=True)
        node.storage.rename("/data/orders-0", "/aside")
        node.storage.sync_folder("/data")
        for _ in range(2):
            node.start()
            if starts:
                node.logs.take_offline_vanished([wanted()])
            await node.logs.close()
        node.storage.rename("/aside", "/data/orders-0")
        node.storage.sync_folder("/data")
        assert not node.start().recovery.clean
        assert read_all(node.get()) == expected
        assert not node.get().log.recovered_damage
        await node.logs.close()
        assert node.start().recovery.clean
        await node.logs.close()

    asyncio.run(run())


def keys(partition: Partition) -> list[bytes | None]:
    data = memoryview(read_all(partition))
    return [decode_records(data[one.position : one.position + one.size_bytes])[0].key for one in iter_batches(data)]


def take_directory(node: Node) -> None:
    node.storage.remove_tree("/data/orders-0")
    node.storage.sync_folder("/data")


@pytest.mark.parametrize("stop", ["close", "kill", "power"])
@pytest.mark.parametrize("flushed", [False, True])
def test_D1_D3_a_directory_taken_away_under_a_running_node_costs_no_other_and_nothing_acknowledged(
    flushed: bool, stop: str
) -> None:
    """The whole node stopped; or, where nothing failed, files without a name got what the journal then let go."""

    async def run() -> None:
        node = inline(Node())
        node.start()
        for _ in range(2):
            await append(node.create())
        await append(node.create(ONE))
        if flushed:
            await node.logs.upkeep.flush()
        partition = node.get()
        take_directory(node)
        for number in range(3):
            await append(partition, batch(key=b"%d" % number))
        await node.logs.upkeep.flush()
        [offline] = node.logs.offline
        assert (offline.tp, offline.kind, offline.is_clean) == (TP, OfflineKind.VANISHED, False)
        assert node.logs.partition(TP) is None
        with pytest.raises(RetriableError, match="its directory /data/orders-0 is gone"):
            await append(partition)
        for _ in range(2):
            await append(node.get(ONE))
            await node.logs.upkeep.flush()
        assert not node.failures
        if stop == "close":
            await node.logs.close()
        else:
            node.storage.crash(power=stop == "power")
        for _ in range(2):
            node.start()
            assert node.get(ONE).high_watermark == 3
            node.logs.take_offline_vanished([wanted()])
            await node.logs.close()
        node.start()
        partition = node.logs.accept_loss(wanted())
        assert partition.high_watermark == 5
        assert keys(partition) == [*((b"k", b"k") if not flushed else ()), b"0", b"1", b"2"]
        assert await append(partition) == 5
        await node.logs.close()

    asyncio.run(run())


STRAY = b"a file that is no log"


async def refusal_of(folder: Path, *lost: TopicPartition) -> NodeStartError:
    """Start a node that is to accept the loss of partitions, and return why it does not start."""
    try:
        node = await WholeNode.start(NodeConfig(data_dir=str(folder / "data"), **SMALL), accept_loss_of=lost)
    except NodeStartError as error:
        return error
    await node.stop()
    pytest.fail("it started")


@pytest.mark.parametrize("stray", ["a file", "a directory that does not say whose it is"])
def test_D3_what_is_in_the_place_of_a_partitions_directory_does_not_become_the_partition(
    tmp_path: Path, stray: str
) -> None:
    """It is not made new beside it, and to accept its loss takes nothing away."""
    tp, gone = TopicPartition("a", 0), tmp_path / "data" / "a-0"
    config = NodeConfig(data_dir=str(tmp_path / "data"), **SMALL)
    file = gone if stray == "a file" else gone / "00000000000000000000.log"

    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
            partition = node.partition(tp)
            assert partition is not None
            await append(partition)
        gone.rename(tmp_path / "aside")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(STRAY)
        for _ in range(2):
            async with running_node(tmp_path) as node:
                assert node.partition(tp) is None
                [offline] = node.logs.offline
                assert offline.kind is OfflineKind.VANISHED
            refusal = await refusal_of(tmp_path, tp)
            assert refusal.failure is StartFailure.DATA_FOLDER
            assert f"the loss of a-0 can't be accepted: {gone} is there" in refusal.message
            assert "Move it away, and start again" in refusal.message
            assert file.read_bytes() == STRAY
        gone.rename(tmp_path / "stray")
        node = await WholeNode.start(config, accept_loss_of=[tp])
        try:
            partition = node.partition(tp)
            assert partition is not None
            assert (partition.log_start_offset, partition.high_watermark) == (1, 1)
        finally:
            await node.stop()

    asyncio.run(main())


def test_D3_an_empty_directory_in_the_place_of_a_partitions_is_not_the_partition(tmp_path: Path) -> None:
    """As a disk that is not mounted leaves it."""
    tp, gone = TopicPartition("a", 0), tmp_path / "data" / "a-0"

    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
            partition = node.partition(tp)
            assert partition is not None
            await append(partition)
        gone.rename(tmp_path / "aside")
        gone.mkdir()
        async with running_node(tmp_path) as node:
            [offline] = node.logs.offline
            assert (offline.tp, offline.kind) == (tp, OfflineKind.VANISHED)

    asyncio.run(main())


@pytest.mark.parametrize("unknown", [TopicPartition("b", 0), TopicPartition("a", 2)], ids=["topic", "number"])
def test_the_loss_of_a_partition_that_does_not_exist_is_not_accepted(tmp_path: Path, unknown: TopicPartition) -> None:
    """A mistyped name is said, and nothing is given up, also not of a partition that is named beside it."""

    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", 2)
        shutil.rmtree(tmp_path / "data" / "a-1")
        refusal = await refusal_of(tmp_path, TopicPartition("a", 1), unknown)
        assert refusal.failure is StartFailure.DATA_FOLDER
        named = f"{unknown.topic}:{unknown.partition}"
        assert f"--accept-loss-of {named}: this data directory never had such a partition" in refusal.message
        assert not (tmp_path / "data" / "a-1").exists()
        async with running_node(tmp_path) as node:
            assert [one.tp for one in node.logs.offline] == [TopicPartition("a", 1)]

    asyncio.run(main())


def test_D1_the_journal_is_not_cut_before_the_entries_of_a_vanished_partition_are_kept() -> None:
    async def run() -> None:
        node = inline(Node())
        node.start()
        await append(node.create())
        await node.logs.upkeep.flush()
        take_directory(node)
        await append(node.get(), batch(key=b"last"))
        node.storage.fail_next("append", OSError(errno.EIO, "I/O error"), path_part="kept/")
        with pytest.raises((SemelError, OSError)):
            await node.logs.upkeep.flush()
        assert [one.kind for one in node.logs.offline] == [OfflineKind.VANISHED]
        await node.logs.upkeep.flush()  # as is done again, later
        await append(node.create(ONE))
        await node.logs.upkeep.flush()
        node.storage.crash(power=True)
        node.start()
        partition = node.logs.accept_loss(wanted())
        assert (partition.high_watermark, keys(partition)) == (2, [b"last"])
        await node.logs.close()

    asyncio.run(run())


def test_D3_without_a_journal_a_vanished_partition_goes_on_behind_its_end() -> None:
    async def run() -> None:
        node = inline(Node(config=LogManagerConfig(min_free_bytes=0, durability=DurabilityMode.OS)))
        node.start()
        await append(node.create())
        await node.logs.upkeep.flush()
        take_directory(node)
        await append(node.get())
        await node.logs.upkeep.take_vanished_offline()
        await node.logs.close()
        node.start()
        assert await append(node.logs.accept_loss(wanted())) == 2
        await node.logs.close()

    asyncio.run(run())


def test_a_whole_data_directory_that_is_gone_is_no_vanished_partition() -> None:
    async def run() -> None:
        node = inline(Node())
        node.start()
        await append(node.create())
        take_directory(node)
        node.storage.remove("/data/meta.properties")
        await node.logs.upkeep.take_vanished_offline()
        assert node.logs.partition(TP) is not None
        assert not len(node.logs.offline)

    asyncio.run(run())


@pytest.mark.parametrize("flushed", [False, True])
def test_a_directory_moved_away_under_a_node_takes_its_partition_offline_and_comes_back_whole(
    tmp_path: Path, flushed: bool
) -> None:
    async def main() -> None:
        gone = tmp_path / "data" / "a-0"
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", 2)
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            await append(partition)
            if flushed:
                await node.logs.upkeep.flush()
            gone.rename(tmp_path / "aside")
            await append(partition)
            await node.logs.upkeep.flush()
            assert [(one.tp, one.kind) for one in node.logs.offline] == [(partition.tp, OfflineKind.VANISHED)]
            other = node.partition(TopicPartition("a", 1))
            assert other is not None
            await append(other)
            facts = await take_snapshot(node)
            assert [(one.partition, one.kind) for one in facts.offline] == [(partition.tp, "vanished")]
            assert not node.failed.done()
        (tmp_path / "aside").rename(gone)
        async with running_node(tmp_path) as node:
            assert not len(node.logs.offline)
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            assert partition.high_watermark == 2
            assert await append(partition) == 2

    asyncio.run(main())


def test_an_append_that_finds_its_directory_gone_does_not_stop_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", 2, segment_bytes="100")
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            await append(partition)
            shutil.rmtree(tmp_path / "data" / "a-0")
            with pytest.raises(SemelError):
                await append(partition, batch(size=100))  # which begins a segment

            async def is_told() -> bool:
                return node.logs.offline.get(partition.tp) is not None

            await until(is_told)
            assert not node.failed.done()
            assert node.partition(TopicPartition("a", 1)) is not None

    asyncio.run(main())


def test_a_coordinators_directory_taken_away_is_refused_by_it_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, transaction_state_log_num_partitions=1) as node:
            request = InitProducerIdRequest("etl", 60_000)
            await node.internal_topic_ready(TRANSACTIONS_TOPIC)
            await node.transactions.init_producer_id(request)
            shutil.rmtree(tmp_path / "data" / f"{TRANSACTIONS_TOPIC}-0")
            await node.logs.upkeep.flush()
            assert list(node.transactions.partitions_away()) == [0]
            with pytest.raises(RetriableError) as caught:
                await node.transactions.init_producer_id(request)
            assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert not node.failed.done()

    asyncio.run(main())


def test_a_topic_with_a_vanished_partition_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
        shutil.rmtree(tmp_path / "data" / "a-0")
        async with running_node(tmp_path) as node:
            assert len(node.logs.offline) == 1
            [deleted] = await delete_topics(node, ["a"])
            assert deleted.error is ErrorCode.NONE
            await create_topic(node, "a")
            assert not len(node.logs.offline)
            assert node.partition(TopicPartition("a", 0)) is not None

    asyncio.run(main())


def test_accepting_the_loss_of_what_is_there_takes_nothing_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            await append(partition)
        node = await WholeNode.start(
            NodeConfig(data_dir=str(tmp_path / "data"), **SMALL), accept_loss_of=[TopicPartition("a", 0)]
        )
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        assert (partition.log_start_offset, partition.high_watermark) == (0, 1)
        assert "--accept-loss-of a-0: its directory is not gone" in caplog.text
        await node.stop()

    asyncio.run(main())


# --- Damaged ----------------------------------------------------------------------------------------------------------


def spoil_magic(node: Node) -> None:
    node.storage.corrupt(LOG, 16, b"v")
    for name in node.storage.list_folder("/data/orders-0"):
        if name.endswith(("index", ".snapshot")):
            node.storage.remove(f"/data/orders-0/{name}")


def test_a_wrong_magic_byte_takes_one_partition_offline_and_names_its_file(caplog: pytest.LogCaptureFixture) -> None:
    """The whole node did not start, and the line named no file."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        expected = read_all(node.get(ONE))
        await node.logs.close()
        good = read_whole(node.storage, LOG, size_bytes_max=1 << 20)
        spoil_magic(node)
        caplog.clear()
        for _ in range(2):
            node.start()
            assert read_all(node.get(ONE)) == expected
            assert node.logs.partition(TP) is None
            [offline] = node.logs.offline
            assert offline.kind is OfflineKind.DAMAGED
            assert LOG in offline.reason
            assert "format version 118" in offline.reason
            await node.logs.close()
        [first, _] = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        assert LOG in first
        assert "--accept-loss-of orders:0" in first
        node.storage.corrupt(LOG, 0, good)
        node.start()
        assert node.get().high_watermark == 1, "fixed, it is back"
        await node.logs.close()

    asyncio.run(run())


def test_D1_what_the_journal_has_of_a_damaged_partition_is_kept_until_it_is_mended() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        await node.logs.upkeep.flush()
        for _ in range(3):
            await append(node.get())
        expected = read_all(node.get())
        node.storage.crash(power=True)
        name = "/data/orders-0/partition.metadata"
        good = read_whole(node.storage, name, size_bytes_max=1000)
        node.storage.corrupt(name, 0, b"garbage!")
        file = node.storage.open(LOG)
        file.truncate(len(expected) // 4)
        for _ in range(3):  # acknowledged on the others meanwhile, with clean stops and without
            node.start()
            assert [one.tp for one in node.logs.offline] == [TP]
            await append(node.get(ONE))
            if _ == 1:
                node.storage.crash(power=True)
            else:
                await node.logs.close()
        node.storage.corrupt(name, 0, good)
        assert not node.start().recovery.clean, "the clean stop could not close it"
        assert read_all(node.get()) == expected
        assert node.get(ONE).high_watermark == 4
        assert not node.storage.list_folder("/data/kept")
        await node.logs.close()
        node.start()
        assert read_all(node.get()) == expected
        await node.logs.close()

    asyncio.run(run())


def test_D3_the_start_offset_of_a_partition_that_is_offline_stays() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        for _ in range(4):
            await append(node.create())
        await append(node.create(ONE))
        node.get().delete_records(2)
        await node.logs.close()
        name = "/data/orders-0/partition.metadata"
        good = read_whole(node.storage, name, size_bytes_max=1000)
        node.storage.corrupt(name, 0, b"garbage!")
        node.start()
        node.get(ONE).delete_records(1)
        await node.logs.upkeep.flush()
        await node.logs.close()
        node.storage.corrupt(name, 0, good)
        node.start()
        assert (node.get().log_start_offset, node.get().high_watermark) == (2, 4)
        await node.logs.close()

    asyncio.run(run())


def test_D1_a_log_that_can_not_take_its_journals_entries_is_offline_and_they_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        expected = read_all(node.get())
        node.storage.crash(power=False)
        node.storage.open(LOG).truncate(0)
        node.storage.fail_next("append", OSError(errno.EIO, "I/O error"), path_part="orders-0/0")
        node.start()
        assert node.logs.partition(TP) is None
        assert node.get(ONE).high_watermark == 1
        assert node.logs.recovery.kept_entries == 1
        await bring_back(node)
        assert read_all(node.get()) == expected
        await append(node.get())
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_a_directory_in_place_of_a_file_is_called_that(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator was sent to look after the disk, and the node tried again for ever."""

    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", 2)
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            await append(partition)
        [path] = (tmp_path / "data" / "a-0").glob(f"*{suffix}")
        aside = path.rename(tmp_path / "aside")
        path.mkdir()
        async with running_node(tmp_path) as node:
            [offline] = node.logs.offline
            assert (offline.tp, offline.kind) == (TopicPartition("a", 0), OfflineKind.DAMAGED)
            assert offline.reason.startswith(f"{path} is a directory, and a file belongs there. Stop the node and move")
            assert ("the node makes the file again" in offline.reason) is (suffix != ".log")
            assert "disk" not in offline.reason
            assert node.partition(TopicPartition("a", 1)) is not None
        path.rmdir()
        if suffix == ".log":
            aside.rename(path)
        async with running_node(tmp_path) as node:
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            assert partition.high_watermark == 1
            assert path.is_file() or suffix == ".snapshot"  # that is made when it is needed
            assert await append(partition) == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "suffix", [".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata"]
)
def test_S3_a_pipe_or_a_device_in_place_of_a_file_takes_that_partition_offline_alone(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    """The start waited for the pipe's other end, or read zeros for ever."""

    async def main() -> None:
        folder = tmp_path / "data"
        node = open_logs(folder)
        for number in range(2):
            await append(node.create_partition(TopicPartition("a", number), TOPIC_ID, LogConfig()))
        await node.close()
        [path] = (folder / "a-0").glob(f"*{suffix}")
        path.unlink()
        make_special(path, kind)
        node = open_logs(folder)
        [offline] = node.offline
        assert (offline.tp, offline.kind) == (TopicPartition("a", 0), OfflineKind.DAMAGED)
        assert offline.reason.startswith(f"{path} is {SPECIAL[kind]}, and a file belongs there. Stop the node and move")
        assert ("the node makes the file again" in offline.reason) is (suffix in (".index", ".timeindex", ".snapshot"))
        assert node.partition(TopicPartition("a", 1)) is not None
        await node.close()

    asyncio.run(main())


def test_a_segment_may_be_a_symbolic_link_to_a_file(tmp_path: Path) -> None:
    async def main() -> None:
        node = open_logs(tmp_path / "data")
        await append(node.create_partition(TopicPartition("a", 0), TOPIC_ID, LogConfig()))
        await node.close()
        [path] = (tmp_path / "data" / "a-0").glob("*.log")
        path.symlink_to(path.rename(tmp_path / "elsewhere"))
        node = open_logs(tmp_path / "data")
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        assert partition.high_watermark == 1
        assert await append(partition) == 1
        await node.close()

    asyncio.run(main())


# --- The disk refuses -------------------------------------------------------------------------------------------------


def test_D1_a_partition_that_the_disk_refused_to_open_comes_back_whole_while_the_node_runs() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        await node.logs.upkeep.flush()
        await append(node.get())
        expected = read_all(node.get())
        node.storage.crash(power=True)
        node.storage.fail_next("open", OSError(errno.EIO, "I/O error"), path_part="orders-0/0", times=2)
        node.start()
        [offline] = node.logs.offline
        assert (offline.tp, offline.kind) == (TP, OfflineKind.UNREADABLE)
        assert "check the disk" in offline.reason
        assert node.logs.statistics().offline_partitions == 1
        await append(node.get(ONE))
        await bring_back(node, expected=0)
        assert node.logs.offline.get(TP) is not None, "the disk refused again"
        await bring_back(node)
        assert read_all(node.get()) == expected
        assert await append(node.get()) == 2
        node.storage.crash(power=True)
        node.start()
        assert (node.get().high_watermark, node.get(ONE).high_watermark) == (3, 2)
        await node.logs.close()

    asyncio.run(run())


async def _unreadable_one(power: bool) -> Node:
    """A node with a partition of two records that the disk does not let it open."""
    node = Node()
    node.start()
    await append(node.create())
    await append(node.create(ONE))
    await node.logs.upkeep.flush()
    await append(node.get())
    if power:
        node.storage.crash(power=True)
    else:
        await node.logs.close()
    node.storage.fail_next("open", OSError(errno.EIO, "I/O error"), path_part="orders-0/0", times=2)
    node.start()
    await bring_back(node, expected=0)
    [offline] = node.logs.offline
    assert offline.kind is OfflineKind.UNREADABLE
    node.storage.fail_no_more()
    return node


async def _continues_behind_its_records(node: Node) -> None:
    """After another start, as a node does it that finds the directory gone."""
    node.start()
    assert node.logs.was_made(TP, TOPIC_ID)
    node.logs.take_offline_vanished([wanted()])
    await node.logs.close()
    node.start()
    partition = node.logs.accept_loss(wanted())
    assert partition.high_watermark == 2
    assert await append(partition) == 2
    await node.logs.close()


@pytest.mark.parametrize("power", [False, True], ids=["clean stop", "power cut"])
def test_D3_a_partition_whose_directory_vanishes_while_it_is_retried_is_not_made_new(power: bool) -> None:
    """The disk refused it, and then its directory went: it came back empty, and its offsets began again."""

    async def run() -> None:
        node = await _unreadable_one(power)
        node.storage.remove_tree("/data/orders-0")
        for _ in range(3):
            await bring_back(node, expected=0)
            assert node.logs.partition(TP) is None
            [offline] = node.logs.offline
            assert (offline.tp, offline.kind) == (TP, OfflineKind.VANISHED)
            assert not node.storage.exists("/data/orders-0")
        await node.logs.close()
        assert not node.storage.exists("/data/.kafka_cleanshutdown"), "it was not closed, and may come back"
        await _continues_behind_its_records(node)

    asyncio.run(run())


@pytest.mark.parametrize("left", ["nothing", "its log"])
def test_D3_a_directory_that_is_no_longer_a_logs_when_it_is_retried_is_not_made_new(left: str) -> None:
    """Its name is there, and nothing says that it is the partition's: a disk that is not mounted, for instance."""

    async def run() -> None:
        node = await _unreadable_one(power=True)
        for name in node.storage.list_folder("/data/orders-0"):
            if left == "nothing" or not name.endswith(".log"):
                node.storage.remove(f"/data/orders-0/{name}")
        await bring_back(node, expected=0)
        assert node.logs.partition(TP) is None
        assert [one.tp for one in node.logs.offline] == [TP]
        await node.logs.close()
        if left == "its log":
            node.storage.remove_tree("/data/orders-0")
        await _continues_behind_its_records(node)

    asyncio.run(run())


def test_a_partition_that_could_not_be_made_is_said_once_and_made_when_the_disk_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        node.storage.fail_next("open", OSError(errno.EIO, "I/O error"), path_part="orders-0/0", times=3)
        assert list(await node.logs.create_partitions([wanted(), wanted(ONE)])) == [TP]
        for _ in range(2):
            await bring_back(node, expected=0)
        await bring_back(node)
        assert node.get().leader_epoch == 3
        assert await append(node.get()) == 0
        said = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        assert len(said) == 1
        assert "orders-0 is offline" in said[0]
        assert "keeps retrying" in said[0]
        assert not len(node.logs.offline)
        await node.logs.close()

    asyncio.run(run())


class RefusingStorage(DiskStorage):
    """A disk on which nothing with `refused` in its path can be made."""

    refused = "\0"

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        if create and self.refused in path:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().open(path, create=create)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_an_offline_transaction_state_comes_back_when_the_disk_does(tmp_path: Path) -> None:
    """One error of the disk while the topic was made, and it was NOT_COORDINATOR until the restart."""

    async def main() -> None:
        storage = RefusingStorage()
        node = await WholeNode.start(NodeConfig(data_dir=str(tmp_path), **SMALL), storage=storage)
        storage.refused = TRANSACTIONS_TOPIC
        request = InitProducerIdRequest("etl", 60_000)
        await node.internal_topic_ready(TRANSACTIONS_TOPIC)
        with pytest.raises(SemelError) as caught:
            await node.transactions.init_producer_id(request)
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert len(node.transactions.partitions_away()) == len(node.logs.offline) > 0
        storage.refused = "\0"

        async def works() -> bool:
            try:
                await node.transactions.init_producer_id(request)
            except RetriableError:
                return False
            return True

        await until(works)
        assert not node.transactions.partitions_away()
        assert not len(node.logs.offline)
        await node.stop()

    asyncio.run(main())


def test_create_topics_says_that_files_could_not_be_made(tmp_path: Path) -> None:
    async def main() -> None:
        storage = RefusingStorage()
        node = await WholeNode.start(NodeConfig(data_dir=str(tmp_path), **SMALL), storage=storage)
        storage.refused = "bad-1"
        good, bad = await create_topics(node, [NewTopic("good", 2), NewTopic("bad", 2)])
        assert good.error is ErrorCode.NONE
        assert bad.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "1 partition of it can't be used (bad-1)" in bad.message
        assert "Do not create it again" in bad.message
        storage.refused = "\0"

        async def is_back() -> bool:
            return node.partition(TopicPartition("bad", 1)) is not None

        await until(is_back)
        await node.stop()

    asyncio.run(main())


def test_an_offline_partition_of_a_deleted_topic_is_made_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        storage = RefusingStorage()
        node = await WholeNode.start(NodeConfig(data_dir=str(tmp_path), **SMALL), storage=storage)
        storage.refused = "bad-0"
        await create_topics(node, [NewTopic("bad", 1)])
        assert len(node.logs.offline) == 1
        await delete_topics(node, ["bad"])
        assert not len(node.logs.offline)
        storage.refused = "\0"
        await node.stop()
        assert not (tmp_path / "bad-0").exists()

    asyncio.run(main())


def test_metadata_with_a_wrong_bit_keeps_the_node_from_starting_with_a_next_step(tmp_path: Path) -> None:
    """It was a traceback."""

    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
        with sqlite3.connect(tmp_path / "data" / "metadata.sqlite") as database:
            database.execute("UPDATE semel_metadata_changes SET payload = replace(payload, 'partitions', 'qartitions')")
            database.execute("DELETE FROM semel_metadata_snapshots")
        database.close()
        refusal = await refusal_of(tmp_path)
        assert refusal.failure is StartFailure.METADATA
        assert "is damaged" in refusal.message
        assert "Restore it from a backup" in refusal.message

    asyncio.run(main())


@pytest.mark.parametrize("is_there", [False, True])
def test_a_vanished_directory_whose_name_is_taken_is_told_with_what_to_move_away(
    tmp_path: Path, is_there: bool
) -> None:
    if is_there:
        (tmp_path / str(TP)).write_text("no directory")
    offline = OfflineLog(TP, TOPIC_ID, OfflineKind.VANISHED, "gone", 0)
    step = next_step(offline, DataFolder(DiskStorage(), str(tmp_path)))
    assert (f"move away what is in its place, {tmp_path / str(TP)}" in step) is is_there
    assert f"--accept-loss-of {TP.topic}:{TP.partition}" in step
