"""The `semel` command. The modules of its subcommands are imported only when they are used."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from semel.cli.commands import COMMANDS, EPILOG, PROGRAM, SUMMARIES


class _Commands(TyperGroup):
    """Imports a command's module when it is asked for, so that `semel serve` does not load what it does not use."""

    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def summary(self, name: str) -> str:
        return SUMMARIES[name]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        if self._is_listing:
            return TyperCommand(cmd_name, help=SUMMARIES[cmd_name])
        command = get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,  # `semel completion` is ours, and knows topics and groups
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=PROGRAM,
    epilog=EPILOG,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from semel import __version__

        print(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def _semel(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    """Typer makes a group of an app that has a callback."""


def main() -> None:
    """Run the command line."""
    # What gRPC writes to standard error on its own is said by our own messages, in words that help.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app(prog_name="semel")
