"""The `semel` command: which subcommands there are, and where each lives, to be imported only when it is used."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "semel.cli.serve",
    "topic": "semel.cli.topic",
    "produce": "semel.cli.produce",
    "consume": "semel.cli.consume",
    "group": "semel.cli.group",
    "txn": "semel.cli.txn",
    "doctor": "semel.cli.doctor",
    "log": "semel.cli.log",
    "health": "semel.cli.health",
    "demo": "semel.cli.demo.command",
}
"""Each module has `app`, a `typer.Typer`: one command, or a group of them."""

SUMMARIES: Final[Mapping[str, str]] = {
    "serve": "Run a node until SIGTERM or SIGINT (Ctrl-C).",
    "topic": "Create, list, describe, grow, configure and delete topics.",
    "produce": "Send records. Ends when all of them are durable; prints how many there were on standard error.",
    "consume": "Print records as they come, until interrupted. With a group, what was printed is committed.",
    "group": "List groups, see how far they are behind, and move their offsets.",
    "txn": "See what transactions are open and what became of others, and end one that nobody else will.",
    "doctor": "Say what holds readers back, who is behind, and what endangers exactly-once, and what fixes it.",
    "log": "Read and check a node's data folder on the disk, without a node.",
    "health": "Ask a node whether it serves, once, and say so by the exit code: for containers and service managers.",
    "demo": "Run an exactly-once pipeline over real flights, killing its processes and the node all the while.",
}
"""What `semel --help` says of each, as the command's own help begins: so that it need not load them all."""


class _Commands(TyperGroup):
    """Imports a command's module when it is asked for, so that `semel serve` does not load what it does not use."""

    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

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
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Semel: a transactional log in Kafka's formats: each record is written, and takes effect, exactly once.",
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
