"""A database for the metadata of each test, on SQLite and on a real PostgreSQL, and how its answers are lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from postgresql_server import postgresql_server, postgresql_url  # noqa: F401  (fixtures)

from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.store import MetadataStore, sqlite_url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(str(tmp_path / "metadata.sqlite"))
    found: str = request.getfixturevalue("postgresql_url")
    return found


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from there on each commit happens, and the connection breaks before its answer."""
    append = MetadataStore.append

    def lose_answer(*arguments: object, **named: object) -> None:
        append(*arguments, **named)  # type: ignore[arg-type]
        raise MetadataUnavailableError("connection reset")

    return lambda: monkeypatch.setattr(MetadataStore, "append", lose_answer)
