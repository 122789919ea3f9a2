"""The SDK's producer beside confluent-kafka's (librdkafka) on the same node: sends acknowledged a second, by size.

    python -P bench/producer.py [--records 1000000] [--rounds 5]

Starts a node of its own in a process of its own. Both clients are idempotent with acks=all, one producer, one thread
that sends, no compression, the same batch size and linger, in turn and several times; the median counts. A figure is
the time from the first send to the last acknowledgement. Neither asks for callbacks; Semel's `send` returns a future
each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka

import semel

GRPC, KAFKA = "127.0.0.1:29094", "127.0.0.1:29092"
TOPIC, PARTITIONS = "bench", 3
BATCH_BYTES, LINGER_MS = 1 << 18, 5


@contextlib.contextmanager
def node(durability: str) -> Iterator[None]:
    """Run a node, with the topic of the bench."""
    with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
        command = [sys.executable, "-P", "-m", "semel.cli", "serve"]
        command += ["--data-dir", folder, "--grpc", GRPC, "--kafka", KAFKA]
        environment = {**os.environ, "SEMEL_DURABILITY": durability}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert "ready" in ready, ready
            try:
                with semel.Admin(GRPC) as admin:
                    admin.create_topic(TOPIC, partitions=PARTITIONS)
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


class Spent(NamedTuple):
    seconds: float
    cpu_seconds: float


def run_semel(topic: str, value: bytes, records: int, key: bytes | None) -> Spent:
    with semel.Producer(GRPC, linger_ms=LINGER_MS, batch_size_bytes=BATCH_BYTES) as producer:
        producer.send(topic, b"warm").result(30)
        send = producer.send
        start, cpu = time.perf_counter(), time.process_time()
        if key is None:
            for _ in range(records):
                send(topic, value)
        else:
            for _ in range(records):
                send(topic, value, key=key)
        producer.flush()
        return Spent(time.perf_counter() - start, time.process_time() - cpu)


def run_confluent(topic: str, value: bytes, records: int, key: bytes | None) -> Spent:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": KAFKA,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 65536,
        }
    )
    producer.produce(topic, b"warm")
    producer.flush(30)
    produce, poll = producer.produce, producer.poll
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(records):
        while True:
            try:
                produce(topic, value, key)
                break
            except BufferError:
                poll(0.01)
    left = producer.flush(120)
    assert left == 0
    return Spent(time.perf_counter() - start, time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--durability", default="disk", choices=["disk", "os"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with node(arguments.durability):
        for size, key in ((100, None), (100, b"customer-7"), (1024, None)):
            name = f"{size} B{', keyed' if key else ''}"
            records = arguments.records if size == 100 else arguments.records // 4
            spent: dict[str, list[Spent]] = {"semel": [], "confluent-kafka": []}
            for _ in range(arguments.rounds):
                for client, run in (("semel", run_semel), ("confluent-kafka", run_confluent)):
                    spent[client].append(run(TOPIC, b"x" * size, records, key))
            rates = {client: records / statistics.median(one.seconds for one in all_) for client, all_ in spent.items()}
            cpu = {client: statistics.median(one.cpu_seconds for one in all_) for client, all_ in spent.items()}
            results[name] = rates
            ratio = rates["semel"] / rates["confluent-kafka"]
            cheaper = cpu["confluent-kafka"] / cpu["semel"]
            print(f"{name}: {ratio:.2f}x in records/s, {cheaper:.2f}x in CPU of the client")
            for client, all_ in spent.items():
                every = ", ".join(f"{records / one.seconds / 1e6:.2f}" for one in all_)
                print(
                    f"    {client:16} {rates[client] / 1e6:.2f} M/s ({every}), "
                    f"{cpu[client] / records * 1e6:.2f} us CPU a record",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
