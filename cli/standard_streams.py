"""What becomes of a command whose standard input, output or error is closed (`semel node list >&-`).

Its descriptor is free then: the next file or connection would get it, and what is meant for the terminal would go
there. And Python has None in the place of the stream. So output that is closed goes to /dev/null. Input
that is closed stays None: that nobody answers is not that there is nothing to read.
"""

from __future__ import annotations

import os
import sys

is_stdout_closed = False
"""Whether standard output was closed when the command began."""


def open_closed_streams() -> None:
    """Take the descriptors of closed standard streams. Call it before anything is opened or printed."""
    global is_stdout_closed
    is_stdout_closed = sys.stdout is None
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            _occupy(number)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def _occupy(number: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)
