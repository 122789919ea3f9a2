"""Records of diskless topics are in the database and the store: what a node has on its disk may go at any time."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from memory_objects import MemoryObjects
from running_node import SMALL, batch, create_topic
from tiered_topic import QUICK, TP, fill, read_all, serving, until

from semel.broker.config.node_config import NodeConfig
from semel.broker.diskless.rows import DisklessRows
from semel.broker.metadata.store import sqlite_url
from semel.broker.node import Node

DISKLESS = {"diskless_enable": "true"}


@asynccontextmanager
async def diskless_node(folder: Path, objects: MemoryObjects, **settings: Any) -> AsyncIterator[Node]:
    """Start a node whose metadata is elsewhere than its data directory, and stop it at the end."""
    url = sqlite_url(str(folder / "metadata.sqlite"))
    config = NodeConfig(data_dir=str(folder / "data"), metadata_url=url, **{**SMALL, **QUICK, **settings})
    node = await Node.start(config, object_store=objects, listeners=())
    try:
        yield node
    finally:
        await node.stop(grace_ms=500)


def lose_disk(folder: Path) -> None:
    shutil.rmtree(folder / "data")


def test_D1_all_is_there_after_the_disk_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with diskless_node(tmp_path, objects) as node:
            await create_topic(node, "t", **DISKLESS)
            await serving(node)
            values = await fill(node, 40)
            assert not objects.objects, "small appends need no object"
        lose_disk(tmp_path)
        async with diskless_node(tmp_path, objects) as node:
            await serving(node)
            assert [value for _, value in await read_all(node)] == values
            values += await fill(node, 5)
            assert [value for _, value in await read_all(node)] == values

    asyncio.run(main())


def test_a_partition_that_another_node_has_taken_over_is_no_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with diskless_node(tmp_path, MemoryObjects()) as node:
            await create_topic(node, "t", **DISKLESS)
            await serving(node)
            await fill(node, 1)
            partition = node.partition(TP)
            assert partition is not None
            key = (partition.topic_id, TP.partition)
            with closing(DisklessRows(node.config.metadata_url)) as rows:
                assert rows.claim(key, "theirs", partition.leader_epoch + 1, 2)
            with caplog.at_level(logging.INFO):
                partition.append(bytearray(batch(b"late")), verified=True)
                await until(lambda: "was claimed by a later leader" in caplog.text)
            told = [one for one in caplog.records if one.name == "semel.tiers"]
            assert {one.levelname for one in told} == {"INFO"}

    asyncio.run(main())
