"""What the commands of the simulator have in common: their numbers, and how they end when they are stopped."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST: Final = 1_000_000_000
"""The largest number that an option takes."""
INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, and after SIGTERM. Both print what was done until then."""


def at_least(minimum: int) -> Callable[[str], int]:
    """Return what reads an option that is a number, in ASCII digits."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not minimum <= int(text[:20]) <= MOST:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {minimum} to {MOST:,}")
        return int(text)

    return parse


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with(parent: int) -> None:
    """End this process when the one that began it is gone: it may be in a world without end."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def counted(count: int, what: str) -> str:
    """Return `1 fault`, `2 faults`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def say(what: str) -> None:
    """Say something beside the results."""
    print(what, file=sys.stderr, flush=True)
