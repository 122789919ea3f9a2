"""The scripts that run foreign clients' own suites, which are in no package, for tests of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

FULL: Final = Path(__file__).parents[2] / "compat" / "full"


def neighbour(name: str) -> ModuleType:
    """Return a module of the scripts."""
    sys.path.insert(0, str(FULL))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FULL))
