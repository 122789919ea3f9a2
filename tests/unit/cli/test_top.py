"""`semel top` and --watch: what they show, and that it is shown again until somebody ends it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from doctor_cluster_facts import BEHIND, three
from doctor_facts import GROUP, HELD, NOW, TXN
from live_node import LiveNode
from typer.testing import CliRunner

from semel.cli import live
from semel.cli.live import Screen, show_again, watchable
from semel.cli.main import app
from semel.cli.top import Look, print_look
from semel.protocol.api.diagnostics import NodeSnapshot, Thresholds
from semel.protocol.errors import RetriableError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes
from semel.sdk.admin.rates import Flow, node_flows, topic_flows, topic_sizes
from semel.sdk.diagnosis.findings import Cluster
from semel.sdk.diagnosis.rules import diagnose

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
KIB = 1 << 10


def replicas(*nodes: Mapping[TopicPartition, tuple[int, int]], missing: int = 0) -> ReplicasOfNodes:
    """What each node has: (size, bytes sent to consumers) by partition. missing: a node that does not answer."""
    there = {
        number: NodeReplicas(
            number, {tp: size for tp, (size, _) in here.items()}, 100, 50, {tp: sent for tp, (_, sent) in here.items()}
        )
        for number, here in enumerate(nodes, 1)
        if number != missing
    }
    return ReplicasOfNodes(there, {missing: "away"} if missing else {})


# --- How fast -------------------------------------------------------------------------------------------------------


def test_each_record_of_a_topic_counts_once_and_of_a_node_what_its_disk_took() -> None:
    before = replicas({A: (100, 10), C: (50, 0)}, {A: (90, 0)})
    after = replicas({A: (300, 110), C: (50, 40)}, {A: (300, 0)})
    assert topic_flows(before, after, 2.0) == {"a": Flow(100.0, 50.0), "b": Flow(0.0, 20.0)}
    assert node_flows(before, after, 2.0) == {1: Flow(100.0, 70.0), 2: Flow(105.0, 0.0)}
    assert topic_sizes(after) == {"a": 300, "b": 50}


def test_what_was_deleted_or_is_new_and_counts_that_begin_again_are_no_traffic_that_there_was_not() -> None:
    before = replicas({A: (1_000, 500)})
    after = replicas({A: (10, 20), B: (700, 0)})
    assert topic_flows(before, after, 1.0) == {"a": Flow(0.0, 20.0)}
    assert node_flows(before, after, 1.0) == {1: Flow(0.0, 20.0)}


def test_nothing_is_known_of_a_node_that_was_away() -> None:
    before, after = replicas({A: (1, 1)}, {B: (1, 1)}, missing=2), replicas({A: (2, 2)}, {B: (9, 9)})
    assert node_flows(before, after, 1.0) == {1: Flow(1.0, 1.0)}
    assert topic_flows(before, after, 1.0) == {"a": Flow(1.0, 1.0)}


# --- What is shown --------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], nodes: tuple[NodeSnapshot, ...], limit: int = 8) -> str:
    found = diagnose(Cluster(nodes, {}, {number: f"log{number}:9094" for number in (1, 2, 3)}), Thresholds())
    before = Look(10.0, found, replicas({A: (0, 0), C: (1 << 20, 0)}, {A: (0, 0)}))
    now = Look(12.0, found, replicas({A: (64 * KIB, 0), C: (1 << 20, 128 * KIB)}, {A: (64 * KIB, 0)}))
    print_look(before, now, limit, "127.0.0.1:9094")
    return capsys.readouterr().out


def rows(text: str, first_word: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first_word]]


def test_a_cluster_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    group = replace(GROUP, lag=1_500, worst=A, worst_lag=1_200)
    node = {"groups": (group,), "groups_total": 1, "transactions": (TXN,), "transactions_total": 1}
    text = shown(capsys, three(**node, held=(replace(HELD, since_ms=NOW - 90_000),), held_total=1))
    assert "3 of 3 nodes up, all partitions whole; written 32.0 KiB/s, sent 64.0 KiB/s" in text.splitlines()[0]
    assert rows(text, "1")[0][:7] == ["1", "up", "4", "32.0", "KiB/s", "64.0", "KiB/s"]
    assert rows(text, "3")[0][:5] == ["3", "up", "4", "-", "-"]
    assert rows(text, "b") == [["b", "0", "B/s", "64.0", "KiB/s", "1.0", "MiB"]]
    assert text.index("\nb ") < text.index("\na "), "what has the most traffic comes first"
    assert rows(text, "readers") == [["readers", "Stable", "2", "1,500", "a:0", "(1,200)"]]
    assert rows(text, "enrich-0") == [["enrich-0", "Ongoing", "5.0", "s", "1"]]
    assert rows(text, "orders:0") == [["orders:0", "20", "1", "min", "30", "s", "7"]]


def test_what_is_wrong_is_one_line_that_names_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = three(replication=(BEHIND,), replication_total=1)
    text = shown(capsys, (replace(first, disk=replace(first.disk, write_error="I/O error")), second, third))
    assert "1 partition not whole" in text.splitlines()[0]
    assert text.splitlines()[1].startswith("error: ")
    assert text.splitlines()[1].endswith(": semel doctor")


def test_names_of_clients_are_no_commands_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, three(transactions=(replace(TXN, transactional_id="\x1b[31mred\nrow\u202e"),)))
    assert rows(text, r"\x1b[31mred\nrow\u202e") == [[r"\x1b[31mred\nrow\u202e", "Ongoing", "5.0", "s", "1"]]


def test_long_lists_say_how_much_they_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    transactions = tuple(replace(TXN, transactional_id=f"t{number}", start_ms=NOW - number) for number in range(30))
    text = shown(capsys, three(transactions=transactions, transactions_total=700), limit=2)
    assert "transactions: 700, the first 2" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith("t2")] == ["t29", "t28"]


# --- Again and again ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("no_pause")
def test_what_fails_is_said_and_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise RetriableError("no node answers")
        print(f"look {looks}")

    show_again(look, 1.0, 3)
    assert capsys.readouterr() == ("look 1\n\nlook 3\n", "semel: no node answers (it is tried again)\n")


@pytest.mark.usefixtures("no_pause")
def test_the_exit_code_is_that_of_the_last_one() -> None:
    codes = iter((0, 1, 0, 1))

    def look() -> None:
        raise typer.Exit(next(codes))

    show_again(look, 1.0, 3)
    with pytest.raises(typer.Exit) as ended:
        show_again(look, 1.0, 1)
    assert ended.value.exit_code == 1


def test_what_can_not_get_better_ends_it() -> None:
    def look() -> None:
        raise UsageError("no such thing")

    with pytest.raises(UsageError):
        show_again(look, 1.0)


@pytest.mark.parametrize(("option", "value"), [("--every", "1ms"), ("--every", "soon")])
def test_a_wrong_pause_is_refused(option: str, value: str) -> None:
    found = CliRunner().invoke(app, ["top", option, value])
    assert found.exit_code == 2
    assert option in found.stderr


def test_a_command_keeps_its_options_and_gets_one_more() -> None:
    asked: list[tuple[int, bool]] = []

    @watchable
    def command(number: int, as_json: bool = False) -> None:
        asked.append((number, as_json))

    command(7, as_json=True)
    command(8)
    assert asked == [(7, True), (8, False)]
    with pytest.raises(UsageError, match=r"--watch must be at least 0\.2s"):
        command(9, watch="0.1s")


def test_a_terminal_is_never_asked_to_show_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: written.append(text))
    monkeypatch.setattr(live.shutil, "get_terminal_size", lambda: os.terminal_size((80, 5)))
    screen = Screen()
    screen._is_terminal = True
    screen.show("\n".join(map(str, range(20))) + "\n")
    (text,) = written
    assert text.count("\n") == 4
    assert "16 lines more: make the window higher" in text


# --- On a node that runs --------------------------------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_is_shown_in_place_until_ctrl_c_and_the_terminal_is_as_before(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as node:
        for arguments in (["top", "--every", "200ms"], ["topic", "list", "--internal", "--watch", "200ms"]):
            ours, theirs = pty.openpty()
            running = subprocess.Popen(
                [sys.executable, "-P", "-m", "semel.cli", *arguments, "--bootstrap", node.bootstrap],
                stdin=theirs, stdout=theirs, stderr=theirs,
            )  # fmt: skip
            os.close(theirs)
            output = bytearray()

            def looks(ours: int = ours, output: bytearray = output) -> int:
                output.extend(os.read(ours, 1 << 16))
                return output.count(live._HOME.encode())

            try:
                until(lambda looks=looks: looks() >= 3)  # type: ignore[misc]
                running.send_signal(signal.SIGINT)
                assert running.wait(60) == 0
                output.extend(os.read(ours, 1 << 16))
            finally:
                running.kill()
                running.wait()
                os.close(ours)
            assert output.startswith(live._ALTERNATE.encode())
            assert output.endswith(live._NORMAL.encode())


def test_once_for_a_script(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as node:
        found = CliRunner().invoke(app, ["top", "--count", "1", "--every", "200ms", "--bootstrap", node.bootstrap])
    assert found.exit_code == 0, found.output
    assert "1 of 1 node up, all partitions whole" in found.stdout
    away = CliRunner().invoke(app, ["top", "--count", "1", "--bootstrap", node.bootstrap])
    assert away.exit_code == 3
