"""Partitions whose directories vanished: offline, each for itself, and never begun again from offset 0 (D3)."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest
from offline_logs import ONE, refusal_of, until, wanted
from running_node import SMALL, create_topic, running_node
from simulated_folder import TOPIC_ID, TP, Node, append, batch, read_all

from semel.broker.config.node_config import NodeConfig
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.logs.config import Durability, LogManagerConfig
from semel.broker.logs.data_folder import DataFolder
from semel.broker.logs.known_partitions import KNOWN_FILE
from semel.broker.logs.offline import OfflineKind, OfflineLog
from semel.broker.logs.opening import next_step
from semel.broker.logs.partition import Partition
from semel.broker.node import Node as WholeNode
from semel.broker.start_errors import StartFailure
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage
from semel.runtime.storage import read_whole


def inline(node: Node) -> Node:
    """What waits for the disk is done at once, so that a run depends on its seed alone."""
    node.executor = InlineExecutor()
    return node


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
            await node.logs.maintenance.flush()
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
            await node.logs.maintenance.flush()
            node.logs.take_offline_vanished([wanted()])
            node.logs.release_missing()
            await node.logs.maintenance.flush()
            await node.logs.close()
        node.start()
        partition = node.logs.accept_loss(wanted())
        assert (partition.log_start_offset, partition.high_watermark) == (3, 3)
        assert await append(partition) == 3
        await node.logs.close()

    asyncio.run(run())


def test_D3_a_crash_amid_the_acceptance_of_a_loss_never_lets_offsets_start_over() -> None:
    async def attempt(seed: int, point: int) -> bool:
        node = inline(Node(SimulatedStorage(seed)))
        node.start()
        for _ in range(2):
            await append(node.create())
        await node.logs.maintenance.flush()
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
        await node.logs.maintenance.flush()
        node.logs.delete_partition(TP)
        assert not node.logs.was_made(TP, TOPIC_ID)
        assert node.logs.folder.recovery_points.get(TP) == 1
        node.storage.crash(power=False)
        node.start()
        assert not node.logs.was_made(TP, TOPIC_ID)
        await node.logs.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["torn", "garbage", "gone"])
def test_a_list_of_known_partitions_that_is_damaged_is_rewritten(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        await node.logs.maintenance.flush()
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


def test_D3_a_directory_that_vanished_under_a_running_node_is_not_made_again(tmp_path: Path) -> None:
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
        await node.logs.maintenance.flush()
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
            await node.logs.maintenance.flush()
        partition = node.get()
        take_directory(node)
        for number in range(3):
            await append(partition, batch(key=b"%d" % number))
        await node.logs.maintenance.flush()
        [offline] = node.logs.offline
        assert (offline.tp, offline.kind, offline.is_clean) == (TP, OfflineKind.VANISHED, False)
        assert node.logs.partition(TP) is None
        with pytest.raises(RetriableError, match="its directory /data/orders-0 is gone"):
            await append(partition)
        for _ in range(2):
            await append(node.get(ONE))
            await node.logs.maintenance.flush()
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
        await node.logs.maintenance.flush()
        take_directory(node)
        await append(node.get(), batch(key=b"last"))
        node.storage.fail_next("append", OSError(errno.EIO, "I/O error"), path_part="kept/")
        with pytest.raises((SemelError, OSError)):
            await node.logs.maintenance.flush()
        assert [one.kind for one in node.logs.offline] == [OfflineKind.VANISHED]
        await node.logs.maintenance.flush()  # as is done again, later
        await append(node.create(ONE))
        await node.logs.maintenance.flush()
        node.storage.crash(power=True)
        node.start()
        partition = node.logs.accept_loss(wanted())
        assert (partition.high_watermark, keys(partition)) == (2, [b"last"])
        await node.logs.close()

    asyncio.run(run())


def test_D3_without_a_journal_a_vanished_partition_goes_on_behind_its_end() -> None:
    async def run() -> None:
        node = inline(Node(config=LogManagerConfig(disk_min_free_bytes=0, durability=Durability.OS.value)))
        node.start()
        await append(node.create())
        await node.logs.maintenance.flush()
        take_directory(node)
        await append(node.get())
        await node.logs.maintenance.take_vanished_offline()
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
        await node.logs.maintenance.take_vanished_offline()
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
                await node.logs.maintenance.flush()
            gone.rename(tmp_path / "aside")
            await append(partition)
            await node.logs.maintenance.flush()
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
            await node.transactions.topic_ready()
            await node.transactions.init_producer_id(request)
            shutil.rmtree(tmp_path / "data" / f"{TRANSACTIONS_TOPIC}-0")
            await node.logs.maintenance.flush()
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
