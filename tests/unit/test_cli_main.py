"""The list of commands: quick to print, and true to the commands' own help."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from typer.main import get_command

from semel.cli.main import COMMANDS, SUMMARIES


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
