"""MirrorMaker 2, unchanged, with the file of docs/moving-from-kafka.md: from Apache Kafka to a node, and back again."""

from __future__ import annotations

import operator
import re
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import kafka_jars
import pytest
from committed_values import messages_by_librdkafka
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from connect_workers import HEAP, LOGGED, QUICK, JavaProcess, page_settings, write_properties
from kafka_tools import KafkaTools
from node_processes import wait_for
from number_feed import CALL_S, PARTITIONS, Feed

from semel.cli.demo.processes import NodeProcess
from semel.runtime.ports import free_ports

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

import apache_kafka

PAGE = "moving-from-kafka.md"
TOPIC = "orders"
FIRST = -1
"""The value of a record in each partition that has a key, headers and a time of its own."""
RETENTION_MS = "86400000"
SOON = {
    **QUICK,
    "emit.checkpoints.interval.seconds": 1,
    "refresh.groups.interval.seconds": 1,
    "refresh.topics.interval.seconds": 1,
    "sync.group.offsets.interval.seconds": 1,
    "sync.topic.configs.interval.seconds": 1,
}
"""What is looked at after seconds: the defaults are a minute and more."""


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka broker."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # a node that starts meanwhile would not know the variable
            patch.setattr(apache_kafka, "HEAP", ("-Xmx512M", "-Xms256M"))
            patch.setenv("SEMEL_BENCH_DIR", str(tmp_path_factory.mktemp("apache")))
            try:
                kafka_jars.jars()
            except kafka_jars.JavaMissingError as error:
                pytest.skip(str(error))
            broker = stack.enter_context(apache_kafka.running_kafka())
        yield broker.bootstrap


class Group:
    """A consumer of a group at one of the clusters, which reads until nothing more is there."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._options = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }

    def read(self, wanted: Collection[int]) -> list[int]:
        """As a member of the group, read until these records have come; commit, leave, and return all that came."""
        consumer = confluent_kafka.Consumer(self._options)
        values: list[int] = []
        missing = set(wanted)

        def complete() -> bool:
            for message in consumer.consume(100, timeout=0.5):
                assert message.error() is None, message.error()
                values.append(int(message.value()))
            missing.difference_update(values)
            return not missing

        try:
            consumer.subscribe([TOPIC])
            wait_for(complete, f"{len(missing)} records for {self._options['group.id']}")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return values

    def committed(self) -> list[int]:
        """Return the offset of each partition, -1001 where there is none."""
        consumer = confluent_kafka.Consumer(self._options)
        try:
            places = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            return [place.offset for place in consumer.committed(places, timeout=CALL_S)]
        finally:
            consumer.close()


def copied(bootstrap: str) -> list[confluent_kafka.Message]:
    return messages_by_librdkafka(bootstrap, TOPIC, PARTITIONS)


def ends(bootstrap: str) -> int:
    """Return how far the topic is, all partitions together; 0 where it can't be told."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "log_level": 0})
    try:
        places = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return sum(int(consumer.get_watermark_offsets(place, timeout=CALL_S)[1]) for place in places)
    except confluent_kafka.KafkaException:
        return 0
    finally:
        consumer.close()


def last_offsets(bootstrap: str) -> list[int]:
    """Return the offset of the last committed record in each partition."""
    found = [-1] * PARTITIONS
    for message in copied(bootstrap):
        found[message.partition()] = message.offset()
    return found


def fields(message: confluent_kafka.Message) -> tuple[object, ...]:
    return message.partition(), message.key(), message.value(), message.headers(), message.timestamp()


def prepare(bootstrap: str) -> None:
    """Make the topic, with a setting, a record that has everything, and what an aborted transaction has left."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (made,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": RETENTION_MS})]).values()
    made.result(CALL_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(CALL_S)
    time_ms = int(time.time() * 1_000) - 60_000
    for value, commits in ((b"%d" % FIRST, True), (b"-2", False)):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, value, b"key", partition, timestamp=time_ms, headers=[("h", b"x")])
        producer.flush(CALL_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(CALL_S)


def retention(bootstrap: str) -> str | None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)]).values()
    return found.result(CALL_S)["retention.ms"].value


@pytest.fixture(params=["there", "and back"])
def mirror(
    request: pytest.FixtureRequest, connect_tools: KafkaTools, kafka: str, node: NodeProcess, tmp_path: Path
) -> Iterator[tuple[JavaProcess, str, str]]:
    """MirrorMaker, not started, the address that it copies from, and the address that it copies to."""
    settings = page_settings(PAGE, "mm2.properties")
    addresses = {"kafka": kafka, "semel": node.kafka_address}
    source, target = ("kafka", "semel") if request.param == "there" else ("semel", "kafka")
    names = {"kafka": source, "semel": target}
    settings = {
        re.sub(r"^(kafka|semel)|(?<=->)semel", lambda name: names[name[0]], one): value
        for one, value in settings.items()
    }
    for name, address in addresses.items():
        settings[f"{name}.bootstrap.servers"] = address
    (port,) = free_ports(1)
    path = write_properties(tmp_path / "mm2.properties", {**settings, **SOON, "listeners": f"http://127.0.0.1:{port}"})
    command = connect_tools.command("connect-mirror-maker", str(path), jvm=(*HEAP, *LOGGED))
    process = JavaProcess(command, tmp_path / "mm2.log")
    yield process, addresses[source], addresses[target]
    process.kill()


def test_E1_each_record_is_copied_once_and_groups_go_on_at_the_target(
    mirror: tuple[JavaProcess, str, str], node: NodeProcess
) -> None:
    process, source, target = mirror
    prepare(source)
    feed = Feed(source, TOPIC)
    feed.more()
    early = Group(source, "billing-early").read(feed.acknowledged[:])

    def wait_for_more(count: int = 300) -> None:
        def more() -> bool:
            assert process.is_running, process.log_tail()
            return ends(target) >= goal

        goal = ends(target) + count
        wait_for(more, f"{count} more records at the target; the log ends with\n{process.log_tail()}")

    process.start()
    wait_for_more()
    for _ in range(2):
        process.kill()
        feed.more()
        process.start()
        wait_for_more()
    node.kill()
    node.start()
    wait_for_more()

    # The runbook: producers stop, consumers end their work, and what they committed is known at the target.
    billing, audit = Group(source, "billing"), Group(source, "billing-audit")
    audited = audit.read(feed.acknowledged[:])
    feed.more()
    feed.stop()
    numbers = sorted(feed.acknowledged)
    assert sorted(billing.read(numbers)) == [FIRST] * PARTITIONS + numbers
    wait_for(lambda: len(copied(target)) >= len(numbers) + PARTITIONS, "all records at the target")
    here, there = ([fields(message) for message in copied(one)] for one in (source, target))
    for partition in range(PARTITIONS):
        assert [one for one in there if one[0] == partition] == [one for one in here if one[0] == partition]
    assert retention(target) == RETENTION_MS
    moved, behind = Group(target, "billing"), Group(target, "billing-audit")
    last = last_offsets(target)
    wait_for(lambda: all(map(operator.gt, moved.committed(), last)), "the group's offsets at the target")
    wait_for(lambda: min(behind.committed()) >= 0, "the other group's offsets at the target")
    process.kill()

    # Programs start at the target: who was at the end reads nothing again, others miss nothing.
    later = Feed(target, TOPIC)
    later.more()
    later.stop()
    assert sorted(moved.read(later.acknowledged)) == sorted(later.acknowledged)
    behind.read({*numbers} - {*audited})
    Group(target, "billing-early").read({*numbers} - {*early})
