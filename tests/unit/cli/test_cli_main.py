"""The list of commands: quick to print, and true to the commands' own help."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from semel.cli.main import COMMANDS, SUMMARIES, app


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
    heavy = [name for name in sys.modules if name.startswith(("grpc", "google.protobuf", "semel.sdk", "sqlalchemy"))]
    assert not heavy, (path, heavy)
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=60)
