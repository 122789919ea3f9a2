"""A PostgreSQL server of the tests' own. Import the fixtures into a test module to use them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from postgresql_process import PostgresqlMissingError, new_database, running_postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """Start a PostgreSQL of our own on a Unix socket; give the folder of the socket."""
    try:
        with running_postgresql("fsync=off", "max_connections=20") as server:
            yield server.folder
    except PostgresqlMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """An empty database."""
    name = f"test_{next(tempfile._get_candidate_names())}".lower()  # type: ignore[attr-defined]
    new_database(postgresql_server, name)
    return f"postgresql://semel@/{name}?host={postgresql_server}"
