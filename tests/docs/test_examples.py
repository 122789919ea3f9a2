"""The blocks of code in the pages: Python compiles, TOML and JSON can be read, commands and their options exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from semel.broker.config.node_config import SETTINGS, TOPIC_SETTINGS
from semel.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STARTED = re.compile(r"\s*(?:timeout .*? )?(semel\s.*)")
WORDS_OF_THE_SHELL = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "2>>", "<"}


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """Yield the blocks of a page in one of the languages, each with its line."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        if block[1] in languages:
            yield text[: block.start()].count("\n") + 1, block[2]


def commands_of(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each `semel ...` of the shell in a page, with its line: from blocks, and from code inside of lines."""
    for line, block in blocks(page, "console", "sh", "bash"):
        text = block.replace("\\\n", " ")
        for entered in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
            for part in re.split(r"[|;&]+|\(|\)|<<'\w+'", entered.split(" #")[0]):
                if (found := STARTED.match(part)) is not None:
                    words = shlex.split(found[1])
                    end = next((at for at, word in enumerate(words) if word in WORDS_OF_THE_SHELL), len(words))
                    yield line, words[1:end]
    prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())
    for found in re.finditer(r"`semel ([a-z][^`\n]*)`", prose):
        yield prose[: found.start()].count("\n") + 1, shlex.split(found[1])


@cache
def root_command() -> tuple[Any, Any]:
    command: Any = get_command(app)
    return command, command.make_context("semel", [], resilient_parsing=True)


def wrong_in(words: list[str]) -> str:
    """What of a command line the program does not have; empty: nothing."""
    command, context = root_command()
    words = list(words)
    while hasattr(command, "list_commands") and words and not words[0].startswith("-"):
        if not words[0].islower() or "|" in words[0]:
            return ""  # `semel COMMAND`, `semel txn list|describe`
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return f"no command {name!r}"
        command, context = found, found.make_context(name, [], parent=context, resilient_parsing=True)
    options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in options]
    return f"no option {unknown[0]!r}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_code_can_be_read(page: Path) -> None:
    for line, code in blocks(page, "python"):
        compile(code, f"{page}:{line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for _, code in blocks(page, "toml"):
        tomllib.loads(code)
    for _, code in blocks(page, "json"):
        json.loads(code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    wrong = [(line, words, found) for line, words in commands_of(page) if (found := wrong_in(words))]
    assert not wrong


OF_OTHERS = {
    "beam.md": {"io.confluent"},
    "flink.md": {"execution.checkpointing.interval", "transaction.timeout.ms"},
    "kafka-streams.md": {
        "application.server",
        "bootstrap.servers",
        "commit.interval.ms",
        "session.timeout.ms",
        "state.dir",
        "task.timeout.ms",
        "transaction.timeout.ms",
    },
}
"""Settings of other programs that a page names."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_of_the_node_that_are_named_exist(page: Path) -> None:
    """What is given with --set, and the pages that were made for this documentation in whole.

    The settings in the page about Kafka Connect are Connect's: `compat/connect/` runs it with them.
    """
    named = re.findall(r"--set[ =]([a-z][\w.]*)=", page.read_text())
    if (page.parent.name == "how-to" and page.name != "kafka-connect.md") or page.name == "guarantee.md":
        named += re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", page.read_text())
    metrics = set(re.findall(r"`(semel(?:\.[a-z]+)+)`", (ROOT / "docs" / "metrics.md").read_text()))
    modules = {"semel.testing", "semel.sql", "semel.aio", "semel.arrow"}
    known = SETTINGS.keys() | TOPIC_SETTINGS.keys() | metrics | modules
    assert set(named) <= known | OF_OTHERS.get(page.name, set())


def test_the_check_itself_finds_what_is_not_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Say `semel topic forget it`.\n\n```console\n$ seq 9 | semel produce a --fast > b  # c\n$ ls -l\n```\n"
    )
    assert list(commands_of(page)) == [(3, ["produce", "a", "--fast"]), (1, ["topic", "forget", "it"])]
    assert wrong_in(["produce", "a", "--fast"]) == "no option '--fast'"
    assert wrong_in(["topic", "forget", "it"]) == "no command 'forget'"
    assert wrong_in(["topic", "create", "orders", "--partitions", "6"]) == ""
