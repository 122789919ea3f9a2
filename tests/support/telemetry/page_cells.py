"""The cells of a page of docs/ that is written like a notebook: run in their order, with what they print.

A cell is a block of `python` or `console`; the block of `text` right under it is what it prints. Lines of the shell
start with "$ "; what follows a line with `<<'END'` is its input. A line that ends with "&" is left running, and is a
job from then on: `kill %1`, `wait %1`. A cell of Python that begins with the comment "# name.py" is saved as that file.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CELL = re.compile(r"^```(python|console)\n(.*?)^```\n(?:^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"# (\w+\.py)\n")
WAIT = re.compile(r"wait %(\d)\s*")
SHELL_TIMEOUT_S = 600


@dataclass(frozen=True)
class Cell:
    """One cell, and what the page says that it prints."""

    language: str
    code: str
    printed: str
    line: int

    def __str__(self) -> str:
        return f"the {self.language} cell of line {self.line}"


def cells_of(page: str) -> Iterator[Cell]:
    """Yield the cells of a page's text."""
    for found in CELL.finditer(page):
        yield Cell(found[1], found[2], found[3] or "", page[: found.start()].count("\n") + 1)


class Notebook:
    """Runs cells: Python in this process and one namespace, shell lines in a folder. A context manager."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._left_running: list[subprocess.Popen[str]] = []

    def run(self, cell: Cell) -> str:
        """Run a cell; return what it has printed."""
        if cell.language == "console":
            return self._shell(cell)
        if saved := SAVED.match(cell.code):
            (self._folder / saved[1]).write_text(cell.code)
            return ""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * cell.line + cell.code, "page", "exec"), self._names)
        return out.getvalue()

    def _shell(self, cell: Cell) -> str:
        script = re.sub(r"^\$ ", "", cell.code, flags=re.MULTILINE)
        if waited := WAIT.fullmatch(script):
            return self._wait(self._left_running[int(waited[1]) - 1], cell)
        script = re.sub(r"(?<= )%(\d)\b", lambda job: str(self._left_running[int(job[1]) - 1].pid), script)
        if script.rstrip().endswith("&"):
            process = subprocess.Popen(
                ["bash", "-c", f"exec {script.rstrip()[:-1]}"],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self._left_running.append(process)
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{cell} ended at once with {process.wait(SHELL_TIMEOUT_S)}"
            return line
        shell = subprocess.run(
            ["bash", "-ec", script],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SHELL_TIMEOUT_S,
            check=False,
        )
        assert shell.returncode == 0, f"{cell} ended with {shell.returncode}:\n{shell.stderr}"
        return shell.stdout

    def _wait(self, process: subprocess.Popen[str], cell: Cell) -> str:
        assert process.stdout is not None
        printed = process.stdout.read()
        code = process.wait(SHELL_TIMEOUT_S)
        assert code == 0, f"{cell}: what was left running ended with {code}"
        return printed

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._left_running:
            process.terminate()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
