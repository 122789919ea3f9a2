"""Three nodes with a listener inside and one outside, which clients reach through a proxy, as through NAT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
import confluent_kafka.admin
import pytest
from cluster import Cluster, cluster
from lossy_proxy import LossyProxy

import semel
from semel.runtime.ports import free_ports

pytestmark = pytest.mark.timeout(300)
IDS = (1, 2, 3)
TOPIC = "orders"
DEFAULTS: dict[str, Any] = {
    "kafka_listen": "127.0.0.1:9092",
    "grpc_listen": "127.0.0.1:9094",
    "broker_session_timeout_ms": 60_000,  # nobody is taken for dead, however busy the machine is
}
PARTITIONS = 6

Result = TypeVar("Result")


class Outside:
    """The way to one node from outside: proxies of its external ports."""

    def __init__(self, stack: ExitStack) -> None:
        self.kafka_port, self.grpc_port = free_ports(2)
        self.kafka = stack.enter_context(closing(LossyProxy(self.kafka_port, seed=1)))
        self.grpc = stack.enter_context(closing(LossyProxy(self.grpc_port, seed=2)))

    def settings(self) -> dict[str, object]:
        return {
            "kafka_listeners": (
                "internal=127.0.0.1:0",
                f"external=127.0.0.1:{self.kafka_port}?advertised=127.0.0.1:{self.kafka.port}",
            ),
            "grpc_listeners": (
                "internal=127.0.0.1:0",
                f"external=127.0.0.1:{self.grpc_port}?advertised=127.0.0.1:{self.grpc.port}",
            ),
        }


@asynccontextmanager
async def behind_nat(folder: Path) -> AsyncIterator[tuple[Cluster, dict[int, Outside]]]:
    with ExitStack() as stack:
        outside = {node_id: Outside(stack) for node_id in IDS}
        async with cluster(folder, 0, **DEFAULTS) as made:
            for node_id in IDS:
                await made.start(node_id, **outside[node_id].settings())
            await made.until(lambda: all(len(node.metadata.image.brokers) == len(IDS) for node in made.nodes.values()))
            await made.create(TOPIC, PARTITIONS)
            yield made, outside


def kafka_client_does(bootstrap: str, value: bytes) -> tuple[set[int], set[bytes]]:
    """Write to each partition and read all. Returns the ports of the brokers that were named, and what was read."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    ports = {broker.port for broker in admin.list_topics(timeout=60).brokers.values()}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    failed: list[object] = []
    for number in range(PARTITIONS):
        producer.produce(TOPIC, value, partition=number, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed == [None] * PARTITIONS
    settings = {"bootstrap.servers": bootstrap, "group.id": value.decode(), "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    found: list[bytes] = []
    try:
        while found.count(value) < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None, "no more records came"
            assert message.error() is None, message.error()
            found.append(message.value())
    finally:
        consumer.close()
        del admin, producer, consumer  # their threads end with them
    return ports, set(found)


def semel_client_does(bootstrap: str, value: bytes) -> set[bytes]:
    with semel.Producer(bootstrap) as producer:
        for number in range(PARTITIONS):
            producer.send(TOPIC, value, partition=number)
    found: list[bytes | None] = []
    with semel.Consumer(bootstrap, group=value.decode(), topics=[TOPIC], auto_offset_reset="earliest") as consumer:
        while found.count(value) < PARTITIONS:
            found += [record.value for record in consumer.poll(timeout_s=60)]
    return {each for each in found if each is not None}


def accepted(made: Cluster, place: int) -> int:
    """Return how many connections one Kafka listener of the nodes has accepted: 0 for internal, 1 for external."""
    listeners = [node.client_listeners for node in made.nodes.values()]
    return sum(each.kafka[place].counters.accepted_connections for each in listeners if each is not None)


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    return await asyncio.to_thread(work, *arguments)


def test_each_client_works_by_the_listener_that_it_came_by(tmp_path: Path) -> None:
    async def main() -> None:
        async with behind_nat(tmp_path) as (made, outside):
            inside = str(made.nodes[1].kafka_address)
            ports, _ = await in_thread(kafka_client_does, inside, b"kafka-inside")
            assert ports == {node.kafka_address.port for node in made.nodes.values()}
            assert accepted(made, 1) == 0
            internal = accepted(made, 0)

            through = f"127.0.0.1:{outside[2].kafka.port}"
            ports, found = await in_thread(kafka_client_does, through, b"kafka-outside")
            assert ports == {each.kafka.port for each in outside.values()}
            assert b"kafka-inside" in found
            for bootstrap in (f"127.0.0.1:{outside[3].grpc.port}", through):
                value = f"semel-outside-{bootstrap.rpartition(':')[2]}".encode()
                assert b"kafka-outside" in await in_thread(semel_client_does, bootstrap, value)
            assert accepted(made, 0) == internal, "a client from outside was sent to a listener inside"

            external = accepted(made, 1)
            await in_thread(semel_client_does, str(made.nodes[3].grpc_address), b"semel-inside")
            assert accepted(made, 1) == external, "a client inside was sent to a listener outside"

    asyncio.run(main())
