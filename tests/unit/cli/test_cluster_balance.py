"""`semel cluster balance --measure`: what comes in and goes out of each node is shown before and after, and in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from semel.cli import cluster as command
from semel.cli.main import app
from semel.protocol.api.cluster import NodeState
from semel.protocol.api.topics import PartitionDescription, TopicDescription
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes

MIB = 1 << 20
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
def balance(monkeypatch: pytest.MonkeyPatch) -> Any:
    told = looks()
    topics = [
        TopicDescription(f"t{number}", new_topic_id(), False, (PartitionDescription(0, nodes[0], 0, nodes, nodes),))
        for number, nodes in REPLICAS.items()
    ]
    made = SimpleNamespace(
        reassignments=list,
        replicas=lambda: next(told),
        topics=lambda **_: topics,
        nodes=lambda: [NodeState(node_id, "", True, False, False, False) for node_id in (1, 2)],
    )

    @contextmanager
    def admin(*_: object, **__: object) -> Iterator[Any]:
        yield made

    monkeypatch.setattr(command, "open_admin", admin)
    monkeypatch.setenv("COLUMNS", "200")

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
