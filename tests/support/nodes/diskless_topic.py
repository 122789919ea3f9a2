"""A node with a diskless topic, whose metadata is elsewhere than its data directory: the disk may go at any time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from memory_objects import MemoryObjects
from running_node import SMALL, create_topic
from sound_data import wrong_in
from tiered_topic import QUICK, partition_of, serving

from semel.broker.config.node_config import NodeConfig
from semel.broker.diskless.diskless import Diskless
from semel.broker.diskless.rows import DisklessRows, Entry, NewClaim, PartitionKey
from semel.broker.diskless.writer import Writer
from semel.broker.metadata.store import sqlite_url
from semel.broker.node import Node
from semel.protocol.ids import TopicPartition

TP = TopicPartition("t", 0)
DISKLESS = {"diskless_enable": "true"}
FAST: dict[str, Any] = {**QUICK, "diskless_append_commit_interval_ms": 5}


def outside(folder: Path) -> str:
    """Return the URL of the metadata's database, which is not in the data directory."""
    return sqlite_url(str(folder / "outside.sqlite"))


@asynccontextmanager
async def diskless_node(folder: Path, objects: MemoryObjects, **settings: Any) -> AsyncIterator[Node]:
    """Start a node, and stop it at the end. What it leaves has to be called sound by `semel log verify`."""
    config = NodeConfig(data_dir=str(folder / "data"), metadata_url=outside(folder), **{**SMALL, **FAST, **settings})
    node = await Node.start(config, object_store=objects, listeners=())
    try:
        yield node
    finally:
        await node.stop(grace_ms=500)
    found = await asyncio.to_thread(wrong_in, folder / "data", metadata_url=outside(folder))
    assert not found, "semel log verify calls a sound directory damaged:\n" + "\n".join(found)


def lose_disk(folder: Path) -> None:
    """Remove all that a stopped node has on its disk."""
    shutil.rmtree(folder / "data")


def run_diskless(
    folder: Path,
    test: Callable[[Node, MemoryObjects], Awaitable[None]],
    *after: Callable[[Node, MemoryObjects], Awaitable[None]],
    topic: dict[str, str] | None = None,
    **settings: Any,
) -> None:
    """Run a test against a node that has the diskless topic `t`; then each of `after`, against one with an empty disk
    that has taken its place.
    """

    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(120):
            async with diskless_node(folder, objects, **settings) as node:
                await create_topic(node, "t", **{**DISKLESS, **(topic or {})})
                await serving(node)
                await test(node, objects)
            for following in after:
                lose_disk(folder)
                async with diskless_node(folder, objects, **settings) as node:
                    await serving(node)
                    await following(node, objects)

    asyncio.run(main())


def diskless_of(node: Node) -> Diskless:
    tier = node.tier
    assert tier is not None
    found = tier._tail
    assert isinstance(found, Diskless)
    return found


def writer_of(node: Node) -> Writer:
    return diskless_of(node).writer


def rows_of(node: Node) -> DisklessRows:
    return diskless_of(node).rows


async def entries_of(node: Node, tp: TopicPartition = TP) -> list[Entry]:
    """Return what is committed of a partition and in no segment yet."""
    key = partition_of(node, tp).topic_id, tp.partition
    return (await diskless_of(node).ask(lambda: rows_of(node).load(key))).entries


async def objects_of(node: Node) -> set[str]:
    """Return the keys of the objects that the rows know."""
    return await diskless_of(node).ask(rows_of(node).object_keys)


def claim_one(rows: DisklessRows, key: PartitionKey, claim_id: str, leader_epoch: int, node_id: int) -> bool:
    """Claim one partition. False: a later epoch has a claim already."""
    return key in rows.claim_all([NewClaim(key, claim_id, leader_epoch, node_id)])


async def claimed_by_another(node: Node, tp: TopicPartition = TP, *, claim_id: str = "another") -> None:
    """Have another node claim a partition, as it does that leads it from now on."""
    partition = partition_of(node, tp)
    key, epoch = (partition.topic_id, tp.partition), partition.leader_epoch + 1
    assert await diskless_of(node).ask(lambda: claim_one(rows_of(node), key, claim_id, epoch, 99))
