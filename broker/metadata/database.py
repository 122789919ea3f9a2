"""The database of the metadata: its URL, its one connection, transactions, its time, and calls that never end.

A COMMIT may hang: PostgreSQL waits for a synchronous standby for ever, and no timeout of its own ends that. When an
operator cancels the wait, PostgreSQL returns success with a warning, although no standby has the change. Both are
"outcome unknown": the connection is dropped, and what is in the log decides.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from semel.broker.metadata.notifications import CHANNEL, Notifications
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.extras import install_command
from semel.runtime.setting import ConfigError

_PATIENCE: Final = 1.5
"""Times the timeout of one statement: the server's own timeout comes first, and says that nothing was written."""
_IDLE_MS_MAX: Final = 2_000
"""So long a node that is frozen, or loses its power, in a transaction may hold its locks. Without this nobody could
elect leaders until the server finds the connection dead: after two hours, as systems are set up.
"""
_CREATION_LOCK: Final = 0x53656D656C  # "Semel": PostgreSQL's advisory lock for creating the tables
_IN_DOUBT: Final = frozenset({"01000", "57P01"})
"""Warnings of a COMMIT that no standby has: its wait was canceled, or its connection terminated."""


class MetadataUnavailableError(RetriableError):
    """The metadata's database does not answer."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.BROKER_NOT_AVAILABLE) -> None:
        super().__init__(message, code)


class Database:
    """A SQL database, and the one connection to it. Use from one thread at a time, but for `interrupt`."""

    is_shared: bool = True
    """Whether other nodes may use it at the same time. A node's own file is not shared, whatever this says."""

    def __init__(self, url: str, *, timeout_ms: int = 10_000) -> None:
        """`url` is a SQLAlchemy URL of SQLite or PostgreSQL; any other is a `ConfigError`. Connects on first use."""
        parsed = _supported(url)
        self.location: Final = parsed.render_as_string(hide_password=True)
        """The URL without its password, for messages."""
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        self.deadline_s: Final = None if self._is_sqlite else _PATIENCE * timeout_ms / 1000
        """After so long a call is to be ended with `interrupt`. None: it ends by its own timeouts."""
        self._raw: Any = None
        self._is_in_doubt = False
        self.can_notify = not self._is_sqlite
        """Whether `notify` does anything."""
        options: dict[str, Any]
        if self._is_sqlite:
            options = {"connect_args": {"timeout": timeout_ms / 1000, "check_same_thread": False}}
        else:
            seconds = max(1, timeout_ms // 1000)
            limits = (
                f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms} "
                f"-c idle_in_transaction_session_timeout={min(timeout_ms, _IDLE_MS_MAX)}"
            )
            options = {
                "connect_args": {"connect_timeout": seconds, "options": limits, "application_name": "semel"},
                "pool_pre_ping": True,
            }
        self._connect_args: dict[str, Any] = options["connect_args"]
        try:
            self._engine = sa.create_engine(parsed, pool_size=1, max_overflow=0, poolclass=sa.QueuePool, **options)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"metadata.url needs the Python package {error.name}: {install_command('postgresql')}"
            ) from None
        if self._is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_immediate)
        else:
            sa.event.listen(self._engine, "connect", self._connected)

    def close(self) -> None:
        self._engine.dispose()

    def interrupt(self) -> None:
        """End the call that another thread is in, by breaking its connection. What it was doing may have been done."""
        raw = self._raw
        if raw is None:
            return
        with suppress(OSError, exc.SQLAlchemyError, *self._driver_errors()):
            descriptor = os.dup(raw.fileno())
            with socket.socket(fileno=descriptor) as line:
                if not raw.closed:
                    line.shutdown(socket.SHUT_RDWR)

    def notify(self) -> None:
        """Wake the nodes that listen for changes, where the database can do that. Never fails: they poll as well.

        Not in the transaction of a change: a database that has no NOTIFY would refuse the change.
        """
        if not self.can_notify:
            return
        try:
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"NOTIFY {CHANNEL}")
        except exc.OperationalError:
            pass
        except exc.SQLAlchemyError:
            self.can_notify = False

    def notifications(self, wake: Callable[[], None]) -> Notifications | None:
        """Return what calls `wake` after changes of others, on a connection of its own; None where nothing can."""
        if self._is_sqlite:
            return None
        dialect = self._engine.dialect
        driver: Any = dialect.dbapi
        arguments, named = dialect.create_connect_args(self._engine.url)
        connect = driver.AsyncConnection.connect
        return Notifications(
            partial(connect, *arguments, **{**named, **self._connect_args}, autocommit=True), driver.Error, wake
        )

    def _now(self, now_ms: int) -> sa.ColumnElement[int]:
        """Return the time that counts for leases and heartbeats: the database's, which all nodes share.

        SQLite has one machine, whose time the caller knows.
        """
        if self._is_sqlite:
            return sa.literal(now_ms, sa.BigInteger)
        milliseconds = sa.extract("epoch", sa.func.clock_timestamp()) * 1000
        return sa.cast(sa.func.floor(milliseconds), sa.BigInteger)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                with connection.begin():
                    yield connection
                    self._is_in_doubt = False
                if self._is_in_doubt:
                    connection.invalidate()
                    raise MetadataUnavailableError(
                        f"the metadata database {self.location} did not say whether a standby has the change: its wait "
                        "for one was canceled"
                    )
        except exc.IntegrityError:
            raise
        except exc.SQLAlchemyError as error:
            # The driver's own text, without SQLAlchemy's: that one shows statements and may show the URL.
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()
            raise MetadataUnavailableError(
                f"the metadata database {self.location} failed: {reason[0] if reason else type(error).__name__}"
            ) from error

    def _create_tables(self, connection: sa.Connection, tables: sa.MetaData) -> None:
        """Create what is missing. Nodes that start at the same time do it one after the other: PostgreSQL refuses the
        later ones otherwise.
        """
        if not self._is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        tables.create_all(connection)

    def _connected(self, raw: Any, _record: object) -> None:
        self._raw = raw
        raw.add_notice_handler(self._noticed)

    def _noticed(self, diagnostic: Any) -> None:
        if diagnostic.sqlstate in _IN_DOUBT and diagnostic.severity_nonlocalized == "WARNING":
            self._is_in_doubt = True

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        driver: Any = self._engine.dialect.dbapi
        return (driver.Error,)


def _supported(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (exc.ArgumentError, ValueError):
        raise ConfigError("metadata.url is not a SQLAlchemy URL such as postgresql+psycopg://user@host/semel") from None
    if backend == "postgresql" and parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigError(
            f"metadata.url names {parsed.drivername}: use sqlite:///PATH or postgresql+psycopg://user@host/database"
        )
    return parsed


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy begins transactions itself, below
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # The check and the write of a compare-and-set must be under one write lock.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
