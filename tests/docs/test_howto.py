"""Programs of the how-to pages, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_E1_a_record_that_always_fails_goes_to_the_dead_letters_with_its_transaction() -> None:
    def enrich(value: bytes) -> bytes:
        return b"%d" % (int(value) * 2)

    with Broker() as broker:
        process = names_in(example("how-to/pipelines.md", "orders-dead"), broker)["process"]
        for topic in ("orders", "enriched", "orders-dead"):
            broker.create_topic(topic, partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            for value in (b"1", b"two", b"3"):
                producer.send("orders", value)
        with (
            semel.Producer(broker.bootstrap, transactional_id="enrich-0") as producer,
            semel.Consumer(broker.bootstrap, group="enrich", topics=["orders"]) as consumer,
        ):
            seen = 0
            while seen < 3:
                for batch in consumer.batches(timeout_s=2):
                    process(producer, batch, enrich)
                    seen += len(batch)
        assert values_in(broker, "enriched", 2) == [b"2", b"6"]
        assert values_in(broker, "orders-dead", 1) == [b"two"]


def test_E5_work_with_a_name_is_done_once() -> None:
    with Broker() as broker:
        load = names_in(example("how-to/did-it-commit.md", "def load("), broker)["load"]
        broker.create_topic("readings", partitions=1)
        rows = [b"a", b"b"]
        assert [load("monday", rows), load("monday", rows), load("tuesday", rows)] == [True, False, True]
        with semel.Admin(broker.bootstrap) as admin:
            assert [commit.payload for commit in admin.commits("importer")] == [b"2 rows", b"2 rows"]
        assert values_in(broker, "readings", 4) == [b"a", b"b", b"a", b"b"]
