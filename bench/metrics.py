"""What a node's metrics cost: CPU a request with and without them, a scrape, and a measurement beside OpenTelemetry's.

    python -P bench/metrics.py [--rounds 40] [--seconds 0.25]

First two connections in this process, one measured and one not, without sockets: blocks of requests take turns, and
the fastest of many blocks counts, so that this figure means something on a busy machine too. Then two nodes, one with
metrics and one without, which take turns within each round, in changing order: the median of the rounds' ratios of the
node's CPU for a request, and the ratio of what each took at least, which other work on the machine troubles less. CPU,
because the rate is the driver's as much as the node's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
import timeit
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dataplane
from harness import NodeProcess, data_folder, start_node

import semel
from semel.runtime.telemetry.buckets import REQUEST_SECONDS, Buckets

TOPIC = "bench"
PARTITIONS = 8
IN_FLIGHT = 100
SCRAPED_PARTITIONS = 1_000
SCRAPES = 10
BLOCK_REQUESTS = 60
CLIENT_RECORDS = 50_000
PORT_FREE = "127.0.0.1:0"

Workload = Callable[[NodeProcess, float], float]


def produce(acks: int) -> Workload:
    """100 bytes a request, pipelined on one connection: what a request of its own weighs most."""
    frame = dataplane.produce_frame(TOPIC, 0, dataplane.batch_of(100), acks)
    return lambda node, seconds: dataplane.pipelined(node, frame, seconds, IN_FLIGHT)  # type: ignore[arg-type]


def fetch(node: NodeProcess, seconds: float) -> float:
    """Returns requests, of 4 KiB each."""
    size = 4 << 10
    return dataplane.fetches(node, TOPIC, 1, size, seconds, 4) / size  # type: ignore[arg-type]


WORKLOADS: dict[str, Workload] = {
    "Produce of 100 B, acks=1": produce(1),
    "Produce of 100 B, acks=all": produce(-1),
    "Fetch of 4 KiB": fetch,
}


class Nowhere(asyncio.Transport):
    """A transport that takes everything and sends nothing."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: object) -> None: ...

    def writelines(self, data: object) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


async def connections(blocks: int, together: int) -> None:
    """The cost of measuring itself: Produce of 100 bytes, acks=1, from received bytes to the answer's.

    `together`: how many requests come in at once, as from a client that does not wait for each answer.
    """
    sys.path.insert(0, str(dataplane.ROOT / "tests" / "support" / "nodes"))
    from kafka_node import FakeNode  # the double that the listener's tests use

    from semel.broker.listeners.kafka.connection import KafkaConnection
    from semel.broker.listeners.kafka.listener import KafkaListener
    from semel.broker.telemetry.recorders import Recorders
    from semel.runtime.clock import SystemClock

    frame = dataplane.produce_frame(TOPIC, 0, dataplane.batch_of(100), 1) * together
    with data_folder() as folder:
        node = FakeNode(folder, journaled=False, clock=SystemClock())
        node.create(TOPIC, 1)
        taken: dict[bool, list[float]] = {False: [], True: []}
        sides: dict[bool, KafkaConnection] = {}
        for is_on in (False, True):
            times = Recorders().requests if is_on else None
            listener = KafkaListener(node, "127.0.0.1", 0, request_times=times)  # type: ignore[arg-type]
            await listener.start()
            sides[is_on] = KafkaConnection(listener)
            sides[is_on].connection_made(Nowhere())
        for number in range(blocks):
            for is_on in (False, True) if number % 2 else (True, False):
                connection = sides[is_on]
                begin = time.perf_counter()
                for _ in range(BLOCK_REQUESTS // together):
                    buffer = connection.get_buffer(len(frame))
                    buffer[: len(frame)] = frame
                    connection.buffer_updated(len(frame))
                taken[is_on].append((time.perf_counter() - begin) / BLOCK_REQUESTS * 1e6)
    without, with_ = min(taken[False]), min(taken[True])
    print(
        f"Without sockets, Produce of 100 B with acks=1, {together} at once: {without:.2f} us a request, measured "
        f"{with_:.2f} us: {with_ - without:.2f} us more."
    )


def ready_node(stack: ExitStack, settings: dict[str, object]) -> NodeProcess:
    folder = stack.enter_context(data_folder())
    node = start_node(folder, settings)
    stack.callback(node.kill)
    with semel.Admin(node.grpc) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
    dataplane.fill(node, TOPIC, 1, 3_800, 1 << 20)  # type: ignore[arg-type]
    return node


def loop_cpu_us(node: NodeProcess) -> float:
    """Return the CPU time of the node's event loop, by the scheduler's count: ticks are too coarse for short turns."""
    return int(Path(f"/proc/{node.pid}/schedstat").read_text().split()[0]) / 1e3


def compare(rounds: int, seconds: float) -> None:
    print("| workload | without: us CPU a request | with | ratio | quarters of the ratio | ratio of the least |")
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        nodes = {False: ready_node(stack, {}), True: ready_node(stack, {"metrics.listen": PORT_FREE})}
        for name, run in WORKLOADS.items():
            costs: dict[bool, list[float]] = {False: [], True: []}
            for number in range(rounds + 1):
                for is_on in (False, True) if number % 2 else (True, False):
                    begin = loop_cpu_us(nodes[is_on])
                    count = run(nodes[is_on], seconds)
                    if number:  # the first round warms up
                        costs[is_on].append((loop_cpu_us(nodes[is_on]) - begin) / count)
            ratios = [with_ / without for without, with_ in zip(costs[False], costs[True], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            least = min(costs[True]) / min(costs[False])
            print(
                f"| {name} | {statistics.median(costs[False]):.2f} | {statistics.median(costs[True]):.2f} "
                f"| {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} | {least:.3f} |",
                flush=True,
            )


def scrape() -> None:
    """A node with many partitions: how long a scrape takes, and what it costs the node."""
    with ExitStack() as stack:
        folder = stack.enter_context(data_folder())
        node = start_node(folder, {"metrics.listen": "127.0.0.1:9464"})
        stack.callback(node.kill)
        with semel.Admin(node.grpc) as admin:
            admin.create_topic(TOPIC, partitions=SCRAPED_PARTITIONS)
        times, cpu_s = [], node.cpu_s()
        for _ in range(SCRAPES):
            begin = time.perf_counter()
            with urllib.request.urlopen("http://127.0.0.1:9464/metrics", timeout=30) as answer:
                size = len(answer.read())
            times.append(time.perf_counter() - begin)
        cpu_ms = (node.cpu_s() - cpu_s) / SCRAPES * 1e3
    print(
        f"\nA scrape of {SCRAPED_PARTITIONS} partitions: {statistics.median(times) * 1e3:.0f} ms, {cpu_ms:.0f} ms CPU, "
        f"{size >> 10} KiB."
    )


def clients(rounds: int) -> None:
    """A producer and a consumer, with an OpenTelemetry SDK in the program and without: CPU of this process."""
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from semel.sdk.telemetry import metrics

    set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    costs: dict[tuple[str, bool], list[float]] = {}
    with ExitStack() as stack:
        node = ready_node(stack, {})
        for number in range(rounds + 1):
            for is_on in (False, True) if number % 2 else (True, False):
                metrics.active = lambda is_on=is_on: is_on
                begin = time.process_time()
                with semel.Producer(node.grpc) as producer:
                    for _ in range(CLIENT_RECORDS):
                        producer.send(TOPIC, value=bytes(100), partition=2)
                sent = time.process_time()
                with semel.Consumer(node.grpc) as consumer:
                    consumer.assign([semel.TopicPartition(TOPIC, 2)])
                    left = CLIENT_RECORDS
                    while left > 0:
                        left -= len(consumer.poll().records)
                read = time.process_time()
                if number:
                    for what, seconds in (("producer", sent - begin), ("consumer", read - sent)):
                        costs.setdefault((what, is_on), []).append(seconds / CLIENT_RECORDS * 1e6)
    for what in ("producer", "consumer"):
        pairs = zip(costs[what, False], costs[what, True], strict=True)
        ratio = statistics.median(with_ / without for without, with_ in pairs)
        without, with_ = (statistics.median(costs[what, is_on]) for is_on in (False, True))
        print(f"The {what}, records of 100 B: {without:.2f} us CPU a record, {with_:.2f} measured, ratio {ratio:.3f}")


def measurement() -> None:
    """One measurement: buckets of our own, and OpenTelemetry's instruments."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    meter = MeterProvider([InMemoryMetricReader()]).get_meter("bench")
    histogram, counter, buckets = meter.create_histogram("h"), meter.create_counter("c"), Buckets(REQUEST_SECONDS)
    attributes = {"semel.api": "PRODUCE"}
    count = 20_000
    for name, call in (
        ("Buckets.record", lambda: buckets.record(0.003)),
        ("OpenTelemetry's Histogram.record", lambda: histogram.record(0.003, attributes)),
        ("OpenTelemetry's Counter.add", lambda: counter.add(1, attributes)),
    ):
        each_us = min(timeit.repeat(call, number=count, repeat=5)) / count * 1e6
        print(f"- {name}: {each_us:.2f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.25)
    given = parser.parse_args()
    print(f"Load of the machine: {os.getloadavg()[0]:.1f}\n")
    for together in (1, 20):
        asyncio.run(connections(given.rounds * 25, together))
    print()
    compare(given.rounds, given.seconds)
    scrape()
    print()
    clients(max(given.rounds // 4, 1))
    print()
    measurement()


if __name__ == "__main__":
    main()
