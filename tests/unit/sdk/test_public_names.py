"""The names that programs import, in the ways in which they are imported."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import semel


@pytest.mark.parametrize(
    "statement",
    [
        "import semel.aio; semel.aio.Consumer",
        "from semel.aio import Consumer, Producer",
        "from semel import aio",
        "import semel; semel.sql.Sink",
    ],
)
def test_asyncio_twins_are_imported_as_a_module(statement: str) -> None:
    """In a process of its own: here somebody has imported it before."""
    subprocess.run([sys.executable, "-c", statement], check=True, timeout=60)


def test_each_public_name_is_there() -> None:
    assert {name for name in semel.__all__ if not hasattr(semel, name)} == set()


def test_version_is_the_one_installed() -> None:
    assert semel.__version__ == version("semel")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Produser'"):
        semel.Produser  # noqa: B018
