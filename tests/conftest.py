"""Which tests have to share a worker, and what is put back after those that set up the log of a process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

ONE_WORKER: Final = ("tests/containers/", "tests/spark/")
"""Folders whose tests share what is made once in a session: an image and its engine, a Spark session."""


class _FolderScheduling(LoadGroupScheduling):
    """pytest-xdist's marker `xdist_group` has no effect from pytest 9.2 on: it changes an id that is no longer used."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in ONE_WORKER if nodeid.startswith(folder)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    return _FolderScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Give the handlers and levels of the test runner back, where a test sets up the log of a node's process."""
    root, audit = logging.getLogger(), logging.getLogger("semel.audit")
    handlers, level, of_audit = root.handlers[:], root.level, audit.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    audit.setLevel(of_audit)
