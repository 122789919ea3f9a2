"""R10 across restarts, and the end of a node that is ahead of its metadata's database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
from restored_database import copy_of, restore
from running_node import SMALL, batch, create_topic, running_node

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.changes import create_topics, delete_topics
from semel.broker.inspection.findings import Check
from semel.broker.inspection.verify import verify
from semel.broker.metadata.applied_position import POSITION_FILE, Applied, AppliedPosition, read_applied
from semel.broker.metadata.chain import MetadataWentBackError, Position
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.broker.metadata_history import MetadataHistory
from semel.broker.node import Node
from semel.broker.producer_ids import BLOCK_SIZE, ProducerIds
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.cli.serve import _stop
from semel.cli.serve_exit import ServeExit
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedStorage

LEASE_MS = 300


@pytest.fixture(params=["in the directory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of metadata, in the node's directory or elsewhere."""
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgresql_url")
        return found
    return sqlite_url(f"{tmp_path}/{'data/' if request.param == 'in the directory' else 'shared-'}{METADATA_FILE}")


def settings_of(tmp_path: Path, url: str) -> NodeConfig:
    in_directory = f"{tmp_path}/data/" in url
    elsewhere = {} if in_directory else {"metadata_url": url, "controller_lease_ms": LEASE_MS}
    return NodeConfig(data_dir=str(tmp_path / "data"), **{**SMALL, **elsewhere})


def strays(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data").glob("*-stray"))


async def append(node: Node, topic: str) -> None:
    partition = node.partition(TopicPartition(topic, 0))
    assert partition is not None
    partition.append(bytearray(batch(b"x")))
    await partition.wait_committed(partition.log_end_offset - 1)


def test_R10_a_node_does_not_start_on_a_copy_that_is_older_than_what_it_has_applied(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It deleted the logs of topics that the copy did not know, and gave producer ids out for a second time."""

    async def main() -> None:
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        await create_topic(node, "kept")
        await append(node, "kept")
        await node.stop()
        copy = copy_of(url)

        node = await Node.start(config)
        await create_topic(node, "lost")
        await append(node, "lost")
        given = await ProducerIds(node.metadata, 1).next_producer_id()
        applied = node.metadata.image.sequence
        await node.stop()
        restore(url, copy)

        for _ in range(2):
            with pytest.raises(NodeStartError) as caught:
                await Node.start(config)
            assert caught.value.failure is StartFailure.METADATA
            for part in (
                f"applied its changes up to {applied}, and the database has changes up to",
                "restored from an older copy",
                "Bring the database back with all of its changes",
                f"semel serve --data-dir {tmp_path}/data --accept-metadata-loss",
            ):
                assert part in caught.value.message
        assert (tmp_path / "data" / "lost-0").is_dir()
        assert f"up to {applied}, and it has changes up to" in went_back(config)

        node = await Node.start(config, accept_metadata_loss=True)
        assert "the changes that are missing are given up" in caplog.text
        assert set(node.metadata.image.topics) == {"kept"}
        assert await ProducerIds(node.metadata, 1).next_producer_id() > given + 1000 * BLOCK_SIZE
        (stray,) = strays(tmp_path)
        assert stray.name.startswith("lost-0.")
        assert (stray / "00000000000000000000.log").stat().st_size > 0
        assert "the directory of lost-0 is set aside" in caplog.text
        await append(node, "kept")
        await node.stop()
        async with running_node(tmp_path, **_other_settings(config)) as again:  # as any other, and nothing is deleted
            kept = again.partition(TopicPartition("kept", 0))
            assert kept is not None
            assert kept.log_end_offset == 2
        assert strays(tmp_path) == [stray]
        assert went_back(config) == ""

    asyncio.run(main())


def went_back(config: NodeConfig) -> str:
    """Return what `semel log verify` finds wrong with the metadata."""
    found = verify(config.data_dir, metadata_url=config.metadata_url).findings
    return "".join(one.what for one in found if one.check is Check.METADATA)


def _other_settings(config: NodeConfig) -> dict[str, object]:
    return {"metadata_url": config.metadata_url, "controller_lease_ms": config.controller_lease_ms}


def test_R10_the_newest_copy_is_as_good_as_the_database(tmp_path: Path, url: str) -> None:
    async def main() -> None:
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        await create_topic(node, "a")
        await node.stop()
        restore(url, copy_of(url))
        node = await Node.start(config)
        assert node.partition(TopicPartition("a", 0)) is not None
        await node.stop()
        (tmp_path / "data" / POSITION_FILE).unlink()  # what is lost is no error
        node = await Node.start(config, accept_metadata_loss=True)
        assert node.metadata.image.next_producer_id == 3 * BLOCK_SIZE, "one block for each start, and none is skipped"
        await node.stop()
        assert strays(tmp_path) == []

    asyncio.run(main())


def test_R10_a_running_node_stops_where_its_database_goes_back(tmp_path: Path, url: str) -> None:
    async def main() -> None:
        node = await Node.start(settings_of(tmp_path, url))
        copy = copy_of(url)
        await create_topic(node, "lost")
        applied = node.metadata.image
        restore(url, copy)
        if node.config.metadata_url:  # the lease is renewed, and shows it
            failure = await asyncio.wait_for(node.failed, 60)
        else:
            with pytest.raises(SemelError, match="went back"):
                await node.metadata.refresh()
            failure = node.failed.result()
        assert isinstance(failure, MetadataWentBackError)
        assert f"up to {applied.sequence}, and the database has changes up to {applied.sequence - 1} only" in str(
            failure
        )
        assert "--accept-metadata-loss" in str(failure)
        path = f"{node.data_dir}/{POSITION_FILE}"
        # also where it is killed now
        assert read_applied(DiskStorage(), path) == Applied(applied.cluster_id, applied.position, BLOCK_SIZE)
        assert await _stop(node) == ServeExit.METADATA
        with pytest.raises(NodeStartError, match=f"up to {applied.sequence}, and the database has changes up to"):
            await Node.start(settings_of(tmp_path, url))

    asyncio.run(main())


def test_R10_a_loss_that_was_accepted_and_not_dealt_with_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between would leave the logs to a start that deletes them."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        copy = copy_of(url)
        await create_topic(node, "lost")
        await node.stop()
        restore(url, copy)

        def crash(self: Node) -> None:
            raise SemelError("crashed")

        with monkeypatch.context() as patch:
            patch.setattr(Node, "_open_logs", crash)
            with pytest.raises(NodeStartError, match="crashed"):
                await Node.start(config, accept_metadata_loss=True)
        with pytest.raises(NodeStartError, match="went back"):
            async with running_node(tmp_path, **_other_settings(config)):
                pass
        assert (tmp_path / "data" / "lost-0").is_dir()

    asyncio.run(main())


def test_R10_P1_a_second_loss_gives_no_producer_id_twice(tmp_path: Path) -> None:
    """It takes back what the first start that accepted one had skipped."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        copy = copy_of(url)
        await create_topic(node, "lost")
        given = [await ProducerIds(node.metadata, 1).next_producer_id()]
        await node.stop()
        for _ in range(3):
            restore(url, copy)
            node = await Node.start(config, accept_metadata_loss=True)
            given.append(await ProducerIds(node.metadata, 1).next_producer_id())
            await node.stop()
        assert given == sorted(set(given))
        assert given[-1] > given[-2] + 1000 * BLOCK_SIZE

    asyncio.run(main())


def test_R10_P1_producer_ids_that_were_skipped_are_remembered_before_any_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is killed once it has registered, and the database loses that, too."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        copy = copy_of(url)
        await create_topic(node, "lost")
        await node.stop()
        restore(url, copy)

        def crash(*_: object, **__: object) -> None:
            raise SemelError("crashed")

        with monkeypatch.context() as patch:
            patch.setattr(MetadataHistory, "follow", crash)
            with pytest.raises(NodeStartError, match="crashed"):
                await Node.start(config, accept_metadata_loss=True)
        given = MetadataStore(url).load().next_producer_id
        restore(url, copy)
        node = await Node.start(config, accept_metadata_loss=True)
        assert await ProducerIds(node.metadata, 1).next_producer_id() > given
        await node.stop()

    asyncio.run(main())


def test_R10_a_loss_is_not_accepted_where_the_next_producer_id_can_not_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        copy = copy_of(url)
        await create_topic(node, "lost")
        await node.stop()
        restore(url, copy)

        with monkeypatch.context() as patch:
            patch.setattr("semel.broker.metadata.applied_position.write_whole", no_space)
            with pytest.raises(NodeStartError, match=r"can't be written: .*No space left.*Fix this") as caught:
                await Node.start(config, accept_metadata_loss=True)
        assert caught.value.failure is StartFailure.DATA_FOLDER
        node = await Node.start(config, accept_metadata_loss=True)
        assert set(node.metadata.image.topics) == set()
        await node.stop()

    asyncio.run(main())


def test_an_offline_partition_that_the_older_metadata_does_not_know_is_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        copy = copy_of(url)
        await create_topic(node, "lost")
        await append(node, "lost")
        await node.stop()
        restore(url, copy)
        (log,) = (tmp_path / "data" / "lost-0").glob("*.log")
        log.rename(log.with_suffix(".away"))
        log.mkdir()  # it can't be opened
        node = await Node.start(config, accept_metadata_loss=True)
        await node.stop()
        (stray,) = strays(tmp_path)
        assert (stray / log.with_suffix(".away").name).is_file()

    asyncio.run(main())


def test_D6_a_topic_is_not_written_to_before_its_loss_could_be_noticed(tmp_path: Path) -> None:
    """Else a node that loses power, and a database that loses its last changes, delete it as if somebody had."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config = settings_of(tmp_path, url)
        node = await Node.start(config)
        copy = copy_of(url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("semel.broker.metadata.applied_position.write_whole", no_space)
            await create_topics(node, [NewTopic("new", 1)])
            tp = TopicPartition("new", 0)
            (offline,) = node.logs.offline
            assert (offline.tp, node.partition(tp)) == (tp, None)
            assert "No space left" in offline.reason
        async with asyncio.timeout(60):
            while node.partition(tp) is None:  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.05)
        await append(node, "new")
        await node.stop()
        restore(url, copy)
        with pytest.raises(NodeStartError, match="went back"):
            await Node.start(config)
        node = await Node.start(config, accept_metadata_loss=True)
        await node.stop()
        assert [stray.name.partition(".")[0] for stray in strays(tmp_path)] == ["new-0"]

    asyncio.run(main())


def test_D6_a_node_does_not_start_where_a_loss_could_not_be_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        config = settings_of(tmp_path, sqlite_url(f"{tmp_path}/shared.sqlite"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("semel.broker.metadata.applied_position.write_whole", no_space)
            with pytest.raises(NodeStartError, match=r"can't be written: .*No space left.*Fix this") as caught:
                await Node.start(config)
        assert caught.value.failure is StartFailure.DATA_FOLDER
        node = await Node.start(config)
        await node.stop()

    asyncio.run(main())


def test_R10_a_topic_that_was_deleted_is_there_again_empty_where_the_deletion_is_lost(tmp_path: Path) -> None:
    """Also after a power cut: it did not vanish, so nobody has to accept that it is gone."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        config, disk = replace(settings_of(tmp_path, url), data_dir="/data"), SimulatedStorage()
        node = await Node.start(config, storage=disk, executor=InlineExecutor())
        await create_topic(node, "again")
        await append(node, "again")
        copy = copy_of(url)
        (deleted,) = await delete_topics(node, ["again"])
        assert deleted.error is ErrorCode.NONE
        async with asyncio.timeout(60):
            while node.partition(TopicPartition("again", 0)) is not None:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)
        await node.abandon()
        disk.crash(power=True, torn=False)
        restore(url, copy)
        node = await Node.start(config, storage=disk, executor=InlineExecutor(), accept_metadata_loss=True)
        partition = node.partition(TopicPartition("again", 0))
        assert partition is not None
        assert (partition.log_end_offset, list(node.logs.offline)) == (0, [])
        await node.stop()

    asyncio.run(main())


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_position_of_another_cluster_says_nothing(tmp_path: Path) -> None:
    """The directory of another cluster is refused in its own words."""

    async def main() -> None:
        for name in ("one", "two"):
            async with running_node(tmp_path / name) as node:
                await create_topic(node, name)
        (tmp_path / "one" / "data" / METADATA_FILE).unlink()
        (tmp_path / "two" / "data" / METADATA_FILE).rename(tmp_path / "one" / "data" / METADATA_FILE)
        with pytest.raises(NodeStartError, match="belongs to the cluster"):
            async with running_node(tmp_path / "one"):
                pass

    asyncio.run(main())


@pytest.mark.parametrize("content", [b"", b"semel metadata position 1\n", b"\xff" * 10, b"x" * 10_000, "a directory"])
def test_a_position_that_can_not_be_read_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str
) -> None:
    async def main() -> None:
        async with running_node(tmp_path):
            pass
        path = tmp_path / "data" / POSITION_FILE
        path.unlink()
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.mkdir()
        caplog.clear()
        async with running_node(tmp_path) as node:
            position = node.metadata.image.position
            assert f"{path} can't be read" in caplog.text
            cluster_id = node.metadata.image.cluster_id
        if isinstance(content, bytes):
            assert read_applied(DiskStorage(), str(path)) == Applied(cluster_id, position, 2 * BLOCK_SIZE)

    asyncio.run(main())


# --- When it is written -----------------------------------------------------------------------------------------------


class CountingStorage(SimulatedStorage):
    """Counts the files that are put in place."""

    renames = 0

    def rename(self, source: str, target: str) -> None:
        self.renames += 1
        super().rename(source, target)


def images(count: int) -> Sequence[MetadataImage]:
    return [replace(EMPTY_IMAGE, cluster_id="c", sequence=number, digest="ab" * 32) for number in range(1, count + 1)]


@pytest.mark.parametrize(("version", "more", "given"), [(1, "", (0, 0)), (2, "5\n", (5, 0)), (3, "5\n9\n", (5, 9))])
def test_a_position_of_each_version_is_read(
    tmp_path: Path, version: int, more: str, given: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / POSITION_FILE
    text = f"semel metadata position {version}\nc\n7\n{'ab' * 32}\n"
    path.write_text(text + more)
    assert read_applied(DiskStorage(), str(path)) == Applied("c", Position(7, "ab" * 32), *given)
    path.write_text(text + more + "1\n")
    assert read_applied(DiskStorage(), str(path)) is None
    assert "can't be read" in caplog.text


def test_changes_that_come_together_are_remembered_once_and_nothing_wakes_up_later() -> None:
    async def main() -> None:
        storage = CountingStorage()
        storage.make_folder("/data")
        applied = AppliedPosition(storage, f"/data/{POSITION_FILE}", InlineExecutor())
        for image in images(100):
            applied.note(image)
        await applied.flush()
        assert storage.renames == 1
        assert read_applied(storage, f"/data/{POSITION_FILE}") == Applied("c", Position(100, "ab" * 32), 0)
        assert len(asyncio.all_tasks()) == 1  # no timer, no task
        await applied.close()
        assert storage.renames == 1

    asyncio.run(main())


def test_a_pause_keeps_the_disk_free_and_a_stop_does_not_wait_for_it() -> None:
    async def main() -> None:
        storage = CountingStorage()
        storage.make_folder("/data")
        applied = AppliedPosition(storage, f"/data/{POSITION_FILE}", InlineExecutor())
        applied.pause_s = 3600.0
        first, second, third = images(3)
        applied.note(first)
        while not storage.renames:  # noqa: ASYNC110  (there is no event: it is a count)
            await asyncio.sleep(0)
        applied.note(second)
        applied.note(third)
        for _ in range(10):
            await asyncio.sleep(0)
        assert storage.renames == 1
        await applied.close()
        assert storage.renames == 2
        assert read_applied(storage, f"/data/{POSITION_FILE}") == Applied("c", third.position, 0)

    asyncio.run(main())


def test_a_disk_that_refuses_the_file_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        storage = SimulatedStorage()
        storage.make_folder("/data")
        applied = AppliedPosition(storage, f"/data/{POSITION_FILE}", InlineExecutor())
        storage.fail_next("sync", OSError(28, "No space left on device"))
        first, second = images(2)
        applied.note(first)
        await applied.flush()
        assert "could not be written" in caplog.text
        await applied.remembered(first)
        assert read_applied(storage, f"/data/{POSITION_FILE}") == Applied("c", first.position, 0)
        storage.fail_next("sync", OSError(28, "No space left on device"))
        with pytest.raises(OSError, match="No space left"):
            await applied.remembered(second)
        applied.note(second)
        await applied.close()
        assert read_applied(storage, f"/data/{POSITION_FILE}") == Applied("c", second.position, 0)

    asyncio.run(main())
