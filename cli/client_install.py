"""What `semel` says where only the clients are installed, and the packages of its commands are not."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from semel.cli.commands import COMMANDS, PROGRAM, SUMMARIES
from semel.protocol.extras import MissingExtraError, install_command

_HELP = ("--help", "-h")


def answer(arguments: Sequence[str], missing: MissingExtraError) -> int:
    """Say what to install, or what was asked for that needs nothing: help, and the version. Return the exit code."""
    command = next((argument for argument in arguments if argument in COMMANDS), None)
    if list(arguments) == ["--version"]:
        from importlib.metadata import version

        print(f"semel {version('semel')} (the client library alone)")
        return 0
    if not arguments or any(argument in _HELP for argument in arguments):
        print(_help(command), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    what = "" if command is None else f"`semel {command}` can't run: "
    print(f"semel: only the client library is installed; {what}{missing}", file=sys.stderr)
    return 2


def _help(command: str | None) -> str:
    install = f"  Only the client library is installed. To install {{}}, run:\n\n    {install_command('node')}"
    if command is not None:
        return f"Usage: semel {command}\n\n  {SUMMARIES[command]}\n\n" + install.format("this command and its options")
    width = max(map(len, SUMMARIES)) + 2
    lines = "\n".join(f"  {name:{width}}{summary}" for name, summary in SUMMARIES.items())
    options = "  --version  Print the version, and exit.\n  --help     Show this message and exit."
    return (
        f"Usage: semel [OPTIONS]\n\n  {PROGRAM}\n\n{install.format('the node and all commands')}\n\n"
        f"Options:\n{options}\n\nCommands (not installed):\n{lines}"
    )
