"""Which code a run has tried: seeds of several runs count together only where it is the same."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

PRODUCT: Final = "semel"
SIMULATION: Final = "simulation"


def code_digest(package: str) -> str:
    """Return what differs where the sources differ of any module of `package` that has been imported.

    What a module imports only when it is needed is left out: all that the worlds run is imported before the first seed.
    """
    digest = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.partition(".")[0] != package:
            continue
        source = _source(Path(file))
        digest.update(f"{name} {source.stat().st_size}\n".encode() + source.read_bytes())
    return digest.hexdigest()[:12]


def _source(file: Path) -> Path:
    """Return the source of a module, also of a compiled one."""
    return file if file.suffix == ".py" else file.with_name(f"{file.name.partition('.')[0]}.py")
