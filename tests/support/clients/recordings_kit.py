"""Compares what a real client sends now with what was recorded of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from request_recorder import read, record
from request_story import LOOKUPS


def check(folder: Path, client: str, scenario: str, run: Callable[[str, str], object]) -> None:
    """Let a client go through a scenario; fail the test where it sends something else than was recorded.

    What it looks up, such as metadata, comes as time has it: each has to have the recorded version.
    """
    recorded = read(client, scenario)
    assert recorded is not None, f"no recording of {scenario!r} of {client}: `make record-clients` makes them"
    sent = record(folder, scenario, run)
    assert _without_lookups(sent) == _without_lookups(recorded), "`make record-clients` records it anew"
    known = {line for name, lines in recorded.items() if name.endswith(LOOKUPS) for line in lines}
    looked_up = {line for name, lines in sent.items() if name.endswith(LOOKUPS) for line in lines}
    assert looked_up <= known


def _without_lookups(streams: dict[str, list[str]]) -> str:
    """Return what tells best where two differ: text."""
    return json.dumps({name: lines for name, lines in streams.items() if not name.endswith(LOOKUPS)}, indent=1)
