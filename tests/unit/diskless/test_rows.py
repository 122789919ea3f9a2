"""The rows of diskless topics, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from semel.broker.diskless.rows import DisklessRows
from semel.broker.metadata.store import sqlite_url
from semel.protocol.ids import TopicId

KEY = (TopicId(UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")), 3)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DisklessRows]:
    if request.param == "sqlite":
        url = sqlite_url(str(tmp_path / "rows.sqlite"))
    else:
        url = request.getfixturevalue("postgresql_url")
    made = DisklessRows(url)
    made.create()
    yield made
    made.close()


def test_the_first_leader_of_a_partition_is_told_that_it_has_the_claim(rows: DisklessRows) -> None:
    assert rows.claim(KEY, "first", leader_epoch=0, node_id=1)
    assert rows.claim_of(KEY) == "first"


def test_R3_the_leader_of_an_earlier_epoch_gets_no_claim(rows: DisklessRows) -> None:
    assert rows.claim(KEY, "first", leader_epoch=3, node_id=1)
    assert not rows.claim(KEY, "late", leader_epoch=2, node_id=2)
    assert rows.claim_of(KEY) == "first"
    assert rows.claim(KEY, "again", leader_epoch=3, node_id=1)
    assert rows.claim_of(KEY) == "again"
