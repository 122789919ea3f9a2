"""`semel doctor` and `semel txn why` on three nodes: who holds up a reader of committed records, by any node's word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from node_processes import NodeProcesses, node_processes, wait_for
from shared_worker import Process
from typer.testing import CliRunner

import semel
from semel.cli.main import app

pytestmark = pytest.mark.timeout(600)
IDS = (1, 2, 3)
PARTITIONS = 3
WRITTEN = [f"{number}" for number in range(30)]
HOURS_MS = 10_800_000
"""A timeout that no test lives to see."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = {
        "broker.session.timeout.ms": 2_000,
        "controller.lease.ms": 2_000,
        "transaction.max.timeout.ms": HOURS_MS,
        "transaction.two.phase.commit.enable": "true",
    }
    with node_processes(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


@pytest.fixture
def worker() -> Iterator[Process]:
    process = Process()
    yield process
    if not process.is_killed:
        process.kill()


def told(address: str, *command: str, exit_code: int = 0) -> dict[str, Any]:
    """Return what a command says to programs, where it knows one address alone."""
    result = CliRunner().invoke(app, [*command, "--json"], env={"SEMEL_BOOTSTRAP": address})
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@dataclass(frozen=True)
class Held:
    """A transaction that was left open in all partitions of a topic, whose leaders are the three nodes.

    finding: the name of what the doctor finds
    future:  what is said to happen
    """

    name: str
    topic: str
    finding: str
    future: str

    def leave_open(self, nodes: NodeProcesses, worker: Process, do: str) -> None:
        """Write before it, in it, and behind it."""
        with semel.Admin(nodes.bootstrap) as admin:
            admin.create_topic(self.topic, partitions=PARTITIONS, replication_factor=3)
        assert {nodes.leader(self.topic, number) for number in range(PARTITIONS)} == set(IDS)
        self._write(nodes, b"before")
        order = {"bootstrap": nodes.bootstrap, "name": self.name, "topic": self.topic, "values": WRITTEN}
        assert "error" not in worker.ask(do, **order, timeout_ms=HOURS_MS)
        self._write(nodes, b"behind")

    def _write(self, nodes: NodeProcesses, value: bytes) -> None:
        with semel.Producer(nodes.bootstrap) as producer:
            for number in range(PARTITIONS):
                producer.send(self.topic, value, partition=number)

    def assert_found(self, findings: list[dict[str, Any]], coordinator: int) -> None:
        """The doctor names who holds which offsets, and the node that coordinates it."""
        (found,) = (one for one in findings if one["subject"] == self.name)
        assert (found["kind"], found["node_id"]) == (self.finding, coordinator)
        for number in range(PARTITIONS):
            assert f"{self.topic}-{number} at 1" in found["what"], "right behind what was written before"
        assert self.future in found["happens"]
        assert [" ".join(text.split()[:4]) for text in found["commands"]] == [
            f"semel txn why {self.name}",
            f"semel txn abort {self.name}",
        ]

    def assert_told(self, address: str, coordinator: int) -> None:
        """So does its story, with what it wrote on all nodes."""
        shown = CliRunner().invoke(app, ["txn", "why", self.name], env={"SEMEL_BOOTSTRAP": address})
        assert re.match(rf"'{self.name}', from __transaction_state-\d of node {coordinator} \(", shown.stdout)
        story = told(address, "txn", "why", self.name)
        assert story["coordinator_node"] == coordinator
        assert self.future in story["next"]
        assert story["not_known"] == []
        texts = [step["text"] for step in story["steps"]]
        assert any(text.startswith("a transaction began") for text in texts)
        for number in range(PARTITIONS):
            assert any(text.startswith(f"{self.topic}-{number}: data at offset") for text in texts), texts

    def assert_read(self, nodes: NodeProcesses, count: int) -> None:
        """A reader of committed records gets so many, and no further."""
        tps = [semel.TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        with semel.Consumer(nodes.bootstrap) as reader:
            reader.assign(tps)
            for tp in tps:
                reader.seek(tp, 0)
            found: list[object] = []

            def is_all() -> bool:
                found.extend(reader.poll(0.2) or ())
                return all(reader.position(tp) == end for tp, end in reader.end_offsets(tps).items())

            wait_for(is_all, "the reader is as far as it may be")
        assert len(found) == count


def assert_explained(nodes: NodeProcesses, held: list[Held]) -> None:
    """Each node that runs says the same, also of a node that is away and of what that one leads no more."""
    coordinators = {one.name: nodes.coordinator(one.name) for one in held}
    away = [node_id for node_id in IDS if node_id not in nodes.running]
    for node_id in nodes.running:
        found = told(nodes.grpc[node_id], "doctor", "--slow-after", "0.001s", exit_code=1)
        assert [one["node_id"] for one in found["unreachable"]] == away
        assert not {"hanging-transaction", "unknown-holder"} & {one["kind"] for one in found["findings"]}
        for one in held:
            one.assert_found(found["findings"], coordinators[one.name])
            for address in (nodes.grpc[node_id], nodes.kafka[node_id]):
                one.assert_told(address, coordinators[one.name])
            one.assert_read(nodes, PARTITIONS)


def test_who_holds_up_readers_is_explained_by_each_node_also_while_one_is_away(
    nodes: NodeProcesses, worker: Process
) -> None:
    """First all run. Then one that coordinates is away, then another one."""
    ordinary = Held("left-open", "held", "slow-transaction", "times out at ")
    prepared = Held("undecided", "held-for-the-decider", "prepared-transaction", "never times out")
    ordinary.leave_open(nodes, worker, "leave_open")
    prepared.leave_open(nodes, worker, "prepare")
    worker.kill()  # nobody is left who would end them
    assert_explained(nodes, [ordinary, prepared])
    first = nodes.coordinator(ordinary.name)
    for away in (first, next(one for one in IDS if one != first)):
        nodes.kill(away)
        nodes.wait_replaced(away)
        assert_explained(nodes, [ordinary, prepared])
        nodes.start(away)
        wait_in_sync(nodes)
    for one, node_id in ((ordinary, 1), (prepared, 2)):
        aborted = CliRunner().invoke(
            app, ["txn", "abort", one.name, "--yes"], env={"SEMEL_BOOTSTRAP": nodes.grpc[node_id]}
        )
        assert aborted.exit_code == 0, aborted.output
        wait_for(
            lambda: told(nodes.grpc[3], "txn", "describe", one.name)["state"] == "CompleteAbort",  # noqa: B023
            "it is aborted",
        )
        one.assert_read(nodes, 2 * PARTITIONS)


def wait_in_sync(nodes: NodeProcesses) -> None:
    """Wait until any node may die again."""
    with semel.Admin(nodes.bootstrap) as admin:
        wait_for(
            lambda: all(
                set(one.isr) == set(IDS) and one.leader_id > 0
                for topic in admin.topics(include_internal=True)
                for one in topic.partitions
            ),
            "all replicas in sync",
        )
