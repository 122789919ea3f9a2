"""What a test's broker keeps, in memory: a simulated disk for its logs, and SQLite's database for its metadata."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from enum import Enum
from typing import Final

from semel.protocol.errors import FatalError
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import make_lasting_folder

MEMORY_DATABASES: Final = ("vfs=memdb", "mode=memory&cache=shared")
"""SQLite's ways to share a database in memory: from 3.36 on, and before."""

FOLDER: Final = "/data"


class Unsynced(Enum):
    """What becomes of bytes that the broker had written and not synced when it was killed (D1)."""

    LOST = "lost"
    """A power cut that takes all of them: what remains is exactly what was promised."""
    KEPT = "kept"
    """A killed process: the operating system still has them. What the process held in memory is gone."""
    TORN = "torn"
    """A power cut that takes some of them, pages in any order, as the broker's `seed` says."""


class MemoryData:
    """Lives until `close`, whatever becomes of the nodes that use it, one after the other."""

    def __init__(self, seed: int) -> None:
        """`seed`: of what a power cut takes. Raises `FatalError` where SQLite can't share a database in memory."""
        self._database, uri = _open_database(f"semel-{uuid.uuid4().hex}")
        self.metadata_url = f"sqlite:///{uri}&uri=true"
        self.storage = SimulatedStorage(seed)
        make_lasting_folder(self.storage, FOLDER)

    def close(self) -> None:
        self._database.close()


def _open_database(name: str) -> tuple[sqlite3.Connection, str]:
    """Make a database in memory, which lives as long as somebody has it open; return a connection, and its URI."""
    for uri in (f"file:/{name}?{way}" for way in MEMORY_DATABASES):
        with contextlib.suppress(sqlite3.OperationalError):
            return sqlite3.connect(uri, uri=True, check_same_thread=False), uri
    raise FatalError(f"this Python's SQLite ({sqlite3.sqlite_version}) has no databases in memory that can be shared")
