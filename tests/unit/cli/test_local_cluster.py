"""`semel serve --nodes`: the settings of each node, and which is started again. Scripts take the place of nodes."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from semel.broker.config.sources import load_config
from semel.broker.logs.data_folder import META_FILE
from semel.cli import node_folders
from semel.cli.local_cluster import LocalCluster, LocalNode, plan_nodes
from semel.cli.serve_exit import ServeExit
from semel.runtime.setting import ConfigError


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have each node be ready and die; started again it ends with the exit code of one that was removed.

    Returns the file that has the last option of each start, a line for each.
    """
    starts = tmp_path / "starts"
    script = tmp_path / "node.sh"
    script.write_text(
        "#!/bin/sh\n"
        f'for last; do :; done; echo "$last" >> {starts}\n'
        f'if [ "$last" = --no-join ]; then exit {ServeExit.REMOVED:d}; fi\n'
        "echo ready: here; exit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return starts


def test_a_node_that_was_removed_is_not_started_again_and_none_that_is_left_ends_the_supervisor(
    tmp_path: Path, started: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that was removed while it was dead: no process of it has heard of that."""
    nodes = [LocalNode(number, {"data.dir": str(tmp_path / f"node-{number}")}) for number in (1, 2)]
    ready: list[int] = []
    with caplog.at_level(logging.WARNING, "semel.cluster"):
        code = asyncio.run(LocalCluster(nodes, [], lambda node, _: ready.append(node)).run())
    assert code == ServeExit.REMOVED
    assert sorted(ready) == [1, 2]
    assert sorted(started.read_text().split()) == [
        "--no-join", "--no-join", *(f"data.dir={tmp_path}/node-{number}" for number in (1, 2))
    ]  # fmt: skip
    removed = [one.getMessage() for one in caplog.records if "was removed from the cluster" in one.getMessage()]
    assert sorted(text.split(",")[0] for text in removed) == [f"node {n} was removed from the cluster" for n in (1, 2)]
    assert all("is not started again" in text for text in removed)


def racks(text: str | None) -> list[str | None]:
    flags = [] if text is None else [("--set", "broker.rack", text)]
    return [node.settings.get("broker.rack") for node in plan_nodes(load_config(environment={}, flags=flags), 3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, [None] * 3), ("a", ["a", "a", "a"]), ("a,b,c", ["a", "b", "c"]), ("a, b ,a", ["a", "b", "a"])],
)
def test_each_node_has_its_rack_or_all_have_one(text: str | None, expected: list[str | None]) -> None:
    assert racks(text) == expected


@pytest.mark.parametrize("text", ["a,b", "a,b,c,d", "a,,c", "a,b,"])
def test_racks_that_are_not_one_for_each_node_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"broker.rack = {text}: with --nodes 3 it is one rack for all nodes, or 3"):
        racks(text)


def test_the_directory_of_one_node_is_none_for_several(tmp_path: Path) -> None:
    """They would share its metadata, stay registered there, and find no partition of it."""
    (tmp_path / "meta.properties").touch()
    with pytest.raises(ConfigError, match="is the data directory of one node, and --nodes 3 needs one of its own"):
        plan_nodes(load_config(environment={}, flags=[("--data-dir", "data.dir", str(tmp_path))]), 3)


def test_what_tells_a_nodes_directory_is_the_file_that_a_node_makes() -> None:
    assert node_folders._NODE_FILE == META_FILE


def test_one_node_is_not_started_on_the_directory_of_several(tmp_path: Path) -> None:
    """It said that its directory is empty, and how to make all of its partitions again without records."""
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / META_FILE).touch()
    command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ServeExit.DATA_FOLDER
    assert "has the nodes of a cluster on this machine: start it with --nodes" in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["node-1"], "nothing was written"


def test_the_loss_of_one_node_is_accepted_by_that_node_alone_and_its_command_is_shown(tmp_path: Path) -> None:
    url = "postgresql+psycopg://semel:hunter2@127.0.0.1:1/semel"
    command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--nodes", "3", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--metadata", url, "--accept-data-loss"], capture_output=True, text=True, check=False
    )
    assert done.returncode == ServeExit.CONFIGURATION
    said = " ".join(done.stderr.split())
    assert "are for one node" in said
    assert f"--set node.id=3 --set data.dir={tmp_path}/node-3" in said
    assert "hunter2" not in said
    assert not list(tmp_path.iterdir())


def test_listeners_with_names_are_looked_at_for_ports_that_meet() -> None:
    items = "internal=127.0.0.1:9392,external=127.0.0.1:9402?advertised=log1.example.com:19092"
    loaded = load_config(environment={}, flags=[("--kafka", "kafka.listeners", items)])
    with pytest.raises(ConfigError, match=r"kafka.listeners internal of node 2 and kafka.listeners external of node 1"):
        plan_nodes(loaded, 2)


@pytest.mark.parametrize(
    ("kafka", "grpc", "clash"),
    [
        ("127.0.0.1:9392", "127.0.0.1:9402", "kafka.listen of node 2 and grpc.listen of node 1 .* 127.0.0.1:9402"),
        ("127.0.0.1:9392", "127.0.0.1:9372", "grpc.listen of node 3 and kafka.listen of node 1 .* 127.0.0.1:9392"),
        ("127.0.0.1:9392", "127.0.0.1:9422", ""),
        ("127.0.0.1:0", "127.0.0.1:0", ""),
        ("127.0.0.1:9392", "127.0.0.2:9402", ""),
    ],
)
def test_ports_that_meet_when_they_are_counted_up_are_refused(kafka: str, grpc: str, clash: str) -> None:
    flags = [("--kafka", "kafka.listen", kafka), ("--grpc", "grpc.listen", grpc)]
    loaded = load_config(environment={}, flags=flags)
    if not clash:
        assert len(plan_nodes(loaded, 3)) == 3
        return
    with pytest.raises(ConfigError, match=clash):
        plan_nodes(loaded, 3)


def test_listeners_with_names_are_counted_up_for_each_node() -> None:
    items = "internal=127.0.0.1:9092,external=127.0.0.1:0?advertised=log1.example.com:19092"
    flags = [("--kafka", "kafka.listeners", items), ("--set", "grpc.advertised", "log1.example.com:9094")]
    second = plan_nodes(load_config(environment={}, flags=flags), 2)[1].settings
    assert second["kafka.listeners"] == (
        "internal=127.0.0.1:9102,external=127.0.0.1:0?advertised=log1.example.com:19102"
    )
    assert "kafka.listen" not in second
    assert (second["grpc.listen"], second["grpc.advertised"]) == ("127.0.0.1:9104", "log1.example.com:9104")
