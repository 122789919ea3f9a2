"""A log in the caller's process (`semel.open`) beside a node of its own process (`semel serve`): the same clients.

.venv/bin/python -P bench/embedded.py [--records 200000] [--transactions 300] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import semel
from semel.cli.demo.processes import NodeProcess

VALUE = b"v" * 100
Make = Callable[..., object]


def write(producer: semel.Producer, records: int) -> float:
    """Return records a second, all acknowledged."""
    send = producer.send
    begun = time.perf_counter()
    for _ in range(records):
        send("bench", VALUE)
    producer.flush()
    return records / (time.perf_counter() - begun)


def read(consumer: semel.Consumer, records: int) -> float:
    """Return records a second, as objects."""
    tp = semel.TopicPartition("bench", 0)
    consumer.assign([tp])
    seen, begun = 0, time.perf_counter()
    while seen < records:
        seen += len(consumer.poll(30) or ())
    return records / (time.perf_counter() - begun)


def transactions(producer: semel.Producer, count: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of transactions of one record, in milliseconds."""
    times = []
    for number in range(count + 20):
        begun = time.perf_counter()
        with producer.transaction():
            producer.send("bench", VALUE)
        if number >= 20:
            times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    return statistics.median(times), times[len(times) * 99 // 100]


def calls(admin: semel.Admin, count: int) -> float:
    """Return the median of a call that only asks, in milliseconds."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        admin.topics()
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


def measure(
    producer: Callable[..., semel.Producer],
    consumer: Callable[[], semel.Consumer],
    admin: Callable[[], semel.Admin],
    scale: argparse.Namespace,
) -> dict[str, float]:
    with admin() as asking:
        asking.create_topic("bench", partitions=1)
        call_ms = calls(asking, scale.transactions)
    with producer() as plain:
        write(plain, scale.records // 10)  # warm
        written = write(plain, scale.records)
    with consumer() as reading:
        found = read(reading, scale.records)
    with producer(transactional_id="bench", linger_ms=1) as transactional:
        median, late = transactions(transactional, scale.transactions)
    return {
        "records written a second": written,
        "records read a second": found,
        "transaction, median ms": median,
        "transaction, 99th percentile ms": late,
        "call, median ms": call_ms,
    }


def embedded(folder: Path, scale: argparse.Namespace) -> dict[str, float]:
    begun = time.perf_counter()
    with semel.open(folder) as log:
        opened = (time.perf_counter() - begun) * 1000
        return {"start ms": opened, **measure(log.producer, log.consumer, log.admin, scale)}


def served(folder: Path, scale: argparse.Namespace) -> dict[str, float]:
    node = NodeProcess(folder)
    begun = time.perf_counter()
    node.start()
    started = (time.perf_counter() - begun) * 1000
    try:
        return {
            "start ms": started,
            **measure(
                lambda **options: semel.Producer(node.bootstrap, **options),
                lambda: semel.Consumer(node.bootstrap),
                lambda: semel.Admin(node.bootstrap),
                scale,
            ),
        }
    finally:
        node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="A log in this process beside a node of its own process.")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--transactions", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    scale = parser.parse_args()
    _ = semel.open  # imported before anything is timed
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _round in range(scale.rounds):
        for name, run in (("semel.open", embedded), ("semel serve", served)):
            with tempfile.TemporaryDirectory() as folder:
                for what, figure in run(Path(folder) / "data", scale).items():
                    figures[what][name].append(figure)
    print(f"{'':34}{'semel.open':>14}{'semel serve':>14}")
    for what, sides in figures.items():
        here, there = (statistics.median(sides[name]) for name in ("semel.open", "semel serve"))
        print(f"{what:34}{here:14,.2f}{there:14,.2f}")


if __name__ == "__main__":
    main()
