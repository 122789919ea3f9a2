"""E3, end to end: sinks, their node and their database are killed, and each record is in the table once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from database_servers import DatabaseServer, mariadb, postgresql  # noqa: F401  (fixtures)
from longer_runs import given
from sink_runs import check_appended, check_dead_letters, is_good, prepare, run
from sql_chaos import PARTITIONS, Cast

SEED = int(given("SEMEL_CHAOS_SEED", "1"))

DATABASES = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, DatabaseServer | None]]:
    """The URL of an empty database, and its server, if it has one."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/database.db", None
    else:
        server: DatabaseServer = request.getfixturevalue(request.param)
        yield server.new_database(), server


@pytest.mark.drawn(1, "sinks of SQL through kills")
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("database", DATABASES[:2], indirect=True)
def test_E3_each_record_is_appended_once_and_in_order_whatever_is_killed(
    tmp_path: Path, database: tuple[str, DatabaseServer | None]
) -> None:
    url, server = database
    engine = prepare(url)
    faults = ["worker"] * 3 + ["node"] + ["freeze"] + ["database" if server is not None else "worker"] * 2
    with Cast(tmp_path, "append", url, server) as cast:
        records = run(cast, engine, SEED, faults, with_poison=True)
        check_dead_letters(cast, engine, records)
        assert cast.zombies_end() == [4], "the zombie was not told that another one has its place"
        cast.stop_workers()
    check_appended(engine, records)


@pytest.mark.drawn(1, "sinks of SQL through kills")
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("database", DATABASES[1:], indirect=True)
def test_E3_upserts_leave_the_last_value_of_each_key_whatever_is_killed(
    tmp_path: Path, database: tuple[str, DatabaseServer | None]
) -> None:
    url, server = database
    engine = prepare(url)
    with Cast(tmp_path, "upsert", url, server) as cast:
        records = run(cast, engine, SEED, ["worker", "worker", "node", "database", "freeze"], with_poison=True)
        check_dead_letters(cast, engine, records)
    last = {(record.key or b"").decode(): record.offset for record in records if is_good(record)}
    with engine.connect() as connection:
        found = dict(connection.execute(sa.text("SELECT record_key, source_offset FROM latest")).all())
    assert found == last


@pytest.mark.drawn(1, "sinks of SQL through kills")
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("database", DATABASES[:1], indirect=True)
def test_E3_sql_of_ones_own_counts_each_record_once_whatever_is_killed(
    tmp_path: Path, database: tuple[str, DatabaseServer | None]
) -> None:
    url, server = database
    engine = prepare(url)
    faults = ["worker"] * 3 + ["node"] + ["freeze"] + ["database" if server is not None else "worker"] * 2
    with Cast(tmp_path, "own", url, server) as cast:
        records = run(cast, engine, SEED, faults, with_poison=False)
    expected: dict[int, tuple[int, int]] = dict.fromkeys(range(PARTITIONS), (0, 0))
    for record in records:
        count, total = expected[record.partition]
        expected[record.partition] = (count + 1, total + record.offset)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT source_partition, n, offsets FROM totals")).all()
    assert {row[0]: (row[1], row[2]) for row in found} == expected


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("database", DATABASES[:1], indirect=True)
def test_E3_a_planted_fault_of_the_sink_is_found(tmp_path: Path, database: tuple[str, DatabaseServer | None]) -> None:
    """Offsets that are committed before the rows lose what a kill comes between, and this check must see it."""
    url, server = database
    engine = prepare(url)
    with Cast(tmp_path, "append", url, server, fault="offsets-apart") as cast:
        records = run(cast, engine, SEED, ["worker"] * 2, with_poison=False)
    with engine.connect() as connection:
        found = set(connection.execute(sa.text("SELECT source_partition, source_offset FROM written")).all())
    assert {(record.partition, record.offset) for record in records} - found, "rows were to be lost"
