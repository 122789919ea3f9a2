"""Every program of the pages that writes to a node is run, and the data directory that it leaves is verified.

One table says how each is run here, or where else. The fixtures of conftest.py verify the directory after each test.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from http_gateway import HttpGateway
from live_node import LiveNode
from page_cells import Cell, Notebook

import semel
from semel.testing import Broker

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WRITES = re.compile(
    r"\.run\(|\.send\(|\.send_batch\(|\.produce\(|\bSink\(|\bOutbox\(|writeStream|\.write\.format|prepare_transaction"
    r"|\$ .*semel (produce|demo|txn (abort|finish)|group (reset|reset-offsets|delete))"
)
"""What a block holds that changes more of a data directory than its topics."""
ORDERS = [b"%d" % number for number in range(30)]
WAIT_S = 60


def blocks(page: str) -> Iterator[tuple[str, str]]:
    for found in BLOCK.finditer((ROOT / page).read_text()):
        yield found[1], found[2]


def example(page: str, containing: str) -> str:
    """Return the one block of a page that holds `containing`."""
    (block,) = [code for _, code in blocks(page) if containing in code]
    return block


@dataclass
class Stage:
    """A node with the topics that the pages speak of, and how their blocks are run on it."""

    folder: Path
    node: LiveNode
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def here(self, code: str) -> str:
        """The code, with this node's addresses in place of the page's."""
        return code.replace("localhost:9094", self.node.bootstrap).replace(
            "localhost:9092", str(self.node.node.kafka_address)
        )

    def python(self, code: str, **names: Any) -> dict[str, Any]:
        """Run a block here, with what its page leaves to the reader."""
        exec(self.here(code), names)
        return names

    def program(self, code: str, before: str = "") -> subprocess.Popen[str]:
        """Start a block as a program of its own, behind the lines that its page leaves to the reader."""
        path = self.folder / f"program_{len(self.started)}.py"
        path.write_text(before + self.here(code))
        environment = {**os.environ, "SEMEL_BOOTSTRAP": self.node.bootstrap}
        process = subprocess.Popen(
            [sys.executable, path.name], cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def shell(self, code: str) -> str:
        """Run the lines of the shell in a block. Returns what they print."""
        paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": paths, "SEMEL_BOOTSTRAP": self.node.bootstrap}
        with Notebook(self.folder, environment) as notebook:
            return notebook.run(Cell("console", code, "", 0))

    def fill(self, topic: str) -> None:
        with semel.Producer(self.node.bootstrap) as producer:
            for value in ORDERS:
                producer.send(topic, value, key=value)

    def values(self, topic: str, count: int, during: subprocess.Popen[str] | None = None) -> list[bytes]:
        """Wait for so many committed values in a topic."""
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        with semel.Consumer(self.node.bootstrap) as reader:
            reader.assign([semel.TopicPartition(topic, 0)])
            while len(found) < count:
                found += [record.value or b"" for record in reader.poll(0.5) or ()]
                assert during is None or during.poll() is None, during.communicate()[1]
                assert time.monotonic() < deadline, (len(found), count)
        return found

    def end(self, process: subprocess.Popen[str]) -> None:
        """End a program as a service manager does; it ends well."""
        process.terminate()
        assert process.wait(WAIT_S) == 0, process.communicate()[1]

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


# --- How each is run --------------------------------------------------------------------------------------------------


def quick_start(stage: Stage) -> None:
    code = example("README.md", "semel produce orders --transaction")
    with semel.Admin(stage.node.bootstrap) as admin:
        admin.delete_topic("orders")
    assert "load-1" in stage.shell(code)


def readme_run(stage: Stage) -> None:
    stage.fill("orders")
    process = stage.program(example("README.md", "orders.run(lambda"))
    assert len(stage.values("enriched", len(ORDERS), process)) == len(ORDERS)
    stage.end(process)


def readme_run_with_json(stage: Stage) -> None:
    with semel.Producer(stage.node.bootstrap, value_serializer="json") as producer:
        producer.send("orders", {"id": 1})
    process = stage.program(example("README.md", "orders.run(enriched"))
    assert stage.values("enriched", 1, process) == [b'{"id":1,"checked":true}']
    stage.end(process)


def readme_log_inside_a_program(stage: Stage) -> None:
    for _ in range(2):
        process = stage.program(example("README.md", 'semel.open("shop-data")').replace('"shop-data"', '"inside"'))
        assert process.wait(WAIT_S) == 0, process.communicate()[1]


def readme_pipeline(stage: Stage) -> None:
    stage.fill("orders")
    process = stage.program(example("README.md", 'txn.send("enriched"'))
    assert len(stage.values("enriched", len(ORDERS), process)) == len(ORDERS)


def readme_sink(stage: Stage) -> None:
    with semel.Producer(stage.node.bootstrap, value_serializer="json") as producer:
        producer.send("orders", {"id": 7, "amount": 30})
    process = stage.program(example("README.md", "semel.sql.Sink("))
    deadline = time.monotonic() + WAIT_S
    rows: list[Any] = []
    while not rows:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(stage.folder / "shop.db")) as shop:
            rows = shop.execute("SELECT id, amount FROM orders").fetchall()
    assert rows == [(7, 30)]


def pipeline_by_run(stage: Stage) -> None:
    with semel.Producer(stage.node.bootstrap) as producer:
        for value in (b'{"id":1}', b"no JSON"):
            producer.send("orders", value)
    code = example("docs/how-to/pipelines.md", "def run(instance").replace(
        "orders.run(enriched,", "orders.run(enriched, retries=0,"
    )
    process = stage.program(f"{code}\n\nrun('0')\n")
    assert stage.values("enriched", 1, process) == [b'{"id":1,"checked":true}']
    assert stage.values("orders-dead", 1, process) == [b"no JSON"]
    stage.end(process)


def pipeline_by_batches(stage: Stage) -> None:
    stage.fill("orders")
    code = example("docs/how-to/pipelines.md", "def run_batches(")
    process = stage.program(f"{code}\n\nrun_batches('0', lambda batch: [(one.key, one.value) for one in batch])\n")
    assert len(stage.values("enriched", len(ORDERS), process)) == len(ORDERS)


def commands_that_write(stage: Stage) -> None:
    (stage.folder / "orders.txt").write_text("7:thirty\n8:forty\n")
    stage.shell(example("docs/how-to/command-line.md", "produce orders orders.txt"))
    assert stage.values("orders", 4) == [b"thirty", b"forty"] * 2
    assert stage.values("greetings", 1) == [b"hello"]


def named_work(stage: Stage) -> None:
    load = stage.python(example("docs/how-to/did-it-commit.md", "def load("))["load"]
    assert [load("monday", [b"a"]), load("monday", [b"a"]), load("tuesday", [b"b"])] == [True, False, True]


def moved_offsets(stage: Stage) -> None:
    stage.fill("orders")
    with semel.Consumer(stage.node.bootstrap, group="enrich", topics=["orders"]) as consumer:
        for batch in consumer.batches(timeout_s=WAIT_S):
            consumer.commit()
            if batch.records[-1].offset == len(ORDERS) - 1:
                break
    for containing in ("--dry-run", "group delete"):
        stage.shell(example("docs/how-to/move-offsets.md", containing))


def aborted_by_hand(stage: Stage) -> None:
    with semel.Producer(stage.node.bootstrap, transactional_id="enrich-0") as producer:
        producer.begin_transaction()
        producer.send("orders", b"x").result(WAIT_S)
        stage.shell(example("docs/how-to/stuck-readers.md", "txn abort"))
        with pytest.raises(semel.SemelError):
            producer.commit_transaction()


def token(stage: Stage) -> None:
    code = example("docs/transactions.md", 'token="day 1"')
    for _ in range(2):
        with semel.Producer(stage.node.bootstrap, transactional_id="importer") as producer:
            stage.python(code, producer=producer, row=b"a")
    assert stage.values("readings", 1) == [b"a"]


def prepared(stage: Stage) -> None:
    code = example("docs/transactions.md", "two_phase=True")
    decision: list[str] = []

    class Database:
        def begin(self) -> Any:
            return closing(self)

        def update(self, *, orders: bytes, decision: str) -> None:
            decided(decision)

        def close(self) -> None: ...

    decided = decision.append
    names = {"semel": semel, "read_decision": lambda: decision[-1] if decision else None, "database": Database()}
    for value in (b"1", b"2"):
        stage.python(code, **names, value=value)["producer"].close()
    assert stage.values("orders", 2) == [b"1", b"2"]


def traced(stage: Stage) -> None:
    with semel.Producer(stage.node.bootstrap, transactional_id="traced") as producer:
        stage.python(example("docs/tracing.md", "in the trace that is current"), producer=producer, order=b"1")
    assert stage.values("orders", 1) == [b"1"]


def pipeline_under_test(_: Stage) -> None:
    names: dict[str, Any] = {}
    exec(example("docs/testing.md", "# enrich.py"), names)
    with Broker() as broker:
        broker.create_topic("a")
        broker.create_topic("b")
        with semel.Producer(broker.bootstrap) as producer:
            producer.send("a", b"apple")
        names["enrich"](broker.bootstrap, "a", "b", 1)
        assert [record.value for record in broker.records("b", at_least=1)] == [b"APPLE"]


def broker_by_hand(_: Stage) -> None:
    exec(example("docs/testing.md", "with Broker(num_partitions=3)"), {})


def broker_of_coroutines(_: Stage) -> None:
    exec(example("docs/testing.md", "async with Broker()"), {})


def schemas(stage: Stage) -> None:
    """The page's programs, against a gateway, and with a schema that lacks a default."""
    page = "docs/schemas.md"
    with HttpGateway(stage.node.bootstrap) as gateway:
        code = example(page, "avro_serializer(ORDER, topic").replace("http://localhost:8080", gateway.url)
        with redirect_stdout(StringIO()) as printed:
            names = stage.python(code)
            stage.python(
                example(page, "for problem in").replace("http://localhost:8080", gateway.url),
                **{**names, "semel": semel},
            )
            stage.python(
                example(page, "decoder.decode_records(records)").replace("http://localhost:8080", gateway.url),
                semel=semel,
            )
            stage.python(example(page, "SchemaRegistryClient(").replace("http://localhost:8080", gateway.url), **names)
    assert "{'id': 7, 'amount': 30.0}" in printed.getvalue()
    assert "'note'" in printed.getvalue()
    assert "[\n  30\n]" in printed.getvalue()


HERE: dict[tuple[str, str], Callable[[Stage], None]] = {
    ("docs/schemas.md", "avro_serializer(ORDER, topic"): schemas,
    ("README.md", "semel produce orders --transaction"): quick_start,
    ("README.md", "orders.run(lambda"): readme_run,
    ("README.md", "orders.run(enriched"): readme_run_with_json,
    ("README.md", 'semel.open("shop-data")'): readme_log_inside_a_program,
    ("README.md", 'txn.send("enriched"'): readme_pipeline,
    ("README.md", "semel.sql.Sink("): readme_sink,
    ("docs/how-to/pipelines.md", "def run(instance"): pipeline_by_run,
    ("docs/how-to/pipelines.md", "def run_batches("): pipeline_by_batches,
    ("docs/how-to/command-line.md", "produce orders orders.txt"): commands_that_write,
    ("docs/how-to/did-it-commit.md", "def load("): named_work,
    ("docs/how-to/move-offsets.md", "--dry-run"): moved_offsets,
    ("docs/how-to/move-offsets.md", "group delete"): moved_offsets,
    ("docs/how-to/stuck-readers.md", "txn abort"): aborted_by_hand,
    ("docs/transactions.md", 'token="day 1"'): token,
    ("docs/transactions.md", "two_phase=True"): prepared,
    ("docs/tracing.md", "in the trace that is current"): traced,
    ("docs/testing.md", "# enrich.py"): pipeline_under_test,
    ("docs/testing.md", "with Broker(num_partitions=3)"): broker_by_hand,
    ("docs/testing.md", "async with Broker()"): broker_of_coroutines,
}
"""Page and words of a block, and what runs it."""

ELSEWHERE = {
    ("docs/tutorial.md", ""): "tests/docs/test_tutorial.py",
    ("docs/spark-etl.md", ""): "tests/spark/test_etl_page.py",
    ("docs/spark.md", ""): "tests/spark/test_around_queries.py",
    ("docs/schemas.md", "SparkSession.builder"): "tests/spark/test_schemas_page.py",
    ("docs/schemas.md", "payments.where("): "tests/spark/test_schemas_page.py",
    ("docs/schemas.md", 'option("subscribe", "payments")'): "tests/spark/test_schemas_page.py",
    ("docs/sql.md", ""): "tests/e2e/test_sql_examples.py",
    ("docs/embedded.md", ""): "tests/docs/test_embedded.py",
    ("docs/index.md", "consumer.run(enriched)"): "tests/docs/test_howto.py",
    ("docs/shared-transactions.md", ""): "tests/e2e/test_documented_examples.py",
    ("docs/moving-from-kafka.md", "# copy_topic.py"): "tests/docs/test_howto.py",
    ("docs/how-to/arrow.md", ""): "tests/docs/test_howto.py",
    ("docs/how-to/serialization.md", ""): "tests/docs/test_serialization.py",
    ("docs/how-to/beam.md", "semel produce words"): "tests/compat/beam/test_beam.py",
    ("docs/how-to/flink.md", "semel produce words"): "tests/compat/flink/test_flink.py",
    ("docs/how-to/kafka-streams.md", "semel produce lines"): "tests/compat/streams/test_streams.py",
    ("docs/how-to/web-applications.md", ""): "tests/compat/frameworks/test_web_applications.py",
    ("docs/how-to/orchestration.md", ""): "tests/compat/frameworks/test_orchestration.py",
    ("docs/how-to/python-frameworks.md", "# faststream_"): "tests/compat/frameworks/test_faststream.py",
    ("docs/how-to/python-frameworks.md", "# quix_"): "tests/compat/frameworks/test_quix_streams.py",
    ("docs/how-to/python-frameworks.md", "# faust_"): "tests/compat/frameworks/test_faust.py",
    ("docs/how-to/python-frameworks.md", "# bytewax_"): "tests/compat/frameworks/test_bytewax.py",
    ("docs/how-to/python-frameworks.md", "# celery_"): "tests/compat/frameworks/test_celery.py",
    ("docs/how-to/python-frameworks.md", "# confluent_asyncio"): "tests/compat/frameworks/test_confluent_asyncio.py",
}
"""Run by another test, which names the page, and in a folder whose data directories are verified too."""

FRAGMENTS = {
    ("README.md", "spark.readStream"): "needs a Spark of its own; tests/spark runs the same options",
    ("docs/testing.md", "def test_a_leader_dies"): "its cluster keeps nothing; unit/sdk/testing runs it",
    ("docs/testing.md", "# test_permissions.py"): "its broker keeps nothing; unit/sdk/testing runs it",
    ("docs/testing.md", "# test_with_librdkafka.py"): "its broker keeps nothing; unit/sdk/testing runs it",
}
"""Not run for their data, and why."""


def entry_for(page: str, code: str) -> list[tuple[str, str]]:
    return [key for key in (*HERE, *ELSEWHERE, *FRAGMENTS) if key[0] == page and key[1] in code]


def test_every_block_that_writes_to_a_node_is_in_the_table() -> None:
    missing = []
    used: set[tuple[str, str]] = set()
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for language, code in blocks(name):
            found = entry_for(name, code)
            used.update(found)
            if WRITES.search(code) and len(found) != 1:
                missing.append((name, language, code.splitlines()[:4], found))
    assert not missing, "say in HERE how it is run, or in the tables below where or why not"
    assert used == {*HERE, *ELSEWHERE, *FRAGMENTS}, "the table has what no page has any more"


@pytest.mark.parametrize(("page", "test"), [(key[0], test) for key, test in ELSEWHERE.items()])
def test_what_is_run_elsewhere_is_verified_there(page: str, test: str) -> None:
    path = ROOT / test
    assert Path(page).name in path.read_text()
    conftests = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(ROOT / "tests")]
    assert any("from sound_data import sound_data" in one.read_text() for one in conftests if one.exists())


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with LiveNode(tmp_path, transaction_two_phase_commit_enable=True) as node:
        with semel.Admin(node.bootstrap) as admin:
            for topic in ("orders", "enriched", "orders-dead", "readings"):
                admin.create_topic(topic, partitions=1)
        made = Stage(tmp_path, node)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.slow
@pytest.mark.parametrize("run", dict.fromkeys(HERE.values()), ids=lambda run: run.__name__)
def test_a_documented_program_leaves_a_sound_data_directory(stage: Stage, run: Callable[[Stage], None]) -> None:
    run(stage)
