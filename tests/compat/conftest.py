"""The data directory of every test here is verified when the test has ended. Some folders run only where asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from sound_data import sound_data, sound_module_data, sound_session_data  # noqa: F401  (fixtures)

HERE: Final = Path(__file__).resolve().parent
ON_REQUEST: Final = ("beam", "connect", "flink", "frameworks", "java", "others", "streams")
"""Folders whose tests fetch much and take minutes: `make compat-java` and its like name them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    folder = next((HERE / name for name in ON_REQUEST if collection_path.is_relative_to(HERE / name)), None)
    if folder is None:
        return None
    asked = [Path(str(argument).partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(folder) for path in asked) else True
