"""Which tests have to share a worker."""

from __future__ import annotations

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
