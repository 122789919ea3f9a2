"""Runs `semel serve`, and notes each turn of its event loop that used more CPU time than most.

    python -P bench/longest_turns.py FILE serve --data-dir ...

A line for each turn of over 10 ms goes to FILE: its CPU time in milliseconds, what ran, and how much of it the garbage
collector took. Unlike a client's wait, CPU time does not grow with what else the machine does.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from typing import Any, Final

NOTED_S: Final = 0.010


def note_turns(path: str) -> None:
    """From now on, write the long turns of every event loop of this process to the file."""
    # One loop, one file: what is noted from it needs no lock. Unbuffered, because a node may be killed.
    file = open(path, "ab", buffering=0)  # noqa: SIM115
    run, clock = asyncio.Handle._run, time.thread_time
    loop_thread = threading.get_ident()
    collected = began = 0.0

    def note_collection(phase: str, _info: dict[str, int]) -> None:
        nonlocal collected, began
        if threading.get_ident() == loop_thread:
            if phase == "start":
                began = clock()
            else:
                collected += clock() - began

    gc.callbacks.append(note_collection)

    def timed(handle: asyncio.Handle) -> None:
        what: Any = handle._callback  # type: ignore[attr-defined]  # gone once a handle is cancelled
        begin, collected_before = clock(), collected
        run(handle)
        used = clock() - begin
        if used > NOTED_S:
            garbage = (collected - collected_before) * 1000
            note = f" (garbage {garbage:.0f} ms)" if garbage > 1 else ""
            file.write(f"{used * 1000:.1f} {_name(what)}{note}\n".encode())

    asyncio.Handle._run = timed  # type: ignore[method-assign]


def _name(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coro: Any = task.get_coro()
        return f"{task.get_name()}: {getattr(coro, '__qualname__', coro)}"
    return str(getattr(callback, "__qualname__", callback))


def main() -> None:
    note_turns(sys.argv[1])
    sys.argv[1:2] = []
    from semel.cli.main import main as semel

    semel()


if __name__ == "__main__":
    main()
