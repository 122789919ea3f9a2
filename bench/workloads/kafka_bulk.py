"""Bulk beside Apache Kafka: produced and consumed by confluent-kafka, and by Kafka's own Java tools."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

import confluent_kafka
import dataplane
from harness import Peer, Sample, measured
from kafka_tools import KafkaTools

from workloads.common import batch_of_records
from workloads.kafka_peers import (
    BATCH_BYTES,
    DISK,
    OS,
    SIZES,
    TIMEOUT_S,
    Peers,
    Row,
    Scale,
    client,
    cpu_gb,
    delete_topic,
    new_topic,
    rates,
    turns,
)

JAVA_HEAP = ("-Xmx512m", "-Xms512m", "-XX:+UseG1GC")


def produce(peers: Peers, scale: Scale) -> list[Row]:
    """Bulk: librdkafka with its defaults, with large batches, idempotent; Java's perf test; raw batches of 256 KiB."""
    rows = []
    settings: list[tuple[str, int, dict[str, object]]] = [
        ("librdkafka's defaults", 100, {}),
        ("librdkafka's defaults", 1024, {}),
        ("librdkafka, batches of 1 MB", 1024, {"batch.size": 1_000_000, "linger.ms": 50}),
        ("librdkafka, idempotent", 100, {"enable.idempotence": True}),
    ]
    for durability in (OS, DISK):
        for label, size, more in settings:
            records = scale.megabytes * 1_000_000 // size
            run = partial(send_confluent, size=size, records=records, settings=more)
            samples = turns(peers[durability], run, scale.rounds, "bulk", 3)
            rows.append(bulk_row(f"produce {size} B, {label}", durability, samples, size, "the client's Python loop"))
        for size in SIZES:
            frame = dataplane.produce_frame("bulk", 0, batch_of_records(size, BATCH_BYTES), -1)
            samples = turns(
                peers[durability],
                lambda peer, frame=frame, size=size: measured(
                    peer, lambda: dataplane.pipelined(peer, frame, scale.seconds, 5) * (BATCH_BYTES // size)
                ),
                scale.rounds,
                "bulk",
            )
            bound = "copies into the page cache" if durability == OS else "the disk's rate"
            rows.append(bulk_row(f"produce {size} B, raw, 256 KiB batches", durability, samples, size, bound))
    return rows


def bulk_row(workload: str, durability: str, samples: Mapping[str, Sequence[Sample]], size: int, bound: str) -> Row:
    return Row(workload, durability, "M records/s", rates(samples, 1e6), costs=cpu_gb(samples, size), bound=bound)


def send_confluent(peer: Peer, *, size: int, records: int, settings: Mapping[str, object]) -> Sample:
    producer = confluent_kafka.Producer({**client(peer), **settings})
    producer.produce("bulk", b"first")
    assert producer.flush(TIMEOUT_S) == 0
    value, send, poll = b"v" * size, producer.produce, producer.poll

    def run() -> float:
        for _ in range(records):
            while True:
                try:
                    send("bulk", value)
                    break
                except BufferError:
                    poll(0.01)
        assert producer.flush(TIMEOUT_S) == 0
        return records

    return measured(peer, run)


def consume(peers: Peers, scale: Scale) -> list[Row]:
    """From the page cache: librdkafka's `consume`, Java's perf test, raw fetches of 1 MB on four connections."""
    rows = []
    for size in SIZES:
        topic = f"read-{size}"
        for peer in peers[OS].values():
            new_topic(peer, topic)
            fill(peer, topic, batch_of_records(size, BATCH_BYTES), scale.megabytes * 1_000_000)
        samples = turns(peers[OS], partial(read_confluent, topic=topic), scale.rounds)
        rows.append(bulk_row(f"consume {size} B, librdkafka", OS, samples, size, "the client's Python objects"))
        samples = turns(
            peers[OS],
            lambda peer, topic=topic, size=size: measured(
                peer, lambda: dataplane.fetches(peer, topic, 0, 1_000_000, scale.seconds, 4) / size
            ),
            scale.rounds,
        )
        bound = "the copy from the page cache into the loopback"
        rows.append(bulk_row(f"fetch {size} B, raw, 1 MB, 4 connections", OS, samples, size, bound))
        for peer in peers[OS].values():
            delete_topic(peer, topic)
    return rows


def fill(peer: Peer, topic: str, batch: bytes, total_bytes: int) -> None:
    frame = dataplane.produce_frame(topic, 0, batch, 1)
    dataplane.check_produced(peer, frame)
    buffer = bytearray(1 << 16)
    with dataplane.connect(peer.address) as sock:
        for _ in range(total_bytes // len(batch)):
            sock.sendall(frame)
            dataplane.read_frame(sock, buffer)


def read_confluent(peer: Peer, *, topic: str) -> Sample:
    # By default librdkafka stops fetching for a second once it holds 100,000 records, whoever sent them: then that
    # pause is what is measured.
    settings = client(peer, group_id="bench", enable_auto_commit=False, fetch_queue_backoff_ms=1)
    consumer = confluent_kafka.Consumer(settings)
    partition = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
    consumer.assign([partition])
    _, end = consumer.get_watermark_offsets(partition, TIMEOUT_S)
    count = len(consumer.consume(1, TIMEOUT_S))
    assert count == 1

    def run() -> float:
        seen = count
        while seen < end:
            found = consumer.consume(min(10_000, end - seen), TIMEOUT_S)
            assert found, "nothing came"
            seen += len(found)
        return seen

    try:
        return measured(peer, run)
    finally:
        consumer.close()


def java(peers: Peers, scale: Scale) -> list[Row]:
    """Kafka's own perf tests in Java: produce and consume."""
    tools = KafkaTools()
    rows = []
    for size in SIZES:
        topic = f"java-{size}"
        records = scale.java_megabytes * 1_000_000 // size
        for peer in peers[OS].values():
            new_topic(peer, topic, 3)
        rounds = max(1, scale.rounds // 2)
        samples = turns(peers[OS], partial(java_produce, tools=tools, topic=topic, size=size, records=records), rounds)
        rows.append(bulk_row(f"produce {size} B, kafka-producer-perf-test", OS, samples, size, "the client's JVM"))
        samples = turns(peers[OS], partial(java_consume, tools=tools, topic=topic, records=records), rounds)
        rows.append(bulk_row(f"consume {size} B, kafka-consumer-perf-test", OS, samples, size, "the client's JVM"))
        for peer in peers[OS].values():
            delete_topic(peer, topic)
    return rows


def java_run(peer: Peer, command: Sequence[str]) -> tuple[str, float]:
    """Return what the tool printed, and the node's CPU seconds meanwhile."""
    before = peer.cpu_s()
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S * 2, check=True)
    return done.stdout, peer.cpu_s() - before


def java_produce(peer: Peer, *, tools: KafkaTools, topic: str, size: int, records: int) -> Sample:
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    arguments += ["--bootstrap-server", peer.bootstrap]
    output, cpu_s = java_run(peer, tools.command("producer-perf-test", *arguments, jvm=JAVA_HEAP))
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", output, re.MULTILINE)
    assert found, output
    assert int(found[-1][0]) == records, output
    return Sample(records, records / float(found[-1][1]), cpu_s)


def java_consume(peer: Peer, *, tools: KafkaTools, topic: str, records: int) -> Sample:
    arguments = ["--bootstrap-server", peer.bootstrap, "--topic", topic, "--num-records", str(records)]
    output, cpu_s = java_run(peer, tools.command("consumer-perf-test", *arguments, jvm=JAVA_HEAP))
    fields = [line for line in output.splitlines() if line.strip()][-1].split(", ")
    assert int(fields[4]) >= records, output
    return Sample(int(fields[4]), int(fields[7]) / 1e3, cpu_s)
