"""Tests with frameworks from PyPI. They fetch much and take minutes: they run where asked for, `make compat-python`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from framework_stage import Stage


@pytest.fixture
def stage_of(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Make a stage with the programs of a page; it ends with the test."""
    made: list[Stage] = []

    def make(page: str, **settings: Any) -> Stage:
        made.append(Stage(tmp_path, page, **settings))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
