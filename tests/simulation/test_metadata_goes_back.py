"""R10 in a simulated world: the metadata's database fails over to a copy, and a node with clients lives through it.

What the copy lacks decides. A node that has applied changes which are gone stops, says so, and does not start again
until an operator says that they are gone for good. Where nothing is gone, nobody notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import semel.aio
from semel.broker.metadata.applied_position import POSITION_FILE
from semel.protocol.errors import SemelError
from semel.runtime.storage import read_whole
from simulation.in_process import world_in_this_process
from simulation.loop import Process
from simulation.world import SimulatedNode, World

LEASE_S = 10.0
"""The world's nodes look at the database three times in that."""


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_in_this_process(request.param) as world:
        yield world


class Client:
    """Sends to a topic for ever, and knows what was acknowledged."""

    def __init__(self, world: World, topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[str] = []
        self._address = world.address(topic)
        self.process: Process = world.client(topic)
        self.process.start(self._live())

    async def _live(self) -> None:
        number = 0
        async with semel.aio.Producer(self._address, delivery_timeout_ms=5_000) as producer:
            while True:
                number += 1
                try:
                    await (await producer.send(self.topic, f"{number}"))
                    self.acknowledged.append(f"{number}")
                except SemelError:
                    await asyncio.sleep(0.5)
                await asyncio.sleep(0.1)


class Cluster:
    """One node under a supervisor, with its clients, and a database that can fail over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node: SimulatedNode = world.add_node()
        self.clients: list[Client] = []
        self.node.start()
        assert world.run_until(lambda: self.node.is_up, 60.0)

    def do(self, work: Any) -> Any:
        return self.world.do(work, self.world.client("admin"))

    def make_topic(self, name: str) -> None:
        async def make() -> None:
            async with semel.aio.Admin(self.world.address("admin")) as admin:
                await admin.create_topic(name, partitions=1)

        self.do(make())

    def use_topic(self, name: str) -> Client:
        """Make a topic, and wait until a client has written to it."""
        self.make_topic(name)
        client = Client(self.world, name)
        self.clients.append(client)
        self.wait_for_more(client)
        return client

    def wait_for_more(self, client: Client) -> None:
        before = len(client.acknowledged)
        assert self.world.run_until(lambda: len(client.acknowledged) > before + 3, 60.0)

    def known_topics(self) -> set[str]:
        """Return what the database knows, whatever the node says."""
        return {name for name in self.world.database.store().load().topics if not name.startswith("__")}

    def wait_for_stop(self) -> str:
        """Wait until the node has stopped because of the database, and return what it said."""
        assert self.world.run_until(lambda: bool(self.node.failed), LEASE_S)
        return self.node.failed[0]

    def stays_down(self) -> list[str]:
        """Let the supervisor try again and again. Return what the starts said."""
        was_up: list[float] = []

        def look() -> None:
            if self.node.is_up and self.node.node is not None and self.node.node.is_serving:
                was_up.append(self.world.scheduler.now)

        self.world.run_until(lambda: not self.node.is_up, 1.0)
        known = len(self.node.failed)
        self.world.run_until(lambda: len(self.node.failed) > known + 3, 60.0, look)
        assert was_up == []
        return self.node.failed[known:]

    def start_with_acceptance(self) -> None:
        self.node.accepts_metadata_loss = True
        assert self.world.run_until(lambda: self.node.is_up, 60.0)

    def read(self, topic: str, count: int) -> list[str]:
        async def read() -> list[str]:
            found: list[str] = []
            async with semel.aio.Consumer(
                self.world.address("reader"), topics=[topic], group="readers", auto_offset_reset="earliest"
            ) as consumer:
                while len(found) < count:
                    found += [bytes(record.value or b"").decode() for record in await consumer.poll(1.0) or ()]
            return found

        return list(self.do(read()))


def test_R10_a_node_stops_when_its_database_fails_over_and_loses_a_topic(world: World) -> None:
    cluster = Cluster(world)
    kept = cluster.use_topic("kept")
    world.database.keep_copy()
    lost = cluster.use_topic("lost")
    world.database.fail_over()
    said = cluster.wait_for_stop()
    assert "went back" in said
    assert "a fail-over lost its last changes" in said
    assert "--accept-metadata-loss" in said
    acknowledged = len(lost.acknowledged)
    starts = cluster.stays_down()
    assert starts
    for start in starts:
        assert start.startswith("NodeStartError")
        assert "went back" in start
    assert len(lost.acknowledged) == acknowledged
    assert cluster.known_topics() == {"kept"}
    assert "lost-0" in cluster.node.storage.list_folder("/data")

    cluster.start_with_acceptance()
    names = cluster.node.storage.list_folder("/data")
    assert "lost-0" not in names
    assert [name for name in names if name.startswith("lost-0.") and name.endswith("-stray")]
    before = list(kept.acknowledged)
    cluster.wait_for_more(kept)
    assert set(before) <= set(cluster.read("kept", len(before)))
    said_so_far = len(cluster.node.failed)
    cluster.node.kill()
    cluster.node.start()
    assert world.run_until(lambda: cluster.node.is_up, 60.0)
    cluster.wait_for_more(kept)
    assert len(cluster.node.failed) == said_so_far


def test_R10_a_change_after_the_fail_over_is_not_answered_as_done(world: World) -> None:
    cluster = Cluster(world)
    cluster.make_topic("kept")
    world.database.keep_copy()
    cluster.make_topic("lost")
    world.database.fail_over()

    async def make() -> str:
        async with semel.aio.Admin(world.address("admin"), api_timeout_ms=20_000) as admin:
            try:
                await admin.create_topic("later", partitions=1)
            except SemelError as error:
                return error.message
        return ""

    assert cluster.do(make())
    assert "went back" in cluster.wait_for_stop()
    cluster.stays_down()
    assert cluster.known_topics() == {"kept"}


def test_R10_a_node_that_was_down_at_the_fail_over_does_not_start_on_it(world: World) -> None:
    cluster = Cluster(world)
    cluster.make_topic("kept")
    world.database.keep_copy()
    cluster.make_topic("lost")
    sequence = world.database.store().load().sequence
    storage = cluster.node.storage
    path = f"/data/{POSITION_FILE}"
    assert world.run_until(
        lambda: storage.exists(path) and f"\n{sequence}\n".encode() in read_whole(storage, path, size_bytes_max=4096),
        10.0,
    )
    cluster.node.kill(power=True)
    world.database.fail_over()
    cluster.node.start()
    for start in cluster.stays_down():
        assert f"applied its changes up to {sequence}" in start
    assert "lost-0" in storage.list_folder("/data")


def test_R10_a_fail_over_that_loses_nothing_is_not_noticed(world: World) -> None:
    cluster = Cluster(world)
    client = cluster.use_topic("kept")
    world.database.keep_copy()
    cluster.wait_for_more(client)
    world.run_until(lambda: False, LEASE_S)  # the lease is renewed meanwhile, and the copy has the older one
    world.database.fail_over()
    world.run_until(lambda: bool(cluster.node.failed), 3 * LEASE_S)
    cluster.wait_for_more(client)
    later = cluster.use_topic("later")
    cluster.wait_for_more(later)
    assert cluster.node.failed == []
    assert cluster.node.starts == 1
    assert cluster.known_topics() == {"kept", "later"}


def test_R5_a_node_that_slept_while_another_run_took_its_place_stops(world: World) -> None:
    """It wakes with the lease and the partitions that it had, as it believes."""
    world.database.is_shared = True
    cluster = Cluster(world)
    old = cluster.node.process
    assert old is not None
    old.pause()
    twin = world.add_node("twin")
    twin.start()
    assert world.run_until(lambda: twin.is_up, 10 * LEASE_S)
    known = world.database.store_of_the_judge().load()
    old.resume()
    assert "it was started again" in cluster.wait_for_stop()
    assert world.database.store_of_the_judge().load() == known
    assert twin.failed == []
