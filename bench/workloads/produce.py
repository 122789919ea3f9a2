"""Bulk produce: batches of 256 KiB from raw sockets, and the SDK's producer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import dataplane
from harness import (
    Figure,
    NodeProcess,
    Sample,
    cpu_us_each,
    in_turns,
    measured,
    rate,
    rate_figure,
)

import semel
from workloads.common import BATCH_BYTES, SIZES, TOPIC, Nodes, Scale, batch_of_records


def produce(scale: Scale) -> list[Figure]:
    """Bulk: batches of 256 KiB from raw sockets, and the SDK's producer."""
    figures = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        for size in SIZES:
            variants = _produce_variants(nodes, size, scale)
            for name, samples in in_turns(variants, scale.rounds).items():
                records, _ = rate(samples)
                raw = name.startswith("raw")
                figures.append(
                    rate_figure(
                        "produce",
                        f"produce {size} B records, {name}",
                        samples,
                        "M records/s",
                        per=1e6,
                        goal="0.9 ms a MB (Kafka's 1.5 x 0.6)" if raw else "",
                        cost=f"{records * size / 1e6:,.0f} MB/s, {cpu_us_each(samples) * 1e3 / size:.2f} ms a MB",
                        bound="copying into the page cache, twice with the journal"
                        if raw
                        else "the client: see clients.py",
                    )
                )
    return figures


def _produce_variants(nodes: Nodes, size: int, scale: Scale) -> dict[str, Callable[[], Sample]]:
    frame = dataplane.produce_frame(TOPIC, 1, batch_of_records(size, BATCH_BYTES), -1)

    def raw(node: NodeProcess) -> float:
        return dataplane.pipelined(node, frame, scale.seconds, 5) * (BATCH_BYTES // size)

    def sdk(node: NodeProcess) -> float:
        return send_many(node.grpc, size, scale.records * 100 // size)

    return {
        f"{name}, {durability}": partial(measured, node, partial(run, node))
        for durability, node in nodes
        for name, run in (("raw", raw), ("SDK", sdk))
    }


def send_many(grpc: str, size: int, records: int) -> float:
    value = b"v" * size
    with semel.Producer(grpc, linger_ms=5, batch_size_bytes=BATCH_BYTES) as producer:
        send = producer.send
        for _ in range(records):
            send(TOPIC, value)
        producer.flush()
    return records
