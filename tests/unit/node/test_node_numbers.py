"""A node that was given no number takes one that nobody else has."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from cluster import cluster
from memory_objects import MemoryObjects
from running_node import SMALL

from semel.broker.config.node_config import NodeConfig
from semel.broker.metadata.store import MetadataStore, sqlite_url
from semel.broker.node import Node


def reserve(store: MetadataStore, holder: str, **options: Any) -> int:
    settings = {"first": 1_001, "taken": (), "session_ms": 3_000, "duration_ms": 60_000, "now_ms": 1_000_000}
    return store.reserve_number(holder, **{**settings, **options})


@pytest.fixture
def store(tmp_path: Path) -> MetadataStore:
    made = MetadataStore(sqlite_url(str(tmp_path / "metadata.sqlite")))
    made.create()
    return made


def test_no_two_nodes_get_one_number(store: MetadataStore) -> None:
    assert [reserve(store, str(each)) for each in range(3)] == [1_001, 1_002, 1_003]
    assert reserve(store, "late", taken=(1_004, 1_005)) == 1_006


def test_a_number_whose_node_never_came_is_given_again(store: MetadataStore) -> None:
    assert reserve(store, "dies") == 1_001
    assert reserve(store, "next", now_ms=1_059_999) == 1_002
    assert reserve(store, "later", now_ms=1_060_000) == 1_001


def test_a_node_alone_is_node_1_and_keeps_the_number_that_its_directory_has(tmp_path: Path) -> None:
    async def number(given: int) -> int:
        config = NodeConfig(data_dir=str(tmp_path / "data"), node_id=given, **SMALL)
        node = await Node.start(config, listeners=())
        try:
            return node.config.node_id
        finally:
            await node.stop(grace_ms=500)

    assert asyncio.run(number(-1)) == 1
    shutil.rmtree(tmp_path / "data")
    assert asyncio.run(number(7)) == 7
    assert asyncio.run(number(-1)) == 7


def test_nodes_without_numbers_join_a_cluster_and_give_theirs_back(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"node_id": -1, "remote_storage_url": "s3://bucket", "log_diskless_enable": True}
        async with asyncio.timeout(120), cluster(tmp_path, 0, objects=MemoryObjects()) as made:
            for place in (1, 2):
                await made.start(place, **settings)
            assert [made.nodes[place].config.node_id for place in (1, 2)] == [1_001, 1_002]
            assert made.nodes[1].is_clustered
            await made.stop(2)
            del made.disks[2]
            node = await made.start(2, **settings)
            assert node.config.node_id == 1_003, "the reservation of the former one is not over"

    asyncio.run(main())
