"""What a terminal shows again and again in the same place: `semel top`, and what is given --watch."""

from __future__ import annotations

import inspect
import io
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Annotated, Any, Final, ParamSpec

import typer

from semel.cli.common import DURATION, DURATION_HELP, ExitCode, parse_duration
from semel.cli.signals import Terminated, finishing_on_signals
from semel.protocol.errors import SemelError, UsageError

P = ParamSpec("P")

EVERY_S_MIN: Final = 0.2
_ALTERNATE, _NORMAL = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""To a screen of its own, without a cursor, where long lines are cut off; and back to what was there before."""
_HOME, _TO_THE_END_OF_THE_LINE, _TO_THE_END = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """Shows one text after the other: in place on a terminal, one below the other elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()

    def __enter__(self) -> Screen:
        if self._is_terminal:
            print(_ALTERNATE, end="", flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            print(_NORMAL, end="", flush=True)

    def show(self, text: str) -> None:
        """Show a text. What does not fit on a terminal is left out, and that is said."""
        if not self._is_terminal:
            print(text, end="" if text.endswith("\n") else "\n", flush=True)
            return
        lines = text.rstrip("\n").split("\n")
        height = shutil.get_terminal_size().lines
        if len(lines) > height:
            lines = [*lines[: height - 1], f"... {len(lines) - height + 1} lines more: make the window higher"]
        shown = f"{_TO_THE_END_OF_THE_LINE}\n".join(lines)
        print(f"{_HOME}{shown}{_TO_THE_END_OF_THE_LINE}{_TO_THE_END}", end="", flush=True)


class _Captured(io.StringIO):
    """What a command prints, which is as wide and as bold as on the terminal that it is for."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def captured(call: Callable[[], object]) -> tuple[str, int]:
    """Return what a command prints to standard output, and its exit code. What fails is a line of it, and is tried
    again with the next call. Raises `UsageError`: that will not get better.
    """
    output, code = _Captured(sys.stdout.isatty()), int(ExitCode.OK)
    with redirect_stdout(output):
        try:
            call()
        except typer.Exit as ended:
            code = ended.exit_code
        except UsageError:
            raise
        except SemelError as error:
            print(f"semel: {error.message} (it is tried again)", file=output if output.isatty() else sys.stderr)
            code = int(ExitCode.UNREACHABLE)
    return output.getvalue(), code


def every_s_of(text: str, option: str) -> float:
    """Return the seconds between two looks. Raises `UsageError`."""
    every_s = parse_duration(text, option)
    if every_s < EVERY_S_MIN:
        raise UsageError(f"{option} must be at least {EVERY_S_MIN:g}s")
    return every_s


def show_again(look: Callable[[], object], every_s: float, count: int = 0) -> None:
    """Show what `look` prints, every so many seconds, until Ctrl-C, or so often. The last one's exit code counts."""
    code = int(ExitCode.OK)
    with finishing_on_signals(), Screen() as screen:
        try:
            shown = 0
            while True:
                begun_s = time.monotonic()
                text, code = captured(look)
                screen.show(text)
                shown += 1
                if count and shown >= count:
                    break
                time.sleep(max(0.0, every_s - (time.monotonic() - begun_s)))
        except Terminated:
            raise
        except KeyboardInterrupt:
            return  # the way to end it
    if code:
        raise typer.Exit(code)


def watchable(function: Callable[P, None]) -> Callable[..., None]:
    """Give a command that prints what there is now the option --watch."""

    @wraps(function)
    def watched(*args: P.args, **kwargs: P.kwargs) -> None:
        watch = str(kwargs.pop("watch", ""))
        if not watch:
            function(*args, **kwargs)
            return
        every_s = every_s_of(watch, "--watch")

        def look() -> None:
            if not kwargs.get("as_json"):
                print(f"every {watch}, {time.strftime('%H:%M:%S')}; Ctrl-C ends it\n")
            function(*args, **kwargs)

        show_again(look, every_s)

    option = Annotated[
        str,
        typer.Option(
            "--watch",
            "-w",
            metavar=DURATION,
            help=f"Show it again every so often, until Ctrl-C. {DURATION_HELP}",
            show_default=False,
        ),
    ]
    signature = inspect.signature(function, eval_str=True)
    added = inspect.Parameter("watch", inspect.Parameter.KEYWORD_ONLY, default="", annotation=option)
    target: Any = watched
    target.__signature__ = signature.replace(parameters=[*signature.parameters.values(), added])
    target.__annotations__ = {**function.__annotations__, "watch": option}
    return watched
