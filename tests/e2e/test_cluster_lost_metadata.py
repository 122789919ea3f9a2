"""Three nodes whose PostgreSQL loses what it has committed: all stop, say so, and continue by an operator's word (R10).

Then the replicas that have most lead, in leader epochs that nobody had: what was acknowledged is there, once (D1, R3,
R4).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from database_servers import PostgresqlPair, PostgresqlServer
from equal_replicas import assert_replicas_are_equal
from node_processes import NodeProcesses, node_processes, wait_for
from number_feed import CALL_S, Feed, create, everything, leaders

from semel.broker.controller.metadata_loss import EPOCHS_STEP
from semel.broker.metadata.store import MetadataStore
from semel.cli.serve_exit import ServeExit

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(900)]
IDS = (1, 2, 3)
ACCEPT = "--accept-metadata-loss"


@pytest.fixture
def pair() -> Iterator[PostgresqlPair]:
    pair = PostgresqlPair(is_synchronous=False)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


def bootstrap(nodes: NodeProcesses) -> str:
    return ",".join(nodes.kafka.values())


def transact(nodes: NodeProcesses, *values: int) -> None:
    """Commit values to the topic `tx` in a transaction."""
    producer = Producer({"bootstrap.servers": bootstrap(nodes), "transactional.id": "one", "log_level": 0})
    producer.init_transactions(CALL_S)
    producer.begin_transaction()
    for value in values:
        producer.produce("tx", b"%d" % value, partition=0)
    producer.commit_transaction(CALL_S)


def in_sync(admin: AdminClient, topic: str) -> set[int]:
    partitions = admin.list_topics(topic, CALL_S).topics[topic].partitions.values()
    return set.intersection(*(set(one.isrs) for one in partitions))


def known_topics(url: str) -> set[str]:
    store = MetadataStore(url)
    try:
        return {name for name in store.load().topics if not name.startswith("__")}
    finally:
        store.close()


def highest_epoch(url: str) -> int:
    store = MetadataStore(url)
    try:
        return min(state.leader_epoch for topic in store.load().topics.values() for state in topic.partitions)
    finally:
        store.close()


def assert_stays_down(nodes: NodeProcesses, node_id: int) -> None:
    """A supervisor starts it again and again, and it says each time what there is to do."""
    for _ in range(2):
        code, told = nodes.start_in_vain(node_id)
        assert code == ServeExit.METADATA
        for part in (
            "went back: this node has applied its changes up to",
            "restored from an older copy, or a fail-over lost its last changes",
            "Bring the database back with all of its changes",
            f"semel serve --data-dir {nodes.data_dir(node_id)} {ACCEPT}",
        ):
            assert part in told


def strays(nodes: NodeProcesses, node_id: int) -> list[Path]:
    """Return the directories that a node has set aside."""
    return list(nodes.data_dir(node_id).glob("*-stray"))


def assert_goes_on(nodes: NodeProcesses, url: str, acknowledged: set[int], transacted: set[int]) -> None:
    """All nodes run again: everything that was acknowledged is there once, and more can be written."""
    admin = AdminClient({"bootstrap.servers": bootstrap(nodes), "log_level": 0})
    wait_for(lambda: -1 not in leaders(admin, "kept"), "each partition is led again")
    wait_for(lambda: in_sync(admin, "kept") == set(IDS), "all replicas are in sync")
    assert known_topics(url) == {"kept", "tx"}
    assert highest_epoch(url) >= EPOCHS_STEP
    feed = Feed(bootstrap(nodes), "kept")
    feed.more()
    feed.stop()
    transact(nodes, 100, 101)
    wait_for(lambda: len(everything(bootstrap(nodes), "tx")) == len(transacted) + 2, "its markers are written")
    assert set(everything(bootstrap(nodes), "tx")) == transacted | {100, 101}
    found = everything(bootstrap(nodes), "kept")
    again = set(feed.acknowledged)
    assert acknowledged <= set(found), "none is lost"
    assert len(found) - len(set(found)) <= len(again & acknowledged), "none is there twice but what was sent twice"
    for node_id in IDS:
        assert {path.name.partition(".")[0] for path in strays(nodes, node_id)} == {"lost-0", "lost-1", "lost-2"}
        for path in strays(nodes, node_id):
            shutil.rmtree(path)  # as an operator may


@pytest.mark.drawn(1, "lost metadata")
def test_R10_R4_D1_all_nodes_stop_when_an_asynchronous_standby_takes_over_and_go_on_when_its_loss_is_accepted(
    tmp_path: Path, pair: PostgresqlPair
) -> None:
    pair.primary.new_database("semel")
    url = pair.url("semel")
    with node_processes(tmp_path / "cluster", **{"metadata.url": url, "controller.lease.ms": 2_000}) as nodes:
        admin = AdminClient({"bootstrap.servers": bootstrap(nodes), "log_level": 0})
        create(admin, "kept")
        create(admin, "tx")
        transact(nodes, 1, 2)
        wait_for(lambda: in_sync(admin, "kept") == set(IDS), "all replicas are in sync")
        feed = Feed(bootstrap(nodes), "kept")
        feed.more()
        pair.fall_behind()
        create(admin, "lost")
        struck = next(iter(leaders(admin, "kept")))
        nodes.stop(struck)
        nodes.start(struck)  # it has registered since: it knows of changes that will be lost
        wait_for(lambda: in_sync(admin, "kept") == set(IDS), "all replicas are in sync")
        nodes.kill(struck)
        feed.more()
        wait_for(lambda: struck not in leaders(admin, "kept"), "others lead what it led")
        feed.more()
        transact(nodes, 3, 4)
        feed.stop()
        pair.primary.kill()
        pair.promote()
        others = [node_id for node_id in IDS if node_id != struck]
        for node_id in others:
            assert nodes.wait_ended(node_id) == ServeExit.METADATA
            assert ACCEPT in nodes.log(node_id)
        for node_id in IDS:
            assert_stays_down(nodes, node_id)
        assert known_topics(url) == {"kept", "tx"}
        # The one that was deposed comes first: what is left of the metadata says that it leads, and has everything.
        nodes.start(struck, options=[ACCEPT])
        nodes.start(*others, options=[ACCEPT])
        assert_goes_on(nodes, url, set(feed.acknowledged), {1, 2, 3, 4})
        for node_id in IDS:  # from now on as ever
            nodes.stop(node_id)
            nodes.start(node_id)
        wait_for(lambda: in_sync(admin, "kept") == set(IDS), "all replicas are in sync")
        for node_id in IDS:
            nodes.stop(node_id)
        assert_replicas_are_equal(nodes.data_dir(node_id) for node_id in IDS)


@pytest.mark.drawn(1, "lost metadata")
def test_R10_R4_D1_no_node_starts_on_an_old_backup_of_the_database_before_its_loss_is_accepted(
    tmp_path: Path, server: PostgresqlServer
) -> None:
    server.new_database("semel")
    url = server.url("semel")
    with node_processes(tmp_path / "cluster", **{"metadata.url": url}) as nodes:
        admin = AdminClient({"bootstrap.servers": bootstrap(nodes), "log_level": 0})
        create(admin, "kept")
        create(admin, "tx")
        transact(nodes, 1, 2)
        wait_for(lambda: in_sync(admin, "kept") == set(IDS), "all replicas are in sync")
        feed = Feed(bootstrap(nodes), "kept")
        feed.more()
        backup = server.dump("semel")
        create(admin, "lost")
        for node_id in IDS:  # they all register again, and leaders change
            nodes.stop(node_id)
            nodes.start(node_id)
            wait_for(lambda: in_sync(admin, "kept") == set(IDS), "all replicas are in sync")
            feed.more()
        transact(nodes, 3, 4)
        feed.stop()
        for node_id in IDS:
            nodes.stop(node_id)
        server.restore("semel", backup)
        for node_id in IDS:
            assert_stays_down(nodes, node_id)
        assert known_topics(url) == {"kept", "tx"}
        for node_id in reversed(IDS):
            nodes.start(node_id, options=[ACCEPT])
        assert_goes_on(nodes, url, set(feed.acknowledged), {1, 2, 3, 4})
        for node_id in IDS:
            nodes.stop(node_id)
        assert_replicas_are_equal(nodes.data_dir(node_id) for node_id in IDS)
