"""The SDK's consumer beside confluent-kafka's (librdkafka) on the same node: records a second, by size.

    python -P bench/consumer.py [--records 1000000] [--rounds 5] [--idle-partitions 1000]

Starts a node of its own in a process of its own. One consumer, one thread that takes, read_committed, no compression;
the records are in batches of up to 16 KiB, in 3 partitions. The consumers take turns, several times, and the median
counts. A figure is the time from the first batch returned (which waits for connections and metadata) to the last
record. Then 1,000 partitions of which one has something now and then: what waiting costs consumer and node.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import confluent_kafka
import harness
import producer as peer

import semel

MAX_RECORDS = 10_000


class Spent(NamedTuple):
    seconds: float
    cpu_seconds: float


class Stopwatch:
    """Runs from the first records on."""

    def __init__(self, first: int) -> None:
        self._start, self._cpu = time.perf_counter(), time.process_time()
        self.first = first

    def stop(self, records: int) -> Spent:
        """Return what was spent, as if on all of the records."""
        share = records / (records - self.first)
        return Spent((time.perf_counter() - self._start) * share, (time.process_time() - self._cpu) * share)


def fill(topic: str, size: int, records: int) -> None:
    value = b"x" * size
    with semel.Producer(peer.GRPC, linger_ms=5, batch_size_bytes=16 << 10) as producer:
        for _ in range(records):
            producer.send(topic, value)


def consumer(topic: str, partitions: int) -> semel.Consumer:
    reader = semel.Consumer(peer.GRPC)
    reader.assign([semel.TopicPartition(topic, number) for number in range(partitions)])
    return reader


def run_poll(topic: str, records: int) -> Spent:
    with consumer(topic, peer.PARTITIONS) as reader:
        batch = reader.poll(30, 1)
        assert batch is not None
        watch, count = Stopwatch(1), 1
        while count < records:
            batch = reader.poll(30, MAX_RECORDS)
            assert batch is not None
            count += len(batch)
        return watch.stop(records)


def run_values(topic: str, records: int) -> Spent:
    with consumer(topic, peer.PARTITIONS) as reader:
        batch = reader.poll(30, 1)
        watch, count = Stopwatch(1), 1
        for batch in reader.batches(MAX_RECORDS):
            values = [record.value for record in batch.records]
            count += len(values)
            if count >= records:
                break
        return watch.stop(records)


def run_iteration(topic: str, records: int) -> Spent:
    with consumer(topic, peer.PARTITIONS) as reader:
        reader.poll(30, 1)
        watch, count = Stopwatch(1), 1
        for _ in reader:
            count += 1
            if count >= records:
                break
        return watch.stop(records)


def confluent(topic: str) -> confluent_kafka.Consumer:
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": peer.KAFKA,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "queued.min.messages": 1_000_000,
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(peer.PARTITIONS)])
    return reader


def run_confluent(topic: str, records: int) -> Spent:
    reader = confluent(topic)
    count = len(reader.consume(1, 30))
    watch = Stopwatch(count)
    while count < records:
        count += len(reader.consume(min(MAX_RECORDS, records - count), 1))  # waits for as many as that
    spent = watch.stop(records)
    reader.close()
    return spent


def run_confluent_values(topic: str, records: int) -> Spent:
    reader = confluent(topic)
    count = len(reader.consume(1, 30))
    watch = Stopwatch(count)
    while count < records:
        values = [message.value() for message in reader.consume(min(MAX_RECORDS, records - count), 1)]
        count += len(values)
    spent = watch.stop(records)
    reader.close()
    return spent


RUNS: dict[str, Callable[[str, int], Spent]] = {
    "semel poll": run_poll,
    "confluent-kafka consume": run_confluent,
    "semel, values of batches": run_values,
    "confluent-kafka, values": run_confluent_values,
    "semel, iteration": run_iteration,
}


def compare(size: int, records: int, rounds: int) -> dict[str, float]:
    with peer.node("os"):
        fill(peer.TOPIC, size, records)
        spent: dict[str, list[Spent]] = {name: [] for name in RUNS}
        for _ in range(rounds):
            for name, run in RUNS.items():
                gc.collect()
                spent[name].append(run(peer.TOPIC, records))
    rates = {name: records / statistics.median(one.seconds for one in all_) for name, all_ in spent.items()}
    print(f"{size} B:")
    for name, all_ in spent.items():
        cpu = statistics.median(one.cpu_seconds for one in all_) / records * 1e6
        every = ", ".join(f"{records / one.seconds / 1e6:.2f}" for one in all_)
        base = rates["confluent-kafka, values" if "values" in name else "confluent-kafka consume"]
        print(
            f"    {name:26} {rates[name] / 1e6:.2f} M/s, {rates[name] * size / 1e6:,.0f} MB/s ({every}), "
            f"{cpu:.2f} us CPU a record, {rates[name] / base:.2f}x",
            flush=True,
        )
    return rates


def idle(partitions: int, seconds: float) -> None:
    """Wait on many partitions, with a record in one of them now and then."""
    with harness.running_node({"durability": "os"}) as node:
        with semel.Admin(node.grpc) as admin:
            admin.create_topic("wide", partitions=partitions)
        tps = [semel.TopicPartition("wide", number) for number in range(partitions)]
        with semel.Consumer(node.grpc) as reader, semel.Producer(node.grpc, linger_ms=0) as producer:
            reader.assign(tps)
            reader.poll(2)
            cpu, node_cpu, start = time.process_time(), node.cpu_s(), time.perf_counter()
            reader.poll(seconds)
            took = time.perf_counter() - start
            own, nodes = (time.process_time() - cpu) / took, (node.cpu_s() - node_cpu) / took
            print(f"{partitions} idle partitions: {own:.1%} of a core in the consumer, {nodes:.1%} in the node")
            delays = []
            cpu, node_cpu = time.process_time(), node.cpu_s()
            for number in range(200):
                sent = time.perf_counter()
                producer.send("wide", b"x" * 100, partition=number % partitions)
                batch = reader.poll(10)
                assert batch is not None
                delays.append(time.perf_counter() - sent)
            own, nodes = (time.process_time() - cpu) / 200 * 1e3, (node.cpu_s() - node_cpu) / 200 * 1e3
            print(
                f"a record in one of {partitions}: there in {statistics.median(delays) * 1e3:.2f} ms (median), "
                f"{own:.2f} ms CPU in both clients, {nodes:.2f} ms in the node",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-partitions", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    harness.touch_memory()
    gc.freeze()
    results = {
        "100 B": compare(100, arguments.records, arguments.rounds),
        "1 KiB": compare(1024, arguments.records // 4, arguments.rounds),
    }
    for partitions in (1, arguments.idle_partitions):
        idle(partitions, 3.0)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
