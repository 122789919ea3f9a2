"""Commands that ask before they act: an answer may be piped, and without one and a terminal they name --yes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import semel.cli
from semel.cli.common import ExitCode
from semel.cli.main import app

NOWHERE = "127.0.0.1:1"
NOBODY = "semel: nobody answers, because standard input is no terminal: --yes continues without asking\n"
REMOVE = ["node", "remove", "2"]


def run(stdin: str, *arguments: str) -> tuple[int, str]:
    """Return the exit code, and what is on standard error."""
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", NOWHERE], input=stdin)
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        REMOVE,
        ["group", "delete", "g"],
        ["partition", "elect", "--all", "--unclean"],
        ["txn", "abort", "load"],
        ["txn", "abort", "--partition", "t:0", "--start-offset", "1"],
    ],
)
def test_without_an_answer_and_a_terminal_the_command_line_is_wrong(arguments: list[str]) -> None:
    assert run("", *arguments) == (ExitCode.USAGE, NOBODY)
    assert run("n\n", *arguments) == (1, "Aborted!\n")
    assert run("\n", *arguments) == (1, "Aborted!\n"), "the default is no"


def test_the_answer_may_be_piped() -> None:
    assert run("y\n", *REMOVE)[0] == ExitCode.UNREACHABLE, "it went on"
    assert run("", *REMOVE, "--yes")[0] == ExitCode.UNREACHABLE


def test_standard_input_may_be_closed() -> None:
    shown = subprocess.run(
        ["sh", "-c", 'exec "$0" -P -m semel.cli "$@" <&-', sys.executable, *REMOVE, "--bootstrap", NOWHERE],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (ExitCode.USAGE, "", NOBODY)


def test_who_ends_the_input_of_a_terminal_has_declined() -> None:
    terminal, other_end = pty.openpty()
    try:
        os.write(terminal, b"\x04")
        shown = subprocess.run(
            [sys.executable, "-P", "-m", "semel.cli", *REMOVE, "--bootstrap", NOWHERE],
            stdin=other_end,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(terminal)
        os.close(other_end)
    assert (shown.returncode, shown.stderr) == (1, "Aborted!\n")


def test_all_commands_ask_in_this_way() -> None:
    folder = Path(semel.cli.__file__).parent
    asking = [path.name for path in sorted(folder.rglob("*.py")) if "typer.confirm" in path.read_text()]
    assert asking == ["common.py"]
