"""The newest tree of this repository with a lower version of the metadata, and nodes that run it beside this one's.

It runs interpreted: a node that is to be replaced need not be fast, and compiling it would take minutes.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from node_processes import NodeProcesses

from semel.broker.metadata.changes import METADATA_VERSION

ROOT = Path(__file__).parents[3]
SAYS_VERSION = "broker/metadata/changes.py"
VERSION = re.compile(r"^METADATA_VERSION: Final = (\d+)$", re.MULTILINE)
GIT_S = 60
ENDS_S = 60


@dataclass(frozen=True)
class OlderVersion:
    """source: where Python finds its package `semel`; metadata_version: what it reads and writes"""

    commit: str
    source: Path
    metadata_version: int


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, timeout=GIT_S)
    except FileNotFoundError:
        pytest.skip("no git here: older versions are in the history of a checkout")
    if done.returncode:
        pytest.skip(f"no older version here, a checkout with its history has them: {done.stderr.decode().strip()}")
    return done.stdout


def _before_the_last_raise() -> tuple[str, int]:
    """Return the commit before the one that raised the version to today's, and the version there."""
    commit = "HEAD"
    for changed_it in _git("log", "--format=%H", "--", SAYS_VERSION).decode().split():
        found = VERSION.search(_git("show", f"{changed_it}:{SAYS_VERSION}").decode())
        if found is None or int(found[1]) < METADATA_VERSION:
            return commit, 1 if found is None else int(found[1])
        commit = f"{changed_it}^"
    pytest.skip("no older version here: the history is cut off (a shallow clone) before it; `git fetch --unshallow`")


def older_version(folder: Path) -> OlderVersion:
    """Unpack it into `folder`. Skips the test where the history has none."""
    commit, version = _before_the_last_raise()
    packed = _git("archive", commit, "--", ".", ":!tests", ":!docs", ":!bench", ":!docker")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    said = _git("rev-parse", "--short", commit).decode().strip()
    return OlderVersion(said, folder / "src", version)


class MixedNodes(NodeProcesses):
    """Nodes of which those in `old` run the older version."""

    def __init__(self, folder: Path, older: OlderVersion, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self._older = older
        self.old: set[int] = set()

    def environment(self, node_id: int) -> dict[str, str]:
        found = super().environment(node_id)
        return found | {"PYTHONPATH": str(self._older.source)} if node_id in self.old else found

    def replace(self, node_id: int, *, old: bool) -> None:
        """Stop a node as an operator does, and start it with the other version on the same data."""
        self.stop(node_id)
        (self.old.add if old else self.old.discard)(node_id)
        self.start(node_id)

    def refusal(self, node_id: int) -> tuple[int, str]:
        """Start a node that is to refuse. Returns its exit code, and what it says."""
        done = subprocess.run(
            [*self.program(node_id), "serve", *self.options(node_id)],
            env=self.environment(node_id),
            capture_output=True,
            text=True,
            timeout=ENDS_S,
        )
        return done.returncode, done.stderr

    def version_of(self, node_id: int) -> int:
        """Return the version of the metadata that a node's program reads."""
        asked = "from semel.broker.metadata.changes import METADATA_VERSION; print(METADATA_VERSION)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", asked],
            env=self.environment(node_id),
            check=True,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
        )
        return int(done.stdout)
