"""Copies of the checkout in which faults are planted, and worlds are run to find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    """One copy of the checkout, compiled modules included: a mixture of compiled and interpreted ones does not work,
    so a fault has to be in another module.
    """

    def __init__(self, root: Path, checkout: Path = CHECKOUT) -> None:
        self._tree = Tree(checkout, root, compiled=True)
        self._root = root

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
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                env=surroundings,
                capture_output=True,
                text=True,
                check=False,
                timeout=60 + _SEED_S * count,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"one of the seeds {first} to {first + count - 1} does not end") from None
        if done.returncode:
            raise RuntimeError(f"seeds {first} to {first + count - 1} can't run: {done.stderr.strip()[-500:]}")
        told = json.loads(done.stdout)
        return Finding(
            told["seed"], tuple(told.get("kinds", ())), told.get("detail", ""), told["tried"], told["seconds"]
        )
