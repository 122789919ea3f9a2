"""Transactions, and a pipeline that consumes and produces in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from harness import (
    Figure,
    NodeProcess,
    Sample,
    Stopwatch,
    cpu_us_each,
    in_turns,
    measured,
    rate_figure,
)

import semel
from semel.protocol.ids import TopicPartition
from workloads.common import TOPIC, TRANSACTIONS, Nodes, Scale, batch_of_records, fill, new_topic
from workloads.latency import end_offset


def transactions(scale: Scale) -> list[Figure]:
    """Commits a second by what is in a transaction, by one producer after the other and by 8 at once."""
    figures = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        variants: dict[str, Callable[[], Sample]] = {}
        for durability, node in nodes:
            for producers in (1, 8):
                clients = [
                    stack.enter_context(semel.Producer(node.grpc, transactional_id=f"bench-{producers}-{n}"))
                    for n in range(producers)
                ]
                for what, shape in TRANSACTIONS.items():
                    name = f"{what}, {producers} producer{'s' * (producers > 1)}, {durability}"
                    variants[name] = lambda node=node, clients=clients, shape=shape: measured(
                        node, lambda: commit_for(clients, scale.seconds, *shape)
                    )
        for name, samples in in_turns(variants, scale.rounds).items():
            waits = "1 producer," in name and "disk" in name
            figures.append(
                rate_figure(
                    "transactions",
                    f"transactions of {name}",
                    samples,
                    "commits/s",
                    cost=f"{cpu_us_each(samples) / 1e3:.2f} ms a commit",
                    bound="five steps, each waits for a sync"
                    if waits
                    else "Python: a gRPC call and five appends, and as much in the client",
                )
            )
    return figures


def commit_for(clients: list[semel.Producer], seconds: float, records: int, partitions: int, offsets: bool) -> int:
    """Let each producer commit one transaction after the other. Returns how many were committed."""
    end = time.perf_counter() + seconds
    counts = [0] * len(clients)
    value = b"v" * 100

    def run(number: int, producer: semel.Producer) -> None:
        group = semel.GroupMetadata(f"bench-{number}")
        position = {TopicPartition(TOPIC, number): 1}
        while time.perf_counter() < end:
            with producer.transaction() as txn:
                for n in range(records):
                    txn.send(TOPIC, value, partition=(number + n) % partitions)
                if offsets:
                    txn.send_offsets(position, group)
            counts[number] += 1

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def pipeline(scale: Scale) -> list[Figure]:
    """Consume, transform, produce: batches of up to 1,000 records, each in a transaction with its offsets."""
    figures = []
    records = scale.records // 5
    with ExitStack() as stack:
        nodes = Nodes(stack)
        for _, node in nodes:
            prepare_pipeline(node, records)
        variants = {durability: (lambda node=node: transform(node)) for durability, node in nodes}
        for name, samples in in_turns(variants, scale.rounds).items():
            figures.append(
                rate_figure(
                    "pipeline",
                    f"consume, transform, produce, one instance, {name}",
                    samples,
                    "k records/s",
                    per=1e3,
                    cost=f"{cpu_us_each(samples):.1f} us a record",
                    bound="the client's Python for each record, then the commit's steps one after the other",
                )
            )
    return figures


def prepare_pipeline(node: NodeProcess, records: int) -> None:
    """Make the topics of a pipeline, with so many records of 100 B or a few more to read."""
    new_topic(node, "input", 1)
    new_topic(node, "output", 1)
    fill(node, "input", batch_of_records(100, 64 << 10), records * 100)


def transform(node: NodeProcess) -> Sample:
    """Copy all records in transactions, as a group of its own. The time to join the group is left out."""
    name = f"pipeline-{time.monotonic_ns()}"
    total = end_offset(node, "input")
    done = 0
    with (
        semel.Producer(node.grpc, transactional_id=name) as producer,
        semel.Consumer(node.grpc, group=name, topics=["input"], max_partition_bytes=256 << 10) as consumer,
    ):
        watch = Stopwatch(node)
        for found in consumer.batches(1_000, timeout_s=10):
            if done == 0:
                watch = Stopwatch(node)
            with producer.transaction(commits=found) as txn:
                for record in found:
                    txn.send("output", record.value, key=record.key)
            done += len(found)
            if done >= total:
                break
        return watch.stop(done)
