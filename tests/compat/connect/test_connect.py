"""Kafka Connect, unchanged, with the settings of docs/how-to/kafka-connect.md: its workers and the node are killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from committed_values import values_by_librdkafka
from connect_workers import CONNECT_PAGE, Worker, distributed_settings, page_connector, page_settings, running_workers
from kafka_tools import KafkaTools
from node_processes import node_processes, wait_for

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.api.topics import LATEST_TIMESTAMP, IsolationLevel

PATIENT = {"heartbeat.interval.ms": 10_000, "offset.storage.partitions": 3, "session.timeout.ms": 30_000}
"""A worker keeps its tasks while its group gets another coordinator, as the page says."""


class LineFile:
    """A file that grows by a line for each number, until it is stopped."""

    PAUSE_S = 0.02
    LINES = 5

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> list[str]:
        """Write no more, and return all lines."""
        self._stopped.set()
        self._thread.join()
        return [f"{self.path.stem}-{number}" for number in range(self.count)]

    def _write(self) -> None:
        with self.path.open("a") as file:
            while not self._stopped.wait(self.PAUSE_S):
                for _ in range(self.LINES):
                    file.write(f"{self.path.stem}-{self.count}\n")
                    self.count += 1
                file.flush()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[list[LineFile]]:
    files = [LineFile(tmp_path / f"{name}.txt") for name in ("a", "b", "c")]
    yield files
    for file in files:
        file.stop()


def file_connectors(tools: KafkaTools) -> Path:
    return next(tools.folder.glob("connect-file-*.jar"))


@pytest.fixture
def workers(connect_tools: KafkaTools, node: NodeProcess, tmp_path: Path) -> Iterator[list[Worker]]:
    """Two workers of one group, that of the page."""
    settings = distributed_settings(node.kafka_address, file_connectors(connect_tools))
    with running_workers(connect_tools, tmp_path, settings) as both:
        yield both


class Topic:
    """How far the topic of the page is, for readers of both kinds. It has one partition."""

    name = "lines"

    def __init__(self, bootstrap: str, kafka_address: str, replicas: int = 1) -> None:
        self._bootstrap = bootstrap
        self._kafka_address = kafka_address
        with semel.Admin(bootstrap) as admin:
            admin.create_topic(self.name, partitions=1, replication_factor=replicas)

    def end(self, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> int:
        tp = semel.TopicPartition(self.name, 0)
        with semel.Admin(self._bootstrap) as admin:
            return admin.list_offsets({tp: LATEST_TIMESTAMP}, isolation=isolation)[tp].offset

    def wait_for_more(self, records: int = 200) -> None:
        goal = self.end() + records
        wait_for(lambda: self.end() >= goal, f"{self.name} up to {goal}")

    def wait_for_open_transaction(self) -> None:
        wait_for(lambda: self.end(IsolationLevel.READ_UNCOMMITTED) > self.end(), f"an open transaction in {self.name}")

    def values(self, isolation: str = "read_committed") -> list[str]:
        return values_by_librdkafka(self._kafka_address, self.name, isolation=isolation)


@pytest.fixture
def topic(node: NodeProcess) -> Topic:
    return Topic(node.bootstrap, node.kafka_address)


def lines_of(file: LineFile, interval_ms: int = 300) -> dict[str, str]:
    """The page's source, with a file of its own. Its transactions are long: one that is killed leaves one open."""
    interval = {"transaction.boundary": "interval", "transaction.boundary.interval.ms": str(interval_ms)}
    return {**page_connector(CONNECT_PAGE, "lines"), **interval, "file": str(file.path)}


def start_sources(worker: Worker, growing: Sequence[LineFile]) -> list[str]:
    """Start a connector for each file, and return their names."""
    names = [file.path.stem for file in growing]
    for name, file in zip(names, growing, strict=True):
        worker.configure(name, lines_of(file))
    worker.wait_running(*names)
    return names


def check(topic: Topic, growing: Sequence[LineFile]) -> None:
    """Each line is in the topic once, in its order, as readers of committed records find it."""
    written = [file.stop() for file in growing]
    count = sum(map(len, written))
    wait_for(lambda: len(topic.values()) >= count, f"{count} committed records")
    values = topic.values()
    for lines in written:
        name = lines[0].partition("-")[0]
        assert [value for value in values if value.startswith(f"{name}-")] == lines
    assert len(values) == count


def test_a_standalone_worker_copies_a_file(connect_tools: KafkaTools, node: NodeProcess, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(2_000)]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    source = {**page_connector(CONNECT_PAGE, "lines"), "file": str(tmp_path / "lines.txt")}
    sink = {**page_connector(CONNECT_PAGE, "copy"), "file": str(tmp_path / "copy.txt")}
    files = [tmp_path / "lines.json", tmp_path / "copy.json"]
    for file, config in zip(files, (source, sink), strict=True):
        file.write_text(json.dumps({"name": file.stem, "config": config}))
    settings = {
        **page_settings(CONNECT_PAGE, "standalone.properties"),
        "bootstrap.servers": node.kafka_address,
        "offset.storage.file.filename": tmp_path / "offsets",
        "plugin.path": file_connectors(connect_tools),
        "plugin.discovery": "service_load",
    }
    worker = Worker(connect_tools, tmp_path, "standalone", settings, files)
    try:
        worker.start()
        worker.wait_for(
            lambda: (tmp_path / "copy.txt").exists() and len((tmp_path / "copy.txt").read_text().splitlines()) >= 2_000,
            "the whole copy",
        )
    finally:
        worker.stop()
    assert values_by_librdkafka(node.kafka_address, "lines") == lines
    assert (tmp_path / "copy.txt").read_text().splitlines() == lines


def test_E1_sources_send_each_line_once_while_workers_and_the_node_are_killed(
    workers: list[Worker], node: NodeProcess, topic: Topic, growing: list[LineFile]
) -> None:
    names = start_sources(workers[0], growing)
    for victim, other in (workers, workers[::-1]):
        topic.wait_for_more()
        topic.wait_for_open_transaction()
        victim.kill()
        other.wait_running(*names, on=[other.url])
        topic.wait_for_more()
        victim.start()
    for _ in range(2):
        topic.wait_for_more()
        topic.wait_for_open_transaction()
        node.kill()
        node.start()
        workers[0].wait_running(*names)
    topic.wait_for_more()
    for file in growing:  # a new generation of tasks: the leader fences the producers of the one before
        workers[0].configure(file.path.stem, lines_of(file, 200))
    topic.wait_for_more()
    check(topic, growing)
    hidden = len(topic.values("read_uncommitted")) - len(topic.values())
    assert hidden, "no transaction was cut off: the kills have proved nothing"


def test_E1_a_frozen_worker_is_fenced_when_it_comes_back_and_adds_nothing(
    workers: list[Worker], topic: Topic, growing: list[LineFile]
) -> None:
    names = start_sources(workers[0], growing)
    for zombie, other in (workers, workers[::-1]):
        topic.wait_for_more()
        topic.wait_for_open_transaction()
        seen = len(zombie.log())
        zombie.freeze()
        other.wait_running(*names, on=[other.url])
        topic.wait_for_more()
        zombie.thaw()
        zombie.wait_for(lambda: "fenced" in zombie.log()[seen:].lower(), "the news that it is fenced")  # noqa: B023
        topic.wait_for_more()
    check(topic, growing)


def test_E1_sources_send_each_line_once_while_one_node_after_the_other_of_a_cluster_is_killed(
    connect_tools: KafkaTools, growing: list[LineFile], tmp_path: Path
) -> None:
    with node_processes(tmp_path / "nodes") as nodes:
        addresses = ",".join(nodes.kafka.values())
        topic = Topic(nodes.bootstrap, addresses, replicas=3)
        settings = {**distributed_settings(addresses, file_connectors(connect_tools)), **PATIENT}
        worker = Worker(connect_tools, tmp_path, "worker", settings)
        try:
            worker.start()
            names = start_sources(worker, growing)
            for node_id in nodes.running:
                topic.wait_for_more()
                topic.wait_for_open_transaction()
                nodes.kill(node_id)
                topic.wait_for_more()
                nodes.start(node_id)
                everybody = set(nodes.running)
                wait_for(lambda: set(nodes.partition(topic.name, 0).isr) == everybody, "all in sync")  # noqa: B023
                worker.wait_running(*names)
            check(topic, growing)
        finally:
            worker.kill()
        assert set(nodes.partition(topic.name, 0).replicas) == set(nodes.running)
        for node_id in nodes.running:
            nodes.stop(node_id)


def test_a_sink_writes_each_record_at_least_once_and_only_what_is_committed(
    workers: list[Worker], node: NodeProcess, topic: Topic, growing: list[LineFile], tmp_path: Path
) -> None:
    copy = tmp_path / "copy.txt"

    def copied() -> str:
        return copy.read_text() if copy.exists() else ""

    def wait_for_more() -> None:
        goal = len(copied()) + 2_000
        wait_for(lambda: len(copied()) >= goal, f"{goal} bytes in the copy")

    with semel.Producer(node.bootstrap, transactional_id="aborted") as producer:
        producer.begin_transaction()
        producer.send(topic.name, b"aborted").result(60)
        producer.abort_transaction()
    names = start_sources(workers[0], growing)
    workers[0].configure("copy", {**page_connector(CONNECT_PAGE, "copy"), "file": str(copy)})
    workers[0].wait_running("copy")
    wait_for_more()
    ((_, url),) = workers[0].tasks("copy")
    victim, other = sorted(workers, key=lambda worker: worker.url != url)
    victim.kill()
    other.wait_running("copy", on=[other.url])
    wait_for_more()
    node.kill()
    node.start()
    other.wait_running("copy", *names)
    check(topic, growing)
    # A kill may cut a line, and the next one begins behind what is left of it: so the ends are compared.
    committed = topic.values()
    wait_for(lambda: all(f"{value}\n" in copied() for value in committed[-3:]), "the last lines in the copy")
    text = copied()
    assert "aborted" in topic.values("read_uncommitted")
    assert "aborted" not in text
    assert not [value for value in committed if f"{value}\n" not in text]
