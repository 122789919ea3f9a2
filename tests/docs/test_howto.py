"""Programs of the how-to pages, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import semel
from semel.testing import Broker

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str, containing: str) -> str:
    """Return the one block of Python in a page that holds `containing`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if containing in block]
    assert isinstance(block, str)
    return block


def names_in(code: str, broker: Broker) -> dict[str, Any]:
    """Run a block's definitions, with the node's address in place of the page's."""
    names: dict[str, Any] = {}
    exec(code.replace("localhost:9094", broker.bootstrap), names)
    return names


def values_in(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in broker.records(topic, at_least=count)]


def test_E1_the_first_page_handles_each_order_once() -> None:
    orders = [b"a", b"b", b"c"]
    done: list[bytes | None] = []

    def stop_when_done(consumer: semel.Consumer) -> None:
        def watch() -> None:
            try:
                done.extend(record.value for record in broker.records("enriched", at_least=3, timeout_s=120))
            finally:
                consumer.stop()

        threading.Thread(target=watch).start()

    with Broker() as broker:
        for topic in ("orders", "enriched"):
            broker.create_topic(topic, partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            for order in orders:
                producer.send("orders", order)
        code = example("index.md", "consumer.run").replace("localhost:9094", broker.bootstrap)
        run = "    consumer.run(enriched)"
        assert run in code
        exec(code.replace(run, f"    watched(consumer)\n{run}"), {"watched": stop_when_done})
    assert done == [b"A", b"B", b"C"]


@pytest.mark.slow
def test_T13_a_topic_is_copied_once_however_often_the_copying_is_started(tmp_path: Path) -> None:
    program = tmp_path / "copy_topic.py"
    program.write_text(example("moving-from-kafka.md", "# copy_topic.py"))
    with Broker() as old, Broker() as new:
        for broker in (old, new):
            broker.create_topic("orders", partitions=1)
        command = [sys.executable, str(program), old.kafka, new.bootstrap, "orders", "0"]
        for first in (0, 1_200):
            with semel.Producer(old.bootstrap) as producer:
                for number in range(first, first + 1_200):
                    producer.send("orders", b"%d" % number, key=b"k", headers=[("h", b"x")], timestamp_ms=number)
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        assert values_in(new, "orders", 2_400) == [b"%d" % number for number in range(2_400)]


def test_E1_the_pipeline_of_the_page_sends_each_result_once_and_what_fails_to_the_dead_letters() -> None:
    with Broker() as broker:
        program = example("how-to/pipelines.md", "def enriched").replace(
            'dead_letter_topic="orders-dead")', 'dead_letter_topic="orders-dead", retries=0, idle_timeout_s=2)'
        )
        run = names_in(program, broker)["run"]
        for topic in ("orders", "enriched", "orders-dead"):
            broker.create_topic(topic, partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            for value in (b'{"id":1}', b"two", b'{"id":3}'):
                producer.send("orders", value)
        assert run("0").dead_letters == 1
        assert run("0").records == 0
        assert values_in(broker, "enriched", 2) == [b'{"id":1,"checked":true}', b'{"id":3,"checked":true}']
        assert values_in(broker, "orders-dead", 1) == [b"two"]


def test_a_serializer_of_confluent_is_wrapped_as_the_page_says() -> None:
    from confluent_kafka.serialization import StringDeserializer, StringSerializer

    names: dict[str, Any] = {}
    exec(example("how-to/pipelines.md", "for_semel"), names)
    with Broker() as broker:
        broker.create_topic("orders", partitions=1)
        serializer = names["for_semel"](StringSerializer(), "orders")
        deserializer = names["for_semel"](StringDeserializer(), "orders")
        with semel.Producer(broker.bootstrap, value_serializer=serializer) as producer:
            producer.send("orders", "Å")
        options = {"group": "g", "topics": ["orders"], "value_deserializer": deserializer}
        with semel.Consumer(broker.bootstrap, **options) as consumer:
            assert next(iter(consumer)).value == "Å"


def test_E5_work_with_a_name_is_done_once() -> None:
    with Broker() as broker:
        load = names_in(example("how-to/did-it-commit.md", "def load("), broker)["load"]
        broker.create_topic("readings", partitions=1)
        rows = [b"a", b"b"]
        assert [load("monday", rows), load("monday", rows), load("tuesday", rows)] == [True, False, True]
        with semel.Admin(broker.bootstrap) as admin:
            assert [commit.payload for commit in admin.commits("importer")] == [b"2 rows", b"2 rows"]
        assert values_in(broker, "readings", 4) == [b"a", b"b", b"a", b"b"]


def test_E1_a_table_of_duckdb_has_each_record_once_however_often_it_is_loaded(tmp_path: Path) -> None:
    with Broker() as broker:
        load = names_in(example("how-to/arrow.md", "def load("), broker)["load"]
        broker.create_topic("orders", partitions=2)
        database = str(tmp_path / "orders.db")
        with semel.Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send("orders", f'{{"id": {number}, "amount": "{number}.50"}}', partition=number % 2)
            producer.flush()
            assert [load(database), load(database)] == [10, 0]
            for number in range(10, 15):
                producer.send("orders", f'{{"id": {number}, "amount": "{number}.50"}}', partition=number % 2)
            producer.flush()
        assert [load(database), load(database)] == [5, 0]
        with duckdb.connect(database) as db:
            found = db.execute("SELECT count(*), count(DISTINCT id), sum(amount) FROM orders").fetchone()
        assert found == (15, 15, Decimal("112.50"))


def test_the_queries_and_ranges_of_the_page_about_tables(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        broker.create_topic("orders", partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            for number in range(3):
                producer.send("orders", b'{"amount": %d}' % number)
        names_in(example("how-to/arrow.md", "duckdb.sql("), broker)
        assert "│         0 │            3 │" in capsys.readouterr().out
        ranges = names_in(example("how-to/arrow.md", "def recent("), broker)
        assert ranges["recent"](broker.bootstrap).read_all().num_rows == 3
        orders = semel.arrow.scan("orders", {0: 1}, {0: 3}, bootstrap=broker.bootstrap)  # noqa: F841 (DuckDB finds it by its name)
        assert duckdb.sql("SELECT decode(value)::JSON ->> 'amount' FROM orders").fetchall() == [("1",), ("2",)]


@pytest.mark.slow
def test_T13_a_topic_whose_beginning_is_deleted_is_copied_from_where_it_begins(tmp_path: Path) -> None:
    """The program read from offset 0, was sent to the end by its client, and had copied nothing without a word."""
    program = tmp_path / "copy_topic.py"
    program.write_text(example("moving-from-kafka.md", "# copy_topic.py"))
    with Broker() as old, Broker() as new:
        for broker in (old, new):
            broker.create_topic("orders", partitions=1)
        with (
            semel.Producer(old.bootstrap, transactional_id="orders") as producer,
            producer.transaction() as transaction,
        ):
            for number in range(100):
                transaction.send("orders", b"%d" % number, partition=0)
        with semel.Admin(old.bootstrap) as admin:
            admin.delete_records({semel.TopicPartition("orders", 0): 40})
        command = [sys.executable, str(program), old.kafka, new.bootstrap, "orders", "0"]
        for _ in range(2):
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        assert values_in(new, "orders", 60) == [b"%d" % number for number in range(40, 100)]
