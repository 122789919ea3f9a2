"""Partitions that the disk refuses to make or open: offline until it is back (D1, D3)."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from pathlib import Path

import pytest
from offline_logs import ONE, bring_back, refusal_of, until, wanted
from running_node import SMALL, create_topic, running_node
from simulated_folder import TOPIC_ID, TP, Node, append, read_all

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.changes import create_topics, delete_topics
from semel.broker.logs.offline import OfflineKind
from semel.broker.node import Node as WholeNode
from semel.broker.start_errors import StartFailure
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TRANSACTIONS_TOPIC, TopicPartition
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.storage import StorageFile


def test_D1_a_partition_that_the_disk_refused_to_open_comes_back_whole_while_the_node_runs() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        await node.logs.maintenance.flush()
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
    await node.logs.maintenance.flush()
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


def test_an_offline_transaction_state_comes_back_when_the_disk_does(tmp_path: Path) -> None:
    """One error of the disk while the topic was made, and it was NOT_COORDINATOR until the restart."""

    async def main() -> None:
        storage = RefusingStorage()
        node = await WholeNode.start(NodeConfig(data_dir=str(tmp_path), **SMALL), storage=storage)
        storage.refused = TRANSACTIONS_TOPIC
        request = InitProducerIdRequest("etl", 60_000)
        await node.transactions.topic_ready()
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
