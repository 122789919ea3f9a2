"""Three nodes whose PostgreSQL dies for good while they work: its standby takes over, nothing is lost (D1, R4, E1)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import Clients
from cluster_run import cluster_run
from confluent_kafka.admin import AdminClient, NewTopic
from database_servers import PostgresqlPair
from node_processes import NodeProcesses, node_processes, wait_for
from number_feed import CALL_S, PARTITIONS, Feed, create, everything, leaders
from sound_store import assert_sound_store, leave_nothing

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(600)]

DISKLESS = {
    "broker.session.timeout.ms": 2_000,
    "controller.lease.ms": 2_000,
    "diskless.append.commit.interval.ms": 20,
    "diskless.inline.max.bytes": 200,
    "log.diskless.enable": "true",
}
"""Some appends are rows, and others objects."""


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


def wait_takes_changes(admin: AdminClient) -> None:
    """Wait until the nodes write to the standby: a topic can be made."""

    def creates() -> bool:
        (made,) = admin.create_topics([NewTopic("after", PARTITIONS, 3)], request_timeout=CALL_S).values()
        error = made.exception(CALL_S)
        return error is None or "TOPIC_ALREADY_EXISTS" in str(error)

    wait_for(creates, "changes are taken by the standby")


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
    wait_takes_changes(admin)
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


@pytest.mark.drawn(1, "deaths of the database")
@pytest.mark.parametrize("clients", [Clients.SEMEL, Clients.CONFLUENT])
def test_E1_R4_each_record_is_transformed_once_through_the_death_of_the_database_and_of_a_node_after_it(
    nodes: NodeProcesses, pair: PostgresqlPair, tmp_path: Path, clients: Clients
) -> None:
    """Consume, transform, produce, in transactions, without a pause."""
    with cluster_run(nodes, tmp_path, "failover", clients) as run:
        pair.primary.kill()
        run.more()  # leaders and coordinators continue without a database
        pair.promote()
        wait_takes_changes(AdminClient({"bootstrap.servers": ",".join(nodes.kafka.values())}))
        run.more()
        struck = nodes.leader(run.source, 0)
        nodes.kill(struck)
        nodes.wait_replaced(struck)
        run.more()
        nodes.start(struck)
        run.more()
        run.assert_exactly_once()


@pytest.mark.drawn(1, "deaths of the database")
@pytest.mark.parametrize("clients", [Clients.SEMEL, Clients.CONFLUENT])
def test_E1_D1_diskless_topics_survive_the_death_of_the_database_that_has_their_records(
    pair: PostgresqlPair, tmp_path: Path, clients: Clients
) -> None:
    """All topics are diskless, those of the coordinators, too; a node that is killed after it starts again empty.

    What is committed while the primary dies may be in the standby without an answer: it must exist once.
    """
    pair.primary.new_database("semel")
    database, objects = pair.url("semel"), f"file://{tmp_path}/objects"
    settings = {**DISKLESS, "metadata.url": database, "remote.storage.url": objects}
    with node_processes(tmp_path / "cluster", **settings) as nodes:
        with cluster_run(nodes, tmp_path, "failover", clients) as run:
            pair.primary.kill()
            pair.promote()
            run.more()
            struck = nodes.leader(run.source, 0)
            nodes.kill(struck)
            shutil.rmtree(nodes.data_dir(struck))
            nodes.start(struck)
            run.more()
            run.assert_exactly_once()
        nodes.kill(*nodes.running)
        assert_sound_store(nodes, database, objects)
        leave_nothing(nodes)
