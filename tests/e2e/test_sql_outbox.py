"""The outbox, end to end: rows are relayed once and in order by key, whatever is killed and however they commit."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from database_servers import DatabaseServer, mariadb, postgresql  # noqa: F401  (fixtures)
from live_node import LiveNode
from longer_runs import given
from sql_chaos import KEYS, PARTITIONS, PATIENCE_S, Cast, read_all
from sql_worker import SOURCE

import semel
import semel.sql

SEED = int(given("SEMEL_CHAOS_SEED", "1"))
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.postgresql)
MARIADB = pytest.param("mariadb", marks=pytest.mark.mariadb)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, DatabaseServer | None]]:
    """The URL of an empty database, and its server, if it has one."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/database.db", None
    else:
        server: DatabaseServer = request.getfixturevalue(request.param)
        yield server.new_database(), server


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as running:
        with semel.Admin(running.bootstrap) as admin:
            for topic in ("orders", "a", "b"):
                admin.create_topic(topic, partitions=2)
        yield running


class Running:
    """A relay on a thread."""

    def __init__(self, outbox: semel.sql.Outbox) -> None:
        self.outbox = outbox
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outbox.run()
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self.outbox.stop()
        self._thread.join(PATIENCE_S)
        self.outbox.close()


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def values(node: LiveNode, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_all(node.bootstrap, topic, 2)]


def waiting(engine: sa.Engine, table: str = "semel_outbox") -> int:
    with engine.connect() as connection:
        count: int = connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one()
        return count


class Application(threading.Thread):
    """Adds rows in transactions of its own, until `finish`; writes down what has committed, by key."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.committed: dict[str, list[str]] = defaultdict(list)
        self.maybe: set[str] = set()
        self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        self._outbox = semel.sql.Outbox("localhost:9094", self._engine)
        self._stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(0.003):
            key = f"k{number % KEYS}"
            added = [f"{number}.{part}" for part in range(2)]
            number += 1
            is_committing = False
            try:
                with self._engine.connect() as connection, connection.begin():
                    for value in added:
                        self._outbox.add(connection, SOURCE, value, key=key)
                    is_committing = True
            except sa.exc.DBAPIError:
                if is_committing:
                    self.maybe.update(added)  # the database was killed: nobody told us
                time.sleep(0.05)
            else:
                self.committed[key] += added

    def finish(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("database", ["sqlite", POSTGRESQL], indirect=True)
def test_E3_E5_each_row_is_relayed_once_in_order_by_key_whatever_is_killed(
    tmp_path: Path, database: tuple[str, DatabaseServer | None]
) -> None:
    url, server = database
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    semel.sql.Outbox("localhost:9094", engine).create_tables()
    faults = ["worker"] * 3 + ["node"] + ["freeze"] + ["database" if server is not None else "worker"] * 2
    with Cast(tmp_path, "outbox", url, server) as cast:
        application = Application(url)
        application.start()
        cast.start_workers()
        cast.strike(SEED, faults)
        cast.thaw()
        application.finish()
        cast.wait_until(lambda: waiting(engine) == 0, "the relays did not work everything off")
        relayed = read_all(cast.bootstrap, SOURCE, PARTITIONS)
        cast.stop_workers()
    found: dict[str, list[str]] = defaultdict(list)
    for record in relayed:
        found[(record.key or b"").decode()].append((record.value or b"").decode())
    for key, expected in application.committed.items():
        assert [value for value in found[key] if value not in application.maybe] == expected, f"key {key}"
    every = [value for some in found.values() for value in some]
    assert len(every) == len(set(every)), "a row was relayed twice"
    half = [
        value for value in application.maybe if value in every and not {f"{value[:-1]}{n}" for n in "01"} <= set(every)
    ]
    assert not half, "half of a transaction was relayed"


@pytest.mark.parametrize("database", [POSTGRESQL, MARIADB], indirect=True)
def test_rows_that_commit_after_rows_with_higher_ids_are_relayed_too(
    node: LiveNode, database: tuple[str, DatabaseServer | None]
) -> None:
    """A relay that asks for "id > the last one" would lose the first row, whose id is lower than what it has seen."""
    engine = sa.create_engine(database[0], poolclass=sa.NullPool)
    outbox = semel.sql.Outbox(node.bootstrap, engine, poll_interval_ms=20)
    outbox.create_tables()
    with semel.Admin(node.bootstrap) as admin:
        topic = f"late-{engine.dialect.name}"
        admin.create_topic(topic, partitions=2)
    relay = Running(outbox)
    try:
        with engine.connect() as slow, slow.begin():
            outbox.add(slow, topic, "first id", key="slow")
            with engine.begin() as quick:
                outbox.add(quick, topic, "second id", key="quick")
                ids = [row.id for row in quick.execute(sa.select(outbox.table.c.id))]
            wait_until(lambda: values(node, topic) == ["second id"], "the second row was not relayed")
        wait_until(lambda: len(values(node, topic)) == 2, "the row that committed late was lost")
        wait_until(lambda: waiting(engine) == 0, "the rows were not deleted")
        assert ids == [2], "the slow transaction has drawn id 1"
        assert sorted(values(node, topic)) == ["first id", "second id"]
    finally:
        relay.close()
    assert relay.error is None
