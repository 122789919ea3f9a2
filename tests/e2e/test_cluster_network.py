"""Three nodes and PostgreSQL, each on a host of its own, whose packets are lost: no connection is refused or reset.

Producers and transactions go on while a leader is cut off, while one does not reach the database, and while packets are
lost in one direction. Nothing that was acknowledged is lost or doubled afterwards, and replicas are equal (E1, D1, R4).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chaos import Clients
from cluster_run import cluster_run, in_sync
from database_servers import PostgresqlServer
from equal_replicas import assert_replicas_are_equal
from network import Network, network, why_not
from node_processes import NodeProcesses, wait_for

import semel
from semel.protocol.api.topics import LATEST_TIMESTAMP

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.timeout(600),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]
DATABASE = "database"
IDS = (1, 2, 3)


def host(node_id: int) -> str:
    return f"node {node_id}"


class FarPostgresql(PostgresqlServer):
    """A server on a host of its own. The tests reach it by its socket in the file system."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        with open(f"{self._data}/pg_hba.conf", "a") as file:
            file.write("host all semel samenet trust\n")

    @property
    def started_by(self) -> str | None:
        """Its host can be entered by root alone, which it is not to be there."""
        return None

    def command(self) -> Sequence[str]:
        assert self.user is not None
        listens = f"listen_addresses={self._network.address(DATABASE)}"
        return self._network.command(DATABASE, *super().command(), "-c", listens, user=self.user)

    def far_url(self, database: str) -> str:
        return f"postgresql+psycopg://semel@{self._network.address(DATABASE)}/{database}"


class FarNodes(NodeProcesses):
    """Nodes on hosts of their own."""

    def __init__(self, folder: Path, network: Network, **settings: Any) -> None:
        self.network = network
        super().__init__(folder, **settings)

    def program(self, node_id: int) -> list[str]:
        return self.network.command(host(node_id), *super().program(node_id))

    def listens(self, node_id: int) -> dict[str, str]:
        address = self.network.address(host(node_id))
        ports = {"kafka.listen": 9092, "grpc.listen": 9094, "peer.listen": 9096}
        return {name: f"{address}:{port}" for name, port in ports.items()}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarNodes]:
    folder = tmp_path_factory.mktemp("cluster")
    with network(DATABASE, *map(host, IDS)) as made:
        database = FarPostgresql(made)
        try:
            database.start()
            database.new_database("semel")
            settings = {
                "metadata.url": database.far_url("semel"),
                "listeners.allow.anonymous": "true",
                "broker.session.timeout.ms": 2_000,
                "controller.lease.ms": 2_000,
                "replica.lag.time.max.ms": 3_000,
            }
            running = FarNodes(folder, made, **settings)
            try:
                running.start(*IDS)
                yield running
                for node_id in IDS:
                    running.stop(node_id)
            finally:
                running.close()
        finally:
            database.close()
    assert_replicas_are_equal(running.data_dir(node_id) for node_id in IDS)


def cut_off_from_all(nodes: FarNodes, topic: str) -> None:
    """The leader has no link any more. The others elect one of them."""
    struck = nodes.leader(topic, 0)
    nodes.network.unplug(host(struck))
    _another_leads(nodes, topic, struck)


def deaf_to_database(nodes: FarNodes, topic: str) -> None:
    """The leader does not hear the database, and its followers do: another is elected."""
    struck = nodes.leader(topic, 0)
    nodes.network.drop(DATABASE, host(struck))
    _another_leads(nodes, topic, struck)


def deaf_follower(nodes: FarNodes, topic: str) -> None:
    """A follower does not hear its leader, which hears it. The leader goes on with the other one."""
    struck = nodes.leader(topic, 0)
    nodes.network.drop(host(struck), host(_others(struck)[0]))
    _is_left_out(nodes, topic, _others(struck)[0])


def deaf_leader(nodes: FarNodes, topic: str) -> None:
    """The leader does not hear a follower, which hears it."""
    struck = nodes.leader(topic, 0)
    nodes.network.drop(host(_others(struck)[0]), host(struck))
    _is_left_out(nodes, topic, _others(struck)[0])


def _another_leads(nodes: FarNodes, topic: str, struck: int) -> None:
    wait_for(lambda: nodes.partition(topic, 0, but=struck).leader_id in _others(struck), "another leads")


def _is_left_out(nodes: FarNodes, topic: str, struck: int) -> None:
    wait_for(lambda: struck not in nodes.partition(topic, 0, but=struck).isr, "the follower is not in sync any more")


def _others(node_id: int) -> list[int]:
    return [other for other in IDS if other != node_id]


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("strike", "clients"),
    [
        (cut_off_from_all, Clients.SEMEL),
        (deaf_to_database, Clients.CONFLUENT),
        (deaf_follower, Clients.SEMEL),
        (deaf_leader, Clients.CONFLUENT),
    ],
)
def test_E1_D1_R4_clients_go_on_while_packets_are_lost(
    nodes: FarNodes, tmp_path: Path, strike: Callable[[FarNodes, str], None], clients: Clients
) -> None:
    with cluster_run(nodes, tmp_path, strike.__name__, clients) as run:
        try:
            strike(nodes, run.source)
            run.more_fed()
            if strike in (cut_off_from_all, deaf_to_database):
                run.more()  # otherwise a coordinator may be one of two nodes that live and can't ask each other
        finally:
            nodes.network.heal()
        run.more()
        run.assert_exactly_once()


def one_of_each(nodes: FarNodes, topic: str) -> tuple[int, int, str, int, int]:
    """Return two nodes, an id whose transactions the first coordinates, and a partition that each of the two leads."""
    led = {nodes.leader(topic, number): number for number in range(len(IDS))}
    assert led.keys() == set(IDS), "each node leads one"
    for number in range(100):
        coordinator = nodes.coordinator(f"cut-{number}")
        if coordinator in led:
            other = _others(coordinator)[0]
            return coordinator, other, f"cut-{number}", led[coordinator], led[other]
    raise AssertionError("nobody coordinates")


class Transactions(threading.Thread):
    """One transaction after the other under an id, each with one value for each of some partitions, until it is over.

    As programs do it: what is aborted is written again, and what is not known is asked for again.
    """

    def __init__(self, bootstrap: str, transactional_id: str, topic: str, partitions: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.committed: list[bytes] = []
        self.told: list[semel.SemelError] = []
        self._address = bootstrap
        self._id = transactional_id
        self._topic = topic
        self._partitions = partitions
        self._over = threading.Event()

    def run(self) -> None:
        with semel.Producer(
            self._address, transactional_id=self._id, transaction_timeout_ms=600_000, max_block_ms=5_000
        ) as producer:
            number = 0
            while not self._over.is_set():
                value = f"{self._id}-{number}".encode()
                if self._is_committed(producer, value):
                    self.committed.append(value)
                    number += 1

    def _is_committed(self, producer: semel.Producer, value: bytes) -> bool:
        try:
            producer.begin_transaction()
            for partition in self._partitions:
                producer.send(self._topic, value, partition=partition)
        except semel.RetriableError as error:
            self.told.append(error)
            return False
        while True:
            try:
                producer.commit_transaction()
                return True
            except semel.AbortTransactionError as error:
                self.told.append(error)
                return False
            except semel.RetriableError as error:
                self.told.append(error)

    def more(self, count: int = 3) -> None:
        wanted = len(self.committed) + count
        wait_for(lambda: len(self.committed) >= wanted, f"{count} more transactions of {self._id}")

    def stop(self) -> None:
        self._over.set()
        self.join(90)
        assert not self.is_alive()


def committed(nodes: FarNodes, topic: str) -> list[bytes]:
    """Return what readers of committed records find in a topic now."""
    with semel.Admin(nodes.bootstrap) as admin, semel.Consumer(nodes.bootstrap) as reader:
        tps = [semel.TopicPartition(topic, number) for number in range(len(IDS))]
        ends = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
        reader.assign(dict.fromkeys(tps, 0))
        values: list[bytes] = []
        wait_for(
            lambda: (
                values.extend(one.value or b"" for one in reader.poll(0.5) or ())
                or all(reader.position(tp) >= ends[tp].offset for tp in tps)
            ),
            "all is read",
        )
        return values


def findings(nodes: FarNodes) -> set[str]:
    """Return the kinds of what the doctor finds."""
    command = [sys.executable, "-P", "-m", "semel.cli", "doctor", "--json", "--bootstrap", nodes.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    return {one["kind"] for one in json.loads(done.stdout)["findings"]}


def test_E1_D1_what_does_not_need_two_nodes_that_are_cut_off_from_each_other_goes_on(nodes: FarNodes) -> None:
    """Both reach the database and all clients, so nobody is taken for dead. Transactions over both wait."""
    with semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic("cut", partitions=len(IDS))
    wait_for(lambda: {nodes.leader("cut", number) for number in range(len(IDS))} == set(IDS), "each leads one")
    before = Transactions(nodes.bootstrap, "before", "cut", [0])
    before.start()
    before.more()
    before.stop()
    one, other, transactional_id, here, there = one_of_each(nodes, "cut")
    (spared,), (between,) = set(IDS) - {one, other}, {0, 1, 2} - {here, there}
    over_both = Transactions(nodes.bootstrap, transactional_id, "cut", [here, there])
    over_both.start()
    over_both.more()
    try:
        nodes.network.cut(host(one), host(other))
        with semel.Producer(nodes.bootstrap) as producer:
            for number in range(60):  # each partition continues with the third node
                producer.send("cut", f"plain-{number}".encode(), partition=number % len(IDS))
            producer.flush(90)
        wait_for(lambda: other not in nodes.partition("cut", here).isr, "a follower that is not reached is out of sync")
        waited = len(over_both.committed)
        meanwhile = Transactions(nodes.bootstrap, _id_of(nodes, one), "cut", [here, between])
        meanwhile.start()
        meanwhile.more(10)
        meanwhile.stop()
        assert [nodes.leader("cut", number) for number in (here, there, between)] == [one, other, spared]
        assert len(over_both.committed) <= waited + 1, "one may have been decided as the cut began"
        wait_for(lambda: findings(nodes) & {"markers-pending", "slow-transaction", "lso-held"}, "the doctor's finding")
    finally:
        nodes.network.heal()
    over_both.more()
    over_both.stop()
    in_sync(nodes, "cut")  # so that replicas can be compared as the nodes end
    found = Counter(committed(nodes, "cut"))
    wanted = Counter([f"plain-{number}".encode() for number in range(60)])
    wanted.update(before.committed)
    wanted.update(2 * meanwhile.committed)
    wanted.update(2 * over_both.committed)
    assert found == wanted
    assert all(isinstance(error, semel.RetriableError | semel.AbortTransactionError) for error in over_both.told)


def _id_of(nodes: FarNodes, coordinator: int) -> str:
    return next(
        f"meanwhile-{number}" for number in range(100) if nodes.coordinator(f"meanwhile-{number}") == coordinator
    )
