"""The examples in docs/sql.md, run as they are written; only the node's address is another one."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from live_node import LiveNode

import semel

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


class Shop:
    """A folder with the page's programs and their database."""

    def __init__(self, folder: Path, node: LiveNode) -> None:
        self.folder = folder
        self.node = node
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
            name = re.match(r"# (\w+\.py)\n", block)
            assert name is not None, "each example begins with its name"
            (folder / name[1]).write_text(block.replace('"localhost:9094"', repr(node.bootstrap)))
        self._running: list[subprocess.Popen[str]] = []

    def sql(self, text: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=30)) as connection, connection:
            return connection.execute(text).fetchall()

    def start(self, program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, program], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._running.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> str:
        process.terminate()
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        return output

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with LiveNode(tmp_path) as node:
        with semel.Admin(node.bootstrap) as admin:
            for topic in ("orders", "orders-dead"):
                admin.create_topic(topic, partitions=1)
        made = Shop(tmp_path, node)
        subprocess.run([sys.executable, "shop_tables.py"], cwd=tmp_path, check=True)
        try:
            yield made
        finally:
            made.close()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_topic_into_table(shop: Shop) -> None:
    with semel.Producer(shop.node.bootstrap) as producer:
        producer.send("orders", json.dumps({"amount": 1, "city": "Rome"}), key="a")
        producer.send("orders", json.dumps({"amount": 2}), key="b")
        producer.send("orders", "no JSON", key="c")
        producer.send("orders", None, key="b")
    process = shop.start("orders_to_table.py")
    with semel.Consumer(shop.node.bootstrap) as reader:
        reader.assign([semel.TopicPartition("orders-dead", 0)])
        (dead,) = reader.poll(60) or ()
    assert dead.value == b"no JSON"
    wait_until(lambda: shop.sql("SELECT position FROM semel_offsets") == [(4,)], process)
    assert "'dead_letters': 1" in shop.end(process)
    assert shop.sql("SELECT * FROM orders") == [("a", 1, "Rome")]


@pytest.mark.parametrize("program", ["totals.py", "totals_aio.py"])
def test_sql_of_ones_own(shop: Shop, program: str) -> None:
    with semel.Producer(shop.node.bootstrap) as producer:
        for amount in range(100):
            producer.send("orders", json.dumps({"amount": amount}))
    process = shop.start(program)
    wait_until(lambda: shop.sql("SELECT amount FROM totals") == [(4950,)], process)
    assert shop.end(process) == ""


def test_outbox(shop: Shop) -> None:
    done = shop.start("shop.py")
    output, _ = done.communicate(timeout=60)
    assert done.returncode == 0, output
    process = shop.start("relay.py")
    with semel.Consumer(shop.node.bootstrap) as reader:
        reader.assign([semel.TopicPartition("orders", 0)])
        (record,) = reader.poll(60) or ()
    assert (record.key, record.value) == (b"7", b'{"amount": 42}')
    wait_until(lambda: shop.sql("SELECT count(*) FROM semel_outbox") == [(0,)], process)
    shop.end(process)
    assert shop.sql("SELECT id, amount FROM orders") == [("7", 42)]
