"""Completion in shells: what a word can become, and the scripts in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import semel
from semel.cli.commands import COMMANDS
from semel.cli.completion.candidates import DIRECTORIES, FILES, candidates
from semel.cli.completion.node_names import names_of
from semel.cli.main import app
from semel.testing import Broker

NAMES = {"TOPIC": ["orders", "outbox", "other"], "GROUP": ["audit", "enrich"], "TOPIC:PARTITION": ["orders:0"]}


def completed(*words: str) -> list[str]:
    return [found.word for found in candidates(get_command(app), words, lambda kind, _: NAMES.get(kind, []))]


def test_commands_are_completed_with_what_they_do() -> None:
    assert completed("") == list(COMMANDS)
    assert completed("top") == ["topic", "top"]
    assert completed("topic", "de") == ["describe", "delete-records", "delete"]
    (found,) = candidates(get_command(app), ["txn", "fin"], lambda *_: [])
    assert found.help == "Finish a transaction that blocks readers and that nothing else will finish"
    assert completed("nonsense", "") == []


def test_options_are_completed_with_what_they_do() -> None:
    assert completed("consume", "orders", "--s") == ["--since", "--skip-unreadable"]
    (found,) = candidates(get_command(app), ["consume", "--max"], lambda *_: [])
    assert found.help == "End after this many records"
    assert "--no-compare" in completed("demo", "--")
    assert completed("--v") == ["--version"]
    assert completed("completion", "bash", "--wo") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("consume", "--isolation", ""), ["read_committed", "read_uncommitted"]),
        (("consume", "--isolation=read_u"), ["--isolation=read_uncommitted"]),
        (("consume", "--format", ""), ["value", "keyed", "json"]),
        (("doctor", "--section", "p"), ["partitions", "permissions"]),
        (("serve", "--log-format", ""), ["text", "json"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("consume", "or"), ["orders"]),
        (("consume", "orders", "o"), ["orders", "outbox", "other"]),
        (("consume", "--json", "o"), ["orders", "outbox", "other"]),
        (("consume", "--max", "3", "--group", "a"), ["audit"]),
        (("consume", "--max", "a"), []),
        (("group", "describe", ""), ["audit", "enrich"]),
        (("group", "describe", "audit", ""), []),
        (("topic", "delete-records", "o"), ["orders:0"]),
        (("topic", "create", "o"), []),
        (("produce", "o"), ["orders", "outbox", "other"]),
        (("produce", "orders", ""), [FILES]),
        (("produce", "orders", "a.txt", ""), [FILES]),
        (("produce", "orders", "--", "--s"), [FILES]),
        (("log", "verify", ""), [DIRECTORIES]),
        (("serve", "--config", ""), [FILES]),
    ],
    ids=lambda value: " ".join(value),
)
def test_values_are_completed_by_what_they_are(words: Sequence[str], expected: list[str]) -> None:
    assert completed(*words) == expected


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (("consume", "-b", "one:1", ""), "one:1"),
        (("consume", "--bootstrap=two:2", ""), "two:2"),
        (("consume", "--bootstrap", "three:3", "x", ""), "three:3"),
        (("consume", ""), "default:0"),
    ],
)
def test_names_are_asked_where_the_command_would_ask(words: Sequence[str], address: str) -> None:
    asked = []
    candidates(get_command(app), words, lambda kind, where: asked.append((kind, where)) or [], "default:0")
    assert asked == [("TOPIC", address)]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=2)
            admin.create_topic("other")
        yield node.bootstrap


def test_names_come_from_the_node(bootstrap: str) -> None:
    with semel.Consumer(bootstrap, group="readers") as consumer:
        place = semel.TopicPartition("orders", 0)
        consumer.assign([place])
        consumer.commit({place: 0})
    with semel.Producer(bootstrap, transactional_id="enrich-0") as producer:
        producer.init_transactions()
    assert names_of("TOPIC", bootstrap) == ["orders", "other"]
    assert names_of("TOPIC:PARTITION", bootstrap)[:2] == ["orders:0", "orders:1"]
    assert names_of("GROUP", bootstrap) == ["readers"]
    assert names_of("NAME", bootstrap) == ["enrich-0"]
    assert names_of("NAME=VALUE", bootstrap) == []


def test_a_node_that_is_not_there_gives_no_names_and_no_word() -> None:
    result = CliRunner().invoke(
        app, ["completion", "bash", "--", "semel", "consume", ""], env={"SEMEL_BOOTSTRAP": "127.0.0.1:1"}
    )
    assert (result.exit_code, result.output) == (0, "")
    assert names_of("TOPIC", "no address at all") == []


# in the shells


BASH = """
source <(semel completion bash)
complete -p semel >&2
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
compopt() {{ echo "compopt $*"; }}
_semel_completion
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "semel completion fish | source; complete -C '{line}'"
ZSH = """
compdef() {{ : }}
source <(semel completion zsh)
_describe() {{ print -l -- "${{(@)${{(P)2}}%%:*}}" }}
_files() {{ print -- "files $*" }}
words=({words}); CURRENT=${{#words}}
_semel
"""


def in_shell(shell: str, script: str, bootstrap: str, folder: Path) -> list[str]:
    """Return the lines that a script prints in a shell which finds `semel`."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = folder / "semel"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m semel.cli "$@"\n')
    command.chmod(0o755)
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, *options, "-c", script],
        env={**os.environ, "PATH": path, "SEMEL_BOOTSTRAP": bootstrap, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("semel topic desc", ["describe"]),
        ("semel topic describe ord", ["orders"]),
        ("semel consume orders --isolation = read_c", ["read_committed"]),
        ("semel topic delete-records orders :", ["0", "1"]),
        ("semel topic delete-records orders : 1", ["1"]),
        ("semel topic delete-records ord", ["orders:0", "orders:1"]),
        ("semel log verify ''", ["compopt -o dirnames", ""]),
        ("semel produce orders ''", ["compopt -o default", ""]),
    ],
)
def test_bash_completes(bootstrap: str, tmp_path: Path, words: str, expected: list[str]) -> None:
    assert in_shell("bash", BASH.format(words=words), bootstrap, tmp_path) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("semel topic desc", ["describe"]),
        ("semel topic describe ord", ["orders"]),
        ("semel produce orders ''", ["files "]),
        ("semel log verify ''", ["files -/"]),
    ],
)
def test_zsh_completes(bootstrap: str, tmp_path: Path, words: str, expected: list[str]) -> None:
    assert in_shell("zsh", ZSH.format(words=words), bootstrap, tmp_path) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("semel topic desc", ["describe"]),
        ("semel topic describe ord", ["orders"]),
        ("semel topic delete-records ord", ["orders:0", "orders:1"]),
    ],
)
def test_fish_completes(bootstrap: str, tmp_path: Path, line: str, expected: list[str]) -> None:
    found = in_shell("fish", FISH.format(line=line), bootstrap, tmp_path)
    assert [each.split("\t")[0] for each in found] == expected
