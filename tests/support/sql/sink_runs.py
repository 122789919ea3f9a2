"""A sink's tables, a run of sinks that are struck at, and what has to be in the tables afterwards (E3)."""

from __future__ import annotations

import json
from collections import defaultdict

import sqlalchemy as sa
from sql_chaos import PARTITIONS, Cast, Feeder, read_all
from sql_worker import DEAD, GROUP, SOURCE

import semel
import semel.sql


def prepare(url: str) -> sa.Engine:
    """Make the tables that `sql_worker.py` fills."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    metadata = sa.MetaData()
    positive = sa.CheckConstraint("number >= 0", name="positive")
    sa.Table(
        "written",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("source_partition", sa.Integer, nullable=False),
        sa.Column("source_offset", sa.Integer, nullable=False),  # on purpose without a constraint: nothing else helps
        sa.Column("record_key", sa.String(20), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        positive,
        sqlite_autoincrement=True,
    )
    sa.Table(
        "latest",
        metadata,
        sa.Column("record_key", sa.String(20), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("source_offset", sa.Integer, nullable=False),
        sa.CheckConstraint("number >= 0", name="positive_too"),
    )
    totals = sa.Table(
        "totals",
        metadata,
        sa.Column("source_partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("offsets", sa.BigInteger, nullable=False),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(totals.insert(), [{"source_partition": n, "n": 0, "offsets": 0} for n in range(PARTITIONS)])
    sink = semel.sql.Sink(
        "localhost:9094",
        url,
        group=GROUP,
        topics=[SOURCE],
        table="written",
        mapping=lambda record: None,
        dead_letter_topic=DEAD,
    )
    sink.create_tables()
    sink.close()
    return engine


def run(cast: Cast, engine: sa.Engine, seed: int, faults: list[str], *, with_poison: bool) -> list[semel.Record]:
    """Feed and strike, and wait until the sinks have worked everything off; return what was to be written."""
    feeder = Feeder(cast.bootstrap, with_poison=with_poison)
    feeder.start()
    cast.start_workers()
    cast.strike(seed, faults)
    cast.thaw()
    feeder.finish()
    records = read_all(cast.bootstrap, SOURCE, PARTITIONS)
    ends: dict[int, int] = defaultdict(int)
    for record in records:
        ends[record.partition] = max(ends[record.partition], record.offset + 1)

    def is_done() -> bool:
        with engine.connect() as connection:
            found = dict(connection.execute(sa.text("SELECT partition_number, position FROM semel_offsets")).all())
        return found == ends

    cast.wait_until(is_done, "the sinks did not work everything off")
    return records


def is_good(record: semel.Record) -> bool:
    value = (record.value or b"").decode()
    return not value.startswith("poison") and json.loads(value)["n"] >= 0


def check_dead_letters(cast: Cast, engine: sa.Engine, records: list[semel.Record]) -> None:
    """Each record that can't be a row is a dead letter once, and says where it is from."""

    def is_relayed() -> bool:
        with engine.connect() as connection:
            return connection.execute(sa.text("SELECT count(*) FROM semel_dead_letters")).scalar_one() == 0

    cast.wait_until(is_relayed, "the dead letters were not relayed")
    expected = sorted((record.partition, record.offset) for record in records if not is_good(record))
    dead = [(record, dict(record.headers)) for record in read_all(cast.bootstrap, DEAD, 1)]
    found = [
        (int(headers["semel.source.partition"] or 0), int(headers["semel.source.offset"] or 0)) for _, headers in dead
    ]
    assert expected
    assert sorted(found) == expected
    by_place = {(record.partition, record.offset): record for record in records}
    for place, (record, headers) in zip(found, dead, strict=True):
        assert (record.key, record.value) == (by_place[place].key, by_place[place].value)
        reason = (headers["semel.error.reason"] or b"").decode()
        assert reason.startswith("the mapping raised" if b"poison" in (record.value or b"") else "the database refused")


def check_appended(engine: sa.Engine, records: list[semel.Record]) -> None:
    """Each record that can be a row is one, in the order of its partition, and nothing else is."""
    with engine.connect() as connection:
        rows = connection.execute(
            sa.text("SELECT source_partition, source_offset, number, record_key FROM written ORDER BY id")
        ).all()
    for partition in range(PARTITIONS):
        offsets = [row.source_offset for row in rows if row.source_partition == partition]
        expected = [record.offset for record in records if record.partition == partition and is_good(record)]
        assert offsets == expected, f"partition {partition}: not each record once, in order"
    numbers = {
        (record.partition, record.offset): json.loads(record.value or b"")["n"] for record in records if is_good(record)
    }
    assert {(row.source_partition, row.source_offset): row.number for row in rows} == numbers
