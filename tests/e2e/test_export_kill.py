"""`semel export` and `semel import` are killed again and again, and the node with them: each record is there once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.api.topics import LATEST_TIMESTAMP

PARTITIONS = 3
RECORDS = 150_000
KILLS = 4
WAIT_S = 120
RUNS_MAX = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    if node.is_running:
        node.stop()


def until_done(node: NodeProcess, progress: Callable[[], int], *arguments: object) -> int:
    """Run a command again and again, and kill it as soon as it has done something, with the node every other time.

    Returns how often it was killed. progress: grows as it does something
    """
    words = [sys.executable, "-P", "-m", "semel.cli", *map(str, arguments), "--bootstrap", node.bootstrap]
    kills = 0
    for _ in range(RUNS_MAX):
        seen = progress()
        command = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            while kills < KILLS and command.poll() is None:
                if progress() > seen:
                    command.kill()
                    kills += 1
                    if kills % 2:
                        node.kill()
                        node.start()
                    break
                time.sleep(0.005)
            if command.wait(WAIT_S) == 0:
                return kills
        finally:
            command.kill()
            command.wait()
    raise AssertionError(f"{arguments[0]} did not end within {RUNS_MAX} runs")


def values(node: NodeProcess, topic: str) -> list[list[bytes]]:
    scan = semel.arrow.scan(topic, bootstrap=node.bootstrap, columns=["value"])
    return [scan.partition(number).read_all().column("value").to_pylist() for number in range(PARTITIONS)]


@pytest.mark.drawn(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_E1_each_record_is_exported_and_imported_once(node: NodeProcess, tmp_path: Path, format_: str) -> None:
    out = tmp_path / "out"
    ends = {semel.TopicPartition("copy", number): LATEST_TIMESTAMP for number in range(PARTITIONS)}
    with semel.Admin(node.bootstrap) as admin:
        for topic in ("orders", "copy"):
            admin.create_topic(topic, partitions=PARTITIONS)
        with semel.Producer(node.bootstrap, transactional_id="orders") as producer:
            for first in range(0, RECORDS, 5_000):
                with producer.transaction() as transaction:
                    for number in range(first, first + 5_000):
                        transaction.send("orders", b"%d" % number, partition=number % PARTITIONS)
        sent = [[b"%d" % number for number in range(first, RECORDS, PARTITIONS)] for first in range(PARTITIONS)]
        export = ("export", "orders", out, "--format", format_, "--file-bytes", 1 << 20)
        assert until_done(node, lambda: len(list(out.glob("*/*-*"))), *export) > 0
        sent_so_far = lambda: sum(found.offset for found in admin.list_offsets(ends).values())  # noqa: E731
        assert until_done(node, sent_so_far, "import", out, "copy") > 0
    assert values(node, "orders") == sent
    assert values(node, "copy") == sent
