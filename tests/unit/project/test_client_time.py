"""Clients read the time from the one clock that they are given, so that a whole client can live in virtual time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("transport", "producer", "consumer", "admin", "shared")

TRACES = "the begin of a span that OpenTelemetry ends with the machine's time"
ALLOWED = {
    "sdk/consumer/aio.py": {"time.time_ns": TRACES},
    "sdk/consumer/api.py": {"time.time_ns": TRACES},
    "sdk/transport/blocking.py": {"time.sleep": "how a thread waits, where asyncio has a sleep of its own"},
}
"""What reads the machine's time all the same, and why. Timers and sleeps of asyncio are the loop's, and not looked for.

In C, accumulator.pxd reads the wall clock for the records of a producer that has the machine's clock.
"""

CLOCK_MODULES = frozenset({"time", "datetime"})


def reads_of_time(source: str) -> Iterator[str]:
    """Yield what a module takes from the modules that read the machine's clocks."""
    names = {}
    for node in ast.walk(tree := ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(
                {alias.asname or alias.name: alias.name for alias in node.names if alias.name in CLOCK_MODULES}
            )
        elif isinstance(node, ast.ImportFrom) and node.module in CLOCK_MODULES:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield f"{names[node.value.id]}.{node.attr}"


def test_clients_read_the_time_from_their_clock() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / "sdk" / folder).rglob("*.py"))]
    found = {
        str(path.relative_to(ROOT)): reads
        for path in paths
        if (reads := set(reads_of_time(path.read_text(encoding="utf-8"))))
    }
    assert found == {path: set(reads) for path, reads in ALLOWED.items()}, "take it from `ClientCore.clock`"


def test_reads_of_time_are_found_by_any_name() -> None:
    source = """
import time, time as t, datetime
from time import sleep as rest
def wait():
    from time import monotonic
    return time.time_ns() + t.time() + datetime.datetime.now()
self.time.monotonic()
clock.monotonic()
"""
    found = set(reads_of_time(source))
    assert found == {"time.sleep", "time.monotonic", "time.time_ns", "time.time", "datetime.datetime"}
