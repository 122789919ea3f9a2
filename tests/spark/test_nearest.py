"""A task that says its rack reads from the follower there, and from the leader where it can't (KIP-392)."""

from __future__ import annotations

import pytest

import semel
import semel.testing
from semel.broker.config.node_config import RACK_AWARE_SELECTOR
from semel.spark.clients import client_for
from semel.spark.source.offset_ranges import OffsetRange
from semel.spark.source.options import SourceOptions
from semel.spark.source.reading import read_rows

RACKS = ("a", "b", "c")


def values(address: str, end: int, rack: str) -> list[bytes]:
    given = {"kafka.bootstrap.servers": address, "subscribe": "t", "kafka.client.rack": rack}
    options = SourceOptions.parse(given, is_stream=False)
    batches = read_rows(client_for(options.address), OffsetRange("t", 0, 0, end), options)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.timeout(600)
def test_E2_no_record_is_passed_over_where_the_leader_sends_a_task_to_a_follower() -> None:
    """The leader's answer has no records then, which looked like the end of what compaction had left."""
    with semel.testing.Cluster(3, racks=RACKS, replica_selector_class=RACK_AWARE_SELECTOR) as cluster:
        cluster.create_topic("t")
        with semel.Producer(cluster.bootstrap) as producer:
            sent = [b"%d" % number for number in range(500)]
            for value in sent:
                producer.send("t", value)
        leader = cluster.leader("t")
        near = next(node for node in (1, 2, 3) if node != leader)
        assert values(cluster.bootstrap, len(sent), RACKS[near - 1]) == sent
        assert values(cluster.bootstrap, len(sent), RACKS[leader - 1]) == sent
        assert values(cluster.bootstrap, len(sent), "nowhere") == sent
        cluster.cut_off(near)
        assert values(cluster.bootstrap, len(sent), RACKS[near - 1]) == sent, "the leader knows of nothing yet"
