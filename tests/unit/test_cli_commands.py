"""The commands against a node, as a person at a terminal uses them: what they print, and what their exit codes say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_node import LiveNode
from typer.testing import CliRunner, Result

from semel.cli.common import ExitCode
from semel.cli.main import app
from semel.sdk.consumer import Consumer

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LiveNode(tmp_path_factory.mktemp("cli")) as node:
        yield node.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, env={"SEMEL_BOOTSTRAP": bootstrap})

    return run


def test_records_go_in_and_come_out(run: Run) -> None:
    assert run("topic", "create", "round", "--partitions", "2").stdout == "round has 2 partitions\n"
    sent = run("produce", "round", "--key-separator", ":", stdin="a:1\nb:2\nc:3\n")
    assert (sent.exit_code, sent.stderr) == (0, "sent 3 records to round\n")
    got = run("consume", "round", "--from-beginning", "--max", "3", "--json")
    assert {(one["key"], one["value"]) for one in map(json.loads, got.stdout.splitlines())} == {
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
    }


def test_binary_values_survive_json(run: Run) -> None:
    run("topic", "create", "binary", "--partitions", "1")
    run("produce", "binary", "--format", "json", stdin='{"value_base64": "/wA=", "headers": {"h": "x"}}\n')
    got = run("consume", "binary", "--from-beginning", "--max", "1", "--format", "json").stdout
    again = run("produce", "binary", "--format", "json", stdin=got)
    assert again.exit_code == 0, again.stderr
    assert json.loads(got)["value_base64"] == "/wA="


def test_input_that_breaks_off_says_how_far_it_got(run: Run) -> None:
    run("topic", "create", "broken", "--partitions", "1")
    plain = run("produce", "broken", "--key-separator", ":", stdin="a:1\nb:2\nnothing\n")
    assert plain.exit_code == ExitCode.USAGE
    assert plain.stderr == "2 records had been sent to broken before this:\nsemel: -:3: no ':' between key and value\n"
    whole = run("produce", "broken", "--key-separator", ":", "--transaction", "t", stdin="a:1\nnothing\n")
    assert whole.stderr.startswith("nothing was sent: the transaction is aborted\n")
    got = run("consume", "broken", "--from-beginning", "--timeout", "0.5")
    assert got.stdout == "1\n2\n"


def test_an_offset_that_is_not_there_is_refused(run: Run) -> None:
    run("topic", "create", "places", "--partitions", "1")
    run("produce", "places", stdin="a\nb\n")
    refused = run("consume", "places", "--partition", "0", "--offset", "77")
    assert refused.exit_code == ExitCode.REFUSED
    assert "77" in refused.stderr
    assert run("consume", "places", "--partition", "0", "--offset", "1", "--max", "1").stdout == "b\n"


def test_a_group_that_was_never_there_is_refused(run: Run) -> None:
    refused = run("group", "describe", "nobody")
    assert (refused.exit_code, refused.stdout) == (ExitCode.REFUSED, "")
    assert "there is no group 'nobody'" in refused.stderr


def test_a_group_is_listed_described_and_reset(run: Run) -> None:
    run("topic", "create", "grouped", "--partitions", "1")
    run("produce", "grouped", stdin="a\nb\n")
    run("consume", "grouped", "--group", "readers", "--from-beginning", "--max", "2")
    assert json.loads(run("group", "describe", "readers", "--json").stdout)["offsets"][0]["lag"] == 0
    assert "readers" in run("group", "list", "--state", "Empty").stdout
    run("group", "reset", "readers", "--to", "earliest", "--yes")
    assert json.loads(run("group", "describe", "readers", "--json").stdout)["offsets"][0]["lag"] == 2


def test_partitions_that_members_hold_and_have_not_committed_count_as_lag(run: Run, bootstrap: str) -> None:
    run("topic", "create", "held", "--partitions", "2")
    run("produce", "held", "--partition", "1", stdin="a\nb\nc\n")
    with Consumer(bootstrap, group="holders", topics=["held"]) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        found = json.loads(run("group", "describe", "holders", "--json").stdout)["offsets"]
        shown = run("group", "describe", "holders").stdout
    assert [(one["committed"], one["lag"]) for one in found] == [(-1, 0), (-1, 3)]
    assert "lag in all: 3" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "create", "t", "--partitions", "0"), "1 or more"),
        (("topic", "delete-records", "t", "--before", "1"), "orders:0"),
        (("group", "list", "--state", "Stabel"), "the states are Empty"),
        (("group", "reset", "g", "--to", "soon", "--partition", "t:0"), "ISO 8601"),
        (("produce", "t", "--header", "x"), "NAME=VALUE"),
        (("consume", "t", "--offset", "1"), "--partition"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(run: Run, arguments: tuple[str, ...], said: str) -> None:
    run("topic", "create", "t", "--partitions", "1")
    result = run(*arguments, stdin="")
    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_can_not_be_written_is_said_in_a_line(bootstrap: str) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-P", "-m", "semel.cli", "topic", "list", "--internal", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "SEMEL_BOOTSTRAP": bootstrap},
            timeout=60,
            check=False,
        )
    assert result.stderr == b"semel: failed: [Errno 28] No space left on device\n"
    assert result.returncode == ExitCode.REFUSED


def test_without_a_node_it_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["topic", "list"], env={"SEMEL_BOOTSTRAP": "127.0.0.1:1"})
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "Is the node running?" in result.stderr


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("semel ")
