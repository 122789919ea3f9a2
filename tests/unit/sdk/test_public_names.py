"""The names that programs import, in the ways in which they are imported."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import semel
import semel.aio


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


def test_only_public_names_are_listed() -> None:
    """`Any`, `TYPE_CHECKING` and `importlib` were completed in editors."""
    submodules = {"aio", "arrow", "schemas", "sql", "testing"}
    assert {name for name in dir(semel) if not name.startswith("__")} == {*semel.__all__, *submodules}
    assert {name for name in dir(semel.aio) if not name.startswith("__")} == set(semel.aio.__all__)


def test_a_record_is_made_as_its_signature_says() -> None:
    """The compiled class had none."""
    names = list(inspect.signature(semel.Record).parameters)
    assert names == ["offset", "timestamp_ms", "key", "value", "headers", "topic", "partition"]
    assert (inspect.getdoc(semel.Record) or "").startswith("One record.")


def test_what_opening_a_log_raises_is_caught_by_public_names(tmp_path: Path) -> None:
    with pytest.raises(semel.ConfigError, match="no setting nonsense"):
        semel.open(tmp_path / "data", settings={"nonsense": "1"})
    place = tmp_path / "file"
    place.write_text("not a directory")
    with pytest.raises(semel.NodeStartError):
        semel.open(place)
    assert issubclass(semel.ConfigError, semel.SemelError)
    assert issubclass(semel.NodeStartError, semel.FatalError)


def test_an_unreachable_node_is_an_error_of_its_own() -> None:
    assert issubclass(semel.UnreachableError, semel.RetriableError)
