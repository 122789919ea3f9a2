"""A cluster of whole nodes in one event loop, on one SQLite file, each with a disk in memory and a way to the
database that can be cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from running_node import SMALL, batch
from two_nodes import secret_file

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.store import MetadataStore, sqlite_url
from semel.broker.node import Node
from semel.broker.tiers.object_store import ObjectStore
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedStorage

QUICK: dict[str, Any] = {
    "broker_session_timeout_ms": 3_000,
    "broker_heartbeat_interval_ms": 100,
    "controller_lease_ms": 2_000,
    "metadata_timeout_ms": 5_000,
}
WITHIN_S = 60.0


class CutStore(MetadataStore):
    """A node's way to the database; `is_cut` fails each transaction before it begins, and `hang` holds it back."""

    is_cut = False

    def __init__(self, url: str, *, timeout_ms: int) -> None:
        super().__init__(url, timeout_ms=timeout_ms)
        self._may_go = threading.Event()
        self._may_go.set()

    def hang(self) -> None:
        self._may_go.clear()

    def go_on(self) -> None:
        self._may_go.set()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        self._may_go.wait(WITHIN_S)
        if self.is_cut:
            raise MetadataUnavailableError("the way to the database is cut")
        with super()._transaction() as connection:
            yield connection


class Cluster:
    """Nodes by number. `nodes` are those that run."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.nodes: dict[int, Node] = {}
        self.stores: dict[int, CutStore] = {}
        self.disks: dict[int, SimulatedStorage] = {}
        self.objects: ObjectStore | None = None
        """What the nodes have for remote storage, where remote_storage_url is set."""
        self._settings = {**SMALL, **QUICK, "cluster_secret_file": secret_file(folder), **settings}
        self.url = sqlite_url(str(folder / "metadata.sqlite"))

    def config(self, node_id: int, /, **settings: Any) -> NodeConfig:
        mine = {"node_id": node_id, "data_dir": "/data", "metadata_url": self.url}
        return NodeConfig(**{"peer_listen": "127.0.0.1:0", **self._settings, **mine, **settings})

    async def start(
        self, node_id: int, /, *, may_join: bool = True, accept_metadata_loss: bool = False, **settings: Any
    ) -> Node:
        config = self.config(node_id, **settings)
        store = self.stores[node_id] = CutStore(config.metadata_url, timeout_ms=config.metadata_timeout_ms)
        disk = self.disks.setdefault(node_id, SimulatedStorage(node_id))
        node = self.nodes[node_id] = await Node.start(
            config,
            storage=disk,
            metadata_store=store,
            executor=InlineExecutor(),
            may_join=may_join,
            accept_metadata_loss=accept_metadata_loss,
            object_store=self.objects,
        )
        return node

    async def kill(self, node_id: int, *, power: bool = False) -> None:
        """End a node as SIGKILL does, or a power cut, which takes what was not synced."""
        await self.nodes.pop(node_id).abandon()
        self.disks[node_id].crash(power=power)

    async def stop(self, node_id: int) -> None:
        await self.nodes.pop(node_id).stop()

    def any(self) -> Node:
        return next(iter(self.nodes.values()))

    async def create(self, name: str, partitions: int = 1, replicas: int = 3, **configs: str) -> None:
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        (result,) = await create_topics(self.any(), [NewTopic(name, partitions, replicas, configs)])
        assert result.error is ErrorCode.NONE, result.message
        await self.until(lambda: all(node.partition(TopicPartition(name, 0)) for node in self.nodes.values()))

    def state(self, tp: TopicPartition) -> PartitionState:
        """Return what the newest metadata of any node says of a partition."""
        image = max((node.metadata.image for node in self.nodes.values()), key=lambda one: one.sequence)
        state = image.partition(tp)
        assert state is not None
        return state

    def leader(self, tp: TopicPartition) -> Node | None:
        """Return the node that leads and knows it."""
        node = self.nodes.get(self.state(tp).leader)
        here = None if node is None else node.partition(tp)
        is_led = here is not None and here.leader is not None and here.leader_epoch == self.state(tp).leader_epoch
        return node if is_led else None

    async def produce(self, tp: TopicPartition, value: bytes, acks: int = ACKS_ALL) -> int:
        """Append a record at the leader, trying again as a client does, and return its offset."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                leader = self.leader(tp)
                if leader is not None:
                    request = ProduceRequest(
                        [ProducePartition(tp.topic, tp.partition, batch(value))], None, acks, 30_000
                    )
                    (answer,) = (await leader.produce.produce(request, version=12)).partitions
                    if answer.error is ErrorCode.NONE:
                        return answer.base_offset
                await asyncio.sleep(0.02)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.02)

    async def in_sync(self, tp: TopicPartition, *node_ids: int) -> None:
        """Wait until these nodes are the in-sync replicas."""
        await self.until(lambda: set(self.state(tp).isr) == set(node_ids))

    def values(self, node_id: int, tp: TopicPartition) -> list[tuple[int, bytes]]:
        """Return offsets and bytes of the batches in a node's log."""
        partition = self.nodes[node_id].partition(tp)
        assert partition is not None
        found, offset = [], partition.log_start_offset
        while data := partition.read_batches(offset, 1 << 20):
            found.append((offset, bytes(data)))
            offset = partition.log_end_offset
        return found


@asynccontextmanager
async def cluster(
    folder: Path, count: int = 3, *, objects: ObjectStore | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    made = Cluster(folder, settings)
    made.objects = objects
    try:
        for node_id in range(1, count + 1):
            await made.start(node_id)
        await made.until(lambda: all(len(node.metadata.image.brokers) == count for node in made.nodes.values()))
        yield made
    finally:
        for node in made.nodes.values():
            await node.stop(grace_ms=0)
