"""One worker: a copy of the checkout, and the process that runs tests in it (`session.py`)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mutants.tree import Tree

STOP_S: Final = 30
"""How long tests may continue after one of them has hung, before they are killed."""


class StoppedError(Exception):
    """The worker was closed while it ran tests."""


class Worker:
    def __init__(self, checkout: Path, root: Path) -> None:
        self.tree = Tree(checkout, root)
        self._root = root
        self._child = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(root / "tests" / "mutants" / "session.py")],
            bufsize=0,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """End what runs, with all that it has started."""
        for group in (self._child, self._process.pid):
            _kill_group(group)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def run(self, tests: Sequence[str], seconds: Mapping[str, float], *, timeout_s: int, stops: bool) -> dict[str, Any]:
        """Run tests and return what the session tells, or `hung` where it had to be killed.

        timeout_s: for each test, which is ended by it.
        stops:     at the first failure, and if one can't be ended. Else it runs on.
        """
        job, result, output = (self._root / f"mutants-{name}" for name in ("job.json", "result.json", "output.txt"))
        result.unlink(missing_ok=True)
        # A folder of their own: pytest's usual one goes when three later runs of anybody have begun.
        scratch = self._root.with_name(f"t{self._root.name}")
        what = {"tests": tests, "seconds": seconds, "timeout_s": timeout_s, "stops": stops, "scratch": str(scratch)}
        job.write_text(json.dumps({**what, "result": str(result), "output": str(output)}))
        assert self._process.stdin is not None
        self._process.stdin.write(f"{job}\n".encode())
        self._child = int(self._answer("begun"))
        hung = stops and not self._has_answered(timeout_s + STOP_S)
        if hung:
            _kill_group(self._child)
        code = self._answer("ended")
        self._child = 0
        if not hung and result.exists():
            told: dict[str, Any] = json.loads(result.read_text())
            return told
        last = output.read_text(errors="replace").strip().splitlines()[-1:]
        died = [] if hung else [f"the process, which ended with code {code}: {''.join(last)[:300]}"]
        return {"outcomes": {}, "broken": died, "seconds": timeout_s, "hung": hung}

    def _has_answered(self, timeout_s: float) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        said, _, value = self._process.stdout.readline().decode().partition(" ")
        if said != word:
            raise StoppedError
        return value.strip()


def _kill_group(group: int) -> None:
    if group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
