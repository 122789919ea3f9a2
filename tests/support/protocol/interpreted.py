"""Loads compiled modules from their sources, beside the installed ones: what runs on a machine without a compiler."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def interpreted(*names: str) -> tuple[ModuleType, ...]:
    """Return fresh modules, in the order of their imports, which import each other in place of the installed ones."""
    built = [importlib.import_module(name) for name in names]
    fresh = []
    try:
        for module in built:
            path = Path(str(module.__file__)).parent / f"{module.__name__.rpartition('.')[2]}.py"
            loader = importlib.machinery.SourceFileLoader(module.__name__, str(path))
            spec = importlib.util.spec_from_loader(module.__name__, loader)
            assert spec is not None
            twin = importlib.util.module_from_spec(spec)
            sys.modules[module.__name__] = twin
            loader.exec_module(twin)
            fresh.append(twin)
    finally:
        for module in built:
            sys.modules[module.__name__] = module
    return tuple(fresh)
