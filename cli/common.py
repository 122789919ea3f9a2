"""What the commands share: the address to talk to, tables and JSON, errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import wraps
from typing import Annotated, Any, ClassVar, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

import semel
from semel.cli.signals import Terminated
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.schemes import hidden_password
from semel.protocol.wording import counted as counted
from semel.protocol.wording import partition_argument

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """What the command's exit code says."""

    OK = 0
    REFUSED = 1
    """The node refused, or what was asked for does not exist."""
    USAGE = 2
    """The command line is wrong."""
    UNREACHABLE = 3
    """No answer in time: the node is not running, or not ready. Trying again may help."""
    FENCED = 4
    """Another instance has taken this one's place."""
    INTERRUPTED = 130
    """SIGINT (Ctrl-C)."""
    TERMINATED = 143
    """SIGTERM."""


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="SEMEL_BOOTSTRAP",
        metavar="HOST:PORT",
        help="The address of a node: its gRPC port (9094) or its Kafka port (9092). "
        "tls://HOST:PORT?ssl.ca.location=FILE encrypts.",
        show_default=True,
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9094"

CONNECT_TIMEOUT_MS: Final = 3_000
"""How long a command tries to reach a node: a person waits, and the address is more likely wrong than the node away."""

DURATION: Final = "DURATION"
"""The metavar of options that `parse_duration` reads."""
DURATION_HELP: Final = "For example 90s, 5m, 500ms or 1h; a plain number is seconds."
DURATION_MAX_S: Final = 36_500 * 86_400
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_UNITS_S)})?")
RATE: Final = "BYTES/S"
"""The metavar of options that `parse_rate` reads."""
_DECIMAL_UNITS: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS_BYTES: Final = {**_DECIMAL_UNITS, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_RATE: Final = re.compile(rf"([0-9]{{1,19}}(?:\.[0-9]{{1,9}})?)\s*({'|'.join(_UNITS_BYTES)})?(?:/s)?")


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


HELP_WIDTH_MAX: Final = 100

OFFLINE: Final = "offline"
_NAMED_MAX: Final = 10

HEADER_BASE64: Final = "base64"
"""In JSON, a header's value that is no text is an object of this one field."""


def command_app(help_text: str | None = None, *, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Return the app of a command, or of a group of them. Its help is plain text: loading rich takes 0.1 s."""
    return typer.Typer(
        cls=cls,
        help=help_text,
        add_completion=False,
        no_args_is_help=help_text is not None,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": HELP_WIDTH_MAX},
    )


def examples(*commands: str, exit_codes: str = "") -> str:
    """Return what stands below a command's help: each example on a line of its own, however narrow the terminal."""
    said = f"Exit codes: {exit_codes}.\n\n" if exit_codes else ""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"{said}{'Example' if len(commands) == 1 else 'Examples'}:\n\n\b\n{lines}"


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
        except BrokenPipeError:  # the reader has seen enough
            _drop_output()
            raise typer.Exit(ExitCode.OK) from None
        except OSError as error:
            _drop_output()
            raise fail(f"failed: {error}", ExitCode.REFUSED) from error
        except Terminated:
            raise typer.Exit(ExitCode.TERMINATED) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return wrapped


def _drop_output() -> None:
    """Or the interpreter tries to write it again at its end, and prints an error of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def fail(message: str, code: ExitCode) -> typer.Exit:
    """Say what went wrong on standard error, and return the exit to raise."""
    print(f"semel: {message}", file=sys.stderr)
    return typer.Exit(code)


def command_here(text: str, bootstrap: str) -> str:
    """Return a command that is shown, as it is to be given here: with the address, where it is not taken anyway."""
    needs_none = text.startswith(("semel serve ", "semel log ")) or " --bootstrap " in text
    if needs_none or bootstrap == os.environ.get("SEMEL_BOOTSTRAP", DEFAULT_BOOTSTRAP):
        return text
    return f"{text} --bootstrap {shlex.quote(hidden_password(bootstrap))}"


class RenamedCommands(TyperGroup):
    """A group of commands some of which had other names: those work for one more version, and are in no list."""

    old_names: ClassVar[Mapping[str, str]] = {}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        new = self.old_names.get(cmd_name)
        if new is None:
            return super().get_command(ctx, cmd_name)
        print(
            f"semel: `semel {self.name} {cmd_name}` is called `semel {self.name} {new}` now; the next version has no "
            f"`{cmd_name}`",
            file=sys.stderr,
        )
        return super().get_command(ctx, new)


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
        table.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
        count += 1
    if not count:
        print(empty)
        return
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.width = max(console.width, width)
    with console.capture() as shown:  # printed by rich itself, a pipe that is closed early would be an error
        console.print(table)
    print(shown.get(), end="")


def printable(text: str) -> str:
    """Return a text with escapes in place of what is not printed: names come from clients, and a terminal obeys some.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


NUMERIC_COLUMNS = frozenset(
    {
        "partitions",
        "partition",
        "old",
        "new",
        "start",
        "end",
        "records",
        "lag",
        "offset",
        "committed",
        "epoch",
        "leader",
        "members",
    }
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
    named = ", ".join(f"{partition_argument(tp)} is {state_of(error)}" for tp, error in rows_of(errors)[:_NAMED_MAX])
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


def parse_duration(text: str, option: str) -> float:
    """Return a duration in seconds, of text such as 90s, 5m, 500ms, 1h or 2d. Raises `UsageError`.

    >>> parse_duration("1.5h", "--timeout"), parse_duration("500ms", "--timeout"), parse_duration("90", "--timeout")
    (5400.0, 0.5, 90.0)
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"{option} takes a duration such as 90s, 5m, 500ms or 1h, not {text!r}")
    seconds = float(found[1]) * _UNITS_S[found[2] or "s"]
    if seconds > DURATION_MAX_S:
        raise UsageError(f"{option} takes 100 years (36500d) at most, not {text}")
    return seconds


def parse_rate(text: str, option: str) -> int:
    """Return bytes per second, of text such as 50MB/s, 512KiB/s or 1000000. Raises `UsageError`.

    >>> parse_rate("50MB/s", "--throttle"), parse_rate("1.5KiB", "--throttle"), parse_rate("1000", "--throttle")
    (50000000, 1536, 1000)
    """
    found = _RATE.fullmatch(text.strip().lower())
    rate = 0 if found is None else round(float(found[1]) * _UNITS_BYTES[found[2] or "b"])
    if not 0 < rate <= INT64_MAX:
        raise UsageError(f"{option} takes bytes per second, such as 50MB/s, 512KiB/s or 1000000, not {text!r}")
    return rate


def parse_partition(text: str) -> TopicPartition:
    """Return TOPIC:PARTITION as a partition. Raises `UsageError`."""
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not number.isdecimal():
        name, _, last = text.rpartition("-")  # as directories of partitions are named, and logs write them
        example = f"{name}:{last}" if name and last.isdecimal() else "orders:0"
        raise UsageError(f"a partition is TOPIC:NUMBER, for example {example}, not {text!r}")
    return TopicPartition(topic, int(number))


def rows_of(mapping: Mapping[TopicPartition, Any]) -> list[tuple[TopicPartition, Any]]:
    """Return a mapping by partition in the order of topics and partition numbers."""
    return sorted(mapping.items())


def open_admin(bootstrap: str, client_id: str = "semel") -> semel.Admin:
    """Return an admin client that soon says that there is no node."""
    return semel.Admin(bootstrap, client_id=client_id, connect_timeout_ms=CONNECT_TIMEOUT_MS)


def confirm(question: str, *, err: bool = False) -> None:
    """Ask whether to go on, and raise the exit where the answer is not yes.

    err: whether the question is on standard error, because standard output is for programs

    The answer may be piped. Where there is none, and nobody to give one (in cron for instance), the command line lacks
    --yes.
    """
    if sys.stdin is not None:
        try:
            typer.confirm(question, abort=True, err=err)
            return
        except typer.Abort as abort:
            if not isinstance(abort.__context__, EOFError) or sys.stdin.isatty():
                raise
        print(file=sys.stderr if err else sys.stdout)  # the question ends without one
    raise fail("nobody answers, because standard input is no terminal: --yes continues without asking", ExitCode.USAGE)


def delete_when_sure(
    what: str, delete: Callable[[semel.Admin], object], bootstrap: str, *, done: str, yes: bool
) -> None:
    """Ask whether `what` is to be deleted, unless that was said; delete it, and say that it is done."""
    if not yes:
        confirm(f"Delete {what}?")
    with open_admin(bootstrap) as admin:
        delete(admin)
    print(done)
