"""`semel.testing.Cluster`: what it does to nodes, and that clients live through it."""

from __future__ import annotations

import pytest

import semel
import semel.testing
from semel.protocol.errors import SemelError, UsageError


@pytest.mark.timeout(600)
def test_a_client_lives_through_all_that_is_done_to_nodes() -> None:
    with semel.testing.Cluster(3) as cluster:
        cluster.create_topic("t")
        with semel.Producer(cluster.bootstrap) as producer:
            producer.send("t", b"0").result()
            for number, strike in enumerate(("kill", "pause", "cut_off", "stop"), start=1):
                leader = cluster.leader("t")
                getattr(cluster, strike)(leader)
                producer.send("t", b"%d" % number).result()
                assert cluster.leader("t") != leader
                assert (leader in cluster.nodes) is (strike in ("pause", "cut_off"))
                cluster.heal(leader)
                cluster.start(leader)
                cluster.wait_in_sync("t")
            cluster.cut_off_from_metadata()
            producer.send("t", b"5").result()
            cluster.heal()
            lost = cluster.leader("t")
            cluster.kill(lost)
            cluster.lose_data(lost)
            cluster.start(lost)
            cluster.wait_in_sync("t")
        with semel.Consumer(cluster.bootstrap, topics=["t"], group="g") as consumer:
            values: list[bytes | None] = []
            while len(values) < 6:
                values += [record.value for record in consumer.poll(5.0) or ()]
        assert values == [b"%d" % number for number in range(6)]


def test_what_can_not_be_done_is_refused_with_the_next_step() -> None:
    with pytest.raises(UsageError, match="1 to 9 nodes"):
        semel.testing.Cluster(10)
    with pytest.raises(UsageError, match=r"node\.id is set for each node"):
        semel.testing.Cluster(2, node_id=4)
    cluster = semel.testing.Cluster(1)
    with pytest.raises(UsageError, match="before it is started"):
        _ = cluster.bootstrap
    with cluster:
        with pytest.raises(UsageError, match="there is no node 2"):
            cluster.kill(2)
        with pytest.raises(UsageError, match="kill\\(\\) it before"):
            cluster.lose_data(1)
        with pytest.raises(SemelError, match="there is no partition"):
            cluster.leader("nope")
        cluster.kill(1)
        with pytest.raises(UsageError, match="start\\(1\\) it"):
            cluster.pause(1)
        with pytest.raises(UsageError, match="no node of the cluster"):
            cluster.create_topic("t")
    cluster.close()
