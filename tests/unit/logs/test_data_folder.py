"""The data folder: its files are Kafka's, one process has it, and what is foreign in it stays as it is."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from simulated_folder import CONFIG, TOPIC_ID, TP, Node, append, batch

from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.offline import OfflineKind
from semel.protocol.errors import FatalError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, format_topic_id
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import ManualClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import Storage, read_whole, write_whole


def test_folder_has_kafkas_files() -> None:
    async def run() -> None:
        node = Node(node_id=4)
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
    ("owner", "message"),
    [
        ({"node_id": 2}, "belongs to node 1, not to node 2"),
        ({"node_id": 1, "cluster_id": "other"}, "belongs to the cluster mine, not to other"),
    ],
)
def test_folder_of_another_node_or_cluster_is_refused(owner: dict[str, Any], message: str) -> None:
    async def run() -> None:
        node = Node(node_id=1, cluster_id="mine")
        await node.start().close()
        node.owner = owner
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
        assert "/data/file-2 has the name of a log's directory and is a file" in warned
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


@pytest.mark.parametrize("real", [False, True])
def test_same_on_the_real_disk(real: bool, tmp_path: Path) -> None:
    async def run() -> None:
        storage: Storage = DiskStorage() if real else SimulatedStorage()
        folder = str(tmp_path / "data")
        logs = LogManager(storage, folder, ManualClock(), LogManagerConfig(disk_min_free_bytes=0))
        logs.open(lambda tp, topic_id: CONFIG)
        partition = logs.create_partition(TP, TOPIC_ID, CONFIG)
        for n in range(20):
            await append(partition, batch(3, size=n * 100 + 1))
        await logs.maintenance.flush()
        partition.append_marker(ProducerIdAndEpoch(1, 0), 0, True)
        await partition.wait_committed(partition.log_end_offset - 1)
        values = [record.value for header in [0] for record in decode_records(partition.read(0, max_bytes=1).read())]
        assert values == [b"0", b"1", b"2"]
        await logs.close()
        logs = LogManager(storage, folder, ManualClock(), LogManagerConfig(disk_min_free_bytes=0))
        assert logs.open(lambda tp, topic_id: CONFIG).clean
        again = logs.partition(TP)
        assert again is not None
        assert again.high_watermark == 61
        await logs.close()

    asyncio.run(run())
