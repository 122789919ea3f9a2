"""A consumer that says its rack reads from the follower there, and from the leader when that is no good (KIP-392)."""

from __future__ import annotations

import time

import confluent_kafka
import pytest

import semel
import semel.testing
from semel.broker.config.node_config import RACK_AWARE_SELECTOR
from semel.protocol.errors import UsageError

RACKS = ("a", "b", "c")


def read(consumer: semel.Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < count:
        values += [record.value for record in consumer.poll(5.0) or ()]
    return values


def fetched(cluster: semel.testing.Cluster, node: int) -> int:
    """Return the bytes of records that clients have got from a node."""

    async def of(running: object) -> int:
        return running.fetch.fetched_bytes  # type: ignore[attr-defined, no-any-return]

    return cluster._member(node).run(of)


@pytest.mark.timeout(600)
def test_a_consumer_reads_from_the_follower_in_its_rack_while_that_can_be_read_from() -> None:
    with (
        semel.testing.Cluster(3, racks=RACKS, replica_selector_class=RACK_AWARE_SELECTOR) as cluster,
        semel.Producer(cluster.bootstrap) as producer,
    ):
        cluster.create_topic("t")
        leader = cluster.leader("t")
        near, far = (node for node in (1, 2, 3) if node != leader)
        with semel.Consumer(cluster.bootstrap, topics=["t"], group="g", rack=RACKS[near - 1]) as consumer:
            producer.send("t", b"0").result()
            assert read(consumer, 1) == [b"0"]
            before = fetched(cluster, leader), fetched(cluster, near), fetched(cluster, far)
            for number in range(1, 20):
                producer.send("t", b"%d" % number).result()
                assert read(consumer, 1) == [b"%d" % number]
            assert (fetched(cluster, leader), fetched(cluster, far)) == (before[0], before[2])
            assert fetched(cluster, near) > before[1]
            for number, strike in enumerate(("kill", "pause", "cut_off"), start=20):
                getattr(cluster, strike)(near)
                producer.send("t", b"%d" % number).result()
                assert read(consumer, 1) == [b"%d" % number]
                cluster.heal(near)
                cluster.start(near)
                cluster.wait_in_sync("t")
            cluster.kill(cluster.leader("t"))
            producer.send("t", b"23").result()
            assert read(consumer, 1) == [b"23"]


@pytest.mark.timeout(600)
def test_a_follower_that_the_consumer_does_not_know_of_yet_keeps_it_from_nothing() -> None:
    """It asked the leader again and again, which sent it to that node each time, and read nothing."""
    with semel.testing.Cluster(3, racks=RACKS, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        cluster.stop(3)
        cluster.create_topic("t", replicas=2, configs={"min.insync.replicas": "1"})
        leader = cluster.leader("t")
        place = semel.TopicPartition("t", 0)
        with (
            semel.Producer(cluster.bootstrap) as producer,
            semel.Admin(cluster.bootstrap) as admin,
            semel.Consumer(cluster.bootstrap, rack="c") as consumer,
        ):
            while any(one.node_id == 3 and one.is_alive for one in admin.nodes()):
                time.sleep(0.05)
            admin.unregister_node(3)
            consumer.assign([place])
            producer.send("t", b"0").result()
            assert read(consumer, 1) == [b"0"]
            cluster.start(3)
            assert admin.reassign_partitions({place: [leader, 3 - leader, 3]}) == {place: None}
            cluster.wait_in_sync("t")
            for number in range(1, 10):
                producer.send("t", b"%d" % number).result()
                assert read(consumer, 1) == [b"%d" % number]
            while not fetched(cluster, 3):  # once it knows the node it reads there
                producer.send("t", b"more").result()
                assert read(consumer, 1) == [b"more"]


def test_racks_that_do_not_fit_are_refused() -> None:
    for racks in (("a", "b"), "abc"):
        with pytest.raises(UsageError, match=r"one rack for each of the 3 nodes, for example \['a', 'b', 'c'\]"):
            semel.testing.Cluster(3, racks=racks)


@pytest.mark.timeout(600)
def test_a_consumer_of_librdkafka_reads_from_the_follower_in_its_rack() -> None:
    with (
        semel.testing.Cluster(3, racks=RACKS, replica_selector_class=RACK_AWARE_SELECTOR) as cluster,
        semel.Producer(cluster.bootstrap) as producer,
    ):
        cluster.create_topic("t")
        leader = cluster.leader("t")
        near = next(node for node in (1, 2, 3) if node != leader)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.kafka,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "client.rack": RACKS[near - 1],
            }
        )
        try:
            consumer.subscribe(["t"])
            number = 0
            while not fetched(cluster, near):  # until it is there it reads from the leader
                producer.send("t", b"%d" % number).result()
                message = consumer.poll(60.0)
                assert message is not None
                assert message.value() == b"%d" % number
                number += 1
            cluster.kill(near)
            producer.send("t", b"last").result()
            message = consumer.poll(60.0)
            assert message is not None
            assert message.value() == b"last"
        finally:
            consumer.close()
