"""What the commands share: the address to talk to, tables and JSON, errors, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import wraps
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import typer

from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.wording import counted as counted

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """What the command's exit code says."""

    OK = 0
    REFUSED = 1
    """The node refused, or what was asked for is not there."""
    USAGE = 2
    """The command line is wrong."""
    UNREACHABLE = 3
    """No answer in time: the node is not there, or is not ready. Trying again may help."""
    FENCED = 4
    """Another instance has taken this one's place."""
    INTERRUPTED = 130


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="SEMEL_BOOTSTRAP",
        metavar="HOST:PORT",
        help="The gRPC address of a node.",
        show_default=True,
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9094"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, a document or a line each.")]


OFFLINE: Final = "offline"
_NAMED_MAX: Final = 10

HEADER_BASE64: Final = "base64"
"""In JSON, a header's value that is no text is an object of this one field."""


def fails_well(function: Callable[P, R]) -> Callable[P, R]:
    """Turn what the library raises into one line on standard error and an exit code."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()
            return result
        except UsageError as error:
            raise fail(str(error), ExitCode.USAGE) from error
        except RetriableError as error:
            code = ExitCode.REFUSED if error.code in _NOT_THERE else ExitCode.UNREACHABLE
            raise fail(str(error), code) from error
        except SemelError as error:
            raise fail(str(error), ExitCode.REFUSED) from error
        except BrokenPipeError:  # whoever reads has seen enough
            _drop_output()
            raise typer.Exit(ExitCode.OK) from None
        except OSError as error:
            _drop_output()
            raise fail(f"failed: {error}", ExitCode.REFUSED) from error
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return wrapped


def _drop_output() -> None:
    """Or the interpreter tries once more at its end, and prints what it thinks of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def fail(message: str, code: ExitCode) -> typer.Exit:
    """Say what went wrong on standard error, and return the exit to raise."""
    print(f"semel: {message}", file=sys.stderr)
    return typer.Exit(code)


def command_here(text: str, bootstrap: str) -> str:
    """Return a command that is shown, as it is to be given here: with the address, where it is not taken anyway."""
    is_offline = text.startswith(("semel serve ", "semel log "))
    if is_offline or bootstrap == os.environ.get("SEMEL_BOOTSTRAP", DEFAULT_BOOTSTRAP):
        return text
    return f"{text} --bootstrap {shlex.quote(bootstrap)}"


def print_json(value: object) -> None:
    """Print one JSON document on a line."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, whole: bool = False) -> None:
    """Print a table for people; `empty` says what it means that there is nothing in it.

    whole: whether no cell is broken into lines, however narrow the terminal is: for names that people copy
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in NUMERIC_COLUMNS else "left", overflow="fold")
    count = 0
    width = 0
    for row in rows:
        if whole:
            width = max(width, sum(len(str(cell)) + 20 for cell in row))
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
        count += 1
    if not count:
        print(empty)
        return
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.width = max(console.width, width)
    with console.capture() as shown:  # printed by rich itself, a pipe that is closed early would be an error
        console.print(table)
    print(shown.get(), end="")


NUMERIC_COLUMNS = frozenset(
    {"partitions", "partition", "start", "end", "records", "lag", "offset", "committed", "epoch", "leader", "members"}
    | {"producer id", "generation", "timeout ms", "open for"}
)


def state_of(error: SemelError) -> str:
    """Return the word that a table shows for a partition whose offsets can't be read."""
    if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
        return OFFLINE
    return "unknown" if error.code is None else error.code.name


def fail_for_partitions(errors: Mapping[TopicPartition, SemelError], bootstrap: str) -> None:
    """Say which partitions could not be asked, after the others were shown. Raises the exit where there are any."""
    if not errors:
        return
    named = ", ".join(f"{tp} is {state_of(error)}" for tp, error in rows_of(errors)[:_NAMED_MAX])
    more = f", and {len(errors) - _NAMED_MAX} more" if len(errors) > _NAMED_MAX else ""
    doctor = command_here("semel doctor", bootstrap)
    raise fail(f"{named}{more}. `{doctor}` says why, and what to do", ExitCode.REFUSED)


def parse_pairs(pairs: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Return NAME=VALUE options in their order, repeated names included. Raises `UsageError`."""
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} takes NAME=VALUE, not {pair!r}")
        found.append((name, value))
    return found


def parse_settings(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping. Raises `UsageError`, also for two values of one name."""
    found: dict[str, str] = {}
    for name, value in parse_pairs(pairs, option):
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option} gives {name} twice: {found[name]} and {value}")
    return found


def parse_partition(text: str) -> TopicPartition:
    """Return TOPIC:PARTITION as a partition. Raises `UsageError`."""
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not number.isdecimal():
        raise UsageError(f"a partition is TOPIC:NUMBER, for example orders:0, not {text!r}")
    return TopicPartition(topic, int(number))


def rows_of(mapping: Mapping[TopicPartition, Any]) -> list[tuple[TopicPartition, Any]]:
    """Return a mapping by partition in the order of topics and partition numbers."""
    return sorted(mapping.items())
