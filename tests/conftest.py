"""Which tests have to share a worker, and what is put back after those that set up the log of a process."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from drawn_tests import leave_others_out
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

ROOT: Final = Path(__file__).parents[1]
ONE_WORKER: Final = (
    "tests/containers/",
    "tests/docs/test_build.py",
    "tests/spark/",
    "tests/unit/project/test_packaging.py",
)
"""Folders and files whose tests share what is made once: an image with its engine, a Spark session, pages, archives."""


# The same examples each time, so that a change is judged by what it changes; `make test-long` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("SEMEL_NEW_EXAMPLES"):
    settings.load_profile("repeatable")


class _SharedScheduling(LoadGroupScheduling):
    """pytest-xdist's marker `xdist_group` has no effect from pytest 9.2 on: it changes an id that is no longer used."""

    def _split_scope(self, nodeid: str) -> str:
        return next((place for place in ONE_WORKER if nodeid.startswith(place)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    return _SharedScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--console-pictures",
        metavar="DIR",
        default="",
        help="where the test of the console in a browser saves pictures",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_others_out(config, items)


def pytest_sessionstart() -> None:
    """Refuse compiled modules that are older than their sources: the tests would tell of code that is gone."""
    listed = (ROOT / "compiled-modules.txt").read_text().split()
    sources_of_all = [ROOT / "src" / "semel" / f"{name.replace('.', '/')}.py" for name in listed]
    for source in (*sources_of_all, *(ROOT / "broker").rglob("*.pyx")):
        sources = [one for one in (source, source.with_suffix(".pxd")) if one.exists()]
        latest = max(one.stat().st_mtime for one in sources)
        if any(built.stat().st_mtime < latest for built in source.parent.glob(f"{source.stem}.*.so")):
            pytest.exit(f"{source.relative_to(ROOT)} has changed since it was compiled: run `make build`", returncode=4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Collect what kafka-python leaves open: else the collector does amid another test, which then fails for it."""
    result = yield
    if "kafka-python" in item.name or hasattr(getattr(item, "module", None), "kafka"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result


@pytest.fixture(autouse=True)
def log_of_the_runner() -> Iterator[None]:
    """Give the runner's handlers and levels back: a command that is called in this process sets up its log."""
    root, audit = logging.getLogger(), logging.getLogger("semel.audit")
    handlers, level, of_audit = root.handlers[:], root.level, audit.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    audit.setLevel(of_audit)
