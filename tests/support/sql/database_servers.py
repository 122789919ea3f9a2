"""Database servers of the tests' own that can be killed and started again. Import the fixtures to use them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from postgresql_process import UNPRIVILEGED, PostgresqlMissingError, as_user, postgresql_binaries

from semel.runtime.ports import free_ports

START_S = 60.0


class DatabaseServer(ABC):
    """A server with its data in a folder, on a Unix socket; SIGKILL and `start` again keep the data."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="semel-database-", dir="/tmp")
        self.user: str | None = None
        if os.geteuid() == 0:  # servers refuse to run as root
            self.user = UNPRIVILEGED
            shutil.chown(self.folder, user=self.user)
        self.environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": self.folder}
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def url(self, database: str) -> str:
        """Return how to reach a database."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that runs the server."""

    @property
    def started_by(self) -> str | None:
        """Who runs the command; None: who runs the tests."""
        return self.user

    def is_ready(self) -> bool:
        """Whether it answers."""
        engine = sa.create_engine(self.url(self.first_database), poolclass=sa.NullPool)
        with suppress(sa.exc.SQLAlchemyError), engine.connect():
            return True
        return False

    first_database: ClassVar[str]

    def start(self) -> None:
        with open(f"{self.folder}/log", "ab") as log:
            self._process = subprocess.Popen(
                as_user(self.started_by, self.command()),
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            assert time.monotonic() < deadline, f"not ready in {START_S:.0f} s:\n{self.log_tail()}"
            if self._process.poll() is not None:  # what it was before is not quite gone yet
                self.start()
                return
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to the server and all of its processes."""
        self.kills += 1
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def close(self) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self, name: str = "") -> str:
        """Make an empty database, by default with a name of its own, and return its URL."""
        name = name or f"test_{secrets.token_hex(6)}"
        engine = sa.create_engine(self.url(self.first_database), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, also one that is in use."""
        engine = sa.create_engine(self.url(self.first_database), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")

    def log_tail(self) -> str:
        return "\n".join(Path(f"{self.folder}/log").read_text(errors="replace").splitlines()[-20:])

    def run(self, *command: str) -> None:
        done = subprocess.run(
            as_user(self.user, command),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr + done.stdout


class PostgresqlServer(DatabaseServer):
    """PostgreSQL from the Debian package, or from the path."""

    first_database = "postgres"

    def __init__(self) -> None:
        try:
            self._binaries = postgresql_binaries()
        except PostgresqlMissingError as error:
            pytest.skip(str(error))
        super().__init__()
        self._data = f"{self.folder}/data"
        self._make()

    def _make(self) -> None:
        self.run(f"{self._binaries}/initdb", "-D", self._data, "-U", "semel", "-A", "trust", "-E", "UTF8", "--no-sync")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://semel@/{database}?host={self.folder}"

    def dump(self, database: str) -> str:
        """Write a backup of a database, as `pg_dump` makes it, and return its path."""
        path = f"{self.folder}/{database}-{secrets.token_hex(4)}.sql"
        self.run(f"{self._binaries}/pg_dump", "-h", self.folder, "-U", "semel", "-f", path, database)
        return path

    def restore(self, database: str, path: str) -> None:
        """Put a backup in the place of a database."""
        self.drop_database(database)
        self.new_database(database)
        self.run(
            *(f"{self._binaries}/psql", "-h", self.folder, "-U", "semel", "-d", database, "-q"),
            *("-v", "ON_ERROR_STOP=1", "-f", path),
        )

    def command(self) -> Sequence[str]:
        # The cache of the system survives the kill of a process: no need for the disk itself here.
        options = ["-k", self.folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50"]
        return [f"{self._binaries}/postgres", "-D", self._data, *options]


class PasswordPostgresqlServer(PostgresqlServer):
    """One that is reached by TCP on this machine, and asks for the password of its user `semel`."""

    def __init__(self, password: str) -> None:
        self._password = password
        (self.port,) = free_ports(1)
        super().__init__()

    def _make(self) -> None:
        file = Path(self.folder, "password")
        file.write_text(self._password)
        if self.user is not None:
            shutil.chown(file, user=self.user)
        self.run(
            *(f"{self._binaries}/initdb", "-D", self._data, "-U", "semel", "-A", "scram-sha-256", "-E", "UTF8"),
            *("--no-sync", f"--pwfile={file}"),
        )

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://semel:{quote(self._password, safe='')}@127.0.0.1:{self.port}/{database}"

    def command(self) -> Sequence[str]:
        return [*super().command(), "-c", "listen_addresses=127.0.0.1", "-p", str(self.port)]


class _Standby(PostgresqlServer):
    name = "standby"

    def _make(self) -> None:
        """It begins as a copy."""

    def copy(self, primary: PostgresqlServer) -> None:
        source = f"host={primary.folder} user=semel dbname=postgres application_name={self.name}"
        self.run(f"{self._binaries}/pg_basebackup", "-d", source, "-D", self._data, "-R", "--no-sync", "-c", "fast")


class PostgresqlPair:
    """A primary, and a standby that has all it commits (synchronous replication). `url` finds who takes writes.

    is_synchronous: False: the standby gets what the primary commits a little later
    """

    def __init__(self, *, is_synchronous: bool = True) -> None:
        self._is_synchronous = is_synchronous
        self.primary, self.standby = PostgresqlServer(), _Standby()

    def start(self) -> None:
        self.primary.start()
        self.standby.copy(self.primary)
        self.standby.start()
        if self._is_synchronous:
            self._execute(self.primary, f"ALTER SYSTEM SET synchronous_standby_names = '{_Standby.name}'")
            self._execute(self.primary, "SELECT pg_reload_conf()")
        wanted = "sync" if self._is_synchronous else "async"
        self._wait(f"SELECT sync_state = '{wanted}' FROM pg_stat_replication")

    def _wait(self, question: str) -> None:
        """Wait until the primary says yes."""
        deadline = time.monotonic() + START_S
        while self._execute(self.primary, question) is not True:
            assert time.monotonic() < deadline, self.standby.log_tail()
            time.sleep(0.1)

    def fall_behind(self) -> None:
        """Let the standby have what is committed by now, and nothing of what comes."""
        position = self._execute(self.primary, "SELECT pg_current_wal_lsn()::text")
        self._wait(f"SELECT replay_lsn >= '{position}' FROM pg_stat_replication")
        self._execute(self.standby, "ALTER SYSTEM SET primary_conninfo = ''")
        self._execute(self.standby, "SELECT pg_reload_conf()")
        self._wait("SELECT count(*) = 0 FROM pg_stat_replication")

    def url(self, database: str) -> str:
        folders = "&".join(f"host={server.folder}" for server in (self.primary, self.standby))
        return f"postgresql+psycopg://semel@/{database}?{folders}&target_session_attrs=read-write"

    def promote(self) -> None:
        """Let the standby take writes from now on. Nobody does before that, once the primary is gone."""
        assert self._execute(self.standby, "SELECT pg_promote(true, 60)") is True

    def close(self) -> None:
        self.standby.close()
        self.primary.close()

    @staticmethod
    def _execute(server: PostgresqlServer, statement: str) -> object:
        engine = sa.create_engine(
            server.url(server.first_database), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
        )
        with engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            row = result.first() if result.returns_rows else None
            return None if row is None else row[0]


class MariadbServer(DatabaseServer):
    """MariaDB from the Debian package, or from the path."""

    first_database = "mysql"

    def __init__(self) -> None:
        server = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
        install = shutil.which("mariadb-install-db")
        if server is None or install is None:
            pytest.skip("no MariaDB server here: apt-get install mariadb-server")
        super().__init__()
        self._server = server
        self._data = f"{self.folder}/data"
        self.run(
            install,
            "--no-defaults",
            f"--tmpdir={self.folder}",  # in /tmp two of them remove each other's files
            f"--datadir={self._data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def url(self, database: str) -> str:
        return f"mysql+pymysql://root@localhost/{database}?unix_socket={self.folder}/socket&charset=utf8mb4"

    def is_ready(self) -> bool:
        # PyMySQL would leave sockets open that could not connect.
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(f"{self.folder}/socket") == 0

    def command(self) -> Sequence[str]:
        return [
            self._server,
            "--no-defaults",
            f"--datadir={self._data}",
            f"--socket={self.folder}/socket",
            f"--pid-file={self.folder}/pid",
            "--skip-networking",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=32M",
        ]


def started(make: Callable[[], DatabaseServer]) -> Iterator[DatabaseServer]:
    server = make()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[DatabaseServer]:
    yield from started(PostgresqlServer)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[DatabaseServer]:
    yield from started(MariadbServer)
