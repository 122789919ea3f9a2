"""A pipeline of Apache Beam on Flink, unchanged, with exactly-once: it and its nodes are killed while it works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import kafka_jars
from beam_runs import SINK, Pipeline, Results, wait_for_checkpoint
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
from flink_runs import JVM, NUMBERED, PARTITIONS, Input, create_topics, latest_checkpoint
from java_programs import JavaProcess, compile_java
from longer_runs import given
from node_processes import NodeProcesses
from word_counts import WordCounts

import semel
from semel.cli.demo.processes import NodeProcess

RECORDS = int(given("SEMEL_BEAM_RECORDS", "3000"))
FIRST = 60
"""So many are written before the first fault: to every shard of the sink."""
PAGE = kafka_jars.ROOT / "docs" / "how-to" / "beam.md"


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
        run = Run(pipeline, reader, feeder, source)
        feeder.allow(FIRST)
        run.read_until(lambda results: results.seen >= FIRST, "the first outputs")
        wait_for_checkpoint(pipeline.checkpoints)
        run.with_faults(repeated([kill_program(pipeline), kill_node(node), kill_both(pipeline, node)], RECORDS), admin)
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
        one_node = nodes_in_turn(nodes)
        run = Run(pipeline, reader, feeder, source)
        feeder.allow(FIRST)
        run.read_until(lambda results: results.seen >= FIRST, "the first outputs")
        wait_for_checkpoint(pipeline.checkpoints)
        run.with_faults(repeated([one_node, one_node, kill_program(pipeline)], RECORDS), admin)
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

    def pipeline() -> JavaProcess:
        return JavaProcess(jars, classes, "CountWords", *arguments, log=tmp_path / "pipeline.log", jvm=JVM)

    with WordCounts(node.bootstrap) as words:
        words.run(pipeline(), ["once", "once", "again"], then=lambda: wait_for_checkpoint(checkpoints))
        latest = latest_checkpoint(checkpoints)
        (settings / "flink-conf.yaml").write_text(f"execution.savepoint.path: file://{latest}\n")
        words.run(pipeline(), ["once", "again"])
    assert sorted(words.counted) == ["again 1", "again 2", "once 1", "once 2", "once 3"]
