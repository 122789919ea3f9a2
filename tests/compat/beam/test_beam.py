"""A pipeline of Apache Beam on Flink, unchanged, with exactly-once: it and its nodes are killed while it works."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import kafka_jars
import pytest
from beam_runs import SINK, Pipeline, Results, latest_checkpoint, wait_for_checkpoint
from fed_programs import Fault, Feeder, LiveReader, Run, nodes_in_turn, read_again
from flink_runs import JVM, NUMBERED, PARTITIONS, READINGS, Input
from java_programs import JavaProcess, compile_java
from longer_runs import given
from node_processes import NodeProcesses, node_processes, wait_for

import semel
from semel.cli.demo.processes import NodeProcess

RECORDS = int(given("SEMEL_BEAM_RECORDS", "3000"))
RECORDS_A_FAULT = 2_000
FIRST = 60
"""So many are written before the first fault: to every shard of the sink."""
PAGE = kafka_jars.ROOT / "docs" / "how-to" / "beam.md"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    assert node.is_running, node.log_tail()
    assert node.stop() == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with node_processes(tmp_path / "cluster") as nodes:
        yield nodes
        for node_id in nodes.running:
            nodes.stop(node_id)


def create_topics(bootstrap: str) -> None:
    with semel.Admin(bootstrap) as admin:
        for name in (READINGS, NUMBERED):
            admin.create_topic(name, partitions=PARTITIONS)


def chosen(kinds: Sequence[Fault]) -> list[Fault]:
    """Return each of these, and again where there is more input."""
    return list(itertools.islice(itertools.cycle(kinds), max(len(kinds), RECORDS // RECORDS_A_FAULT)))


def test_E1_each_record_is_numbered_once_while_the_pipeline_and_the_node_are_killed(
    node: NodeProcess, jars: Path, classes: Path, tmp_path: Path
) -> None:
    create_topics(node.bootstrap)
    source = Input(RECORDS)
    with (
        Pipeline(tmp_path, jars, classes, node.kafka_address) as pipeline,
        LiveReader(node.bootstrap, [NUMBERED], PARTITIONS, Results()) as reader,
        Feeder(node.bootstrap, source) as feeder,
        semel.Admin(node.bootstrap) as admin,
    ):
        pipeline.start()

        def kill_pipeline(meanwhile: Callable[[], None]) -> None:
            pipeline.kill()
            meanwhile()
            pipeline.start()

        def kill_node(meanwhile: Callable[[], None]) -> None:
            meanwhile()
            node.kill()
            node.start()

        def kill_both(meanwhile: Callable[[], None]) -> None:
            pipeline.kill()
            kill_node(meanwhile)
            pipeline.start()

        run = Run(pipeline, reader, feeder, source)
        feeder.allow(FIRST)
        run.read_until(lambda results: results.seen >= FIRST, "the first outputs")
        wait_for_checkpoint(pipeline.checkpoints)
        run.with_faults(chosen([Fault(kill_pipeline), Fault(kill_node), Fault(kill_both)]), admin)
        run.read_until(lambda results: results.seen >= RECORDS, f"{RECORDS} outputs")
        assert pipeline.restored
        assert reader.results.wrong(source) == []
        assert read_again(node.kafka_address, [NUMBERED], PARTITIONS, Results()).wrong(source) == []
        # The sink keeps how far each shard is beside the offset that it commits with the records.
        assert all('"seq"' in (one.metadata or "") for one in admin.group_offsets(SINK).values())


def test_E1_each_record_is_numbered_once_while_nodes_of_a_cluster_are_killed(
    nodes: NodeProcesses, jars: Path, classes: Path, tmp_path: Path
) -> None:
    create_topics(nodes.bootstrap)
    source = Input(RECORDS)
    bootstrap = ",".join(nodes.kafka.values())
    with (
        Pipeline(tmp_path, jars, classes, bootstrap) as pipeline,
        LiveReader(nodes.bootstrap, [NUMBERED], PARTITIONS, Results()) as reader,
        Feeder(nodes.bootstrap, source) as feeder,
        semel.Admin(nodes.bootstrap, api_timeout_ms=60_000) as admin,
    ):
        pipeline.start()

        def kill_pipeline(meanwhile: Callable[[], None]) -> None:
            pipeline.kill()
            meanwhile()
            pipeline.start()

        kill_node = nodes_in_turn(nodes)
        run = Run(pipeline, reader, feeder, source)
        feeder.allow(FIRST)
        run.read_until(lambda results: results.seen >= FIRST, "the first outputs")
        wait_for_checkpoint(pipeline.checkpoints)
        run.with_faults(chosen([kill_node, kill_node, Fault(kill_pipeline)]), admin)
        run.read_until(lambda results: results.seen >= RECORDS, f"{RECORDS} outputs")
        assert reader.results.wrong(source) == []
        assert read_again(bootstrap, [NUMBERED], PARTITIONS, Results()).wrong(source) == []


def test_the_program_of_the_page_counts_on_from_its_checkpoint(node: NodeProcess, jars: Path, tmp_path: Path) -> None:
    text = PAGE.read_text()
    found = re.search(r"^```java\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    options = re.search(r"CountWords \\\n(.*?) &\n", text, re.DOTALL)
    assert found
    assert options
    program = tmp_path / "CountWords.java"
    program.write_text(found[1].replace("localhost:9092", node.kafka_address))
    classes = compile_java(jars, [program], tmp_path / "compiled", lint="-Xlint:none")
    checkpoints, settings = tmp_path / "checkpoints", tmp_path / "settings"
    settings.mkdir()
    (settings / "flink-conf.yaml").touch()
    arguments = shlex.split(options[1].replace("\\\n", " ").replace("/tmp/count-words", str(checkpoints)))
    arguments[arguments.index("--flinkConfDir=settings")] = f"--flinkConfDir={settings}"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("words", partitions=1)
        admin.create_topic("counted", partitions=1)
    counted: list[bytes | None] = []

    def run(words: list[str]) -> None:
        wanted = len(counted) + len(words)
        process = JavaProcess(jars, classes, "CountWords", *arguments, log=tmp_path / "pipeline.log", jvm=JVM)
        process.start()
        try:
            with semel.Producer(node.bootstrap) as producer:
                for word in words:
                    producer.send("words", word)

            def is_there() -> bool:
                assert process.is_running, process.log_tail()
                counted.extend(record.value for record in reader.poll(0.2) or ())
                return len(counted) >= wanted

            wait_for(is_there, "the output of the page's program")
            wait_for_checkpoint(checkpoints)
        finally:
            process.kill()

    with semel.Consumer(node.bootstrap) as reader:
        reader.assign([semel.TopicPartition("counted", 0)])
        run(["once", "once", "again"])
        latest = latest_checkpoint(checkpoints)
        (settings / "flink-conf.yaml").write_text(f"execution.savepoint.path: file://{latest}\n")
        run(["once", "again"])
    assert sorted(value or b"" for value in counted) == [b"again 1", b"again 2", b"once 1", b"once 2", b"once 3"]
