"""The list of commands: quick to print, and true to the commands' own help."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from typing import Any

import made_parts
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from semel.cli.commands import COMMANDS, SUMMARIES
from semel.cli.main import app


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_each_command_says_of_itself(name: str) -> None:
    command = get_command(importlib.import_module(COMMANDS[name]).app)
    assert command.help is not None
    assert " ".join(command.help.split("\n\n")[0].split()) == SUMMARIES[name]


def test_the_list_is_printed_without_loading_the_commands() -> None:
    code = """
import sys
from semel.cli.main import main
sys.argv = ["semel", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
assert not [name for name in sys.modules if name.startswith(("grpc", "semel.sdk", "semel.broker", "sqlalchemy"))]
"""
    shown = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert all(name in shown.stdout for name in COMMANDS)


def paths() -> list[tuple[str, ...]]:
    """Every command and subcommand there is."""
    found: list[tuple[str, ...]] = [()]
    for name, module in COMMANDS.items():
        found.append((name,))
        command = get_command(importlib.import_module(module).app)
        found += [(name, each) for each in getattr(command, "commands", {})]
    return found


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage: " in result.stdout
    is_group = not path or (len(path) == 1 and any(len(one) == 2 and one[0] == path[0] for one in paths()))
    if not is_group:
        assert f"semel {' '.join(path)} " in result.stdout.partition("Example")[2], "no example"


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_examples_stand_on_a_line_each_however_narrow_the_terminal(path: tuple[str, ...], width: int) -> None:
    """One was wrapped between an option and its value: it could not be copied."""
    command: Any = get_command(app)
    for name in path:
        command = command.get_command(None, name)
    if hasattr(command, "commands") or not path:
        return
    examples = [line.strip() for line in command.epilog.partition("\b\n")[2].splitlines()]
    assert all("semel" in line for line in examples)
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=width, env={"COLUMNS": str(width)}).stdout
    assert [line.strip() for line in shown.splitlines()][-len(examples) :] == examples


def test_the_page_of_commands_has_the_examples_unwrapped_and_no_marks() -> None:
    page = made_parts.commands()
    assert "\b" not in page
    assert "```text\nready: kafka HOST:PORT grpc HOST:PORT data DIR\n```" in page
    assert "\n$ semel topic create orders --partitions 6 --config retention.ms=86400000\n" in page


def test_no_command_has_an_option_whose_value_is_not_named_in_its_help() -> None:
    """`--compression <str>` said nothing of what it takes."""
    unnamed = []
    for path in paths():
        command: Any = get_command(app)
        for name in path:
            command = command.get_command(None, name)
        for parameter in getattr(command, "params", []):
            record = parameter.get_help_record(typer.Context(command))
            if record is None or parameter.param_type_name != "option":
                continue
            if re.search(r"<(str|int|float|path)|<list.(str|int)", record[0].lower()):
                unnamed.append((" ".join(path), record[0]))
    assert not unnamed


def test_help_loaded_grpc_and_the_client_library() -> None:
    """Half a second went into modules that a help text does not need."""
    code = f"""
import sys
from semel.cli.main import main
for path in {paths()!r}:
    sys.argv = ["semel", *path, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (path, end.code)
    ours = ("grpc", "google.protobuf", "semel.sdk", "sqlalchemy", "rich.")
    heavy = [name for name in sys.modules if name.startswith(ours)]
    assert not heavy, (path, heavy)
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=60)
