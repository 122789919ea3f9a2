"""A node that runs alone becomes three, by the commands of docs/cluster.md, while programs work on it and stay."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import PARTITIONS, Chaos
from cluster_run import ClusterRun
from database_servers import PasswordPostgresqlServer
from lasting_writer import LastingWriter
from node_processes import NodeProcesses, wait_for
from pauses import Pauses

import semel
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from semel.runtime.ports import lasting_address

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(600)]
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
OF_A_CLUSTER = ("metadata.", "cluster.", "peer.", "default.replication.factor", "min.insync.replicas")
"""How the settings begin that a node alone has no use for."""
FOR_TESTS = """
broker.session.timeout.ms = 5000
controller.lease.ms = 5000
disk.min.free.bytes = 0
group.initial.rebalance.delay.ms = 0
group.min.session.timeout.ms = 100
metadata.snapshot.changes = 5
offsets.topic.num.partitions = 4
transaction.state.log.num.partitions = 4
"""


def documented_commands() -> list[str]:
    """Return the commands of the section that this test follows."""
    (section,) = re.findall(r"^## From one node to three\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"^ *\$ (semel .*)$", section, re.MULTILINE)


def documented_settings() -> str:
    """Return the file of settings of the first of three machines."""
    (block,) = re.findall(r"^   ```toml\n(.*?)^   ```$", PAGE, re.DOTALL | re.MULTILINE)
    return textwrap.dedent(block)


class Machines(NodeProcesses):
    """Nodes with the page's file of settings each. The first one is alone until it is told of a database."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.database = ""
        self._peers: dict[int, str] = {}

    def here(self, node_id: int, text: str) -> str:
        """Return a text of the page with places of this machine in it."""
        listens = self.listens(node_id)
        for name, port in (("kafka", 9092), ("grpc", 9094), ("peer", 9096)):
            address = listens[f"{name}.listen"]
            text = text.replace(f"0.0.0.0:{port}", address).replace(f"log1.example.com:{port}", address)
        return (
            text.replace("node.id = 1", f"node.id = {node_id}")
            .replace("postgresql+psycopg://semel:PASSWORD@db.example.com/semel", self.database)
            .replace("/etc/semel/cluster.secret", str(self._settings["cluster.secret.file"]))
            .replace("/var/lib/semel", str(self.data_dir(node_id)))
        )

    def options(self, node_id: int) -> list[str]:
        settings = self.here(node_id, documented_settings())
        if not self.database:
            settings = "\n".join(line for line in settings.splitlines() if not line.startswith(OF_A_CLUSTER))
        path = self.folder / f"node-{node_id}.toml"
        path.write_text(settings + FOR_TESTS)
        return ["--config", str(path)]

    def listens(self, node_id: int) -> dict[str, str]:
        found = super().listens(node_id)
        return found | {"peer.listen": self._peers.setdefault(node_id, lasting_address("127.0.0.1:0"))}

    def command(self, command: str) -> str:
        """Run a command of the page as a process of its own, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "semel.cli", *shlex.split(self.here(1, command))[1:]],
            env={**os.environ, "SEMEL_BOOTSTRAP": self.bootstrap},
            input="y\n",
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def database() -> Iterator[PasswordPostgresqlServer]:
    server = PasswordPostgresqlServer("a/secret")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    nodes = Machines(tmp_path / "machines")
    try:
        nodes.start(1)
        yield nodes
    finally:
        nodes.close()


def producer_id(nodes: Machines, transactional_id: str) -> int:
    with semel.Admin(nodes.bootstrap) as admin:
        return admin.transaction(transactional_id).producer.producer_id


def are_everywhere(nodes: Machines, *topics: str) -> bool:
    with semel.Admin(nodes.bootstrap) as admin:
        found = [one for topic in topics for one in admin.topic(topic).partitions]
        return all(set(one.isr) == {1, 2, 3} for one in found)


@pytest.mark.drawn(1, "clusters that change")
def test_D1_E1_one_node_becomes_three_and_dies_and_nothing_is_lost_or_there_twice(
    machines: Machines, database: PasswordPostgresqlServer, tmp_path: Path
) -> None:
    """Its programs know the first node's address alone, and the producer, the writer and the reader never end."""
    move, serve, *others = documented_commands()
    chaos = Chaos(seed=1, duration_s=0, instances=2, source="orders", target="payments", group="billing")
    with semel.Admin(machines.bootstrap) as admin:
        admin.create_topic("ledger", partitions=PARTITIONS)
    run = ClusterRun(machines, chaos, tmp_path / "run")
    writer = LastingWriter(machines.bootstrap, "ledger", PARTITIONS)
    pauses = Pauses(
        {
            "the idempotent producer": lambda: run.feeder.acknowledged,
            "the transactions": lambda: len(writer.committed),
            "the group's output": lambda: run.seen,
        }
    )

    def all_continue() -> None:
        writer.wait_for_more()
        run.more()

    try:
        run.start()
        with writer.working():
            all_continue()
            known_as = producer_id(machines, "writer")
            with pauses.during("moving the metadata"):
                machines.stop(1)
                machines.database = database.new_database("semel")
                assert re.match(r"moved \d+ changes", machines.command(move))
                assert serve.split()[1:3] == ["serve", "--config"]
                machines.start(1)
                all_continue()
            with pauses.during("two more nodes"):
                machines.start(2, 3)
                internal = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
                wait_for(lambda: are_everywhere(machines, *internal), "the internal topics are on all nodes")
                all_continue()
            with pauses.during("more replicas"):
                for command in others:
                    machines.command(command)
                assert are_everywhere(machines, "orders", "payments", "ledger")
                all_continue()
            run.workers.bootstrap = machines.bootstrap
            with pauses.during("the first node's loss"):
                machines.kill(1)
                shutil.rmtree(machines.data_dir(1))
                machines.wait_replaced(1)
                all_continue()
            assert producer_id(machines, "writer") == known_as, "the transactional id is the one from before"
        run.assert_exactly_once()
        writer.assert_all_is_there_once(machines.bootstrap)
    finally:
        run.close()
    print(pauses)
