"""Nodes that are killed under programs of others: fixtures, for the conftest of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from node_processes import NodeProcesses, node_processes

from semel.cli.demo.processes import NodeProcess


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    assert node.is_running, node.log_tail()
    assert node.stop() == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with node_processes(tmp_path / "cluster") as nodes:
        yield nodes
        for node_id in nodes.running:
            nodes.stop(node_id)
