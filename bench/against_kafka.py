"""Semel beside Apache Kafka: the same clients, the same machine, the same run, one node each.

    python -P bench/against_kafka.py                          everything, about a quarter of an hour
    python -P bench/against_kafka.py tiny latency --rounds 7  some workloads
    python -P bench/against_kafka.py --quick                  everything once and short: does it still run?

Four nodes run side by side and take turns: Kafka in its default configuration beside `durability = "os"` (neither
syncs before it answers), and Kafka with `log.flush.interval.messages=1` beside `durability = "disk"` (both do). Each is
warmed up until what a request costs it no longer falls, and each workload begins with a turn that does not count. A
ratio is Semel's figure by Kafka's, from the medians.

The clients are confluent-kafka (librdkafka), Kafka's own Java tools, and raw sockets where a client would be what is
measured. All of them share the machine's cores with the nodes.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import apache_kafka
import confluent_kafka
import dataplane
import harness
import node as node_bench
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from harness import ROOT, Figure, Peer, Sample, cpu_us_each, in_turns, machine, measured, number, rate, write_json

sys.path.insert(0, str(ROOT / "tests" / "support"))

import kafka_jars
from kafka_tools import KafkaTools

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProduceResponse

KAFKA, SEMEL = "kafka", "semel"
OS, DISK = "os", "disk"
SIZES = (100, 1024)
BATCH_BYTES = 256 << 10
TIMEOUT_S = 120.0
WARM_UPS_MAX = 10
JAVA_HEAP = ("-Xmx512m", "-Xms512m", "-XX:+UseG1GC")


@dataclass(frozen=True)
class Scale:
    """How long and how often. `seconds` is for one turn of one workload."""

    seconds: float
    rounds: int
    megabytes: int
    java_megabytes: int
    idle_partitions: int


FULL = Scale(2.0, 5, 128, 400, 1000)
QUICK = Scale(0.3, 1, 8, 8, 50)


@dataclass(frozen=True)
class Row:
    """One line of the table. `samples` are by peer and of the same unit."""

    workload: str
    durability: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    less_is_better: bool = False
    costs: Mapping[str, str] | None = None
    bound: str = ""

    def median(self, peer: str) -> float:
        return statistics.median(self.samples[peer])

    @property
    def ratio(self) -> float:
        return self.median(SEMEL) / self.median(KAFKA)


Peers = Mapping[str, Mapping[str, Peer]]
"""By durability, then by name."""


def bootstrap(peer: Peer) -> str:
    return f"{peer.address[0]}:{peer.address[1]}"


def client(peer: Peer, **settings: object) -> dict[str, Any]:
    """Return librdkafka's settings, with underscores for dots; it says errors alone."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": bootstrap(peer), "log_level": 3, **more}


def new_topic(peer: Peer, name: str, partitions: int = 1) -> None:
    """Create a topic, and wait until its leaders answer: Kafka's know of it a moment later."""
    admin = AdminClient(client(peer))
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    asked = {confluent_kafka.TopicPartition(name, n): OffsetSpec.latest() for n in range(partitions)}
    while any(future.exception(TIMEOUT_S) for future in admin.list_offsets(asked).values()):
        assert time.monotonic() < deadline, f"{name} has no leaders"
        time.sleep(0.01)


def delete_topic(peer: Peer, name: str) -> None:
    admin = AdminClient(client(peer))
    for future in admin.delete_topics([name]).values():
        future.result(TIMEOUT_S)


def turns(
    peers: Mapping[str, Peer], run: Callable[[Peer], Sample], rounds: int, topic: str | None = None, partitions: int = 1
) -> dict[str, list[Sample]]:
    """Let the peers take turns, with a topic of their own for as long."""
    if topic is not None:
        for peer in peers.values():
            new_topic(peer, topic, partitions)
    os.sync()
    samples = in_turns({name: partial(run, peer) for name, peer in peers.items()}, rounds)
    print(".", end="", file=sys.stderr, flush=True)
    if topic is not None:
        for peer in peers.values():
            delete_topic(peer, topic)
    return samples


def rates(samples: Mapping[str, Sequence[Sample]], per: float = 1) -> dict[str, list[float]]:
    return {name: [one / per for one in rate(taken)[1]] for name, taken in samples.items()}


def cpu_each(samples: Mapping[str, Sequence[Sample]], unit: str) -> dict[str, str]:
    return {name: f"{cpu_us_each(taken):.1f} us a {unit}" for name, taken in samples.items()}


def cpu_gb(samples: Mapping[str, Sequence[Sample]], size: int) -> dict[str, str]:
    """Return CPU seconds a GB; samples count records of `size` bytes."""
    return {name: f"{cpu_us_each(taken) * 1e3 / size:.2f} s a GB" for name, taken in samples.items()}


def warm_up(peer: Peer, scale: Scale) -> None:
    """Do some of everything until it gets no cheaper: a JVM compiles what it has often run, and that takes a while."""
    new_topic(peer, "bulk", 3)
    new_topic(peer, "transactions", 10)
    new_topic(peer, "paced")
    frame = dataplane.produce_frame("bulk", 0, dataplane.batch_of(100), -1)

    def some_of_everything() -> float:
        requests = dataplane.pipelined(peer, frame, scale.seconds, 100)
        requests += dataplane.unpipelined(peer, [frame] * 32, scale.seconds)
        send_confluent(peer, size=100, records=scale.megabytes * 2_000, settings={})
        node_bench.paced_raw(peer, "paced", scale.seconds, end_of(peer, "paced"))
        commit_again_and_again(peer, records=10, partitions=10, seconds=scale.seconds)
        dataplane.fetches(peer, "bulk", 0, 1_000_000, scale.seconds / 2, 4)
        return requests

    cheapest = float("inf")
    for _ in range(WARM_UPS_MAX):
        cost = cpu_us_each([measured(peer, some_of_everything)])
        if cost > cheapest * 0.9:
            break
        cheapest = cost
    for topic in ("bulk", "transactions", "paced"):
        delete_topic(peer, topic)


# --- Bulk -------------------------------------------------------------------------------------------------------------


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
            frame = dataplane.produce_frame("bulk", 0, node_bench.batch_of_records(size, BATCH_BYTES), -1)
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
            fill(peer, topic, node_bench.batch_of_records(size, BATCH_BYTES), scale.megabytes * 1_000_000)
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
    consumer = confluent_kafka.Consumer(client(peer, group_id="bench", enable_auto_commit=False))
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
    arguments += ["--bootstrap-server", bootstrap(peer)]
    output, cpu_s = java_run(peer, tools.command("producer-perf-test", *arguments, jvm=JAVA_HEAP))
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", output, re.MULTILINE)
    assert found, output
    assert int(found[-1][0]) == records, output
    return Sample(records, records / float(found[-1][1]), cpu_s)


def java_consume(peer: Peer, *, tools: KafkaTools, topic: str, records: int) -> Sample:
    arguments = ["--bootstrap-server", bootstrap(peer), "--topic", topic, "--num-records", str(records)]
    output, cpu_s = java_run(peer, tools.command("consumer-perf-test", *arguments, jvm=JAVA_HEAP))
    fields = [line for line in output.splitlines() if line.strip()][-1].split(", ")
    assert int(fields[4]) >= records, output
    return Sample(int(fields[4]), int(fields[7]) / 1e3, cpu_s)


# --- Requests ---------------------------------------------------------------------------------------------------------


def tiny(peers: Peers, scale: Scale) -> list[Row]:
    """A record of 100 B a request, raw: 1 and 32 connections with one in flight, and 100 in flight on one."""
    rows = []
    batch = dataplane.batch_of(100)
    for durability in (OS, DISK):
        waits = "Python and system calls" if durability == OS else "syncs"
        for connections, partitions in ((1, 1), (32, 1), (32, 32)):
            frames = [dataplane.produce_frame("tiny", n % partitions, batch, -1) for n in range(connections)]
            samples = turns(
                peers[durability],
                lambda peer, frames=frames: measured(peer, lambda: dataplane.unpipelined(peer, frames, scale.seconds)),
                scale.rounds,
                "tiny",
                partitions,
            )
            label = f"one 100 B record a request, {connections} connections, {partitions} partitions"
            costs = cpu_each(samples, "request")
            rows.append(Row(label, durability, "k requests/s", rates(samples, 1e3), costs=costs, bound=waits))
        frame = dataplane.produce_frame("tiny", 0, batch, -1)
        samples = turns(
            peers[durability],
            lambda peer, frame=frame: measured(peer, lambda: dataplane.pipelined(peer, frame, scale.seconds, 100)),
            scale.rounds,
            "tiny",
        )
        label = "one 100 B record a request, 100 in flight on 1 connection"
        costs = cpu_each(samples, "request")
        rows.append(Row(label, durability, "k requests/s", rates(samples, 1e3), costs=costs, bound=waits))
    return rows


def latency(peers: Peers, scale: Scale) -> list[Row]:
    """500 records of 100 B a second, raw: until acknowledged, and until a waiting fetch has them."""
    rows = []
    for durability in (OS, DISK):
        samples = turns(
            peers[durability],
            lambda peer: node_bench.paced_raw(peer, "paced", scale.seconds * 2, end_of(peer, "paced")),
            scale.rounds,
            "paced",
        )
        for what in samples[KAFKA][0].rates:
            values = {name: [one.rates[what] for one in taken] for name, taken in samples.items()}
            bound = "wake-ups of two processes" if durability == OS else "a sync, and wake-ups"
            costs = cpu_each(samples, "record")
            rows.append(Row(f"{what}, 500 records/s", durability, "us", values, True, costs, bound))
    return rows


def end_of(peer: Peer, topic: str) -> int:
    consumer = confluent_kafka.Consumer(client(peer, group_id="bench"))
    try:
        return int(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), TIMEOUT_S)[1])
    finally:
        consumer.close()


def transactions(peers: Peers, scale: Scale) -> list[Row]:
    """One librdkafka producer that commits one transaction after the other."""
    rows = []
    for durability in (OS, DISK):
        for label, records, partitions in (("1 record", 1, 1), ("100 records", 100, 1), ("10 partitions", 10, 10)):
            run = partial(commit_again_and_again, records=records, partitions=partitions, seconds=scale.seconds)
            samples = turns(peers[durability], run, scale.rounds, "transactions", 10)
            costs = cpu_each(samples, "transaction")
            bound = "steps one after the other: join, data, decision, markers, completion"
            rows.append(
                Row(f"transactions, {label}", durability, "transactions/s", rates(samples), costs=costs, bound=bound)
            )
    return rows


def commit_again_and_again(peer: Peer, *, records: int, partitions: int, seconds: float) -> Sample:
    producer = confluent_kafka.Producer(client(peer, transactional_id=f"bench-{records}-{partitions}", linger_ms=0))
    producer.init_transactions(TIMEOUT_S)

    def once() -> None:
        producer.begin_transaction()
        for n in range(records):
            producer.produce("transactions", b"v" * 100, partition=n % partitions)
        producer.commit_transaction(TIMEOUT_S)

    def run() -> float:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            once()
            count += 1
        return count

    once()
    return measured(peer, run)


# --- Starts, memory ---------------------------------------------------------------------------------------------------


def start(peers: Peers, scale: Scale) -> list[Row]:
    """Process start to the first acknowledged record, on a folder with a topic; memory then; what a partition adds."""
    seconds: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    cpu: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    memory: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    partition: dict[str, list[float]] = {KAFKA: [], SEMEL: []}
    with ExitStack() as stack:
        starters = {KAFKA: KafkaStarter(stack), SEMEL: SemelStarter(stack)}
        for _ in range(max(1, scale.rounds // 2) + 1):
            for name, starter in starters.items():
                begin = time.perf_counter()
                peer = starter.start()
                wait_for_first_record(peer.address)
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(peer.cpu_s())
                memory[name].append(peer.memory_mb())
                peer.stop()
        for name, starter in starters.items():
            peer = starter.start()
            wait_for_first_record(peer.address)
            new_topic(peer, "few", 10)
            before = peer.memory_mb()
            new_topic(peer, "many", scale.idle_partitions)
            partition[name].append((peer.memory_mb() - before) / scale.idle_partitions * 1e3)
            peer.stop()
    for taken in (seconds, cpu, memory):
        for values in taken.values():
            del values[0]  # the first start reads its files from the disk
    costs = {name: f"{statistics.median(values):.2f} s" for name, values in cpu.items()}
    return [
        Row("start to the first acknowledged record", OS, "s", seconds, True, costs, "imports"),
        Row("resident memory after it", OS, "MB", memory, True, bound="modules"),
        Row(f"an idle partition, of {scale.idle_partitions}", OS, "KB", partition, True, bound="objects"),
        Row(
            "resident memory after this run's other workloads",
            OS,
            "MB",
            {name: [peer.memory_mb()] for name, peer in peers[OS].items()},
            True,
            bound="buffers of connections",
        ),
    ]


class KafkaStarter:
    def __init__(self, stack: ExitStack) -> None:
        self._folder = stack.enter_context(harness.data_folder())
        self._address = apache_kafka.prepare(self._folder)
        kafka = self.start()
        apache_kafka.wait_started(kafka)
        new_topic(kafka, "first")
        kafka.stop()

    def start(self) -> apache_kafka.KafkaProcess:
        return apache_kafka.start_prepared(self._folder, self._address)


class SemelStarter:
    def __init__(self, stack: ExitStack) -> None:
        self._folder = stack.enter_context(harness.data_folder())
        node = self.start()
        new_topic(node, "first")
        node.stop()

    def start(self) -> harness.NodeProcess:
        return harness.start_node(self._folder, {"durability": OS})


def wait_for_first_record(address: tuple[str, int]) -> None:
    """Try every few milliseconds until a record is acknowledged."""
    frame = dataplane.produce_frame("first", 0, dataplane.batch_of(100), -1)
    buffer = bytearray(1 << 16)
    deadline = time.perf_counter() + TIMEOUT_S
    while time.perf_counter() < deadline:
        try:
            with dataplane.connect(address) as sock:
                sock.settimeout(10)
                sock.sendall(frame)
                size = dataplane.read_frame(sock, buffer)
            if ProduceResponse.parse(memoryview(buffer)[:size], 9, 5).partitions[0].error is ErrorCode.NONE:
                return
        except OSError:
            pass
        time.sleep(0.005)
    raise TimeoutError(f"no record was acknowledged by {address}")


# --- The report -------------------------------------------------------------------------------------------------------


WORKLOADS: dict[str, Callable[[Peers, Scale], list[Row]]] = {
    "produce": produce,
    "consume": consume,
    "java": java,
    "tiny": tiny,
    "latency": latency,
    "transactions": transactions,
    "start": start,
}


def print_head() -> None:
    print("| workload | durability | Apache Kafka | Semel | Semel / Kafka | node's CPU, Kafka / Semel | bound |")
    print("|---|---|---:|---:|---:|---|---|")


def print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        costs = row.costs or {}
        cost = f"{costs[KAFKA]} / {costs[SEMEL]}" if costs else ""
        better = "less" if row.less_is_better else "more"
        figures = " | ".join(f"{number(row.median(name))} {row.unit}" for name in (KAFKA, SEMEL))
        ratio = f"{row.ratio:.2f}x ({better} is better)"
        print(f"| {row.workload} | {row.durability} | {figures} | {ratio} | {cost} | {row.bound} |", flush=True)


def figures_of(rows: Sequence[Row]) -> list[Figure]:
    return [
        Figure("against_kafka", f"{row.workload}, {row.durability}, {peer}", row.median(peer), row.unit, list(values))
        for row in rows
        for peer, values in row.samples.items()
    ]


def main() -> None:
    apache_kafka.end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it runs")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="rounds, of which the median counts")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    scale = QUICK if arguments.quick else Scale(**{**vars(FULL), "rounds": arguments.rounds})
    try:
        version = kafka_jars.jars().name
    except kafka_jars.JavaMissingError as error:
        print(f"skipped: {error}")
        return
    print(f"Apache Kafka {version}; " + ", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    harness.touch_memory(256 if arguments.quick else 2048)
    rows: list[Row] = []
    with ExitStack() as stack:
        peers: dict[str, dict[str, Any]] = {
            durability: {
                KAFKA: stack.enter_context(apache_kafka.running_kafka(fsync=durability == DISK)),
                SEMEL: stack.enter_context(harness.running_node({"durability": durability})),
            }
            for durability in (OS, DISK)
        }
        for by_name in peers.values():
            for peer in by_name.values():
                warm_up(peer, scale)
        print_head()
        for name in arguments.workloads or WORKLOADS:
            print(f"{name} ... load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            found = WORKLOADS[name](peers, scale)
            print_rows(found)
            rows += found
    print(f"load at the end {os.getloadavg()[0]:.1f}; written to {write_json('against_kafka', figures_of(rows))}")


if __name__ == "__main__":
    main()
