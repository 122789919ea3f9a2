"""Runs a PostgreSQL server on a Unix socket, with its data in a directory that goes away with it."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

UNPRIVILEGED = "nobody"


class PostgresqlMissingError(Exception):
    """The server's programs are not on this machine; the text says what to do."""


@dataclass(frozen=True)
class RunningPostgresql:
    """A server. `folder` is where its socket is, `pid` its first process, whose children are the others."""

    folder: str
    pid: int


def as_user(user: str | None, command: Sequence[str]) -> list[str]:
    """Return what runs a command as a user; None: as who runs the tests.

    `user=` of `subprocess` would fork this process, and gRPC's threads live on in the child of a fork for a moment:
    one that meets files closed for the command aborts it. Without it the child shares nothing but memory (`vfork`).
    """
    if user is None:
        return list(command)
    switched = "import os, pwd, sys; os.setuid(pwd.getpwnam(sys.argv[1]).pw_uid); os.execv(sys.argv[2], sys.argv[2:])"
    return [sys.executable, "-I", "-S", "-c", switched, user, *command]


def postgresql_binaries() -> str:
    """Return the directory of the server's programs, which Debian keeps out of the path."""
    found = shutil.which("initdb")
    if found is not None:
        return os.path.dirname(os.path.realpath(found))
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    if not folders:
        raise PostgresqlMissingError("no PostgreSQL server here: apt-get install postgresql")
    return folders[-1]


@contextmanager
def running_postgresql(*settings: str) -> Iterator[RunningPostgresql]:
    """Start a server with such settings, `fsync=off` for instance. Raises `PostgresqlMissingError`."""
    binaries = postgresql_binaries()
    folder = tempfile.mkdtemp(prefix="semel-postgresql-", dir="/tmp")
    user: str | None = None
    if os.geteuid() == 0:  # the server refuses to run as root
        user = UNPRIVILEGED
        shutil.chown(folder, user=user)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": folder}

    def run(*command: str) -> None:
        done = subprocess.run(
            as_user(user, command),
            env=environment,
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr + done.stdout

    data = f"{folder}/data"
    try:
        run(f"{binaries}/initdb", "-D", data, "-U", "semel", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = " ".join([f"-k {folder} -c listen_addresses=", *(f"-c {setting}" for setting in settings)])
        # The log goes to a file: the server would keep the pipe of its starter open.
        run(f"{binaries}/pg_ctl", "-D", data, "-w", "-o", options, "-l", f"{folder}/log", "start")
        try:
            yield RunningPostgresql(folder, int(Path(data, "postmaster.pid").read_text().split()[0]))
        finally:
            run(f"{binaries}/pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def new_database(folder: str, name: str) -> None:
    """Make an empty database on the server whose socket is in `folder`."""
    admin = sa.create_engine(
        f"postgresql+psycopg://semel@/postgres?host={folder}", isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
    )
    with admin.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
