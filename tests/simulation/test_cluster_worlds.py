"""Worlds with three nodes do what they are to judge: records are replicated, leaders change, clients follow them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_wire import JAVA_4, ClusterWire, Led, Party
from simulation.ledger import Ledger

ROOT = Path(__file__).parents[2]
TP = TopicPartition("in", 0)

A_WORLD = """
import json
import sys
from simulation.cluster_scenario import ClusterScenario
from simulation.nemesis import Fault

plan = [Fault(**fault) for fault in json.loads(sys.argv[1])]
world = ClusterScenario(3, plan)
verdict = world.run()
known = [known for known, _, _ in world.watch.replicas()]
print(json.dumps({
    "anomalies": list(map(str, verdict.anomalies)),
    "acknowledged": len(world.ledger.acknowledged),
    "read": sum(len(one.records) for one in world.ledger.reads if one.reader.startswith("reader")),
    "read at the end": sum(len(one.records) for one in world.ledger.reads if one.reader.startswith("final")),
    "batches": verdict.batches,
    "leaders": sorted({name for each in known for name in each.leaders.values()}),
    "epochs": max(epoch for each in known for epoch in each.leaders),
    "looks": [states.looks for states in world.states],
}))
"""


WITH_TRANSACTIONS = """
import json
import sys
from collections import Counter
from history import Outcome
from simulation.nemesis import Fault
from simulation.transactions_scenario import TransactionsScenario

plan = [Fault(**fault) for fault in json.loads(sys.argv[1])]
world = TransactionsScenario(3, plan)
coordinated = set()
after_step = world._after_step

def look() -> None:
    after_step()
    for node in world.watch.running().values():
        for what, machines in (("transactions", node.transactions.machines()), ("groups", node.groups.machines())):
            if any(True for _ in machines):
                coordinated.add((what, node.config.node_id))

world._after_step = look
verdict = world.run()
outcomes = Counter((worker.partition(".")[0], world.ledger.outcome(number).name)
                   for number, (worker, _, _) in enumerate(world.ledger._tried))
print(json.dumps({
    "anomalies": list(map(str, verdict.anomalies)),
    "outcomes": {f"{who} {what}": count for (who, what), count in outcomes.items()},
    "coordinated": sorted(coordinated),
    "moved": max(max(known.leaders) for known, _, _ in world.watch.replicas() if known.tp.topic.startswith("__")),
    "read": sum(len(one.records) for one in world.ledger.reads if one.reader.startswith("watcher")),
    "ends": list(world.ends.values()),
}))
"""


def run_a_world(*plan: dict[str, object], program: str = A_WORLD) -> dict[str, Any]:
    support = ROOT / "tests" / "support"
    path = os.pathsep.join(map(str, (ROOT / "tests", support / "pipelines", support / "clients")))
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, json.dumps(plan)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.timeout(600)
def test_R1_in_a_calm_world_of_three_nodes_everybody_does_its_work() -> None:
    told = run_a_world()
    assert told["anomalies"] == []
    assert told["acknowledged"] > 100
    assert told["read"] > 100
    assert told["read at the end"] >= told["acknowledged"]
    assert told["batches"] > 50
    assert len(told["leaders"]) >= 2
    assert set(told["leaders"]) <= {"n1#1", "n2#1", "n3#1"}
    assert told["epochs"] == 0
    assert min(told["looks"]) > 0


@pytest.mark.timeout(600)
def test_R4_D1_the_death_of_a_leader_gives_its_partitions_to_others() -> None:
    told = run_a_world({"at_s": 4.0, "kind": "power cut", "for_s": 8.0, "node": "the leader"})
    assert told["anomalies"] == []
    assert told["epochs"] > 0
    assert told["acknowledged"] > 100


@pytest.mark.drawn(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plan",
    [
        (),
        (
            {"at_s": 5.0, "kind": "power cut", "for_s": 2.0, "node": "n2"},
            {"at_s": 10.0, "kind": "power cut", "for_s": 2.0, "node": "n1"},
        ),
    ],
    ids=["calm", "two nodes die, one after the other"],
)
def test_E1_T3_transactions_and_groups_go_over_three_nodes_and_move_with_their_leaders(
    plan: tuple[dict[str, object], ...],
) -> None:
    told = run_a_world(*plan, program=WITH_TRANSACTIONS)
    assert told["anomalies"] == []
    outcomes = told["outcomes"]
    assert outcomes["writer COMMITTED"] > 0
    assert sum(count for who, count in outcomes.items() if who.startswith("transformer") and "COMMITTED" in who) > 0
    assert told["read"] > 20
    assert sum(told["ends"]) > 20
    assert {what for what, _ in told["coordinated"]} == {"transactions", "groups"}
    assert len({node for _, node in told["coordinated"]}) > 1
    assert (told["moved"] > 0) is bool(plan)


def a_wire(leader_ids: list[tuple[int, int]]) -> ClusterWire:
    """Return a wire to which the nodes answer with these leaders and epochs, one after the other."""
    world: Any = SimpleNamespace(network=None, nodes={"n1": None, "n2": None, "n3": None})
    wire = ClusterWire(Party(world, Ledger(), "a client", "place", Random(1), JAVA_4))

    async def call(*_: object, **__: object) -> Any:
        leader_id, epoch = leader_ids.pop(0)
        partition = SimpleNamespace(partition_index=0, leader_id=leader_id, leader_epoch=epoch)
        topic = SimpleNamespace(name="in", topic_id=TopicId.__supertype__(int=7), error_code=0, partitions=[partition])
        return SimpleNamespace(topics=[topic])

    wire.call = call  # type: ignore[method-assign, assignment]
    return wire


def test_a_client_does_not_go_back_to_an_older_leader() -> None:
    async def follow() -> None:
        wire = a_wire([(2, 5), (1, 4), (-1, 6), (3, 6)])
        await wire.find(TP)
        assert wire.led[TP] == Led(5, "n2")
        for _ in range(2):  # one node is behind, and then nobody leads
            wire.moved(TP)
            with pytest.raises(ConnectionLostError):
                await wire.find(TP)
        assert wire.led[TP] == Led(5, "n2")
        await wire.find(TP)
        assert wire.led[TP] == Led(6, "n3")

    asyncio.run(follow())
