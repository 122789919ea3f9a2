"""Copies of the checkout in which faults are planted, and worlds are run to find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mutants.edits import Edit
from mutants.tree import Tree

from simulation.runs import ONE_NODE

CHECKOUT: Final = Path(__file__).resolve().parents[2]
CHUNK: Final = 25
"""So many seeds run in one process: what killed processes of a world have left is not collected in between."""
_SEED_S: Final = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of some seeds. seed: the first that was not clean, None where all were; seconds: of processor time."""

    seed: int | None
    kinds: tuple[str, ...]
    detail: str
    tried: int
    seconds: float


class Field:
    """One copy of the checkout, compiled modules included. Where the fault is in one of them, all run interpreted."""

    def __init__(self, root: Path, checkout: Path = CHECKOUT) -> None:
        self._tree = Tree(checkout, root, compiled=True)
        self._root = root
        self._running: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Run no more seeds: what runs ends. In any thread."""
        self._is_stopped = True
        running = self._running
        if running is not None:
            running.kill()

    def find(self, edits: Sequence[Edit], first: int, count: int, world: str = ONE_NODE) -> Finding:
        """Run seeds with a fault until one is not clean. Raises `DoesNotApplyError`, `RuntimeError`."""
        tried, seconds = 0, 0.0
        with self._tree.planted(edits):
            while tried < count:
                found = self._run(first + tried, min(CHUNK, count - tried), world)
                tried += found.tried
                seconds += found.seconds
                if found.seed is not None:
                    return Finding(found.seed, found.kinds, found.detail, tried, seconds)
        return Finding(None, (), "", tried, seconds)

    def _run(self, first: int, count: int, world: str) -> Finding:
        parts = ("src", "tests", "tests/support/pipelines", "tests/support/clients")
        surroundings = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self._root / part) for part in parts),
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, "-P", "-m", "simulation.hunting", str(first), str(count), world]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=self._root, env=surroundings, **pipes) as running:
            self._running = running
            if self._is_stopped:
                running.kill()
            try:
                out, errors = running.communicate(timeout=180 + _SEED_S * count)
            except subprocess.TimeoutExpired:
                running.kill()
                raise RuntimeError(f"one of the seeds {first} to {first + count - 1} does not end") from None
            finally:
                self._running = None
        if self._is_stopped:
            raise RuntimeError("the search was stopped")
        if running.returncode:
            raise RuntimeError(f"seeds {first} to {first + count - 1} can't run: {errors.strip()[-500:]}")
        told = json.loads(out)
        return Finding(
            told["seed"], tuple(told.get("kinds", ())), told.get("detail", ""), told["tried"], told["seconds"]
        )
