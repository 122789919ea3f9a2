"""From the file in a data directory to a database that other nodes can use."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from cluster import cluster
from postgresql_server import postgresql_server, postgresql_url  # noqa: F401 (fixtures)
from running_node import create_topic, running_node

from semel.broker.config.node_config import NodeConfig
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.broker.metadata_moving import MOVED_FILE, move_metadata
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError
from semel.protocol.errors import UsageError
from semel.runtime.disk_storage import DiskStorage


async def made(folder: Path) -> None:
    async with running_node(folder) as node:
        await create_topic(node, "t", 3)


def move(folder: Path, url: str) -> int:
    return move_metadata(DiskStorage(), str(folder / "data"), url).sequence


def test_the_node_continues_on_the_database_and_not_on_the_file(tmp_path: Path) -> None:
    url = sqlite_url(str(tmp_path / "shared.sqlite"))

    async def test() -> None:
        await made(tmp_path)
        before = MetadataStore(sqlite_url(str(tmp_path / "data" / METADATA_FILE))).load()
        assert move(tmp_path, url) == before.sequence
        async with running_node(tmp_path, metadata_url=url) as node:
            assert node.metadata.image.topics == before.topics
            assert len(node.logs.partitions()) == 3
        with pytest.raises(NodeStartError, match=r"is empty, but .* holds a node's logs: .*has moved it to a database"):
            await Node.start(NodeConfig(data_dir=str(tmp_path / "data")), listeners=())
        assert not (tmp_path / "data" / METADATA_FILE).exists(), "a start that is refused makes no empty one"
        with pytest.raises(UsageError, match="was moved before"):
            move(tmp_path, url)

    asyncio.run(test())


def test_a_postgresql_takes_it_over(tmp_path: Path, postgresql_url: str) -> None:  # noqa: F811
    async def test() -> None:
        await made(tmp_path)
        move(tmp_path, postgresql_url)
        async with running_node(tmp_path, metadata_url=postgresql_url) as node:
            assert list(node.metadata.image.topics) == ["t"]
            await create_topic(node, "u", 1)

    asyncio.run(test())


def test_what_only_a_snapshot_has_is_taken_over(tmp_path: Path) -> None:
    url = sqlite_url(str(tmp_path / "shared.sqlite"))
    names = [f"t{number}" for number in range(8)]

    async def test() -> None:
        async with running_node(tmp_path, metadata_snapshot_changes=2) as node:
            for name in names:
                await create_topic(node, name, 1)
        move(tmp_path, url)
        async with running_node(tmp_path, metadata_url=url) as node:
            assert sorted(node.metadata.image.topics) == names

    asyncio.run(test())


def test_an_attempt_that_was_cut_off_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = sqlite_url(str(tmp_path / "shared.sqlite"))
    asyncio.run(made(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError("cut off")))
        with pytest.raises(OSError, match="cut off"):
            move(tmp_path, url)
    assert move(tmp_path, url) > 0
    assert not (tmp_path / "data" / METADATA_FILE).exists()
    assert (tmp_path / "data" / MOVED_FILE).exists()
    with pytest.raises(UsageError, match="was moved before"):
        move(tmp_path, url)


def test_what_can_not_be_moved_is_left_alone(tmp_path: Path) -> None:
    url = sqlite_url(str(tmp_path / "shared.sqlite"))

    async def test() -> None:
        with pytest.raises(UsageError, match="name a node's data directory"):
            move(tmp_path, url)
        async with running_node(tmp_path):
            with pytest.raises(UsageError, match="is running: stop it first"):
                move(tmp_path, url)
        other = tmp_path / "other"
        other.mkdir()
        async with cluster(other, 1) as used:
            with pytest.raises(UsageError, match="has metadata of the cluster"):
                move(tmp_path, used.url)
        assert (tmp_path / "data" / METADATA_FILE).exists()

    asyncio.run(test())
