"""Copies of the checkout, in which faults are planted: the checkout itself is never written to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mutants.edits import Edit, Sources, apply

_LEFT_OUT: Final = (
    ".git", ".venv", "build", "dist", "node_modules", "*.egg-info", ".*_cache", ".hypothesis", "semel-data"
)  # fmt: skip
_COMPILED: Final = "*.so"


class Tree:
    """One copy. The files that Python has compiled come along, by the times of their sources."""

    def __init__(self, checkout: Path, root: Path, *, compiled: bool = False) -> None:
        """compiled: take the compiled modules along, which are put aside while one of them has a fault: a mixture of
        compiled and interpreted ones does not work. Without them all runs interpreted.
        """
        self.root = root
        left_out = _LEFT_OUT if compiled else (*_LEFT_OUT, _COMPILED)
        shutil.copytree(checkout, root, symlinks=True, ignore=shutil.ignore_patterns(*left_out))
        self._package = root / "src" / "semel"

    @contextmanager
    def planted(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Have a fault in the copy for a while. Raises `DoesNotApplyError`."""
        changed = apply(tuple(edits), Sources(self._package))
        before = {path: (path.read_bytes(), path.stat()) for path in changed}
        is_compiled = any(any(path.parent.glob(f"{path.stem}.{_COMPILED}")) for path in changed)
        aside = [path.rename(f"{path}.aside") for path in sorted(self.root.rglob(_COMPILED))] if is_compiled else []
        try:
            for path, text in changed.items():
                path.write_text(text, encoding="utf-8")
                # Never the time that a compiled file may be marked with.
                os.utime(path, ns=(before[path][1].st_atime_ns, before[path][1].st_mtime_ns + 10_000_000_000))
            yield
        finally:
            for path, (content, stat) in before.items():
                path.write_bytes(content)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            for path in aside:
                path.rename(str(path).removesuffix(".aside"))
