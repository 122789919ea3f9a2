"""A node whose metadata is in PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)
from running_node import SMALL, create_topic, running_node

from semel.broker.config.node_config import NodeConfig
from semel.broker.metadata.store import METADATA_FILE
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError, StartFailure

pytestmark = pytest.mark.postgresql


def test_topics_survive_a_restart(tmp_path: Path, postgresql_url: str) -> None:  # noqa: F811
    async def main() -> None:
        async with running_node(tmp_path, metadata_url=postgresql_url) as node:
            await create_topic(node, "a", 2)
        async with running_node(tmp_path, metadata_url=postgresql_url) as node:
            assert len(node.metadata.image.topics["a"].partitions) == 2
        assert not (tmp_path / "data" / METADATA_FILE).exists()

    asyncio.run(main())


def test_a_second_node_is_refused_while_the_first_one_lives(tmp_path: Path, postgresql_url: str) -> None:  # noqa: F811
    async def main() -> None:
        settings = {**SMALL, "metadata_url": postgresql_url, "controller_lease_ms": 1000}
        async with running_node(tmp_path, **settings) as node:
            with pytest.raises(NodeStartError, match=r"is the controller|runs on this metadata") as caught:
                await Node.start(NodeConfig(data_dir=str(tmp_path / "second"), node_id=2, **settings))
            assert caught.value.failure is StartFailure.METADATA
            await create_topic(node, "a")
        second = await Node.start(NodeConfig(data_dir=str(tmp_path / "second"), node_id=2, **settings))
        # The topic is the other node's: its partitions are known here and have no logs here.
        assert second.metadata.topic("a") is not None
        assert second.logs.partitions() == []
        await second.stop()

    asyncio.run(main())


def test_a_folder_of_another_cluster_is_refused(tmp_path: Path, postgresql_url: str) -> None:  # noqa: F811
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
        with pytest.raises(NodeStartError, match="restore the metadata"):
            await Node.start(NodeConfig(data_dir=str(tmp_path / "data"), metadata_url=postgresql_url, **SMALL))
        async with running_node(tmp_path / "other", metadata_url=postgresql_url):
            pass
        with pytest.raises(NodeStartError, match="belongs to the cluster"):
            await Node.start(NodeConfig(data_dir=str(tmp_path / "data"), metadata_url=postgresql_url, **SMALL))
        assert (tmp_path / "data" / "a-0").is_dir()

    asyncio.run(main())
