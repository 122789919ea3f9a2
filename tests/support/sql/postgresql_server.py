"""A PostgreSQL server of the tests' own. Import the fixtures into a test module to use them."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

UNPRIVILEGED = "nobody"


def _postgresql_binaries() -> str | None:
    """Debian keeps the server's programs out of the path."""
    found = shutil.which("initdb")
    if found is not None:
        return os.path.dirname(os.path.realpath(found))
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    return folders[-1] if folders else None


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """Start a PostgreSQL of our own on a Unix socket; give the folder of the socket."""
    binaries = _postgresql_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    folder = tempfile.mkdtemp(prefix="semel-postgresql-", dir="/tmp")
    user: str | None = None
    if os.geteuid() == 0:  # the server refuses to run as root
        user = UNPRIVILEGED
        shutil.chown(folder, user=user)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": folder}

    def run(*command: str) -> None:
        done = subprocess.run(
            command, user=user, env=environment, cwd=folder, check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr + done.stdout

    data = f"{folder}/data"
    try:
        run(f"{binaries}/initdb", "-D", data, "-U", "semel", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=20"
        # The log goes to a file: the server would keep the pipe of its starter open.
        run(f"{binaries}/pg_ctl", "-D", data, "-w", "-o", options, "-l", f"{folder}/log", "start")
        try:
            yield folder
        finally:
            run(f"{binaries}/pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """An empty database."""
    admin = sa.create_engine(
        f"postgresql+psycopg://semel@/postgres?host={postgresql_server}", isolation_level="AUTOCOMMIT"
    )
    name = f"test_{next(tempfile._get_candidate_names())}".lower()  # type: ignore[attr-defined]
    with admin.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
    admin.dispose()
    return f"postgresql://semel@/{name}?host={postgresql_server}"
