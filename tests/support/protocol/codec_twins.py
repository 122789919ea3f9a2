"""Gives tests the codec twice: as it is installed (compiled, where there was a compiler), and interpreted."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_MODULES = ("crc32c", "batch_header", "batch_builder", "control_records", "record_decoder", "arrow")
"""In the order of their imports."""


@cache
def codec(kind: str) -> Any:
    """Return a namespace of the public names of the codec's modules; `kind` is "built" or "interpreted"."""
    modules = [importlib.import_module(f"semel.protocol.{name}") for name in _MODULES]
    if kind == "interpreted":
        modules = _interpreted(modules)
    names = {name: value for module in modules for name, value in vars(module).items() if not name.startswith("_")}
    return SimpleNamespace(**names, modules=modules)


def _interpreted(built: list[ModuleType]) -> list[ModuleType]:
    """Load the sources as fresh modules that import each other, and leave the installed ones in place."""
    fresh = []
    try:
        for module in built:
            name = module.__name__
            folder = Path(importlib.import_module("semel.protocol").__file__ or "").parent
            path = folder / f"{name.rpartition('.')[2]}.py"
            loader = importlib.machinery.SourceFileLoader(name, str(path))
            spec = importlib.util.spec_from_loader(name, loader)
            assert spec is not None
            twin = importlib.util.module_from_spec(spec)
            sys.modules[name] = twin
            loader.exec_module(twin)
            fresh.append(twin)
    finally:
        for module in built:
            sys.modules[module.__name__] = module
    return fresh
