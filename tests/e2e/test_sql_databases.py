"""What differs between databases: locks that members wait for, frozen transactions, types, notifications."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from database_servers import DatabaseServer, mariadb, postgresql  # noqa: F401  (fixtures)
from live_node import LiveNode

import semel
import semel.sql
from semel.protocol.errors import RetriableError, UsageError
from semel.sdk.sql import outbox as sql_outbox

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.postgresql)
MARIADB = pytest.param("mariadb", marks=pytest.mark.mariadb)
PATIENCE_S = 60.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> sa.Engine:
    server: DatabaseServer = request.getfixturevalue(request.param)
    return sa.create_engine(server.new_database(), poolclass=sa.NullPool)


@pytest.fixture
def topic(node: LiveNode) -> str:
    name = f"t{next(_numbers)}"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(name, partitions=1)
    return name


def send(node: LiveNode, topic: str, *values: object) -> None:
    with semel.Producer(node.bootstrap, linger_ms=0) as producer:
        for value in values:
            producer.send(topic, json.dumps(value))


def make_sink(node: LiveNode, engine: sa.Engine, topic: str, **options: Any) -> semel.sql.Sink:
    consumer = {"heartbeat_interval_ms": 20, "max_wait_ms": 50, "instance_id": "one"}
    sink = semel.sql.Sink(node.bootstrap, engine, group=topic, topics=[topic], consumer=consumer, **options)
    sink.create_tables()
    return sink


def execute(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def rows(engine: sa.Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("engine", [POSTGRESQL, MARIADB], indirect=True)
def test_E3_O4_a_successor_waits_for_a_transaction_that_has_begun_and_goes_on_after_it(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    execute(engine, "CREATE TABLE log (place INTEGER NOT NULL)")
    send(node, topic, 0, 1)
    with make_sink(node, engine, topic) as old, make_sink(node, engine, topic) as new:
        taken: list[semel.Batch] = []
        with old.transaction(next(old.batches(max_records=1))) as connection:
            connection.execute(sa.text("INSERT INTO log VALUES (0)"))
            thread = threading.Thread(target=lambda: taken.append(next(new.batches())))
            thread.start()
            wait_until(lambda: new._state.claims.is_waiting)
            thread.join(0.5)
            assert not taken, "the successor did not wait for the lock"
        thread.join(PATIENCE_S)
        (batch,) = taken
        assert [record.offset for record in batch] == [1], "what the other one committed is not read again"
        with new.transaction(batch) as connection:
            connection.execute(sa.text("INSERT INTO log VALUES (1)"))
    assert rows(engine, "SELECT place FROM log ORDER BY place") == [(0,), (1,)]


@pytest.mark.parametrize("engine", [POSTGRESQL, MARIADB], indirect=True)
def test_E3_a_transaction_whose_process_is_frozen_is_ended_by_the_server(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    execute(engine, "CREATE TABLE log (place INTEGER NOT NULL)")
    send(node, topic, 0)
    with make_sink(node, engine, topic, idle_timeout_ms=1_000) as frozen, make_sink(node, engine, topic) as successor:

        def sleep_inside() -> None:
            with frozen.transaction(next(frozen.batches())) as connection:
                connection.execute(sa.text("INSERT INTO log VALUES (-1)"))
                batch = next(successor.batches())  # while this one is silent
                with successor.transaction(batch) as other:
                    other.execute(sa.text("INSERT INTO log VALUES (0)"))

        with pytest.raises(RetriableError, match="another member has claimed its partitions since"):
            sleep_inside()
    assert rows(engine, "SELECT place FROM log") == [(0,)]


@pytest.mark.parametrize("engine", [POSTGRESQL, MARIADB], indirect=True)
def test_values_of_many_types_are_upserted_and_deleted(node: LiveNode, engine: sa.Engine, topic: str) -> None:
    metadata = sa.MetaData()
    table = sa.Table(
        "items",
        metadata,
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("amount", sa.Numeric(12, 2), nullable=False),
        sa.Column("at", sa.DateTime),
        sa.Column("paid", sa.Boolean),
        sa.Column("raw", sa.LargeBinary),
        sa.Column("doc", sa.JSON),
        sa.Column("since", sa.DateTime, server_default=sa.func.now(), nullable=False),
    )
    metadata.create_all(engine)
    is_postgresql = engine.dialect.name == "postgresql"
    document = (lambda value: value) if is_postgresql else json.dumps  # MariaDB's JSON is text
    moment = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC).replace(tzinfo=None)

    def mapping(record: semel.Record) -> Any:
        value = json.loads(record.value or b"")
        if value["amount"] is None:
            return semel.sql.Delete({"id": value["id"]})
        amount = Decimal(value["amount"])
        return {
            "id": value["id"],
            "amount": amount,
            "at": moment,
            "paid": True,
            "raw": b"\x00\xff",
            "doc": document(value),
        }

    send(node, topic, *({"id": f"k{number % 5}", "amount": f"{number}.25"} for number in range(40)))
    send(node, topic, {"id": "k0", "amount": None}, {"id": "gone", "amount": "1"}, {"id": "gone", "amount": None})
    columns = {
        "id": str,
        "amount": Decimal,
        "at": datetime,
        "paid": bool,
        "raw": bytes,
        "doc": dict if is_postgresql else str,
    }
    dead = f"{topic}-dead"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(dead, partitions=1)
    with make_sink(
        node, engine, topic, table="items", mapping=mapping, mode="upsert", columns=columns, dead_letter_topic=dead
    ) as sink:
        sink.run(idle_timeout_s=0.3)
        assert sink.statistics()["dead_letters"] == 0
    with engine.connect() as connection:
        found = connection.execute(sa.select(table).order_by(table.c.id)).all()
    assert [(row.id, row.amount) for row in found] == [(f"k{n}", Decimal(f"{35 + n}.25")) for n in range(1, 5)]
    assert {(row.at, bool(row.paid), row.raw) for row in found} == {(moment, True, b"\x00\xff")}
    assert found[0].doc == {"id": "k1", "amount": "36.25"}


@pytest.mark.parametrize("engine", [POSTGRESQL], indirect=True)
def test_notifications_wake_a_relay_that_looks_rarely(
    node: LiveNode, engine: sa.Engine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_outbox, "FIRST_POLL_S", 600.0)
    outbox = semel.sql.Outbox(node.bootstrap, engine, notify=True, poll_interval_ms=600_000, lease_ms=2_400_000)
    outbox.create_tables()
    thread = threading.Thread(target=outbox.run, daemon=True)
    thread.start()
    wait_until(lambda: rows(engine, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN semel_outbox%'"))
    with engine.begin() as connection:
        outbox.add(connection, topic, "now")
    wait_until(lambda: rows(engine, "SELECT count(*) FROM semel_outbox") == [(0,)])
    outbox.stop()
    with engine.begin() as connection:
        outbox.add(connection, topic, "wake up")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    outbox.close()


@pytest.mark.parametrize("engine", [MARIADB], indirect=True)
def test_tables_that_mysql_would_write_wrongly_are_refused(node: LiveNode, engine: sa.Engine, topic: str) -> None:
    execute(
        engine,
        "CREATE TABLE plain (id INTEGER PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE twice (id INTEGER PRIMARY KEY, name VARCHAR(20) UNIQUE)",
    )

    def mapping(record: semel.Record) -> None:
        return None

    with (
        pytest.raises(UsageError, match="kept by MyISAM, which has no transactions"),
        make_sink(node, engine, topic, table="plain", mapping=mapping),
    ):
        pass
    with (
        pytest.raises(UsageError, match="'twice' has further unique columns"),
        make_sink(node, engine, topic, table="twice", mapping=mapping, mode="upsert", key=["id"]),
    ):
        pass
