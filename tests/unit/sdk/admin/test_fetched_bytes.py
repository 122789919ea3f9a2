"""`Admin.replicas` says what consumers have fetched of each replica, from each node."""

from __future__ import annotations

import pytest

import semel
import semel.testing
from semel.protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)
VALUES = [b"%d" % number * 100 for number in range(20)]


def read_all(cluster: semel.testing.Cluster) -> None:
    with semel.Consumer(cluster.bootstrap) as consumer:
        consumer.assign([T0])
        consumer.seek_to_beginning([T0])
        got = 0
        while got < len(VALUES):
            got += len(consumer.poll(5.0) or ())


def fetched(admin: semel.Admin) -> dict[int, int]:
    return {node_id: here.fetched_bytes.get(T0, 0) for node_id, here in admin.replicas().nodes.items()}


@pytest.mark.timeout(300)
def test_consumers_count_at_the_node_that_they_read_from_and_followers_do_not() -> None:
    with semel.testing.Cluster(3) as cluster, semel.Admin(cluster.bootstrap) as admin:
        cluster.create_topic("t")
        leader = cluster.leader("t")
        with semel.Producer(cluster.bootstrap) as producer:
            for value in VALUES:
                producer.send("t", value)
        cluster.wait_in_sync("t")
        assert fetched(admin) == {1: 0, 2: 0, 3: 0}, "followers have it, and no consumer"
        read_all(cluster)
        once = fetched(admin)
        assert once[leader] == admin.replicas().nodes[leader].sizes[T0]
        assert sum(once.values()) == once[leader]
        read_all(cluster)
        assert fetched(admin)[leader] == 2 * once[leader]
        cluster.kill(leader)
        cluster.start(leader)
        cluster.wait_in_sync("t")
        assert fetched(admin)[leader] == 0, "a node that has started again counts from 0"
