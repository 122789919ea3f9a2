"""A cluster of processes gets a node more, loses another, and is balanced by commands, while a program works on it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lasting_writer import LastingWriter
from node_processes import NodeProcesses, node_processes, wait_for
from typer.testing import CliRunner, Result

import semel
from semel.cli.main import app
from semel.sdk.balancing.throttling import RATES, REPLICAS

pytestmark = pytest.mark.timeout(600)
TOPIC, PARTITIONS = "orders", 6


@contextmanager
def running(folder: Path, count: int) -> Iterator[NodeProcesses]:
    settings = {"broker.session.timeout.ms": 3_000, "controller.lease.ms": 3_000}
    with node_processes(folder, count, **settings) as nodes:
        with semel.Admin(nodes.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=2)
        yield nodes


@pytest.fixture
def three(tmp_path: Path) -> Iterator[NodeProcesses]:
    with running(tmp_path / "cluster", 3) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with running(tmp_path_factory.mktemp("cluster"), 4) as nodes:
        yield nodes


@pytest.fixture
def nodes(four: NodeProcesses) -> NodeProcesses:
    """Four, all of which run before each test, and nothing is being moved, whatever became of the test before."""
    for node_id in {1, 2, 3, 4}.difference(four.running):
        four.start(node_id)
    succeeds(four, "partition", "cancel", "--all")
    succeeds(four, "partition", "moves", "--remove-throttle")
    wait_for(lambda: not moved_now(four), "nothing is being moved")
    return four


def command(nodes: NodeProcesses, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "--bootstrap", nodes.bootstrap])


def succeeds(nodes: NodeProcesses, *arguments: str) -> str:
    result = command(nodes, *arguments)
    assert result.exit_code == 0, result.output + result.stderr
    return result.stdout


def listed(nodes: NodeProcesses) -> dict[int, dict[str, Any]]:
    return {one["node_id"]: one for one in json.loads(succeeds(nodes, "node", "list", "--json"))}


def moved_now(nodes: NodeProcesses) -> set[int]:
    """Return the partitions that are being moved."""
    return {one["partition"] for one in json.loads(succeeds(nodes, "partition", "moves", "--json"))["moves"]}


def replicas(nodes: NodeProcesses) -> dict[int, tuple[int, ...]]:
    with semel.Admin(nodes.bootstrap) as admin:
        return {one.partition: one.replicas for one in admin.topic(TOPIC).partitions}


@pytest.mark.drawn(1, "clusters that change")
def test_E1_a_node_comes_and_one_goes_while_transactions_are_written(three: NodeProcesses) -> None:
    """The fourth node gets its share; the second is emptied, stopped and removed; nothing is lost or there twice."""
    nodes = three
    writer = LastingWriter(nodes.bootstrap, TOPIC, PARTITIONS)
    with writer.working():
        writer.wait_for_more()
        nodes.start(4)
        wait_for(lambda: 4 in listed(nodes), "the fourth node is registered")
        dry = json.loads(succeeds(nodes, "cluster", "balance", "--dry-run", "--json"))
        assert any(4 in one["to"] for one in dry["moves"]), "it would get some"
        assert listed(nodes)[4]["replicas"] == 0, "nothing is moved yet"
        assert "moved" in command(nodes, "cluster", "balance", "--yes", "--at-once", "3").stderr
        assert listed(nodes)[4]["replicas"] > 0
        again = json.loads(succeeds(nodes, "cluster", "balance", "--dry-run", "--json"))
        assert again["moves"] == [], "a balanced cluster stays as it is"
        writer.wait_for_more()

        early = command(nodes, "node", "remove", "2", "--yes")
        assert (early.exit_code, "semel node drain 2" in early.stderr) == (1, True)
        assert "node 2 has no replicas" in succeeds(nodes, "node", "drain", "2", "--yes")
        wait_for(lambda: all(2 not in has for has in replicas(nodes).values()), "each node knows of it")
        assert (listed(nodes)[2]["replicas"], listed(nodes)[2]["cordoned"]) == (0, True)
        assert "it is alive" in command(nodes, "node", "remove", "2", "--yes").stderr
        nodes.stop(2)
        wait_for(lambda: not listed(nodes)[2]["alive"], "the others know that it has left")
        assert "node 2 is removed" in succeeds(nodes, "node", "remove", "2", "--yes")
        assert sorted(listed(nodes)) == [1, 3, 4]
        writer.wait_for_more()
    writer.assert_all_is_there_once(nodes.bootstrap)
    nodes.start(2)
    wait_for(lambda: listed(nodes).get(2, {}).get("cordoned") is False, "it is a new node, and not cordoned")


@pytest.mark.drawn(3, "moves of partitions")
def test_partitions_are_moved_by_name_and_what_is_wrong_is_said(nodes: NodeProcesses) -> None:
    assert "1 partition is on 3, 1" in succeeds(nodes, "partition", "move", f"{TOPIC}:0", "--to", "3,1")
    wait_for(lambda: replicas(nodes)[0] == (3, 1), "each node knows where it is")
    wait_for(lambda: nodes.leader(TOPIC, 0) == 3, "each node knows who leads")
    assert "nothing is being moved" in succeeds(nodes, "partition", "moves")
    for arguments, code, said in (
        (("move", f"{TOPIC}:0", "--to", "3,9"), 1, "name nodes of the cluster"),
        (("move", f"{TOPIC}:9", "--to", "3"), 1, "orders has the partitions 0 to 5"),
        (("move", "none:0", "--to", "3"), 1, "there is no topic"),
        (("move", f"{TOPIC}:0", "--to", "3,x"), 2, "--to takes the numbers of nodes"),
        (("cancel", f"{TOPIC}:0"), 1, "nothing of that is being moved"),
        (("cancel",), 2, "or give --all"),
        (("elect", f"{TOPIC}:0", "--all"), 2, f"--all is all partitions, and {TOPIC}:0 only these"),
    ):
        result = command(nodes, "partition", *arguments)
        assert (result.exit_code, said in result.stderr) == (code, True), (arguments, result.stderr)
    unknown = command(nodes, "node", "drain", "9", "--yes")
    assert (unknown.exit_code, "there is no node 9" in unknown.stderr) == (1, True)


@pytest.mark.drawn(3, "moves of partitions")
def test_a_move_to_a_node_that_is_away_is_begun_listed_and_cancelled(nodes: NodeProcesses) -> None:
    succeeds(nodes, "partition", "move", f"{TOPIC}:1", "--to", "1,3")
    nodes.kill(4)
    assert "1 move begun" in succeeds(nodes, "partition", "move", f"{TOPIC}:1", "--to", "1,4", "--no-wait")
    (moving,) = json.loads(succeeds(nodes, "partition", "moves", "--json"))["moves"]
    assert (moving["adding"], moving["removing"]) == ([4], [3])
    assert "1 move cancelled" in succeeds(nodes, "partition", "cancel", "--all")
    wait_for(lambda: sorted(replicas(nodes)[1]) == [1, 3], "each node knows of it")
    assert "0 moves cancelled" in succeeds(nodes, "partition", "cancel", "--all")
    nodes.start(4)


def throttles(nodes: NodeProcesses) -> dict[str, str]:
    """Return what is set of throttles, by who has it and the setting's name."""
    with semel.Admin(nodes.bootstrap) as admin:
        alive = [one.node_id for one in admin.nodes() if one.is_alive]
        entries = [(f"node {one}", admin.node_configs(one, RATES)) for one in alive]
        entries.append((TOPIC, admin.topic_configs(TOPIC, REPLICAS)))
        return {
            f"{whose}: {one.name}": one.value for whose, found in entries for one in found if one.source != "DEFAULT"
        }


@contextmanager
def started(nodes: NodeProcesses, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command as a process of its own, ended at the latest where this is left."""
    command = [sys.executable, "-P", "-m", "semel.cli", *arguments, "--bootstrap", nodes.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.drawn(3, "moves of partitions")
def test_a_throttle_is_set_for_the_moves_and_gone_when_they_are_complete(nodes: NodeProcesses) -> None:
    succeeds(nodes, "partition", "move", f"{TOPIC}:3", "--to", "1,2")
    with semel.Producer(nodes.bootstrap) as producer:
        for _ in range(30):  # several fetches: each is followed by a wait
            producer.send(TOPIC, b"v" * 200_000, partition=3)
    move = ("partition", "move", f"{TOPIC}:3", "--to", "1,3", "--throttle")
    expected = {f"node {node}: {name}": "1000" for node in (1, 2, 3) for name in RATES}
    expected |= {f"{TOPIC}: {REPLICAS[0]}": "3:1,3:2", f"{TOPIC}: {REPLICAS[1]}": "3:3"}
    with started(nodes, *move, "1KB/s") as slow:
        wait_for(lambda: throttles(nodes) == expected, "the throttle is set")
        wait_for(lambda: 3 in moved_now(nodes), "the move has begun")
        assert "1 partition is on 1, 3" in succeeds(nodes, *move, "5MB/s"), "the same again, and more of it"
        out, err = slow.communicate(timeout=90)
    assert (slow.returncode, b"1 partition is on 1, 3" in out) == (0, True), err
    wait_for(lambda: throttles(nodes) == {}, "each node knows that it is gone")
    refused = command(nodes, "partition", "move", f"{TOPIC}:3", "--to", "1,9", "--throttle", "1MB/s")
    assert (refused.exit_code, "name nodes of the cluster" in refused.stderr) == (1, True)
    wait_for(lambda: throttles(nodes) == {}, "each node knows that it is gone")
    wrong = command(nodes, "partition", "move", f"{TOPIC}:3", "--to", "1,2", "--throttle", "fast")
    assert (wrong.exit_code, "--throttle takes bytes per second, such as 50MB/s" in wrong.stderr) == (2, True)


@pytest.mark.drawn(3, "moves of partitions")
@pytest.mark.parametrize("way", ["cancel", "remove"])
def test_an_interrupted_command_says_that_its_throttle_stays_and_how_it_is_removed(
    nodes: NodeProcesses, way: str
) -> None:
    succeeds(nodes, "partition", "move", f"{TOPIC}:4", "--to", "1,2")
    nodes.kill(4)
    nodes.wait_replaced(4)
    with started(nodes, "partition", "move", f"{TOPIC}:4", "--to", "1,4", "--throttle", "5MB/s") as moving:
        wait_for(lambda: 4 in moved_now(nodes), "the move has begun")
        moving.send_signal(signal.SIGINT)
        _, said = moving.communicate(timeout=90)
    assert moving.returncode == 130
    assert b"what has begun continues" in said
    assert b"the throttle stays" in said
    assert b"semel partition moves --remove-throttle --bootstrap" in said
    wait_for(lambda: throttles(nodes).get(f"node 1: {RATES[0]}") == "5000000", "each node knows of the throttle")
    listed_moves = command(nodes, "partition", "moves")
    assert "node 1 is throttled: leader.replication.throttled.rate=5000000" in listed_moves.stderr
    if way == "remove":
        assert (
            "throttles of 2 nodes and 1 topic removed"
            in command(nodes, "partition", "moves", "--remove-throttle").stderr
        )
        wait_for(lambda: throttles(nodes) == {}, "it is gone, though the move continues")
    assert "1 move cancelled" in succeeds(nodes, "partition", "cancel", "--all")
    wait_for(lambda: throttles(nodes) == {}, "each node knows that it is gone")
    nodes.start(4)


@pytest.mark.drawn(3, "moves of partitions")
def test_the_preferred_replicas_lead_again_after_a_node_was_away(nodes: NodeProcesses) -> None:
    succeeds(nodes, "partition", "move", f"{TOPIC}:2", "--to", "3,1")
    nodes.kill(3)
    nodes.wait_replaced(3)
    wait_for(lambda: nodes.leader(TOPIC, 2) == 1, "the other replica leads")
    nodes.start(3)
    wait_for(lambda: command(nodes, "cluster", "status").exit_code == 0, "all replicas are in sync again")
    assert "leaders elected" in succeeds(nodes, "partition", "elect", "--all").replace("1 leader ", "1 leaders ")
    wait_for(lambda: nodes.leader(TOPIC, 2) == 3, "each node knows who leads")
    assert "nothing to elect: it is led by" in succeeds(nodes, "partition", "elect", f"{TOPIC}:2")
    asked = command(nodes, "partition", "elect", f"{TOPIC}:2", "--unclean")
    assert asked.exit_code != 0, "it asks first, and nobody answered"
