"""Options that are durations: one form for all, with units, and errors that show an example."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

import semel
from semel.cli.common import DURATION, parse_duration
from semel.cli.main import app
from semel.protocol.errors import UsageError
from semel.testing import Broker

OPTIONS = {
    ("cluster balance", "--measure"): ("cluster", "balance"),
    ("bench consume", "--duration"): ("bench", "consume"),
    ("bench end-to-end", "--duration"): ("bench", "end-to-end"),
    ("bench produce", "--duration"): ("bench", "produce"),
    ("bench transactions", "--duration"): ("bench", "transactions"),
    ("consume", "--timeout"): ("consume", "t", "--partition", "0"),
    ("doctor", "--slow-after"): ("doctor",),
    ("doctor", "--lag-after"): ("doctor",),
    ("health", "--timeout"): ("health",),
    ("token create", "--max-life"): ("token", "create"),
    ("token expire", "--after"): ("token", "expire", "id"),
    ("token renew", "--for"): ("token", "renew", "id"),
    ("top", "--every"): ("top",),
    ("txn list", "--longer-than"): ("txn", "list"),
    **{
        (f"{group} list", "--watch"): (group, "list")
        for group in ("acl", "group", "node", "quota", "token", "topic", "txn", "user")
    },
    ("cluster status", "--watch"): ("cluster", "status"),
    ("group describe", "--watch"): ("group", "describe", "g"),
    ("partition moves", "--watch"): ("partition", "moves"),
    ("topic describe", "--watch"): ("topic", "describe", "t"),
}


def run(*arguments: str, bootstrap: str = "127.0.0.1:1") -> Result:
    return CliRunner().invoke(app, list(arguments), env={"SEMEL_BOOTSTRAP": bootstrap})


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(command, "list_commands"):
        for each in command.list_commands(None):
            yield from commands(command.get_command(None, each), f"{name} {each}".strip())
    else:
        yield name, command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("500ms", 0.5), ("1h", 3600), ("2d", 172_800), ("90", 90), ("0", 0), ("1.5 H", 5400)],
)
def test_a_duration_has_a_unit_or_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text, "--timeout") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "-1", "1e9", "nan", "m", "1m30s", "1_000", "٣s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    expected = rf"--timeout takes a duration such as 90s, 5m, 500ms or 1h, not {re.escape(repr(text))}"
    with pytest.raises(UsageError, match=expected):
        parse_duration(text, "--timeout")


def test_a_duration_beyond_all_clocks_is_refused() -> None:
    assert parse_duration("36500d", "--timeout") == 36_500 * 86_400
    with pytest.raises(UsageError, match="--timeout takes 100 years"):
        parse_duration("9" * 400, "--timeout")


def test_all_options_of_waits_are_durations() -> None:
    found: dict[tuple[str, str], Any] = {}
    for name, command in commands(typer.main.get_command(app)):
        for parameter in command.params:
            words = "" if getattr(parameter, "is_flag", False) else " ".join(parameter.opts)
            if parameter.metavar == DURATION or re.search("timeout|after|longer|wait|interval", words):
                found[name, parameter.opts[0]] = parameter
    assert found.keys() == OPTIONS.keys()
    for parameter in found.values():
        assert parameter.metavar == DURATION


@pytest.mark.parametrize(("command", "option"), list(OPTIONS))
def test_each_refuses_what_is_none_and_shows_an_example_in_its_help(command: str, option: str) -> None:
    done = run(*OPTIONS[command, option], option, "soon")
    assert done.exit_code == 2
    assert done.stderr == f"semel: {option} takes a duration such as 90s, 5m, 500ms or 1h, not 'soon'\n"
    shown = " ".join(run(*command.split(), "--help").stdout.split())
    assert "90s, 5m" in shown


def test_transactions_open_for_longer_are_listed_by_the_same_durations() -> None:
    with Broker() as node, semel.Producer(node.bootstrap, transactional_id="slow") as producer:
        node.create_topic("orders")
        producer.begin_transaction()
        producer.send("orders", b"x").result(30)
        begun = time.monotonic()
        while "slow" not in run("txn", "list", "--longer-than", "200ms", bootstrap=node.bootstrap).stdout:
            assert time.monotonic() - begun < 60
        for text in ("1h", "3600s", "999"):
            done = run("txn", "list", "--longer-than", text, bootstrap=node.bootstrap)
            assert (done.stdout, done.stderr) == ("no transactions\n", ""), text
        done = run("txn", "list", "--longer-than", "60000", bootstrap=node.bootstrap)
        assert done.stdout == "no transactions\n"
        assert "--longer-than 60000 is 16 h 40 min: a plain number is seconds" in done.stderr
        assert "write 60000ms" in done.stderr
        producer.abort_transaction()
