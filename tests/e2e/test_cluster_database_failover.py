"""Three nodes whose PostgreSQL dies for good while they work: its standby takes over, nothing is lost (D1, R4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from database_servers import PostgresqlPair
from node_processes import NodeProcesses, node_processes, wait_for
from number_feed import CALL_S, PARTITIONS, Feed, create, everything, leaders

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(600)]


@pytest.fixture
def pair() -> Iterator[PostgresqlPair]:
    pair = PostgresqlPair()
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture
def nodes(tmp_path: Path, pair: PostgresqlPair) -> Iterator[NodeProcesses]:
    pair.primary.new_database("semel")
    with node_processes(tmp_path / "cluster", **{"metadata.url": pair.url("semel")}) as running:
        yield running


def test_D1_R4_a_cluster_survives_the_death_of_its_database_and_of_a_node_after_it(
    nodes: NodeProcesses, pair: PostgresqlPair
) -> None:
    bootstrap = ",".join(nodes.kafka.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, "before")
    wait_for(lambda: leaders(admin, "before") == {1, 2, 3}, "a leader for each partition")
    feed = Feed(bootstrap, "before")
    feed.more()
    pair.primary.kill()
    feed.more(200)  # leaders continue without a database
    pair.promote()

    def creates() -> bool:
        (made,) = admin.create_topics([NewTopic("after", PARTITIONS, 3)], request_timeout=CALL_S).values()
        error = made.exception(CALL_S)
        return error is None or "TOPIC_ALREADY_EXISTS" in str(error)

    wait_for(creates, "changes are taken by the standby")
    feed.more()
    nodes.kill(1)
    wait_for(lambda: 1 not in leaders(admin, "before"), "others lead what node 1 led")
    feed.more()
    nodes.start(1)
    feed.stop()
    found = everything(bootstrap, "before")
    assert len(found) == len(set(found)), "none is there twice"
    assert set(feed.acknowledged) <= set(found), "none is lost"
    assert everything(bootstrap, "after") == []
