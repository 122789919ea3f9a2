"""Three nodes and PostgreSQL, each on a host of its own, whose packets are lost: no connection is refused or reset.

Producers and transactions go on while a leader is cut off, while one does not reach the database, and while packets are
lost in one direction. Nothing that was acknowledged is lost or doubled afterwards, and replicas are equal (E1, D1, R4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chaos import Clients
from cluster_run import cluster_run
from database_servers import PostgresqlServer
from equal_replicas import assert_replicas_are_equal
from network import Network, network, why_not
from node_processes import NodeProcesses, wait_for

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
