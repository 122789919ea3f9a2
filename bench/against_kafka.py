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
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import apache_kafka
import dataplane
import harness
from harness import ROOT, Figure, Peer, machine, number, write_json
from workloads.latency import paced_raw

sys.path.insert(0, str(ROOT / "tests" / "support" / "clients"))

import kafka_jars
from workloads.kafka_bulk import consume, java, produce, send_confluent
from workloads.kafka_peers import (
    DISK,
    FULL,
    KAFKA,
    OS,
    QUICK,
    SEMEL,
    Peers,
    Row,
    Scale,
    as_json,
    delete_topic,
    new_topic,
    warm,
)
from workloads.kafka_requests import commit_again_and_again, end_of, latency, tiny, transactions
from workloads.kafka_start import start


def warm_up(peer: Peer, scale: Scale) -> None:
    """Do some of everything until it gets no cheaper."""
    new_topic(peer, "bulk", 3)
    new_topic(peer, "transactions", 10)
    new_topic(peer, "paced")
    frame = dataplane.produce_frame("bulk", 0, dataplane.batch_of(100), -1)

    def some_of_everything() -> float:
        requests = dataplane.pipelined(peer, frame, scale.seconds, 100)
        requests += dataplane.unpipelined(peer, [frame] * 32, scale.seconds)
        send_confluent(peer, size=100, records=scale.megabytes * 2_000, settings={})
        paced_raw(peer, "paced", scale.seconds, end_of(peer, "paced"))
        commit_again_and_again(peer, records=10, partitions=10, seconds=scale.seconds)
        dataplane.fetches(peer, "bulk", 0, 1_000_000, scale.seconds / 2, 4)
        return requests

    warm(peer, some_of_everything)
    for topic in ("bulk", "transactions", "paced"):
        delete_topic(peer, topic)


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
        Figure(
            "against_kafka",
            f"{row.workload}, {row.durability}, {peer}",
            row.median(peer),
            row.unit,
            list(values),
            cost=(row.costs or {}).get(peer, ""),
            bound=row.bound,
        )
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
    more = {"rows": [as_json(row) for row in rows], "versions": {"Apache Kafka": version}}
    path = write_json("against_kafka", figures_of(rows), more)
    print(f"load at the end {os.getloadavg()[0]:.1f}; written to {path}")


if __name__ == "__main__":
    main()
