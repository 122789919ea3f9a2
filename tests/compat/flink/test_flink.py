"""A job of Apache Flink, unchanged, with exactly-once: it and its node are killed while it works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import kafka_jars
import pytest
from fed_programs import (
    Feeder,
    LiveReader,
    Run,
    kill_both,
    kill_node,
    kill_program,
    nodes_in_turn,
    read_again,
    repeated,
)
from flink_runs import JVM, NUMBERED, PARTITIONS, Input, Job, Results, create_topics, latest_checkpoint
from java_programs import JavaProcess, compile_java
from kafka_proxy import Fate, KafkaProxy, every, passing
from longer_runs import given
from node_processes import NodeProcesses, wait_for
from word_counts import WordCounts

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.kafka.api import ApiKey

RECORDS = int(given("SEMEL_FLINK_RECORDS", "3000"))
PAGE = kafka_jars.ROOT / "docs" / "how-to" / "flink.md"
NAMINGS = ("INCREMENTING", "POOLING")
TIMEOUT_MS = 60_000
NOT_COMMITTED = "Unable to commit transaction"
REFUSED = "The transaction timeout is larger than the maximum value allowed by the broker"


@pytest.mark.parametrize("naming", NAMINGS)
def test_E1_each_record_is_numbered_once_while_the_job_and_the_node_are_killed(
    node: NodeProcess, jars: Path, classes: Path, tmp_path: Path, naming: str
) -> None:
    """Flink names transactions in two ways. After a kill it finds those that are left by trying names, or by a list."""
    create_topics(node.bootstrap)
    source = Input(RECORDS)
    with (
        Job(tmp_path, jars, classes, node.kafka_address, naming, timeout_ms=TIMEOUT_MS, parallelisms=(2, 1)) as job,
        LiveReader(node.bootstrap, [NUMBERED], PARTITIONS, Results()) as reader,
        Feeder(node.bootstrap, source) as feeder,
        semel.Admin(node.bootstrap) as admin,
    ):
        job.start()
        run = Run(job, reader, feeder, source)
        faults = [kill_program(job), kill_node(node), kill_both(job, node), kill_program(job)]
        run.with_faults(repeated(faults, RECORDS), admin)
        run.read_until(lambda results: results.seen >= RECORDS, f"{RECORDS} outputs")
        assert run.cut_off
        assert job.restored
        assert reader.results.wrong(source) == []
        assert read_again(node.kafka_address, [NUMBERED], PARTITIONS, Results()).wrong(source) == []


def test_E1_each_record_is_numbered_once_while_nodes_of_a_cluster_are_killed(
    nodes: NodeProcesses, jars: Path, classes: Path, tmp_path: Path
) -> None:
    create_topics(nodes.bootstrap)
    source = Input(RECORDS)
    bootstrap = ",".join(nodes.kafka.values())
    with (
        Job(tmp_path, jars, classes, bootstrap, "POOLING", timeout_ms=TIMEOUT_MS) as job,
        LiveReader(nodes.bootstrap, [NUMBERED], PARTITIONS, Results()) as reader,
        Feeder(nodes.bootstrap, source) as feeder,
        semel.Admin(nodes.bootstrap, api_timeout_ms=60_000) as admin,
    ):
        job.start()
        one_node = nodes_in_turn(nodes)
        run = Run(job, reader, feeder, source)
        run.with_faults(repeated([one_node, one_node, kill_program(job)], RECORDS), admin)
        run.read_until(lambda results: results.seen >= RECORDS, f"{RECORDS} outputs")
        assert run.cut_off
        assert reader.results.wrong(source) == []
        assert read_again(bootstrap, [NUMBERED], PARTITIONS, Results()).wrong(source) == []


@pytest.fixture
def proxy() -> Iterator[KafkaProxy]:
    proxy = KafkaProxy()
    yield proxy
    proxy.close()


@pytest.mark.parametrize("naming", NAMINGS)
def test_E1_a_job_commits_after_a_kill_what_its_checkpoint_says(
    proxy: KafkaProxy, jars: Path, classes: Path, tmp_path: Path, naming: str
) -> None:
    """The checkpoint is complete, the commit has not reached the node: both are killed, and the next start commits."""
    node = NodeProcess(tmp_path / "data", settings=[f"kafka.advertised=127.0.0.1:{proxy.port}"])
    proxy.aim(int(node.kafka_address.rpartition(":")[2]))
    node.start()
    source = Input(180)
    try:
        create_topics(node.bootstrap)
        with (
            Job(tmp_path, jars, classes, f"127.0.0.1:{proxy.port}", naming, timeout_ms=TIMEOUT_MS) as job,
            LiveReader(node.bootstrap, [NUMBERED], PARTITIONS, Results()) as reader,
            Feeder(node.bootstrap, source) as feeder,
        ):
            job.start()
            feeder.allow(90)
            reader.read_until(lambda results: results.seen >= 90, "the first half", job.check)
            proxy.decide = every(ApiKey.END_TXN, Fate.HOLD)
            feeder.allow(180)
            wait_for(lambda: proxy.kept, "a commit that is held back")
            job.kill()
            node.kill()
            proxy.decide = passing
            node.start()
            job.start()
            reader.read_until(lambda results: results.seen >= 180, "the second half", job.check)
            assert reader.results.wrong(source) == []
            assert NOT_COMMITTED not in job.log()
    finally:
        assert node.stop() == 0


def test_a_timeout_beyond_what_the_node_allows_is_refused_in_words(
    node: NodeProcess, jars: Path, classes: Path, tmp_path: Path
) -> None:
    """An hour, which is the sink's default. Flink tries again and again, and its log says why."""
    create_topics(node.bootstrap)
    with (
        Job(tmp_path, jars, classes, node.kafka_address, "INCREMENTING", timeout_ms=3_600_000) as job,
        Feeder(node.bootstrap, Input(10)) as feeder,
    ):
        job.start()
        feeder.allow(10)
        wait_for(lambda: REFUSED in job.log(), "the reason in the job's log")


def test_the_program_of_the_page_counts_on_from_its_checkpoint(node: NodeProcess, jars: Path, tmp_path: Path) -> None:
    found = re.search(r"^```java\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    code = found[1]
    for old, new in (("localhost:9092", node.kafka_address), ("/tmp/count-words", str(tmp_path / "checkpoints"))):
        assert old in code
        code = code.replace(old, new)
    program = tmp_path / "CountWords.java"
    program.write_text(code)
    classes = compile_java(jars, [program], tmp_path / "compiled", lint="-Xlint:none")

    def job(*arguments: str) -> JavaProcess:
        return JavaProcess(jars, classes, "CountWords", *arguments, log=tmp_path / "job.log", jvm=JVM)

    with WordCounts(node.bootstrap) as words:
        words.run(job(), ["once", "once", "again"])
        words.run(job(str(latest_checkpoint(tmp_path / "checkpoints"))), ["once", "again"])
    assert sorted(words.counted) == ["again 1", "again 2", "once 1", "once 2", "once 3"]
