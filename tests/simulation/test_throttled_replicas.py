"""A moved replica arrives at the rate of its throttle, in virtual time, and who is in sync does not wait (KIP-73).

Three whole nodes. Two have a partition with some megabytes; it is moved to the third while a producer writes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pytest
from running_node import batch
from two_nodes import secret_file

from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.metadata.changes import PartitionState
from semel.broker.node import Node
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest
from simulation.in_process import world_in_this_process
from simulation.world import SimulatedNode, World

T = TypeVar("T")
TP = TopicPartition("t", 0)
RATE = 200_000
BATCH_BYTES, BATCHES = 20_000, 150
LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"


class Cluster:
    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        world.database.is_shared = True
        world.executor.longest_s = 0.004
        self.nodes: dict[int, SimulatedNode] = {}
        for number in (1, 2, 3):
            name = f"n{number}"
            self.nodes[number] = world.add_node(
                name, node_id=number, peer_listen="127.0.0.1:9094", peer_advertised=f"{name}:9094",
                kafka_advertised=f"{name}:9092", grpc_advertised=f"{name}:9093",
                cluster_secret_file=secret_file(folder), min_insync_replicas=2, replica_fetch_max_bytes=100_000,
                broker_session_timeout_ms=3_000, broker_heartbeat_interval_ms=300,
            )  # fmt: skip
            self.nodes[number].start()
        assert world.run_until(lambda: all(len(self.brokers(one)) == 3 for one in self.nodes.values()), 60.0)

    def stop(self) -> None:
        """Stop the nodes that run: what is left of them otherwise is found by later tests of this process."""
        for number, one in self.nodes.items():
            if one.node is not None and one.process is not None and one.is_up:
                self.on(number, lambda node: node.stop(grace_ms=0))

    def brokers(self, one: SimulatedNode) -> Mapping[int, object]:
        return {} if one.node is None else one.node.metadata.image.brokers

    def on(self, number: int, work: Callable[[Node], Awaitable[T]]) -> T:
        """Do something in the process of a node."""
        one = self.nodes[number]
        assert one.node is not None
        assert one.process is not None
        result: T = self.world.do(work(one.node), one.process)  # type: ignore[arg-type]
        return result

    def state(self, tp: TopicPartition = TP) -> PartitionState:
        assert self.nodes[1].node is not None
        state = self.nodes[1].node.metadata.image.partition(tp)
        assert state is not None
        return state

    def end_of(self, number: int, tp: TopicPartition = TP) -> int:
        node = self.nodes[number].node
        partition = None if node is None else node.partition(tp)
        return 0 if partition is None else partition.log_end_offset

    def configure(self, kind: ResourceType, name: str, **values: str | None) -> None:
        given = {key.replace("_", "."): value for key, value in values.items()}
        request = AlterConfigsRequest(
            kind, name,
            {key: value for key, value in given.items() if value is not None},
            tuple(key for key, value in given.items() if value is None),
        )  # fmt: skip
        self.on(1 if kind is ResourceType.TOPIC else int(name), lambda node: alter_configs(node, request))

    def fill(self, *tps: TopicPartition) -> None:
        """Make the topic, led by node 1, and write to its partitions."""
        tps = tps or (TP,)

        async def make(node: Node) -> None:
            topic = NewTopic(TP.topic, assignments={tp.partition: (1, 2) for tp in tps})
            (result,) = await create_topics(node, [topic])
            assert result.error is ErrorCode.NONE, result.message

        self.on(1, make)
        for number in range(BATCHES):
            self.on(1, partial(produce, tp=tps[number % len(tps)]))

    def move(self, *tps: TopicPartition) -> float:
        """Move the replicas of node 2 to node 3, and return how long that takes, in virtual seconds."""
        tps = tps or (TP,)
        begun_s = self.world.scheduler.now
        assert self.on(1, lambda node: reassign(node, dict.fromkeys(tps, (1, 3)))) == dict.fromkeys(tps)
        assert self.world.run_until(
            lambda: all(self.state(tp).replicas == (1, 3) and 3 in self.state(tp).isr for tp in tps), 300.0
        )
        return self.world.scheduler.now - begun_s


async def produce(node: Node, tp: TopicPartition = TP) -> None:
    """Append a batch that both replicas in sync have when this returns."""
    item = ProducePartition(tp.topic, tp.partition, batch(b"v" * BATCH_BYTES))
    for _ in range(100):
        (answer,) = (await node.produce.produce(ProduceRequest([item], None, ACKS_ALL, 30_000), version=12)).partitions
        if answer.error is ErrorCode.NONE:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(answer.error)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with world_in_this_process(1) as world:
        made = Cluster(world, tmp_path)
        yield made
        made.stop()


def throttle(cluster: Cluster, sides: str) -> None:
    if "leader" in sides:
        cluster.configure(ResourceType.BROKER, "1", leader_replication_throttled_rate=str(RATE))
        cluster.configure(ResourceType.TOPIC, TP.topic, leader_replication_throttled_replicas="0:1,0:2")
    if "follower" in sides:
        cluster.configure(ResourceType.BROKER, "3", follower_replication_throttled_rate=str(RATE))
        cluster.configure(ResourceType.TOPIC, TP.topic, follower_replication_throttled_replicas="0:3")


def test_without_a_throttle_it_is_copied_as_fast_as_it_can_be(cluster: Cluster) -> None:
    cluster.fill()
    cluster.configure(ResourceType.BROKER, "1", leader_replication_throttled_rate=str(RATE))
    assert BATCHES * BATCH_BYTES / cluster.move() > 5 * RATE, "a rate alone throttles nothing"


@pytest.mark.parametrize("sides", ["leader", "follower", "leader and follower"])
def test_R1_a_moved_replica_arrives_at_the_rate_and_acks_of_all_in_sync_do_not_wait(
    cluster: Cluster, sides: str
) -> None:
    cluster.fill()
    throttle(cluster, sides)
    waits: list[float] = []

    async def write(node: Node) -> None:
        """It counts for nothing: its replicas are in sync, or about to be."""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            await produce(node)
            waits.append(loop.time() - begun_s)
            await asyncio.sleep(0.5)

    leader = cluster.nodes[1]
    assert leader.node is not None
    assert leader.process is not None
    writing = leader.process.start(write(leader.node))
    took_s = cluster.move()
    rate = cluster.end_of(3) * BATCH_BYTES / took_s
    cluster.world.run_until(lambda: False, 5.0)
    leader.process.start(_cancelled(writing))
    cluster.world.run_until(lambda: False, 0.1)
    assert 0.9 * RATE < rate < 1.1 * RATE
    assert len(waits) > 20
    assert median(waits) < 0.1, "virtual seconds"
    quotas = [cluster.nodes[number].node.replication_quotas for number in (1, 3)]  # type: ignore[union-attr]
    counted = {"leader": quotas[0].leader.total_bytes, "follower": quotas[1].follower.total_bytes}
    assert all((size_bytes > BATCHES * BATCH_BYTES) == (side in sides) for side, size_bytes in counted.items())


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()


@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_several_partitions_share_the_quota_of_a_node_and_all_arrive(cluster: Cluster, side: str) -> None:
    tps = [TopicPartition(TP.topic, number) for number in range(6)]
    cluster.fill(*tps)
    cluster.configure(ResourceType.BROKER, "1" if side == LEADER else "3", **{f"{side}.rate": str(RATE)})
    cluster.configure(ResourceType.TOPIC, TP.topic, **{f"{side}.replicas": "*"})
    took_s = cluster.move(*tps)
    assert sum(cluster.end_of(3, tp) for tp in tps) == BATCHES
    assert 0.9 * RATE < BATCHES * BATCH_BYTES / took_s < 1.2 * RATE


@pytest.mark.parametrize("sides", ["leader", "follower"])
def test_it_wakes_up_when_the_throttle_is_taken_away(cluster: Cluster, sides: str) -> None:
    cluster.fill()
    cluster.configure(ResourceType.BROKER, "1", leader_replication_throttled_rate="1")
    cluster.configure(ResourceType.BROKER, "3", follower_replication_throttled_rate="1")
    side = LEADER if sides == "leader" else FOLLOWER
    cluster.configure(ResourceType.TOPIC, TP.topic, **{f"{side}.replicas": "*"})
    assert cluster.on(1, lambda node: reassign(node, {TP: (1, 3)})) == {TP: None}
    assert not cluster.world.run_until(lambda: 3 in cluster.state().isr, 30.0)
    assert 0 < cluster.end_of(3) < BATCHES // 2, "there is some progress at any rate"
    cluster.configure(ResourceType.TOPIC, TP.topic, **{f"{side}.replicas": None})
    assert cluster.world.run_until(lambda: 3 in cluster.state().isr, 5.0)


def test_a_node_stops_without_waiting_for_its_throttle(cluster: Cluster) -> None:
    cluster.fill()
    throttle(cluster, "leader and follower")
    for number in (1, 3):
        cluster.configure(ResourceType.BROKER, str(number), leader_replication_throttled_rate="1")
    cluster.configure(ResourceType.BROKER, "3", follower_replication_throttled_rate="1")
    assert cluster.on(1, lambda node: reassign(node, {TP: (1, 3)})) == {TP: None}
    cluster.world.run_until(lambda: False, 3.0)
    for number in (3, 1):
        begun_s = cluster.world.scheduler.now
        cluster.on(number, lambda node: node.stop(grace_ms=0))
        assert cluster.world.scheduler.now - begun_s < 5.0, "virtual seconds"
