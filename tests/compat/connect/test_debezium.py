"""Debezium's connector for PostgreSQL, unchanged, with the settings of docs/how-to/kafka-connect.md."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import LiteralString

import kafka_jars
import psycopg
import pytest
from committed_values import messages_by_librdkafka
from connect_workers import CONNECT_PAGE, Worker, distributed_settings, page_connector, plugin_path, running_workers
from kafka_tools import KafkaTools
from postgresql_process import PostgresqlMissingError, running_postgresql

from semel.cli.demo.processes import NodeProcess
from semel.runtime.ports import free_ports

TOPIC = "shop.public.orders"
ROWS = 50
"""So many are in the table before the connector starts: it takes a snapshot of them."""

READ, INSERTED, UPDATED, DELETED, TOMBSTONE = "r", "c", "u", "d", "tombstone"
"""Debezium's names of what was done to a row; a tombstone lets compaction forget a row that is gone."""

pytestmark = pytest.mark.postgresql


Change = tuple[str, int]
"""What was done, and the number of the change, or the id of the row that is gone."""


class Changes:
    """Changes of the table `orders`: each carries the next number, and a transaction has several of them."""

    def __init__(self, port: int) -> None:
        self.done: list[Change] = []
        """What is in the topic once, in this order."""
        self._numbers = itertools.count()
        self._connection = psycopg.connect(host="127.0.0.1", port=port, user="semel", dbname="postgres")
        with self._connection.transaction():
            self._execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, change INTEGER NOT NULL)")
        self._insert(ROWS, READ)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[Change]:
        """Change no more, and return all that was committed."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._connection.close()
        return self.done

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            self._insert(3, INSERTED)
            number = next(self._numbers)
            gone = number - 1  # the row that was inserted last
            with self._connection.transaction():
                self._execute("UPDATE orders SET change = %s WHERE id = %s", number, number % ROWS)
                self._execute("DELETE FROM orders WHERE id = %s", gone)
            self.done += [(UPDATED, number), (DELETED, gone), (TOMBSTONE, gone)]
            with suppress(ZeroDivisionError), self._connection.transaction():
                self._execute("UPDATE orders SET change = -1 WHERE id = 1")
                raise ZeroDivisionError  # what is rolled back is no change

    def _insert(self, count: int, seen_as: str) -> None:
        numbers = list(itertools.islice(self._numbers, count))
        with self._connection.transaction():
            for number in numbers:
                self._execute("INSERT INTO orders VALUES (%s, %s)", number, number)
        self.done += [(seen_as, number) for number in numbers]

    def _execute(self, statement: LiteralString, *values: int) -> None:
        self._connection.execute(statement, values)


@pytest.fixture
def postgresql_port() -> Iterator[int]:
    (port,) = free_ports(1)
    settings = ("fsync=off", "wal_level=logical", "listen_addresses=127.0.0.1", f"port={port}")
    try:
        with running_postgresql(*settings):
            yield port
    except PostgresqlMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def changes(postgresql_port: int) -> Iterator[Changes]:
    changes = Changes(postgresql_port)
    yield changes
    changes.stop()


@pytest.fixture
def worker(connect_tools: KafkaTools, node: NodeProcess, tmp_path: Path) -> Iterator[Worker]:
    plugins = plugin_path(tmp_path, "debezium-connector-postgres", kafka_jars.debezium_jars)
    settings = distributed_settings(node.kafka_address, plugins)
    with running_workers(connect_tools, tmp_path, settings, count=1) as (worker,):
        yield worker


def changes_in_topic(node: NodeProcess) -> list[Change]:
    """Return the changes as readers of committed records find them."""
    found: list[Change] = []
    for message in messages_by_librdkafka(node.kafka_address, TOPIC):
        if message.value() is None:
            found.append((TOMBSTONE, json.loads(message.key())["id"]))
            continue
        value = json.loads(message.value())
        number = value["before"]["id"] if value["op"] == DELETED else value["after"]["change"]
        found.append((value["op"], number))
    return found


def test_E1_each_change_of_a_table_is_in_the_topic_once_while_the_worker_and_the_node_are_killed(
    worker: Worker, node: NodeProcess, changes: Changes, postgresql_port: int
) -> None:
    settings = {
        **page_connector(CONNECT_PAGE, "shop"),
        "database.port": str(postgresql_port),
        "database.dbname": "postgres",
    }
    worker.configure("shop", settings)
    worker.wait_running("shop")
    worker.wait_for(lambda: len(changes_in_topic(node)) == ROWS, "the snapshot")
    changes.start()

    def wait_for_more() -> None:
        goal = len(changes.done) + 200
        worker.wait_for(lambda: len(changes_in_topic(node)) >= goal, f"{goal} changes")

    for _ in range(2):
        wait_for_more()
        worker.kill()
        worker.start()
        worker.wait_running("shop")
    wait_for_more()
    node.kill()
    node.start()
    worker.wait_running("shop")
    wait_for_more()
    done = changes.stop()
    worker.wait_for(lambda: len(changes_in_topic(node)) >= len(done), "all changes")
    assert changes_in_topic(node) == done
