"""Partitions whose files are damaged: offline, each for itself (D1, D3)."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from compiled_classes import set_method
from damaged_folder import open_logs
from offline_logs import ONE, bring_back
from running_node import create_topic, running_node
from simulated_folder import TOPIC_ID, TP, Node, append, read_all
from special_files import SPECIAL, make_special

from semel.broker.log.config import LogConfig
from semel.broker.log.journal import Journal
from semel.broker.log.partition_log import PartitionLog
from semel.broker.logs import journal_replay
from semel.broker.logs.offline import OfflineKind
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.runtime.storage import read_whole

LOG = "/data/orders-0/00000000000000000000.log"


def fail(*what: object) -> None:
    raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, "the disk fails")


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


def test_D1_what_the_journal_has_of_a_damaged_partition_is_kept_until_it_is_fixed() -> None:
    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        await append(node.create(ONE))
        await node.logs.maintenance.flush()
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
        await node.logs.maintenance.flush()
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


@pytest.mark.parametrize("held", range(4))
def test_D1_a_log_that_fails_amid_the_journal_keeps_all_of_it(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """It can't be flushed, either: the whole node did not start, for the sake of one log."""

    async def run() -> None:
        node = Node()
        node.start()
        for _ in range(4):
            await append(node.create())
            await append(node.create(ONE))
        expected = read_all(node.get())
        node.storage.crash(power=False)
        node.storage.open(LOG).truncate(0)
        real, taken = PartitionLog.replay_append, 0

        def fails_after(log: PartitionLog, *args: Any, **kwargs: Any) -> None:
            nonlocal taken
            if log.tp == TP and taken == held:
                log.offline_error = error_for(ErrorCode.KAFKA_STORAGE_ERROR, "the disk fails")
                fail()
            taken += log.tp == TP
            real(log, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(journal_replay, "count_following", lambda *what: (1, 1))  # each entry by itself
            set_method(patched, PartitionLog, "replay_append", fails_after)
            node.start()
        assert [one.tp for one in node.logs.offline] == [TP]
        assert node.get(ONE).high_watermark == 4
        assert node.logs.recovery.kept_entries == 4
        node.storage.crash(power=True)
        node.start()
        assert read_all(node.get()) == expected
        assert not node.storage.list_folder("/data/kept")
        await node.logs.close()

    asyncio.run(run())


def test_D1_what_was_kept_before_stays_where_the_log_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is killed once entries are kept, and before the journal is cut, leaves them in both."""

    async def run() -> None:
        node = Node()
        node.start()
        await append(node.create())
        expected = read_all(node.get())
        node.storage.crash(power=False)
        node.storage.open(LOG).truncate(0)
        with monkeypatch.context() as patched:
            patched.setattr(journal_replay._Taking, "run", fail)
            patched.setattr(Journal, "cut", fail)
            with pytest.raises(SemelError):
                node.start()
        node.storage.crash(power=True, torn=False)
        assert node.storage.list_folder("/data/kept")
        real, runs = journal_replay._Taking.run, 0

        def fails_the_second_time(taking: journal_replay._Taking) -> None:
            nonlocal runs
            runs += 1
            if runs == 2:
                fail()
            real(taking)

        with monkeypatch.context() as patched:
            patched.setattr(journal_replay._Taking, "run", fails_the_second_time)
            set_method(patched, PartitionLog, "flush", fail)
            node.start()
        assert (runs, [one.tp for one in node.logs.offline]) == (2, [TP])
        node.storage.crash(power=True, torn=False)
        node.start()
        assert read_all(node.get()) == expected
        assert not node.storage.list_folder("/data/kept")
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


def test_a_directory_by_the_name_of_a_temporary_file_keeps_nothing_from_being_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It took the partition offline."""

    async def main() -> None:
        folder = tmp_path / "data"
        node = open_logs(folder)
        await append(node.create_partition(TopicPartition("a", 0), TOPIC_ID, LogConfig()))
        await node.close()
        left = folder / "a-0" / "leader-epoch-checkpoint.tmp"
        left.mkdir()
        caplog.set_level(logging.INFO)
        for end in (1, 2):
            node = open_logs(folder)
            assert list(node.offline) == []
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            assert await append(partition) == end
            await node.close()
        assert left.is_dir()
        assert f"{left} is left alone: Is a directory" in caplog.text

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
