"""Apache Iceberg's sink, unchanged, with the settings of docs/how-to/kafka-connect.md."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import kafka_jars
import pyarrow.parquet
import pytest
from committed_values import decided, values_by_librdkafka
from connect_workers import CONNECT_PAGE, Worker, distributed_settings, page_connector, plugin_path, running_workers
from kafka_tools import KafkaTools

import semel
from semel.cli.demo.processes import NodeProcess

CONNECTOR = "lake"
PARTITIONS = 4
REMOVED = 2
"""The status of a file in a manifest that is no longer in the table."""


class Orders:
    """A topic that grows by transactions, of which some are aborted. No two records are alike."""

    name = "orders"

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic(self.name, partitions=PARTITIONS)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def committed(self) -> list[int]:
        values = values_by_librdkafka(self._node.kafka_address, self.name, PARTITIONS)
        return [json.loads(value)["number"] for value in values]

    def hidden(self) -> list[int]:
        """Return what was aborted."""
        values = values_by_librdkafka(self._node.kafka_address, self.name, PARTITIONS, "read_uncommitted")
        return sorted({json.loads(value)["number"] for value in values} - set(self.committed()))

    def settle(self) -> None:
        decided(self._node.bootstrap, [semel.TopicPartition(self.name, number) for number in range(PARTITIONS)])

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with semel.Producer(self._node.bootstrap, transactional_id="orders") as producer:
                    self._produce(producer)
            except semel.SemelError:  # the node was killed; what has become of the transaction is read from the topic
                self._stopped.wait(0.1)

    def _produce(self, producer: semel.Producer) -> None:
        while not self._stopped.wait(0.03):
            producer.begin_transaction()
            numbers = list(itertools.islice(self._numbers, 8))
            sent = [
                producer.send(self.name, json.dumps({"number": number}).encode(), partition=number % PARTITIONS)
                for number in numbers
            ]
            for each in sent:
                each.result(60)
            if numbers[0] % 5:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


class Lake:
    """A table on the local disk, as readers find it through its catalog."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def numbers(self) -> list[int]:
        """Return the numbers in the current snapshot."""
        tables = map(pyarrow.parquet.read_table, self._files())
        return [number for table in tables for number in table["number"].to_pylist()]

    def left_behind(self) -> set[Path]:
        """Return files of rows that no snapshot has: their writer was killed."""
        return set(self.folder.rglob("*.parquet")) - set(self._files())

    def settings(self) -> dict[str, str]:
        return {
            "iceberg.catalog.uri": f"jdbc:sqlite:{self.folder / 'catalog.db'}",
            "iceberg.catalog.warehouse": f"file://{self.folder}",
        }

    def _files(self) -> list[Path]:
        """Return the files that the manifests of the current snapshot name."""
        metadata = self._metadata()
        snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
        current = snapshots.get(metadata.get("current-snapshot-id"))
        if current is None:
            return []
        return [
            _path(entry["data_file"]["file_path"])
            for manifest in _avro(current["manifest-list"])
            for entry in _avro(manifest["manifest_path"])
            if entry["status"] != REMOVED
        ]

    def _metadata(self) -> dict[str, Any]:
        """Return what the catalog has for the table, which is nothing until the connector has made it."""
        if not (self.folder / "catalog.db").exists():
            return {}
        with closing(sqlite3.connect(self.folder / "catalog.db", timeout=30)) as catalog:
            if not catalog.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
                return {}
            found = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
        metadata: dict[str, Any] = json.loads(_path(found[0]).read_text()) if found else {}
        return metadata


def _path(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def _avro(location: str) -> list[dict[str, Any]]:
    with _path(location).open("rb") as file:
        return [record for record in fastavro.reader(file) if isinstance(record, dict)]


@pytest.fixture
def orders(node: NodeProcess) -> Iterator[Orders]:
    orders = Orders(node)
    yield orders
    orders.stop()


@pytest.fixture
def workers(connect_tools: KafkaTools, node: NodeProcess, tmp_path: Path) -> Iterator[list[Worker]]:
    plugins = plugin_path(tmp_path, "iceberg", kafka_jars.iceberg_jars)
    with running_workers(connect_tools, tmp_path, distributed_settings(node.kafka_address, plugins)) as both:
        yield both


def test_E1_each_record_is_in_the_iceberg_table_once_while_workers_and_the_node_are_killed(
    workers: list[Worker], node: NodeProcess, orders: Orders, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    page = page_connector(CONNECT_PAGE, CONNECTOR)
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(page["iceberg.control.topic"], partitions=1)
    quick = {"iceberg.control.commit.interval-ms": "1000", "iceberg.control.commit.timeout-ms": "5000"}
    workers[0].configure(CONNECTOR, {**page, **quick, **lake.settings()})
    workers[0].wait_running(CONNECTOR)

    def wait_for_more(worker: Worker) -> None:
        goal = len(lake.numbers()) + 400
        worker.wait_for(lambda: len(lake.numbers()) >= goal, f"{goal} rows in the table")

    wait_for_more(workers[0])
    for victim, other in (workers, workers[::-1]):
        victim.kill()
        other.wait_running(CONNECTOR, on=[other.url])
        wait_for_more(other)
        victim.start()
        victim.wait_running(CONNECTOR)
    node.kill()
    node.start()
    workers[0].wait_running(CONNECTOR)
    wait_for_more(workers[0])
    orders.stop()
    orders.settle()
    committed = sorted(orders.committed())
    workers[0].wait_for(lambda: len(set(lake.numbers())) >= len(committed), f"all {len(committed)} records")
    found = lake.numbers()
    assert not {number: count for number, count in Counter(found).items() if count > 1}
    assert sorted(found) == committed
    assert orders.hidden(), "no transaction was aborted: that nothing of it came is no news"
    assert lake.left_behind(), "nothing was cut off: the kills have proved nothing"
