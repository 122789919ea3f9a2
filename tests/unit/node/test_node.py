"""A node as a whole: what a start makes up for, how it stops, and what it does when its disk fails."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest
from running_node import SMALL, batch, channel_to, create_topic, running_node
from special_files import make_special

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import LoadedConfig
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.inspection.findings import Severity
from semel.broker.inspection.verify import verify
from semel.broker.logs.maintenance import LogMaintenance
from semel.broker.metadata.changes import Change, ConfigsChanged, PartitionState, TopicCreated, TopicDeleted
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.cli.serve import _stop_on_signals
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest, OffsetFetchRequest
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.protocol.v1 import groups_pb2, groups_pb2_grpc
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.setting import ConfigError
from semel.runtime.storage import StorageFile

TP = TopicPartition("a", 0)


def write_metadata(folder: Path, *changes: Change) -> None:
    """Write changes as a node would that was killed before it could do anything else about them."""
    store = MetadataStore(sqlite_url(str(folder / "data" / METADATA_FILE)))
    image = store.load()
    (session,) = store.sessions(now_ms=0)
    store.append(changes, after=image.position, writer=session.writer, now_ms=0)
    store.close()


def test_a_start_makes_the_logs_that_a_crash_left_out_and_deletes_those_it_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
            await create_topic(node, "b")
            old = node.metadata.topic_id("a")
            assert old is not None
        state = PartitionState(1, 0, (1,), (1,))
        again = new_topic_id()
        write_metadata(tmp_path, TopicDeleted("a", old), TopicCreated("a", again, (state,) * 2))
        async with running_node(tmp_path) as node:
            partitions = {partition.tp: partition.topic_id for partition in node.logs.partitions()}
            assert partitions == {
                TP: again,
                TopicPartition("a", 1): again,
                TopicPartition("b", 0): node.metadata.topic_id("b"),
            }

    asyncio.run(main())


def test_a_log_that_can_not_be_made_is_offline_and_made_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        blocker = tmp_path / "data" / "a-0" / "something"
        async with running_node(tmp_path) as node:
            blocker.parent.mkdir()
            blocker.write_text("in the way")
            [result] = await create_topics(node, [NewTopic("a", 2)])
            assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
            assert node.partition(TP) is None
            assert node.partition(TopicPartition("a", 1)) is not None
        blocker.unlink()
        blocker.parent.rmdir()
        async with running_node(tmp_path) as node:
            assert node.partition(TP) is not None

    asyncio.run(main())


def test_D3_a_node_whose_directory_is_lost_does_not_start_over_in_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the metadata in a database of its own it started with a warning, and gave old offsets to new records."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/shared.sqlite"
        async with running_node(tmp_path, metadata_url=url):
            pass
        (tmp_path / "data").rename(tmp_path / "first")
        async with running_node(tmp_path, metadata_url=url) as node:  # it holds nothing yet
            await create_topic(node, "a")
            cluster_id = node.metadata.image.cluster_id
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        config = NodeConfig(data_dir=str(tmp_path / "data"), metadata_url=url, **SMALL)
        for _ in range(2):
            with pytest.raises(
                NodeStartError, match=r"is empty.* node 1 holds 1 partition: a-0\..*--accept-data-loss"
            ) as error:
                await Node.start(config)
            assert error.value.failure is StartFailure.DATA_FOLDER
            for advice in (str(tmp_path / "data"), "restore the directory", "new node.id"):
                assert advice in error.value.message
        (tmp_path / "data").rename(tmp_path / "refused")
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        async with running_node(tmp_path, metadata_url=url) as node:
            assert node.partition(TP) is not None
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        caplog.clear()
        node = await Node.start(config, accept_data_loss=True)
        assert "what this node held is given up: a-0" in caplog.text
        assert "1 log not in the data directory" in caplog.text
        assert node.partition(TP) is not None
        assert node.metadata.image.cluster_id == cluster_id
        await node.stop()
        async with running_node(tmp_path, metadata_url=url, node_id=1) as node:  # from now on as any other folder
            assert node.partition(TP) is not None

    asyncio.run(main())


def test_a_node_with_a_new_id_starts_in_an_empty_folder_beside_the_lost_ones_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path}/shared.sqlite"
        async with running_node(tmp_path / "one", metadata_url=url) as node:
            await create_topic(node, "a")
        async with running_node(tmp_path / "two", metadata_url=url, node_id=2) as node:
            assert node.partition(TP) is None

    asyncio.run(main())


def test_committed_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
            await node.groups.topic_ready()
            await node.groups.commit_offsets(OffsetCommitRequest("g", -1, "", None, {TP: OffsetAndMetadata(3)}))
        async with running_node(tmp_path) as node:
            # The coordinators have read their logs before the listeners accept: nothing has to be waited for.
            found = await node.groups.fetch_offsets(OffsetFetchRequest("g", (TP,)))
            assert found.offsets[TP].offset == 3

    asyncio.run(main())


def test_dynamic_settings_that_this_version_refuses_do_not_keep_it_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await alter_configs(node, AlterConfigsRequest(ResourceType.BROKER, "1", {"num.partitions": "4"}))
        write_metadata(tmp_path, ConfigsChanged("BROKER", "1", {"setting.of.the.future": "1"}))
        async with running_node(tmp_path) as node:
            assert node.config.num_partitions == 1
            assert "setting.of.the.future" in caplog.text

    asyncio.run(main())


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            taken = {**SMALL, "data_dir": str(tmp_path / "other"), "grpc_listen": str(node.grpc_address)}
            with pytest.raises(NodeStartError) as caught:
                await Node.start(NodeConfig(**taken))
            assert caught.value.failure is StartFailure.ADDRESS
            second = await Node.start(NodeConfig(**{**taken, "grpc_listen": "127.0.0.1:0"}))
            await second.stop()
        with pytest.raises(ConfigError, match=r"metadata\.url names"):
            await Node.start(NodeConfig(**{**SMALL, "data_dir": str(tmp_path), "metadata_url": "mysql://x"}))
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_stopping_twice_is_no_error(tmp_path: Path) -> None:
    async def main() -> None:
        node = await Node.start(LoadedConfig(NodeConfig(data_dir=str(tmp_path), **SMALL), {}))
        await node.stop()
        await node.stop()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_member_that_waits_for_others_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, channel_to(node) as channel:
            groups = groups_pb2_grpc.GroupServiceStub(channel)

            def join(member_id: str = "") -> grpc.aio.UnaryUnaryCall[object, groups_pb2.JoinGroupResponse]:
                return groups.JoinGroup(
                    groups_pb2.JoinGroupRequest(
                        group_id="g",
                        member_id=member_id,
                        protocol_type="consumer",
                        protocols=[groups_pb2.GroupProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")],
                        session_timeout_ms=30_000,
                        rebalance_timeout_ms=300_000,
                        client_id="c",
                    )
                )

            members = [(await join()).member_id for _ in range(2)]
            await join(members[0])
            waiting = asyncio.ensure_future(join(members[1]))  # type: ignore[arg-type]
            while (await groups.DescribeGroup(groups_pb2.DescribeGroupRequest(group_id="g"))).state == "Stable":
                pass
            await asyncio.wait_for(node.stop(grace_ms=60_000), 30)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await waiting
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(main())


class FailingStorage(DiskStorage):
    """A disk whose syncs fail once `broken` is set."""

    broken = False

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        file = super().open(path, create=create)
        sync = file.sync

        def failing() -> None:
            if self.broken:
                raise OSError(5, "Input/output error")
            sync()

        return _Patched(file, failing)  # type: ignore[return-value]


class _Patched:
    def __init__(self, file: StorageFile, sync: object) -> None:
        self._file = file
        self.sync = sync

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_D1_a_node_whose_disk_fails_acknowledges_nothing_and_stops(tmp_path: Path) -> None:
    async def main() -> None:
        storage = FailingStorage()
        config = NodeConfig(data_dir=str(tmp_path), **SMALL)
        node = await Node.start(config, storage=storage)
        await create_topic(node, "a")
        partition = node.partition(TP)
        assert partition is not None
        storage.broken = True

        async def append() -> None:
            partition.append(bytearray(batch(b"x")))
            await partition.wait_committed(0)

        with pytest.raises(SemelError) as caught:
            await append()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        failure = await asyncio.wait_for(node.failed, 30)
        assert failure.code is ErrorCode.KAFKA_STORAGE_ERROR
        await node.stop(grace_ms=0)
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        node = await Node.start(config)
        assert node.partition(TP) is not None
        await node.stop()

    asyncio.run(main())


def test_one_log_that_goes_offline_stops_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
            partition = node.partition(TP)
            assert partition is not None
            partition.go_offline(SemelError("the disk is gone", ErrorCode.KAFKA_STORAGE_ERROR))
            assert (await asyncio.wait_for(node.failed, 30)).message == "the disk is gone"

    asyncio.run(main())


def test_a_background_task_that_fails_is_told_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "unhandled errors in a TaskGroup (1 sub-exception)", and nothing of the error."""

    async def broken(self: LogMaintenance) -> None:
        raise ValueError("the cleaner broke")

    async def main() -> None:
        monkeypatch.setattr(LogMaintenance, "_run_cleaner", broken)
        async with running_node(tmp_path) as node:
            failure = await asyncio.wait_for(node.failed, 30)
        assert failure.message == "the background task 'maintain the logs' failed: ValueError: the cleaner broke"

    asyncio.run(main())


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        codes: list[int] = []
        ended = asyncio.Event()

        def end(code: int) -> None:
            codes.append(code)
            ended.set()

        monkeypatch.setattr(os, "_exit", end)
        stop = _stop_on_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        await stop
        os.kill(os.getpid(), signal.SIGINT)
        await ended.wait()
        assert codes == [130]
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    asyncio.run(main())


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "link to nothing"])
def test_what_is_in_place_of_the_metadata_s_file_is_named_with_the_next_step(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    """SQLite says "disk I/O error", or waits for ever. `semel log verify` said that all is well."""

    async def main() -> None:
        async with running_node(tmp_path):
            pass
        path = tmp_path / "data" / f"{METADATA_FILE}{suffix}"
        path.unlink(missing_ok=True)
        if kind == "directory":
            path.mkdir()
        else:
            make_special(path, kind)
        errors = [one for one in verify(str(tmp_path / "data")).findings if one.severity is Severity.ERROR]
        assert path.name in [one.path for one in errors]
        with pytest.raises(NodeStartError, match=rf"{path} is a (named pipe|directory|symb).*Move it away") as caught:
            async with running_node(tmp_path):
                pass
        assert caught.value.failure is StartFailure.METADATA

    asyncio.run(main())
