"""Clients of other languages, from npm and Go's module proxy. They take minutes to fetch, so they run only where asked
for: `make compat-others`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = [Path(str(argument).partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in asked) else True
