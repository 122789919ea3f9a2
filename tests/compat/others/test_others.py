"""kafkajs (Node.js), sarama and kafka-go (Go) and rdkafka (Rust), as they are published; the node is killed meanwhile.

Each client's program is beside this file and takes a step and names; what it has done it prints as lines of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.cli.demo.processes import NodeProcess

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[2] / "build" / "others"
PARTITIONS = 3
RECORDS = 120
KILLS_AT = (20, 60)
FETCH_S = 600
STEP_S = 240

TOOLS = {"kafkajs": "npm", "sarama": "go", "kafka-go": "go", "rdkafka": "cargo"}
CLIENTS = tuple(TOOLS)
WITH_TRANSACTIONS = ("kafkajs", "sarama", "rdkafka")
IDEMPOTENT = WITH_TRANSACTIONS


@pytest.fixture(scope="session")
def programs() -> dict[str, list[str]]:
    """The command of each client's program, fetched and built where that is possible."""
    return {name: command for name in CLIENTS if (command := made(name))}


def made(name: str) -> list[str]:
    """Return a program's command; none where its tools are not on this machine."""
    if shutil.which(TOOLS[name]) is None:
        return []
    folder = CACHE / name
    shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
    if name == "kafkajs":
        if not (folder / "node_modules").is_dir():
            fetched(folder, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
        return ["node", str(folder / "main.js")]
    if name == "rdkafka":
        fetched(folder, "cargo", "build", "--quiet", "--release", "--locked")
        return [str(folder / "target" / "release" / "program")]
    fetched(folder, "go", "build", "-o", "program", ".")
    return [str(folder / "program")]


def fetched(folder: Path, *words: str) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=("group.initial.rebalance.delay.ms=100",))
    node.start()
    yield node
    assert node.is_running, node.log_tail()
    assert node.stop() == 0


class Others:
    """Runs the steps of one client."""

    def __init__(self, command: list[str], node: NodeProcess) -> None:
        self._command = command
        self._node = node

    def run(self, step: str, *names: object, kills_at: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        """Run a step to its end; the node is killed and started again when so many lines were said."""
        with self._process(step, *map(str, names)) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(json.loads(line))
                if len(lines) in kills_at:
                    self._node.kill()
                    self._node.start()
            assert process.wait(STEP_S) == 0
        return lines

    def run_killed(self, step: str, *names: object, until: threading.Event) -> None:
        """Run a step, and kill it when something has happened."""
        with self._process(step, *map(str, names)) as process:
            while not until.wait(0.1):
                assert process.poll() is None, "it ended on its own"

    @contextmanager
    def _process(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        command = [*self._command, words[0], self._node.kafka_address, *words[1:]]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "NODE_NO_WARNINGS": "1"}
        )
        watch = threading.Timer(STEP_S, process.kill)
        watch.start()
        try:
            yield process
        finally:
            watch.cancel()
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(params=CLIENTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def others(name: str, programs: dict[str, list[str]], node: NodeProcess) -> Others:
    if name not in programs:
        pytest.skip(f"{TOOLS[name]} is not installed")
    return Others(programs[name], node)


def new_topic(node: NodeProcess) -> str:
    topic = f"t-{uuid.uuid4()}"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    return topic


def values(node: NodeProcess, topic: str) -> list[bytes]:
    return semel.arrow.read(topic, bootstrap=node.bootstrap).column("value").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.timeout(900)
def test_P1_what_is_produced_while_the_node_is_killed_is_there_once(
    name: str, others: Others, node: NodeProcess
) -> None:
    topic = new_topic(node)
    sent = others.run("produce", topic, RECORDS, kills_at=KILLS_AT)
    assert [line["sent"] for line in sent] == list(range(RECORDS))
    found = Counter(values(node, topic))
    assert set(found) == {b"%d" % number for number in range(RECORDS)}
    if name in IDEMPOTENT:
        assert set(found.values()) == {1}
    table = semel.arrow.read(topic, bootstrap=node.bootstrap, columns=["key", "partition", "headers", "value"])
    for row in table.to_pylist():
        assert row["headers"] == [{"key": "number", "value": row["value"]}]
    for partition in range(PARTITIONS):
        numbers = [int(row["value"]) for row in table.to_pylist() if row["partition"] == partition]
        assert numbers == sorted(numbers)


@pytest.mark.timeout(900)
def test_G2_O1_two_members_read_everything_and_others_continue_behind_them(others: Others, node: NodeProcess) -> None:
    topic = new_topic(node)
    with semel.Producer(node.bootstrap, transactional_id=topic) as producer:
        for first in range(0, RECORDS, 10):
            producer.begin_transaction()
            producer.send(topic, b"aborted", partition=0)
            producer.flush()
            producer.abort_transaction()
            with producer.transaction() as transaction:
                for number in range(first, first + 10):
                    value = b"%d" % number
                    transaction.send(topic, value, partition=number % PARTITIONS, headers={"number": value})
    read = others.run("consume", topic, f"g-{topic}", RECORDS, kills_at=(30,))
    assert {line["value"] for line in read} == {str(number) for number in range(RECORDS)}
    assert all(line["header"] == line["value"] for line in read)
    with semel.Admin(node.bootstrap) as admin:
        committed = admin.group_offsets(f"g-{topic}")
    assert set(committed) == {semel.TopicPartition(topic, number) for number in range(PARTITIONS)}


@pytest.mark.timeout(900)
def test_E1_O4_a_pipeline_in_transactions_that_is_killed_leaves_each_result_once(
    name: str, others: Others, node: NodeProcess
) -> None:
    if name not in WITH_TRANSACTIONS:
        pytest.skip(f"{name} has no transactions")
    source, target = new_topic(node), new_topic(node)
    group = f"g-{source}"
    with semel.Producer(node.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(source, b"%d" % number, key=b"k", partition=number % PARTITIONS)
    some_done = threading.Event()

    def watch(count: int) -> None:
        with semel.Consumer(node.bootstrap) as consumer:
            consumer.assign([semel.TopicPartition(target, number) for number in range(PARTITIONS)])
            seen = 0
            while seen < count and not some_done.is_set():
                seen += len(consumer.poll(1.0) or ())
        some_done.set()

    for count in (RECORDS // 4, RECORDS // 2):
        watcher = threading.Thread(target=watch, args=(count,))
        watcher.start()
        try:
            others.run_killed("pipeline", source, target, group, RECORDS, until=some_done)
        finally:
            some_done.set()
            watcher.join()
        some_done.clear()
    with semel.Admin(node.bootstrap) as admin:
        offsets = admin.group_offsets(group, stable=True)
    left = sum(
        RECORDS // PARTITIONS - (offsets[tp].offset if tp in offsets else 0)
        for tp in (semel.TopicPartition(source, number) for number in range(PARTITIONS))
    )
    assert 0 < left < RECORDS
    assert others.run("pipeline", source, target, group, left)[-1] == {"committed": left}
    assert Counter(values(node, target)) == Counter(b"done %d" % number for number in range(RECORDS))


def test_topics_are_administered(others: Others) -> None:
    (said,) = others.run("admin", f"t-{uuid.uuid4()}")
    assert said == {"partitions": 2, "grown": 3, "deleted": True}
