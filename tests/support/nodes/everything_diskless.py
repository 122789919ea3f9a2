"""What makes all topics of the tests' nodes diskless, those of the coordinators, too: for `make test-diskless`."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from typing import Any, Final

VARIABLE: Final = "EVERYTHING_DISKLESS"
"""Not SEMEL_...: a node takes those for settings, and refuses the ones that are none."""


def is_everything_diskless() -> bool:
    """Whether the tests' nodes are to have no other topics."""
    return VARIABLE in os.environ


def everything_diskless() -> dict[str, Any]:
    """Return fields of a node's configuration; none where topics are on disks, as they are by default."""
    if not is_everything_diskless():
        return {}
    return {
        "log_diskless_enable": True,
        "remote_storage_url": f"file://{_objects()}",
        "diskless_append_commit_interval_ms": 5,
    }


def diskless_settings() -> dict[str, str]:
    """`everything_diskless` by the names of the settings."""
    return {name.replace("_", "."): str(value).lower() for name, value in everything_diskless().items()}


def diskless_options() -> tuple[str, ...]:
    """`everything_diskless` as a command takes it: NAME=VALUE."""
    return tuple(f"{name}={value}" for name, value in diskless_settings().items())


@cache
def _objects() -> str:
    """A directory for what all nodes of this process write: each cluster's keys begin with its own id."""
    folder = tempfile.mkdtemp(prefix="semel-objects-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
