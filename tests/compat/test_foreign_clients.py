"""confluent-kafka, kafka-python, aiokafka, kcat and our own SDK on the same topics: what one writes, all others read.

Groups, transactions and administration have files of their own beside this one.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import confluent_kafka
import confluent_kafka.admin
import pytest
from aiokafka import TopicPartition as AioPartition
from foreign_clients import QUIET
from live_node import LiveNode
from record_clients import (
    FINDS,
    PATIENCE_S,
    READS,
    WRITES,
    KafkaPartition,
    Row,
    aiokafka_consumer,
    aiokafka_writes,
    confluent_consumer,
    confluent_writes,
    kafka_python_consumer,
    kafka_python_writes,
    semel_reads,
    semel_writes,
)

import semel
from semel.protocol.ids import TopicPartition

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
NOW_MS: Final = 1_700_000_000_000
ROWS: Final = (
    Row(b"key", b"value", (), NOW_MS),
    Row(None, b"value without a key", (("trace", b"1-2"), ("empty", b""), ("trace", b"again")), NOW_MS + 5),
    Row(b"", b"", (), NOW_MS - 9),
    Row(b"tombstone", None, (("имя", b"\x00\xff"),), NOW_MS + 1),
    Row(None, b"", (), NOW_MS + 2),
    Row(b"k" * 64, b"v" * 90_000, (), NOW_MS + 100_000),
    *(Row(b"%d" % number, b'{"square": %d}' % number**2, (), NOW_MS + number) for number in range(300)),
)
_numbers = itertools.count()


@dataclass
class Place:
    """One node for all tests of this file; each makes topics of its own."""

    live: LiveNode

    @property
    def kafka(self) -> str:
        return str(self.live.node.kafka_address)

    @property
    def grpc(self) -> str:
        return self.live.bootstrap

    def topic(self, partitions: int = 1, **settings: str) -> str:
        name = self.name()
        with semel.Admin(self.grpc) as admin:
            configs = {key.replace("_", "."): value for key, value in settings.items()}
            admin.create_topic(name, partitions=partitions, configs=configs)
        return name

    def name(self) -> str:
        return f"topic-{next(_numbers)}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with LiveNode(tmp_path_factory.mktemp("node"), num_partitions=1) as live:
        yield Place(live)


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_writes_all_read_in_every_codec(place: Place, codec: str) -> None:
    tp = TopicPartition(place.topic(), 0)
    for number, write in enumerate(WRITES.values()):
        first = number * len(ROWS)
        assert write(place, tp.topic, 0, ROWS, codec) == list(range(first, first + len(ROWS)))
    written = list(enumerate(ROWS * len(WRITES)))
    for name, read in READS.items():
        assert read(place, tp, 0, len(written)) == written, name
        middle = len(ROWS) + 7
        assert read(place, tp, middle, 3)[:3] == written[middle : middle + 3], name


def test_a_record_may_have_neither_key_nor_value(place: Place) -> None:
    tp = TopicPartition(place.topic(), 0)
    nothing = Row(None, None, (), NOW_MS)
    for write in (confluent_writes, semel_writes):  # the other two refuse to send one
        write(place, tp.topic, 0, [nothing], "none")
    for name, read in READS.items():
        assert [row for _, row in read(place, tp, 0, 2)] == [nothing, nothing], name


@pytest.mark.parametrize("kept", CODECS[1:])
def test_a_topics_own_codec_is_read_by_all(place: Place, kept: str) -> None:
    """The node wrote these batches again, so they are none that a client ever made."""
    tp = TopicPartition(place.topic(compression_type=kept), 0)
    for write, codec in zip(WRITES.values(), CODECS, strict=False):
        write(place, tp.topic, 0, ROWS[:20], codec)
    for name, read in READS.items():
        rows = [row for _, row in read(place, tp, 0, 20 * len(WRITES))]
        assert rows == list(ROWS[:20]) * len(WRITES), name


def test_the_time_of_the_append_replaces_the_clients_own(place: Place) -> None:
    tp = TopicPartition(place.topic(message_timestamp_type="LogAppendTime"), 0)
    for write in WRITES.values():
        write(place, tp.topic, 0, ROWS[:5], "none")
    count = 5 * len(WRITES)
    seen = {name: [row.timestamp_ms for _, row in read(place, tp, 0, count)] for name, read in READS.items()}
    assert all(times == seen["semel"] for times in seen.values()), seen
    assert seen["semel"] == sorted(seen["semel"])
    assert not set(seen["semel"]) & {row.timestamp_ms for row in ROWS}
    with confluent_consumer(place) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, 0, 0)])
        kind, _ = consumer.poll(PATIENCE_S).timestamp()
        assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME


def test_records_of_several_megabytes_go_through(place: Place) -> None:
    tp = TopicPartition(place.topic(max_message_bytes=str(8 * 1024 * 1024)), 0)
    large = [Row(b"large", bytes([number]) * (5 * 1024 * 1024), (), NOW_MS) for number in range(len(WRITES))]
    for row, write in zip(large, WRITES.values(), strict=True):
        write(place, tp.topic, 0, [row], "none")
    for name, read in READS.items():
        assert [row for _, row in read(place, tp, 0, len(large))] == large, name


def test_a_record_that_is_too_large_is_refused_and_the_next_one_taken(place: Place) -> None:
    topic = place.topic(max_message_bytes="2000")
    for name, write in WRITES.items():
        with pytest.raises(Exception, match=r"(?i)too.?large|larger than"):
            write(place, topic, 0, [Row(None, b"x" * 5000, (), NOW_MS)], "none")
        write(place, topic, 0, [Row(None, name.encode(), (), NOW_MS)], "none")
    rows = [row.value for _, row in semel_reads(place, TopicPartition(topic, 0), 0, len(WRITES))]
    assert rows == [name.encode() for name in WRITES]


def test_offsets_are_found_by_time(place: Place) -> None:
    tp = TopicPartition(place.topic(), 0)
    rows = [Row(None, b"%d" % number, (), NOW_MS + number * 1000) for number in range(50)]
    for number, write in enumerate(itertools.islice(itertools.cycle(WRITES.values()), 10)):
        write(place, tp.topic, 0, rows[number * 5 : number * 5 + 5], "none")
    for name, find in FINDS.items():
        assert find(place, tp, NOW_MS - 1) == 0, name
        assert find(place, tp, NOW_MS + 23_000) == 23, name
        assert find(place, tp, NOW_MS + 23_001) == 24, name
        assert find(place, tp, NOW_MS + 49_001) is None, name


@pytest.mark.parametrize("write", [confluent_writes, kafka_python_writes, aiokafka_writes])
def test_writing_to_a_topic_that_does_not_exist_makes_it(place: Place, write: Callable[..., list[int]]) -> None:
    topic = place.name()
    assert write(place, topic, 0, ROWS[:3], "none") == [0, 1, 2]
    for name, read in READS.items():
        assert [row for _, row in read(place, TopicPartition(topic, 0), 0, 3)] == list(ROWS[:3]), name


def test_a_reader_that_seeks_reads_from_there(place: Place) -> None:
    tp = TopicPartition(place.topic(), 0)
    semel_writes(place, tp.topic, 0, [Row(None, b"%d" % number, (), NOW_MS) for number in range(100)], "lz4")

    with confluent_consumer(place) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, 0, 50)])
        assert consumer.poll(PATIENCE_S).offset() == 50
        for target in (99, 0, 31):
            consumer.seek(confluent_kafka.TopicPartition(tp.topic, 0, target))
            assert consumer.poll(PATIENCE_S).offset() == target
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(tp.topic, 0), PATIENCE_S) == (0, 100)

    reader = kafka_python_consumer(place)
    try:
        there = KafkaPartition(tp.topic, 0)
        reader.assign([there])
        for target in (99, 0, 31):
            reader.seek(there, target)
            records = reader.poll(PATIENCE_S * 1000, max_records=1)[there]
            assert [record.offset for record in records] == [target]
        reader.seek_to_end(there)
        assert reader.position(there) == 100
        reader.seek_to_beginning(there)
        assert reader.position(there) == 0
    finally:
        reader.close()

    async def aiokafka_seeks() -> None:
        async with aiokafka_consumer(place) as consumer:
            there = AioPartition(tp.topic, 0)
            consumer.assign([there])
            for target in (99, 0, 31):
                consumer.seek(there, target)
                assert (await consumer.getone()).offset == target
            await consumer.seek_to_end(there)
            assert await consumer.position(there) == 100
            await consumer.seek_to_beginning(there)
            assert await consumer.position(there) == 0

    asyncio.run(aiokafka_seeks())


def test_records_that_were_deleted_are_gone_for_all(place: Place) -> None:
    tp = TopicPartition(place.topic(), 0)
    confluent_writes(place, tp.topic, 0, ROWS[:100], "gzip")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": place.kafka}, logger=QUIET)
    asked = admin.delete_records([confluent_kafka.TopicPartition(tp.topic, 0, 40)])
    assert [found.result(PATIENCE_S).low_watermark for found in asked.values()] == [40]
    for name, read in READS.items():
        assert read(place, tp, 40, 60) == list(enumerate(ROWS[:100]))[40:], name


def test_partitions_that_were_added_are_written_and_read_by_all(place: Place) -> None:
    topic = place.topic()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": place.kafka}, logger=QUIET)
    (grown,) = admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, len(WRITES))]).values()
    grown.result(PATIENCE_S)
    for number, write in enumerate(WRITES.values()):
        assert write(place, topic, number, ROWS[:5], "none") == [0, 1, 2, 3, 4]
    for name, read in READS.items():
        for number in range(len(WRITES)):
            assert [row for _, row in read(place, TopicPartition(topic, number), 0, 5)] == list(ROWS[:5]), name


needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")


def kcat(place: Place, *arguments: str, given: str = "") -> str:
    command = ["kcat", "-b", place.kafka, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kcat
@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_and_all_read(place: Place, codec: str) -> None:
    tp = TopicPartition(place.topic(), 0)
    kcat(place, "-P", "-t", tp.topic, "-p", "0", "-K", ":", "-H", "by=kcat", "-z", codec, given="a:1\nb:2\nc:3\n")
    for name, read in READS.items():
        rows = [row for _, row in read(place, tp, 0, 3)]
        assert [(row.key, row.value, row.headers) for row in rows] == [
            (key, value, (("by", b"kcat"),)) for key, value in ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
        ], name


@needs_kcat
def test_kcat_reads_lists_and_asks_for_offsets(place: Place) -> None:
    tp = TopicPartition(place.topic(2), 0)
    rows = [Row(b"%d" % number, b"v%d" % number, (("n", b"%d" % number),), NOW_MS + number) for number in range(5)]
    for write in WRITES.values():
        write(place, tp.topic, 0, rows, "gzip")
    seen = kcat(place, "-C", "-t", tp.topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %T %k %s %h\\n")
    assert seen.splitlines() == [
        f"{number * 5 + each} {NOW_MS + each} {each} v{each} n={each}"
        for number in range(len(WRITES))
        for each in range(5)
    ]
    assert f'topic "{tp.topic}" with 2 partitions' in kcat(place, "-L", "-t", tp.topic)
    assert kcat(place, "-Q", "-t", f"{tp.topic}:0:{NOW_MS + 3}").split() == [tp.topic, "[0]", "offset", "3"]
    with_group = ("-G", f"group of {tp.topic}", "-e", "-q", "-f", "%s ", "-X", "auto.offset.reset=earliest", tp.topic)
    assert kcat(place, *with_group).split() == [f"v{each}" for each in range(5)] * len(WRITES)
