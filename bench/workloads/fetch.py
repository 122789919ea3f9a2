"""Bulk fetch: raw sockets, and the SDK's consumer."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    running_node,
)

import semel
from semel.protocol.ids import TopicPartition
from workloads.common import BATCH_BYTES, SIZES, Scale, batch_of_records, fill, new_topic


def fetch(scale: Scale) -> list[Figure]:
    """Ranges of 1 MB by raw sockets, one and four connections; the SDK's consumer from the beginning of the log."""
    figures = []
    with running_node({"durability": "os"}) as node:
        for size in SIZES:
            topic = f"fetch-{size}"
            new_topic(node, topic, 1)
            fill(node, topic, batch_of_records(size, BATCH_BYTES), scale.records * 100)
            variants = _fetch_variants(node, topic, size, scale)
            for name, samples in in_turns(variants, scale.rounds).items():
                records, _ = rate(samples)
                raw = name.startswith("raw")
                figures.append(
                    rate_figure(
                        "fetch",
                        f"fetch {size} B records, {name}",
                        samples,
                        "M records/s",
                        per=1e6,
                        goal="3,750 MB/s (Kafka's 2,500 x 1.5)" if name.startswith("raw, 4") else "",
                        cost=f"{records * size / 1e6:,.0f} MB/s, {cpu_us_each(samples) * 1e3 / size:.2f} ms a MB",
                        bound="the loopback's copy out of the page cache"
                        if raw
                        else "the client: a Python object for each record",
                    )
                )
    return figures


def _fetch_variants(node: NodeProcess, topic: str, size: int, scale: Scale) -> dict[str, Callable[[], Sample]]:
    def raw(connections: int) -> float:
        return dataplane.fetches(node, topic, 0, 1_000_000, scale.seconds, connections) / size

    return {
        "raw, 1 connection": partial(measured, node, partial(raw, 1)),
        "raw, 4 connections": partial(measured, node, partial(raw, 4)),
        "SDK": partial(read_many, node, topic),
    }


def read_many(node: NodeProcess, topic: str) -> Sample:
    """Read a partition from its beginning to its end, from the first record returned on."""
    tp = TopicPartition(topic, 0)
    with semel.Consumer(node.grpc, offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        consumer.poll(10, 1)
        count, cpu_s, begin = 1, node.cpu_s(), time.perf_counter()
        while count < end:
            found = consumer.poll(10, 10_000)
            assert found is not None
            count += len(found)
        return Sample(count, time.perf_counter() - begin, node.cpu_s() - cpu_s)
