"""`semel cluster status`: what it makes of the facts of nodes, and of a node that runs."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doctor_cluster_facts import BEHIND, T1, WHOLE, cut_off, three
from doctor_facts import GIB, HEALTHY_DISK
from live_node import LiveNode
from running_node import SMALL
from typer.testing import CliRunner, Result

import semel.testing
from semel.cli import cluster as command
from semel.cli.main import app
from semel.protocol.api.diagnostics import (
    NodeFacts,
    NodeSnapshot,
    OfflinePartition,
    RemoteTopic,
    RemoteUse,
    ReplicaFacts,
    Thresholds,
)
from semel.protocol.ids import NO_LEADER
from semel.protocol.wording import partition_argument
from semel.sdk.diagnosis.cluster_state import FENCED, STOPPING, UNREACHABLE, UP, NodeState, state_of_cluster
from semel.sdk.diagnosis.findings import Cluster
from semel.sdk.diagnosis.remote_costs import Prices
from semel.sdk.diagnosis.rules import diagnose

ADDRESSES = {number: f"log{number}:9094" for number in (1, 2, 3)}


def facts(nodes: tuple[NodeSnapshot, ...] | None = None, unreachable: dict[int, str] | None = None) -> Cluster:
    return Cluster(three() if nodes is None else nodes, unreachable or {}, ADDRESSES)


def status(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, *arguments: str) -> Result:
    @contextmanager
    def admin(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(diagnose=lambda: diagnose(cluster, Thresholds()))

    monkeypatch.setattr(command, "open_admin", admin)
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner().invoke(app, ["cluster", "status", *arguments])


def test_a_whole_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = status(monkeypatch, facts())
    assert shown.exit_code == 0, shown.output
    header, first, second, *_ = shown.output.splitlines()
    assert header.split() == ["node", "address", "state", "role", "leads", "behind", "version", "free"]
    assert first.split()[:4] == ["1", "log1:9094", "up", "controller"]
    assert second.split()[:4] == ["2", "log2:9094", "up", "4"], "no role, and what it leads"
    assert "all partitions have a leader" in shown.output
    assert "doctor" not in shown.output


def test_a_node_that_is_away_and_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = three(
        nodes=(NodeFacts(1), NodeFacts(2), NodeFacts(3, is_fenced=True)), replication=(BEHIND,), replication_total=1
    )
    shown = status(monkeypatch, facts(nodes[:2], {3: "connection refused"}))
    assert shown.exit_code == 1
    third = next(line for line in shown.output.splitlines() if line.lstrip().startswith("3 "))
    assert third.split() == ["3", "log3:9094", "fenced", "-", "-", "-", "-"]
    assert "connection refused" in shown.output
    assert "1 partition not whole:" in shown.output
    assert f" {partition_argument(T1)} " in shown.output
    assert "node 3 (lacks 40 records)" in shown.output
    assert "node-unreachable: " in shown.output
    assert "explained: semel doctor" in shown.output


def test_more_partitions_than_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(replace(BEHIND, partition=T1._replace(partition=number)) for number in range(5))
    shown = status(monkeypatch, facts(three(replication=many, replication_total=70)), "--limit", "2")
    assert "70 partitions not whole:" in shown.output
    assert "... and 68 more (--limit)" in shown.output
    assert sum(line.strip().startswith("orders:") for line in shown.output.splitlines()) == 2


def test_moves_under_way_and_throttles_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = facts(three(moving_total=2, throttled_topics=("orders",)))
    shown = status(monkeypatch, moving)
    assert shown.exit_code == 0, "nothing is wrong"
    assert "2 partitions are being moved, throttled: `semel partition moves` shows how far" in shown.output
    told = json.loads(status(monkeypatch, moving, "--json").output)
    assert (told["partitions_moving_total"], told["throttled_topics"]) == (2, ["orders"])
    one = status(monkeypatch, facts(three(moving_total=1))).output
    assert "1 partition is being moved: `semel" in one


def test_nothing_is_claimed_while_the_metadata_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    old = facts(cut_off(three()))
    shown = status(monkeypatch, old)
    assert shown.exit_code == 1
    assert "all partitions have a leader" not in shown.output
    assert "this is how it was 20.0 s ago, when it was last reached\nall partitions had a leader" in shown.output
    assert "metadata-away: nodes 1, 2 and 3 have not reached" in shown.output
    told = json.loads(status(monkeypatch, old, "--json").output)
    assert (told["whole"], told["metadata_away_ms"]) == (False, 20_000)
    assert told["next"][0]["kind"] == "metadata-away"


def test_what_a_silent_node_leads_is_told_while_nobody_elects_another(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = three(nodes=(NodeFacts(1, leads=4), NodeFacts(2, leads=4), NodeFacts(3, leads=4)))[:2]
    shown = status(monkeypatch, facts(cut_off(nodes), {3: "connection refused"}))
    assert shown.exit_code == 1
    assert "4 partitions are led by node 3, which does not answer" in shown.output
    assert shown.output.index("metadata-away: ") < shown.output.index("node-unreachable: ")
    told = json.loads(status(monkeypatch, facts(cut_off(nodes), {3: "connection refused"}), "--json").output)
    assert told["partitions_led_by_silent_nodes"] == {"3": 4}
    healed = status(monkeypatch, facts(nodes, {3: "connection refused"}))
    assert "led by node 3" not in healed.output, "others take over"


def test_every_kind_of_error_is_shown_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(HEALTHY_DISK, write_error="No space left on device", free_bytes=1)
    tps = [T1._replace(partition=number) for number in range(5)]
    offline = tuple(OfflinePartition(tp, "the disk failed") for tp in tps)
    shown = status(monkeypatch, facts(three(disk=broken, offline=offline, offline_total=5, throttled_topics=("t",))))
    assert shown.exit_code == 1
    assert shown.output.count("\npartition-offline: ") == 3
    for said in ("... and 2 more: partition-offline", "writes-failing: ", "disk-full: "):
        assert said in shown.output
    assert "throttle-left" not in shown.output, "warnings only where errors leave room"
    assert "3 more findings, and all of them explained: semel doctor" in shown.output
    full = facts(three(disk=replace(HEALTHY_DISK, free_bytes=1)))
    assert json.loads(status(monkeypatch, full, "--json").output)["whole"] is False


def test_warnings_of_other_sections_are_left_to_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = status(monkeypatch, facts(three(disk=replace(HEALTHY_DISK, free_bytes=5 * GIB))))
    assert (shown.exit_code, "disk-filling" in shown.output) == (0, False)


DAY_MS = 86_400_000
USE = RemoteUse(
    since_ms=0, puts=3_000, gets=2_000, deletes=7, lists=0, sent_bytes=3 * GIB, read_bytes=GIB,
    stored_objects=5, stored_bytes=100 * GIB,
    topics=(RemoteTopic("orders", 4, 90 * GIB), RemoteTopic("a", 1, 10 * GIB)), topics_total=2,
)  # fmt: skip


def with_remote(*uses: RemoteUse) -> Cluster:
    """Facts of nodes that were started a day, two days and so on before."""
    nodes = [
        replace(node, remote_storage="s3://bucket/semel", remote_use=replace(use, since_ms=node.now_ms - days * DAY_MS))
        for days, (node, use) in enumerate(zip(three(), uses, strict=False), 1)
    ]
    return facts((*nodes, *three()[len(nodes) :]))


def test_what_the_remote_storage_holds_and_about_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    second = replace(USE, topics=(RemoteTopic("orders", 1, GIB),), topics_total=1, stored_objects=1, stored_bytes=GIB)
    cluster = with_remote(USE, second)
    shown = status(monkeypatch, cluster)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    at = lines.index("remote storage s3://bucket/semel: 101.0 GiB in 6 objects")
    assert lines[at + 1].split() == ["node", "for", "puts", "gets", "deletes", "lists", "sent", "read", "stored"]
    first = "1 24 h 0 min 3,000 2,000 7 0 3.0 GiB 1.0 GiB 100.0 GiB"
    assert lines[at + 2].split() == first.split()
    assert lines[at + 3].split()[:5] == ["2", "2", "d", "0", "h"]
    assert lines[at + 6].split() == ["orders", "5", "91.0", "GiB", "2.09"]
    assert lines[at + 7].split() == ["a", "1", "10.0", "GiB", "0.23"]
    assert (
        "about 3.03 a month (USD): 2.32 for what is stored, 0.68 for 135,000 puts, 0.04 for 90,000 gets, 0.00 for "
        "45.0 GiB that are read" in shown.output
    )
    assert "an estimate: 30 days with the requests at their present rate since each node's start" in shown.output
    assert "it says little yet" not in shown.output
    told = json.loads(status(monkeypatch, cluster, "--json").output)["remote_storage"]
    assert told["nodes"][1]["for_ms"] == 2 * DAY_MS
    assert [one["topic"] for one in told["topics"]] == ["orders", "a"]
    assert told["estimate_per_month"]["cost"] == pytest.approx(101 * 0.023 + 135 * 0.005 + 90 * 0.0004)
    assert told["estimate_per_month"]["prices"] == {
        "per_gib_month": 0.023, "per_1000_puts": 0.005, "per_1000_gets": 0.0004, "per_gib_read": 0.0,
    }  # fmt: skip


def test_other_prices_and_a_bounded_list_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = with_remote(replace(USE, topics_total=9))
    prices = ["--price-per-gib-month", "1", "--price-per-1000-puts", "2", "--price-per-1000-gets", "3"]
    shown = status(monkeypatch, cut, *prices, "--price-per-gib-read", "0.5", "--limit", "1").output
    assert "about 475.00 a month (in the currency of the prices): 100.00 for what is stored, 180.00 for" in shown
    assert "15.00 for 30.0 GiB that are read" in shown
    assert "... and 1 more at least (--limit)" in shown
    assert not any(line.startswith("a ") for line in shown.splitlines())
    assert json.loads(status(monkeypatch, cut, "--json").output)["remote_storage"]["all_topics"] is False
    assert status(monkeypatch, cut, "--price-per-gib-month", "-1").exit_code == 2


def test_an_estimate_of_a_node_that_has_just_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    node = three()[0]
    young = replace(node, remote_storage="s3://b", remote_use=replace(USE, since_ms=node.now_ms))
    assert "it says little yet: a node was started less than a day ago" in status(monkeypatch, facts((young,))).output


def test_a_directory_has_no_price_but_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    node = replace(three()[0], remote_storage="file:///mnt/segments", remote_use=USE)
    shown = status(monkeypatch, facts((node,))).output
    assert "a directory has no price" in shown
    assert "an estimate:" not in shown
    told = json.loads(status(monkeypatch, facts((node,)), "--json").output)["remote_storage"]
    assert (told["estimate_per_month"], told["topics"][0]["storage_cost_per_month"]) == (None, None)
    assert "an estimate:" in status(monkeypatch, facts((node,)), "--price-per-gib-month", "0.01").output


def test_nothing_is_said_where_no_node_has_a_remote_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "remote storage" not in status(monkeypatch, facts()).output
    assert json.loads(status(monkeypatch, facts(), "--json").output)["remote_storage"] is None


def test_the_default_prices_are_those_that_are_called_so() -> None:
    values = inspect.signature(command.status).parameters
    names = ("price_per_gib_month", "price_per_1000_puts", "price_per_1000_gets", "price_per_gib_read")
    assert Prices(*(values[name].default for name in names)) == Prices()


@pytest.mark.timeout(600)
def test_nodes_whose_database_is_away_say_so() -> None:
    with semel.testing.Cluster(3, broker_session_timeout_ms=3_000) as cluster:
        status_once(cluster.bootstrap, lambda shown: shown.exit_code == 0)
        cluster.cut_off_from_metadata()
        told = "metadata-away: nodes 1, 2 and 3 have not reached"  # on a busy machine one may be too late to answer
        shown = status_once(cluster.bootstrap, lambda shown: told in shown.output)
        assert shown.exit_code == 1
        assert "this is how it was" in shown.output
        cluster.heal()
        status_once(cluster.bootstrap, lambda shown: shown.exit_code == 0)


def status_once(bootstrap: str, is_so: Callable[[Result], bool]) -> Result:
    """Return what the command says as soon as it is so, within a minute."""
    deadline = time.monotonic() + 60.0
    while True:
        shown = CliRunner().invoke(app, ["cluster", "status", "--bootstrap", bootstrap])
        if is_so(shown):
            return shown
        assert time.monotonic() < deadline, shown.output
        time.sleep(0.2)


@pytest.mark.parametrize("limit", ["0", "-1", "many", "1001"])
def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    shown = status(monkeypatch, facts(), "--limit", limit)
    assert shown.exit_code == 2
    assert "--limit" in shown.output


def test_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(2,))
    shown = status(monkeypatch, facts(three(replication=(lost,), replication_total=1)), "--json")
    assert shown.exit_code == 1
    told = json.loads(shown.output)
    assert (told["whole"], told["controller"]) == (False, 1)
    assert told["nodes"][1]["metadata_behind"] == 1
    assert told["partitions_behind"] == [
        {
            "topic": "orders",
            "partition": 1,
            "leader": None,
            "replicas": [1, 2, 3],
            "in_sync": [],
            "lacks": {"1": None, "2": None, "3": None},
        }
    ]
    assert told["next"][0]["kind"] == "partition-leaderless"
    assert told["next"][0]["commands"] == ["semel topic describe orders"]


def test_states_of_nodes() -> None:
    nodes = three(nodes=(NodeFacts(1), NodeFacts(2, is_stopping=True), NodeFacts(3), NodeFacts(4)))
    state = state_of_cluster(Cluster(nodes[:2], {3: "timed out"}, ADDRESSES))
    assert [node.state for node in state.nodes] == [UP, STOPPING, UNREACHABLE, UNREACHABLE]
    assert state.nodes[2] == NodeState(3, "log3:9094", UNREACHABLE, "timed out")
    assert "not known" in state.nodes[3].reason
    assert not state.is_whole
    fenced = state_of_cluster(facts(three(nodes=(NodeFacts(1), NodeFacts(2), NodeFacts(3, is_fenced=True)))))
    assert [node.state for node in fenced.nodes] == [UP, UP, FENCED]


def test_what_a_replica_lacks_is_the_word_of_its_leader() -> None:
    """The node with the newest metadata may lead other partitions."""
    led = replace(BEHIND, leader=2, missing=())
    first, second, third = three(replication=(led,), replication_total=1)
    second = replace(second, replication=(replace(led, missing=(ReplicaFacts(3, 7),)),))
    (one,) = state_of_cluster(facts((first, second, third))).behind
    assert one.lacks == {3: 7}
    silent = replace(second, replication=(replace(led, missing=(ReplicaFacts(3, -1),)),))
    assert state_of_cluster(facts((first, silent, third))).behind[0].lacks == {3: None}


def test_one_node_alone(tmp_path: Path) -> None:
    with LiveNode(tmp_path, **{**SMALL, "remote_storage_url": f"file://{tmp_path}/objects"}) as node:
        shown = CliRunner().invoke(app, ["cluster", "status", "--bootstrap", node.bootstrap])
        assert shown.exit_code == 0, shown.output
        assert shown.output.splitlines()[1].split()[:4] == ["1", "-", "up", "controller"]
        assert f"\nremote storage file://{tmp_path}/objects: 0 B in 0 objects\n" in shown.output
    shown = CliRunner().invoke(app, ["cluster", "status", "--bootstrap", node.bootstrap])
    assert shown.exit_code == 3
