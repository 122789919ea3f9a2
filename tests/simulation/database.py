"""The metadata's database of a simulated world: SQLite in memory, which can be away, lose answers, and lose a tail."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import sqlalchemy as sa

from semel.broker.diskless.rows import DisklessRows
from semel.broker.diskless.setup import RemoteDatabase
from semel.broker.metadata.database import Database, MetadataUnavailableError
from semel.broker.metadata.store import MetadataStore
from semel.broker.metadata.tables import CHANGES
from semel.broker.tiers.rows import RemoteRows


class SimulatedDatabase:
    """Outlives every node. What fails is drawn for each transaction."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.is_away = False
        self.cut_off: set[str] = set()
        """The nodes that do not reach it."""
        self.refused_share = 0.0
        """How many transactions fail before they have an effect."""
        self.lost_share = 0.0
        """How many take effect, and say that they failed."""
        self.lost_writes = 0
        """How many of the next ones that write take effect, and say that they failed."""
        self.is_shared = False
        """Whether nodes that start expect others on it: then they poll it, and have heartbeats."""
        self.now_ms: Callable[[], int] | None = None
        """The time of leases and heartbeats, where it is not what each node says."""
        self._first = MetadataStore("sqlite://")
        self.engine = self._first._engine
        with self.engine.connect() as connection:
            self._raw = _sqlite(connection)  # there is only one to a database in memory
        self._copies: list[bytes] = []
        self.failed_over = 0
        """How often it went back to a copy."""

    def store(self, node: str = "node") -> MetadataStore:
        """Return a node's way to this database."""
        return _Store(self, node)

    def remote(self, node: str, executor: Executor) -> RemoteDatabase:
        """Return a node's way to the rows of the remote storage."""
        return RemoteDatabase(_RemoteRows(self, node), _DisklessRows(self, node), executor)

    def store_of_the_judge(self) -> MetadataStore:
        """Return a way to this database that never fails."""
        return self._first

    def last_change(self) -> int:
        """Return the number of the last change. Asked after every few steps, so without SQLAlchemy."""
        (last,) = self._raw.execute(f"SELECT max(sequence) FROM {CHANGES.name}").fetchone()
        return int(last or 0)

    def keep_copy(self) -> None:
        """Remember the database as it is: a standby that gets no further."""
        with self.engine.connect() as connection:
            self._copies.append(_sqlite(connection).serialize())

    def fail_over(self) -> int:
        """Continue with the oldest copy: what was committed since is gone. Returns how many changes that were.

        Copies that were made before another fail-over are of a standby that is no more.
        """
        if not self._copies:
            return 0
        before = self._first.load().sequence
        with self.engine.connect() as connection:
            _sqlite(connection).deserialize(self._copies[0])
        self._copies.clear()
        self.failed_over += 1
        return before - self._first.load().sequence

    def close(self) -> None:
        self.engine.dispose()


def _sqlite(connection: sa.Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


class _InWorld(Database):
    """A node's way to the one database."""

    def __init__(self, database: SimulatedDatabase, node: str) -> None:
        super().__init__("sqlite://")
        self._node = node
        self._engine.dispose()
        self._engine = database.engine
        self._database = database

    def close(self) -> None:
        """The database stays."""

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        database = self._database
        fate = database.chance.random()
        if database.is_away or self._node in database.cut_off or fate < database.refused_share:
            raise MetadataUnavailableError("the simulated database is away")
        with super()._transaction() as connection:
            before = _sqlite(connection).total_changes
            yield connection
            has_written = _sqlite(connection).total_changes > before
        is_lost = fate > 1 - database.lost_share
        if has_written and database.lost_writes:
            database.lost_writes -= 1
            is_lost = True
        if is_lost:
            raise MetadataUnavailableError("the simulated database's answer was lost")


class _Store(_InWorld, MetadataStore):
    def __init__(self, database: SimulatedDatabase, node: str) -> None:
        super().__init__(database, node)
        self.is_shared = database.is_shared

    def _now(self, now_ms: int) -> sa.ColumnElement[int]:
        time = self._database.now_ms
        return super()._now(now_ms if time is None else time())


class _RemoteRows(_InWorld, RemoteRows):
    pass


class _DisklessRows(_InWorld, DisklessRows):
    pass
