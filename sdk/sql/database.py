"""A database as the sink and the outbox use it: its engine, its sessions, and what its errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Engine, make_url
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from semel.protocol.errors import ErrorCode, FatalError, RetriableError, UsageError
from semel.protocol.extras import install_command

T = TypeVar("T")

SQLITE, POSTGRESQL, MYSQL = "sqlite", "postgresql", "mysql"
_DRIVERS: Final = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_EXTRAS: Final = {POSTGRESQL: "postgresql", MYSQL: "mysql", "mariadb": "mysql"}

LOCK_TIMEOUT_S: Final = 5
"""How long a statement waits for a row that another session has locked, before the whole transaction is tried again."""
CONNECT_TIMEOUT_S: Final = 10
IDLE_TIMEOUT_MS: Final = 60_000
"""After how long the server ends a transaction whose process is silent: a frozen one shall not hold locks for ever."""
SILENCE_S: Final = 60
"""After how long a server that says nothing counts as gone, where the driver can tell it from one at work."""
READ_TIMEOUT_S: Final = 300
"""The same for PyMySQL, which can't tell."""
PAUSE_MAX_S: Final = 2.0
_NAME_CHARS_MAX: Final = 100


class Verdict(Enum):
    """What an error of a database calls for."""

    TRANSIENT = "the transaction may succeed when it is repeated"
    ROW = "a row is to blame"
    FATAL = "repeating will not help"


class Database:
    """An engine, and what is particular to its kind. Thread-safe as engines are.

    database:        a URL such as "postgresql://user@host/name", "mysql://...", "sqlite:///file.db", or a SQLAlchemy
                     `Engine`
    idle_timeout_ms: after how long the server ends a transaction in which nothing is executed (PostgreSQL, MariaDB)
    """

    def __init__(self, database: str | sa.URL | Engine, idle_timeout_ms: int = IDLE_TIMEOUT_MS) -> None:
        """Connects to nothing yet. Raises `UsageError` for what is no database that can be used."""
        self.engine = database if isinstance(database, Engine) else _engine(database)
        self._is_own_engine = not isinstance(database, Engine)
        self._idle_timeout_ms = idle_timeout_ms
        self.is_mariadb = self.engine.dialect.name == "mariadb" or getattr(self.engine.dialect, "is_mariadb", False)
        self.kind = MYSQL if self.engine.dialect.name in ("mysql", "mariadb") else self.engine.dialect.name
        if self.kind not in (SQLITE, POSTGRESQL, MYSQL):
            raise UsageError(f"{self.kind} is not supported: use SQLite, PostgreSQL, MySQL or MariaDB")
        if self.engine.dialect.is_async:
            raise UsageError(
                f"{self.engine.url.drivername} is for asyncio: give a driver that is not, or just {self.kind}"
            )
        if self.kind == SQLITE and self.engine.url.database in (None, "", ":memory:"):
            raise UsageError("a SQLite database in memory ends with its connection: give a file, sqlite:///name.db")

    @property
    def location(self) -> str:
        """The URL without its password, for messages."""
        return self.engine.url.render_as_string(hide_password=True)

    @property
    def name(self) -> str:
        """Its kind and its name, for those who must not see hosts, users or directories: postgresql shop."""
        return f"{self.kind} {PurePath(self.engine.url.database or '').name}"[:_NAME_CHARS_MAX]

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Give a connection in a transaction that commits at the end of the block, and rolls back when it raises.

        Locks are waited for and silence is borne for a bounded time. Whatever isolation the engine has, including none
        at all (AUTOCOMMIT), this is a transaction: READ COMMITTED, and SERIALIZABLE with SQLite, which has no other.
        """
        level = "SERIALIZABLE" if self.kind == SQLITE else "READ COMMITTED"
        with (
            self.engine.connect().execution_options(isolation_level=level) as connection,
            connection.begin() as transaction,
        ):
            self._bound(connection)
            yield connection
            if not transaction.is_active:
                raise UsageError(
                    "the transaction was ended inside of its block: leave commit() and rollback() to the block's end, "
                    "or what was executed and the offsets are not one"
                )

    def _bound(self, connection: sa.Connection) -> None:
        if self.kind == POSTGRESQL:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
            connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {self._idle_timeout_ms}")
        elif self.kind == MYSQL:
            connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}")
            if self.is_mariadb:
                seconds = -(-self._idle_timeout_ms // 1000)
                connection.exec_driver_sql(f"SET SESSION idle_transaction_timeout = {seconds}")

    def verdict(self, error: BaseException) -> Verdict:
        """Say what an error that came out of a transaction calls for."""
        if isinstance(error, exc.TimeoutError):
            return Verdict.TRANSIENT
        if not isinstance(error, exc.DBAPIError):
            # Values that SQLAlchemy or the driver could not turn into the database's.
            is_value = isinstance(error, (exc.StatementError, TypeError, ValueError, OverflowError))
            return Verdict.ROW if is_value and not isinstance(error, UsageError) else Verdict.FATAL
        judges = {SQLITE: _judge_sqlite, POSTGRESQL: _judge_postgresql, MYSQL: _judge_mysql}
        found = judges[self.kind](error.orig)
        if found is None and error.connection_invalidated:
            return Verdict.TRANSIENT
        if found is None and isinstance(error, (exc.IntegrityError, exc.DataError)):
            return Verdict.ROW
        return found or Verdict.FATAL

    def retried(
        self, work: Callable[[], T], *, timeout_s: float, is_over: Callable[[], bool], on_retry: Callable[[], None]
    ) -> T:
        """Return what `work` returns, a whole transaction that may be repeated; transient errors repeat it.

        Raises `RetriableError` when it takes longer than `timeout_s`, or when `is_over` says to give up.
        """

        def note(state: Any) -> None:
            on_retry()

        attempts = Retrying(
            retry=retry_if_exception(lambda error: self.verdict(error) is Verdict.TRANSIENT and not is_over()),
            wait=wait_random_exponential(0.05, PAUSE_MAX_S),
            stop=stop_after_delay(timeout_s),
            before_sleep=note,
            reraise=True,
        )
        try:
            return attempts(work)
        except Exception as error:
            if self.verdict(error) is Verdict.TRANSIENT:
                raise unavailable(self, error) from error
            raise

    def misses(self, table: sa.Table, error: exc.DBAPIError) -> bool:
        """Whether an error says that there is no such table."""
        original = error.orig
        if self.kind == POSTGRESQL:
            is_missing = getattr(original, "sqlstate", None) == "42P01"
        elif self.kind == MYSQL:
            is_missing = getattr(original, "args", ())[:1] == (1146,)
        else:
            is_missing = str(original).startswith("no such table")
        return is_missing and table.name in str(original)

    def require_transactions(self, connection: sa.Connection, table: sa.Table) -> None:
        """Raise `UsageError` for a table that ignores transactions (MyISAM and its like)."""
        if self.kind != MYSQL:
            return
        engine = connection.execute(
            sa.text(
                "SELECT engine FROM information_schema.tables "
                "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
            ),
            {"schema": table.schema, "name": table.name},
        ).scalar()
        if str(engine).lower() != "innodb":
            raise UsageError(
                f"table {table.fullname!r} is kept by {engine}, which has no transactions: "
                f"ALTER TABLE {table.fullname} ENGINE=InnoDB"
            )

    def dispose(self) -> None:
        """Close the connections, if the engine was made here."""
        if self._is_own_engine:
            self.engine.dispose()


def unavailable(database: Database, error: BaseException) -> RetriableError:
    """Return the error of a database that does not answer, or not in time."""
    return RetriableError(
        f"the database {database.location} did not take the transaction: {first_line(error)}; look at the database",
        ErrorCode.REQUEST_TIMED_OUT,
    )


def failed(database: Database, error: BaseException) -> FatalError:
    """Return the error of a database that refuses for good."""
    return FatalError(f"the database {database.location} refuses: {first_line(error)}")


def to_semel_error(database: Database, error: sa.exc.SQLAlchemyError) -> RetriableError | FatalError:
    """Return what to raise for an error of work that is not tried again here."""
    return (unavailable if database.verdict(error) is Verdict.TRANSIENT else failed)(database, error)


def first_line(error: object) -> str:
    """Return what an error says, in one line: SQLAlchemy and drivers append the statement with all its values."""
    if isinstance(error, exc.StatementError) and error.orig is not None:
        error = error.orig
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:500]


def _engine(url: str | sa.URL) -> Engine:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise UsageError("database takes a URL such as 'postgresql://user@host/name', or a SQLAlchemy Engine") from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    backend = parsed.get_backend_name()
    options: dict[str, Any] = {"pool_pre_ping": True, "pool_recycle": 600}
    if backend == SQLITE:
        options = {"connect_args": {"timeout": LOCK_TIMEOUT_S}}
    elif parsed.drivername in _DRIVERS.values():
        options["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S}
        if parsed.drivername.endswith("pymysql"):
            options["connect_args"] |= {"read_timeout": READ_TIMEOUT_S, "write_timeout": READ_TIMEOUT_S}
        else:  # a server whose host has gone sends no goodbye
            options["connect_args"] |= {
                "keepalives_idle": SILENCE_S // 2,
                "keepalives_interval": SILENCE_S // 6,
                "keepalives_count": 3,
                "tcp_user_timeout": SILENCE_S * 1000,
            }
    try:
        return sa.create_engine(parsed, hide_parameters=True, **options)  # rows do not belong into logs
    except ModuleNotFoundError as error:
        command = install_command(_EXTRAS[backend]) if backend in _EXTRAS else f"pip install {error.name}"
        raise UsageError(f"{backend} needs the Python package {error.name}: {command}") from None
    except exc.NoSuchModuleError:
        raise UsageError(f"{backend} is not supported: use SQLite, PostgreSQL, MySQL or MariaDB") from None


_SQLITE_TRANSIENT: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
)
_SQLITE_ROW: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})


def _judge_sqlite(error: BaseException | None) -> Verdict | None:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Without a code it is the module's own: a value that it can't bind.
        is_value = isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError))
        return Verdict.ROW if is_value else None
    primary = code & 0xFF
    if primary in _SQLITE_TRANSIENT:
        return Verdict.TRANSIENT
    return Verdict.ROW if primary in _SQLITE_ROW else None


def _judge_postgresql(error: BaseException | None) -> Verdict | None:
    state = getattr(error, "sqlstate", None)
    if state is None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if "OperationalError" in names:
            return Verdict.TRANSIENT  # the connection
        return Verdict.ROW if names & {"ProgrammingError", "NotSupportedError"} else None  # a value it can't adapt
    if state[:2] in ("08", "40", "53", "58") or state in _POSTGRESQL_TRANSIENT:
        return Verdict.TRANSIENT
    return Verdict.ROW if state[:2] in ("22", "23", "44") or state == "42804" else None


_POSTGRESQL_TRANSIENT: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "57014", "55P03", "25P03", "25P04"})


def _judge_mysql(error: BaseException | None) -> Verdict | None:
    code = error.args[0] if error is not None and error.args else None
    if code in _MYSQL_TRANSIENT:
        return Verdict.TRANSIENT
    return Verdict.ROW if code in _MYSQL_ROW else None


_MYSQL_TRANSIENT: Final = frozenset(
    {0, 1021, 1040, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1317, 1836, 1927}
    | {2002, 2003, 2006, 2013, 2014, 2055, 3024, 4031}
)
_MYSQL_ROW: Final = frozenset(
    {1048, 1062, 1264, 1265, 1292, 1300, 1364, 1366, 1367, 1406, 1451, 1452, 1690, 3140, 3819, 4025, 4078}
)
