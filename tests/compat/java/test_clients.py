"""Apache Kafka's Java clients, unchanged, against a node: both protocols of groups, transactions, fencing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_tools import KafkaTools

import semel
from semel.cli.demo.processes import NodeProcess

Program = Callable[..., list[str]]

GROUP_PROTOCOLS = {
    "classic, range": ("group.protocol", "classic"),
    "classic, cooperative-sticky": (
        "group.protocol",
        "classic",
        "partition.assignment.strategy",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    ),
    "consumer, uniform": ("group.protocol", "consumer"),
    "consumer, range": ("group.protocol", "consumer", "group.remote.assignor", "range"),
}


@pytest.mark.parametrize("members", GROUP_PROTOCOLS)
def test_G2_G4_members_share_take_over_and_return(node: NodeProcess, java_program: Program, members: str) -> None:
    topic = f"groups-{uuid.uuid4()}"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(topic, partitions=6)
    steps = java_program("Groups", node.kafka_address, topic, *GROUP_PROTOCOLS[members])
    assert steps == ["input", "two members share", "one member takes over", "static member returns"]


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_E1_O4_consume_transform_produce(node: NodeProcess, java_program: Program, group_protocol: str) -> None:
    with semel.Admin(node.bootstrap) as admin:
        existing = {topic.name for topic in admin.topics()}
        for topic in (f"in-{group_protocol}", f"out-{group_protocol}"):
            if topic in existing:
                admin.delete_topic(topic)
            admin.create_topic(topic, partitions=3)
        for group in admin.groups():
            if group.group_id == f"enrich-{group_protocol}":
                admin.delete_group(group.group_id)
    steps = java_program("ExactlyOnce", node.kafka_address, group_protocol)
    assert steps == ["input", "pipeline", "read back", "zombie producer", "zombie member"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_java_and_semel_read_each_others_records(node: NodeProcess, tools: KafkaTools, codec: str) -> None:
    topic = f"both-{codec}"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with semel.Producer(node.bootstrap, compression=codec) as producer:
        for n in range(500):
            producer.send(topic, f"semel {n}", key=f"k{n}", headers={"from": "python"})
    lines = "".join(f"k{n}\tjava {n}\n" for n in range(500))
    address = ("--bootstrap-server", node.kafka_address, "--topic", topic)
    tools.run(
        "console-producer", *address, "--compression-codec", codec, "--reader-property", "parse.key=true", text=lines
    ).succeeded()
    expected = [(f"k{n}", f"{who} {n}") for who in ("semel", "java") for n in range(500)]
    done = tools.run(
        "console-consumer",
        *address,
        *("--from-beginning", "--max-messages", "1000", "--timeout-ms", "30000"),
        *("--formatter-property", "print.key=true", "--isolation-level", "read_committed"),
    ).succeeded()
    assert [tuple(line.split("\t")) for line in done.lines()] == expected
    with semel.Consumer(node.bootstrap, group=f"g-{codec}", topics=[topic]) as consumer:
        found: list[tuple[str, str]] = []
        while len(found) < len(expected):
            batch = consumer.poll(30)
            assert batch is not None
            found += [((record.key or b"").decode(), (record.value or b"").decode()) for record in batch]
    assert found == expected


def test_groups_of_java_and_semel_members(node: NodeProcess, tools: KafkaTools) -> None:
    """A classic group with a member of each kind: the node assigns where Semel leads, Java assigns where Java does."""
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("mixed", partitions=4)
        console = ("--bootstrap-server", node.kafka_address, "--topic", "mixed", "--group", "mixed")
        strategy = "partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor"
        with (
            semel.Consumer(node.bootstrap, group="mixed", topics=["mixed"], assignors=["range"]) as consumer,
            tools.running("console-consumer", *console, "--consumer-property", strategy) as java,
        ):
            while len(consumer.assignment()) != 2 or len(admin.group("mixed").members) != 2:
                consumer.poll(0.2)
                assert java.poll() is None, java.stdout.read() if java.stdout else ""
            owners = admin.group_owners(admin.group("mixed"))
            assert len(owners) == 4
            java.terminate()
            while len(consumer.assignment()) != 4:
                consumer.poll(0.2)


def test_P1_D1_a_java_producer_outlives_kills_of_the_node(tools: KafkaTools, tmp_path: Path) -> None:
    """Whatever was acknowledged is there once, and in order, though the node died three times in between."""
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("kills", partitions=1)
        (tmp_path / "client.properties").write_text("retries=2147483647\nenable.idempotence=true\n")
        arguments = f"--bootstrap-server {node.kafka_address} --topic kills --max-messages 4000 --throughput 500"
        arguments += f" --command-config {tmp_path}/client.properties"  # without it, this tool never retries
        acknowledged: list[int] = []
        with tools.running("verifiable-producer", *arguments.split()) as producer:
            assert producer.stdout is not None
            for line in producer.stdout:
                if '"producer_send_success"' not in line:
                    continue
                acknowledged.append(int(json.loads(line)["value"]))
                if len(acknowledged) in (500, 1_500, 2_500):
                    node.kill()
                    node.start()
        with semel.Consumer(node.bootstrap) as consumer:
            partition = semel.TopicPartition("kills", 0)
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            found: list[int] = []
            while len(found) < end:
                batch = consumer.poll(30)
                assert batch is not None
                found += [int(record.value or b"") for record in batch]
    finally:
        if node.is_running:
            node.stop()
    assert len(acknowledged) == 4_000
    assert found == sorted(set(found)), "each once, and in the order of sending"
    assert set(acknowledged) <= set(found)
