"""An application of Kafka Streams, unchanged, with exactly-once: its instances and nodes are killed while it works."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import kafka_jars
from fed_programs import (
    Fault,
    Feeder,
    LiveReader,
    Run,
    kill_both,
    kill_node,
    nodes_in_turn,
    read_again,
    repeated,
)
from longer_runs import given
from node_processes import NodeProcesses, wait_for
from streams_runs import INPUTS, OUTPUTS, PARTITIONS, Application, Input, Results

import semel
from semel.cli.demo.processes import NodeProcess

RECORDS = int(given("SEMEL_STREAMS_RECORDS", "3000"))
"""So many lines, orders and payments each."""
PAGE = kafka_jars.ROOT / "docs" / "how-to" / "kafka-streams.md"
ENDED_S = 120


def create_topics(bootstrap: str, names: Sequence[str]) -> None:
    with semel.Admin(bootstrap) as admin:
        for name in names:
            admin.create_topic(name, partitions=PARTITIONS)


def kill_instance(application: Application, number: int, *, loses_state: bool = False) -> Fault:
    def kill(meanwhile: Callable[[], None]) -> None:
        application.processes[number].kill()
        if loses_state:
            application.lose_state(number)
        meanwhile()
        application.processes[number].start()

    return Fault(kill, instance=number)


def test_E1_O4_each_record_counts_once_while_instances_and_the_node_are_killed(
    node: NodeProcess, jars: Path, classes: Path, tmp_path: Path
) -> None:
    create_topics(node.bootstrap, [*INPUTS, *OUTPUTS])
    source = Input(RECORDS)
    with (
        Application(tmp_path, jars, classes, node.kafka_address) as application,
        LiveReader(node.bootstrap, OUTPUTS, PARTITIONS, Results()) as reader,
        Feeder(node.bootstrap, source) as feeder,
    ):
        first, second = kill_instance(application, 0), kill_instance(application, 1, loses_state=True)
        run = Run(application, reader, feeder, source)
        others = [kill_node(node), kill_both(application.processes[1], node, instance=1)]
        with semel.Admin(node.bootstrap) as admin:
            run.with_faults(repeated([first, others[0], second, *others], RECORDS), admin)
        assert run.cut_off
        run.read_until(lambda results: results.is_enough(source), "all of the output")
        assert reader.results.wrong(source) == []
        assert read_again(node.kafka_address, OUTPUTS, PARTITIONS, Results()).wrong(source) == []
        words = source.counts()
        for number in (0, 1):
            wait_for(lambda number=number: application.stored(number, words) == words, "the stores to be up to date")
        wait_for(
            lambda: all(sorted(application.hosts(1, word)) == sorted(application.addresses) for word in words),
            "each word to have a standby",
        )
        application.processes[0].kill()
        wait_for(lambda: application.stored(1, words) == words, "the standby to answer for all words")


def test_E1_O4_each_record_counts_once_while_nodes_of_a_cluster_are_killed(
    nodes: NodeProcesses, jars: Path, classes: Path, tmp_path: Path
) -> None:
    """One node after the other, each when all topics, those of Streams and the coordinators too, are in sync again."""
    create_topics(nodes.bootstrap, [*INPUTS, *OUTPUTS])
    source = Input(RECORDS)
    one_node = nodes_in_turn(nodes)
    with (
        Application(tmp_path, jars, classes, ",".join(nodes.kafka.values())) as application,
        LiveReader(nodes.bootstrap, OUTPUTS, PARTITIONS, Results()) as reader,
        Feeder(nodes.bootstrap, source) as feeder,
    ):
        run = Run(application, reader, feeder, source)
        with semel.Admin(nodes.bootstrap, api_timeout_ms=60_000) as admin:
            run.with_faults(repeated([one_node, one_node, kill_instance(application, 0)], RECORDS), admin)
        assert run.cut_off
        run.read_until(lambda results: results.is_enough(source), "all of the output")
        assert reader.results.wrong(source) == []
        bootstrap = ",".join(nodes.kafka.values())
        assert read_again(bootstrap, OUTPUTS, PARTITIONS, Results()).wrong(source) == []


def test_the_group_protocol_of_streams_is_refused_in_words(
    node: NodeProcess, jars: Path, classes: Path, tmp_path: Path
) -> None:
    """KIP-1071 is not served. An application that asks for it must end and say so, not wait for ever."""
    create_topics(node.bootstrap, [*INPUTS, *OUTPUTS])
    settings = {"group_protocol": "streams", "num_standby_replicas": 0}
    with Application(tmp_path, jars, classes, node.kafka_address, instances=1, **settings) as application:
        (process,) = application.processes
        assert process.wait_ended(ENDED_S) == 1
        assert "UnsupportedVersionException: The cluster does not support the STREAMS group protocol" in process.log()


def test_the_program_of_the_page_counts(node: NodeProcess, jars: Path, tmp_path: Path) -> None:
    found = re.search(r"^```java\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    assert "localhost:9092" in found[1]
    program = tmp_path / "WordCount.java"
    program.write_text(found[1].replace("localhost:9092", node.kafka_address))
    create_topics(node.bootstrap, ["lines", "counted"])
    with (tmp_path / "program.log").open("wb") as log:
        started = subprocess.Popen(
            [kafka_jars.java(), "-Xmx256m", "-cp", f"{jars}/*", program.name], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        with semel.Producer(node.bootstrap) as producer:
            for line in ("once and only once", "not twice"):
                producer.send("lines", line)
        counts: dict[str, int] = {}
        with semel.Consumer(node.bootstrap) as reader:
            reader.assign(semel.TopicPartition("counted", partition) for partition in range(PARTITIONS))
            wanted = {"once": 2, "and": 1, "only": 1, "not": 1, "twice": 1}

            def are_right() -> bool:
                assert started.poll() is None, (tmp_path / "program.log").read_text()[-4000:]
                for record in reader.poll(0.2) or ():
                    counts[(record.key or b"").decode()] = int(record.value or 0)
                return counts == wanted

            wait_for(are_right, "the counts of the page's program")
        started.terminate()
        started.wait(ENDED_S)
    finally:
        started.kill()
        started.wait()
