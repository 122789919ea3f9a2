"""`semel cluster balance --measure`: what comes in and goes out of each node is shown before and after, and in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from semel.cli import cluster, node
from semel.cli.main import app
from semel.cli.moving import print_plan
from semel.protocol.api.cluster import NodeState, Reassignment
from semel.protocol.api.topics import PartitionDescription, TopicDescription
from semel.protocol.errors import FatalError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes
from semel.sdk.balancing.results import Impossible, LeftAlone, Plan

MIB = 1 << 20
HOT = TopicPartition("t0", 0)
REPLICAS = {0: (1, 2), 1: (1, 2), 2: (2, 1), 3: (2, 1)}


def looks() -> Iterator[ReplicasOfNodes]:
    """Yield what nodes say at each look: consumers read of partitions 0 and 1, which node 1 leads, 1 MiB in between."""
    count = 0
    while True:
        sizes = {TopicPartition(f"t{number}", 0): 10 * MIB for number in REPLICAS}
        fetched = {TopicPartition(f"t{number}", 0): count for number in (0, 1)}
        yield ReplicasOfNodes(
            {1: NodeReplicas(1, sizes, -1, -1, fetched), 2: NodeReplicas(2, sizes, -1, -1, {})}, unreachable={}
        )
        count += MIB


@pytest.fixture
def in_sync() -> dict[int, tuple[int, ...]]:
    """The nodes with replicas in sync, by the number of the topic."""
    return dict(REPLICAS)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch, in_sync: dict[int, tuple[int, ...]]) -> Any:
    told = looks()

    def topics(**_: object) -> list[TopicDescription]:
        return [
            TopicDescription(
                f"t{number}", new_topic_id(), False, (PartitionDescription(0, nodes[0], 0, nodes, in_sync[number]),)
            )
            for number, nodes in REPLICAS.items()
        ]

    made = SimpleNamespace(
        reassignments=list,
        replicas=lambda: next(told),
        topics=topics,
        racks={1: "", 2: ""},
        nodes=lambda: [NodeState(node_id, rack, True, False, False, False) for node_id, rack in made.racks.items()],
    )

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[Any]:
        yield made

    for module in (cluster, node):
        monkeypatch.setattr(module, "open_admin", opened)
    monkeypatch.setenv("COLUMNS", "200")
    return made


@pytest.fixture
def balance(admin: Any) -> Any:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["cluster", "balance", "--dry-run", *arguments])

    return run


def test_what_goes_out_is_shown_before_and_after(balance: Any) -> None:
    shown = balance("--measure", "500ms")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("node"))
    assert lines[header].rstrip().endswith("bytes out")
    assert "bytes in" in lines[header]
    first, second = lines[header + 1 : header + 3]
    assert "0 B/s" in first
    assert first.rstrip().endswith("4.0 MiB/s -> 2.0 MiB/s")
    assert second.rstrip().endswith("0 B/s -> 2.0 MiB/s")
    assert "2 partitions to move, of 2 only the preferred leader changes, 0 B to copy" in shown.output


def test_without_measuring_there_are_no_rates_to_show(balance: Any) -> None:
    shown = balance()
    assert shown.exit_code == 0, shown.output
    assert "bytes" in shown.output
    assert "bytes out" not in shown.output
    assert "/s" not in shown.output


def test_json_has_bytes_out_beside_bytes_in(balance: Any) -> None:
    shown = balance("--measure", "500ms", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert [one["bytes_out_per_s"] for one in found["before"]] == [4.0 * MIB, 0.0]
    assert [one["bytes_out_per_s"] for one in found["after"]] == [2.0 * MIB, 2.0 * MIB]
    assert [one["bytes_in_per_s"] for one in found["after"]] == [0.0, 0.0]
    assert {move["why"] for move in found["moves"]} == {"leader only"}
    assert found["hot"] == []


def test_what_one_partition_alone_makes_hot_is_shown(balance: Any, admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_one(told: ReplicasOfNodes) -> ReplicasOfNodes:
        first = told.nodes[1]
        return replace(told, nodes=told.nodes | {1: replace(first, fetched_bytes={HOT: first.fetched_bytes[HOT]})})

    replicas = admin.replicas
    monkeypatch.setattr(admin, "replicas", lambda: only_one(replicas()))
    shown = balance("--measure", "500ms")
    assert "hot: t0:0 alone is 100% of what node 1 sends (2.0 MiB/s): no move can spread it; more" in shown.output
    assert "the cluster is balanced" not in shown.output
    (hot,) = json.loads(balance("--measure", "500ms", "--json").stdout)["hot"]
    assert hot == {"topic": "t0", "partition": 0, "node_id": 1, "bytes_out_per_s": 2.0 * MIB, "share": 1.0}


# --- What can't be done -----------------------------------------------------------------------------------------------


def test_a_cluster_is_not_called_balanced_where_nothing_could_be_planned(
    balance: Any, in_sync: dict[int, tuple[int, ...]]
) -> None:
    assert "nothing to move: the cluster is balanced" in balance().output
    in_sync[0] = (1,)
    shown = balance()
    assert (
        "nothing can be moved now: 1 partition is left alone; `semel cluster status` tells what is wrong"
        in shown.output
    )
    assert "balanced" not in shown.output


def test_partitions_that_can_not_be_moved_for_one_reason_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    many = tuple(Impossible(TopicPartition("t", number), "it needs three nodes") for number in range(12))
    one = (Impossible(TopicPartition("u", 3), "it needs another rack"),)
    two = tuple(LeftAlone(TopicPartition("t", number), "it has no leader") for number in (12, 13))
    print_plan(Plan((), (), (), many + one, two), ())
    assert [line for line in capsys.readouterr().out.splitlines() if ": " in line] == [
        "can't be done: 12 partitions, t:0, t:1, t:2, t:3, t:4 and 7 more: it needs three nodes",
        "can't be done: u:3: it needs another rack",
        "left alone: 2 partitions, t:12, t:13: it has no leader",
    ]


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_a_node_that_can_not_be_emptied_is_told_so_and_is_not_cordoned(admin: Any, how: str) -> None:
    """There are two replicas of each partition, and two nodes: `admin` has no call to cordon one."""
    shown = CliRunner().invoke(app, ["node", "drain", "1", how])
    assert shown.exit_code == 1, shown.output
    assert "4 replicas of node 1 can't be moved: " in shown.output


def test_a_node_that_is_the_last_of_its_rack_is_emptied_if_the_operator_says_so(admin: Any) -> None:
    admin.racks = {1: "a", 2: "b", 3: "b"}
    refused = CliRunner().invoke(app, ["node", "drain", "1", "--dry-run"])
    assert refused.exit_code == 1, refused.output
    assert "4 replicas of node 1 can't be moved: its replicas are in 2 racks, and would be in 1" in refused.output
    assert "--ignore-racks moves them into racks that the partition is in already" in refused.output
    shown = CliRunner().invoke(app, ["node", "drain", "1", "--dry-run", "--ignore-racks"])
    assert shown.exit_code == 0, shown.output
    assert "4 partitions to move" in shown.output
    admin.racks = {1: "a", 2: "b"}
    hopeless = CliRunner().invoke(app, ["node", "drain", "1", "--dry-run"])
    assert "ignore-racks" not in hopeless.output


def test_the_question_before_a_drain_says_how_many_replicas_stay(admin: Any) -> None:
    admin.racks = {1: "", 2: "", 3: ""}
    asked = CliRunner().invoke(app, ["node", "drain", "1"], input="n\n")
    assert "Cordon node 1, and move 4 partitions away from it? [y/N]" in asked.stderr
    admin.reassignments = lambda: [Reassignment(TopicPartition("t0", 0), (3, 2, 1), (3,), (1,))]
    asked = CliRunner().invoke(app, ["node", "drain", "1"], input="n\n")
    assert (
        "Cordon node 1, and move 3 partitions away from it (1 replica that can't be moved stays)? [y/N]" in asked.stderr
    )
    assert asked.exit_code == 1


def test_a_drain_that_others_got_in_the_way_of_says_how_to_go_on(admin: Any) -> None:
    """It ended without a next step, and the node was left cordoned without a word."""
    admin.racks = {1: "", 2: "", 3: ""}
    cordoned = []
    admin.cordon_node = cordoned.append
    admin.node_configs = lambda *_: []
    changed = FatalError("t1-0 was not moved: somebody else changed it meanwhile")
    admin.reassign_partitions = lambda wanted: dict.fromkeys(wanted, changed)
    admin.elect_leaders = lambda _: {}
    ended = CliRunner().invoke(app, ["node", "drain", "1", "--yes"])
    assert (ended.exit_code, cordoned) == (1, [1]), ended.output
    assert "semel: 4 partitions could not be moved\n" in ended.stderr
    assert ended.stderr.endswith(
        "semel: node 1 stays cordoned: give the same command again for the rest, or `semel node uncordon 1`\n"
    )


def test_the_table_says_which_nodes_can_get_nothing(balance: Any, admin: Any) -> None:
    admin.nodes = lambda: [
        NodeState(1, "", True, False, True, False),
        NodeState(2, "", False, False, False, False),
        NodeState(3, "", True, True, False, False),
    ]
    rows = [line for line in balance().output.splitlines() if line[:1].isdigit()]
    states = [re.split(r"\s{2,}", row)[1] for row in rows]
    assert states == ["up, cordoned", "dead", "stopping"]
