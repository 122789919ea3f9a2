"""Two whole nodes in one event loop that take each other for nodes of one cluster.

Each has a metadata database of its own, into which both sides of everything are written: so a test can let one of them
lag behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from running_node import batch, running_node

from semel.broker.metadata.changes import BrokerRegistered, Change, PartitionState, TopicCreated
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ProducerIdAndEpoch,
    TopicId,
    TopicPartition,
    new_topic_id,
)
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

ONE, TWO = 1, 2
SECRET = b"0123456789abcdef0123456789abcdef"

QUICK = {
    "transaction_marker_retry_backoff_ms": 1,
    "transaction_marker_retry_backoff_max_ms": 5,
}


def secret_file(folder: Path, secret: bytes = SECRET) -> str:
    path = folder / "secret"
    path.write_bytes(secret)
    path.chmod(0o600)
    return str(path)


class TwoNodes:
    """`one` and `two`; `transactions` live on both, the odd partitions of every topic on `two`."""

    def __init__(self, one: Node, two: Node) -> None:
        self.one, self.two = one, two

    async def meet(self) -> None:
        """Make one cluster of them."""
        for node in (self.one, self.two):
            node.metadata.image = replace(node.metadata.image, cluster_id="of both")
        await tell(self.one, registration(self.two))
        await tell(self.two, registration(self.one))
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            await self.create(name, ONE, TWO)

    async def create(self, name: str, *leaders: int) -> TopicId:
        """Create a topic whose partitions these nodes lead."""
        created = TopicCreated(name, new_topic_id(), led_by(*leaders))
        for node in (self.one, self.two):
            await tell(node, created)
        return created.topic_id

    def coordinated_by(self, node_id: int) -> str:
        """Return a transactional id that a node coordinates."""
        ids = (f"id-{number}" for number in range(1_000))
        return next(name for name in ids if self.one.transactions.partition_for(name) == node_id - 1)


def led_by(*leaders: int, epoch: int = 0) -> tuple[PartitionState, ...]:
    return tuple(PartitionState(leader, epoch, (leader,), (leader,)) for leader in leaders)


def registration(node: Node) -> BrokerRegistered:
    broker = node.metadata.image.brokers[node.config.node_id]
    return BrokerRegistered(**{field.name: getattr(broker, field.name) for field in fields(BrokerRegistered)})


async def tell(node: Node, *changes: Change) -> None:
    """Let a node know of changes of the metadata, and carry them out."""
    await node.metadata.change(lambda _: changes)
    await node.caught_up()


@asynccontextmanager
async def two_nodes(folder: Path, **settings: Any) -> AsyncIterator[TwoNodes]:
    more = {**QUICK, "peer_listen": "127.0.0.1:0", "cluster_secret_file": secret_file(folder), **settings}
    async with (
        running_node(folder / "one", node_id=ONE, **more) as one,
        running_node(folder / "two", node_id=TWO, **more) as two,
    ):
        both = TwoNodes(one, two)
        await both.meet()
        yield both


def run_with_two(folder: Path, test: Callable[[TwoNodes], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        (folder / "one").mkdir()
        (folder / "two").mkdir()
        async with asyncio.timeout(120), two_nodes(folder, **settings) as both:
            await test(both)

    asyncio.run(main())


async def produce(
    node: Node,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    tp: TopicPartition,
    sequence: int = 0,
    *,
    version: int = 12,
) -> ErrorCode:
    """Append one record of a transaction at the node that leads the partition."""
    data = batch(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    request = ProduceRequest([ProducePartition(tp.topic, tp.partition, data)], transactional_id, -1, 5_000)
    return (await node.produce.produce(request, version=version)).partitions[0].error
